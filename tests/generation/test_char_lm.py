"""The example `char_lm.py`: a run that is broken off and resumed, and what its model writes."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.generation import generate

EXAMPLE = Path(__file__).parents[2] / "examples/char_lm.py"
STEPS, SAVE_EVERY = 20, 4
SMALL = f"--steps {STEPS} --save-every {SAVE_EVERY} --batch-size 4 --length 8 --layers 2 --width 8 --heads 2".split()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    return importlib.import_module("char_lm")


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), *SMALL, "--new-tokens", "0", "--out", str(out), *more]


def checkpoint(out: Path, step: int) -> Path:
    return out / f"step-{step:09d}.msgpack"


def interrupted(example: Any, monkeypatch: pytest.MonkeyPatch, out: Path, at: int | None = None, *more: str) -> None:
    """Runs the example here, and presses Ctrl-C at a step."""
    batch_at = example.batch_at

    def batch_or_not(position: int, args: Any) -> Any:
        if position == at:
            raise KeyboardInterrupt
        return batch_at(position, args)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", command(out, *more)[1:])
        patched.setattr(example, "batch_at", batch_or_not)
        example.main()


def kill(out: Path) -> None:
    """Runs the example as a process of its own until it has saved twice, and kills it."""
    child = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not checkpoint(out, 2 * SAVE_EVERY).exists() and child.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.rest
@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_run_that_is_broken_off_ends_with_the_bytes_of_an_unbroken_one(
    how: str, example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    if how == "interrupted":
        interrupted(example, monkeypatch, whole)
        with pytest.raises(KeyboardInterrupt):
            interrupted(example, monkeypatch, broken, 2 * SAVE_EVERY + 1)
        with pytest.raises(SystemExit, match="contains a run up to step 8: pass --resume to continue it"):
            interrupted(example, monkeypatch, broken)
        interrupted(example, monkeypatch, broken, None, "--resume")
        shown = capsys.readouterr()
        assert "continuing from step 8" in shown.out
        assert "compiling …" in shown.err
    else:
        subprocess.run(command(whole), check=True, capture_output=True)
        kill(broken)
        assert not checkpoint(broken, STEPS).exists()
        resumed = subprocess.run(command(broken, "--resume"), check=True, capture_output=True, text=True)
        assert "continuing from step" in resumed.stdout
    assert checkpoint(broken, STEPS).read_bytes() == checkpoint(whole, STEPS).read_bytes()
    assert (broken / "losses.png").stat().st_size > 1000


@pytest.mark.rest
def test_what_it_writes_is_what_single_steps_write(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "HALF", jnp.float32)  # in which all orders of a sum give the most probable character
    model = example.GPT(2, 8, 2)
    decoder = model.clone(decode=True)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    prompts = [np.searchsorted(example.ALPHABET, list(prompt)) for prompt in example.PROMPTS]
    found = generate(decoder, variables, prompts, max_new_tokens=6)
    step = jax.jit(lambda cache, token: decoder.apply({**variables, "cache": cache}, token, mutable=["cache"]))
    for prompt, new in zip(prompts, np.asarray(found.tokens).tolist(), strict=True):
        cache = decoder.init(jax.random.key(0), jnp.zeros((1, 64), jnp.int32))["cache"]
        likeliest = []
        for token in [*prompt.tolist(), *new[:-1]]:
            logits, written = step(cache, np.array([[token]]))
            cache = written["cache"]
            likeliest.append(int(logits.argmax()))
        assert likeliest[-6:] == new
