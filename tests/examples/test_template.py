"""The two training scripts to copy, and the page that explains them."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_like as nnx
from liftcore.checkpoints import Checkpoints
from liftcore.training import EarlyStopping

ROOT = Path(__file__).parents[2]
STYLES = ("template", "template_objects")
STEPS, INTERVAL = 6, 2

Run = Callable[..., None]


@pytest.fixture(params=STYLES)
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script that saves every other step."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    module = importlib.import_module(request.param)
    monkeypatch.setattr(module, "INTERVAL", INTERVAL)
    return module


@pytest.fixture
def run(script: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the script here."""

    def call(out: Path, *options: str, steps: int = STEPS) -> None:
        monkeypatch.setattr(sys, "argv", [script.__name__, "--steps", str(steps), "--out", str(out), *options])
        script.main()

    return call


def checkpoint(out: Path, step: int) -> Path:
    return out / f"step-{step:09d}.msgpack"


def interrupt(script: Any, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Presses Ctrl-C in place of a step."""
    step, calls = script.train_step, []

    def step_or_not(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(script, "train_step", step_or_not)


def test_a_run_that_is_broken_off_and_resumed_equals_an_unbroken_one(
    script: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    with monkeypatch.context() as patched:
        interrupt(script, patched, at=INTERVAL + 2)  # the step after the checkpoint is lost
        with pytest.raises(KeyboardInterrupt):
            run(broken)
    assert Checkpoints(broken).latest() == INTERVAL
    with pytest.raises(SystemExit, match="contains a run: pass --resume to continue it"):
        run(broken)
    run(broken, "--resume")
    assert checkpoint(broken, STEPS).read_bytes() == checkpoint(whole, STEPS).read_bytes()
    shown = capsys.readouterr()
    assert "Total" in shown.out
    assert len(set(re.findall(r"test accuracy: .*", shown.out))) == 1
    assert "compile and train" in shown.err
    (events,) = whole.glob("events.out.tfevents.*")
    assert all(name.encode() in events.read_bytes() for name in ("accuracy", "loss", "train_accuracy", "train_loss"))
    exported_is_the_model(script, whole)


def exported_is_the_model(script: Any, out: Path) -> None:
    program = jax.export.deserialize((out / "network.jax").read_bytes())
    run, stopping = best(script, out)
    for images, labels in script.load_data(0)[2]:
        losses = optax.softmax_cross_entropy_with_integer_labels(program.call(images), labels)
        assert losses.dtype == jnp.float32
        np.testing.assert_allclose(losses, script.measure(run, images, labels)["loss"], rtol=0.02)  # bfloat16
    assert int(stopping.patience_count) == 0
    assert program.call(images[:1]).shape == (1, 10)


def best(script: Any, out: Path) -> Any:
    checkpoints, stopping = Checkpoints(out), EarlyStopping(patience=3)
    if script.__name__ == "template":
        return checkpoints.restore((script.new_state(1, STEPS), stopping), checkpoints.best_step())
    run = script.Run(1, STEPS)
    state, stopping = checkpoints.restore((nnx.state(run), stopping), checkpoints.best_step())
    nnx.update(run, state)
    return run, stopping


def test_a_run_without_improvement_stops_and_stays_stopped(
    script: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(state: Any, images: Any, labels: Any) -> Any:
        return {"accuracy": labels < 0, "loss": jnp.ones(len(labels))}

    monkeypatch.setattr(script, "measure", measure)
    run(tmp_path, steps=20)
    assert Checkpoints(tmp_path).steps() == [10]  # the fifth measurement
    before = checkpoint(tmp_path, 10).read_bytes()
    run(tmp_path, "--resume", steps=20)
    assert checkpoint(tmp_path, 10).read_bytes() == before
    assert len(re.findall(r"test accuracy: 0.00%, after 10 steps", capsys.readouterr().out)) == 2


def test_the_data_of_a_step_depend_on_the_seed_and_the_step_only(script: Any) -> None:
    batches, valid, test = script.load_data(seed=3)
    again, other = script.load_data(seed=3)[0], script.load_data(seed=4)[0]
    assert all(np.array_equal(one, two) for one, two in zip(batches[40], again[40], strict=True))
    assert not np.array_equal(batches[40][1], other[40][1])
    epochs = [np.concatenate([batches[step][1] for step in range(first, first + 75)]) for first in (0, 75)]
    assert not np.array_equal(*epochs), "each epoch has its own order"
    assert np.array_equal(*map(np.bincount, epochs)), "75 batches are 4 epochs"
    assert [sum(len(labels) for _, labels in part) for part in (valid, test)] == [300, 297]


@pytest.mark.parametrize("name", STYLES)
def test_without_a_package_a_script_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(SystemExit, match=r"grain.*: pip install flatbuffers grain optax"):
        importlib.import_module(name)


@pytest.mark.rest
@pytest.mark.parametrize("name", STYLES)
def test_a_whole_run_learns_the_digits(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", ROOT / "examples" / f"{name}.py", "--out", tmp_path]
    environment = {**os.environ, "XLA_FLAGS": ""}  # one device, and programs that run fast
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"test accuracy: ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 97.5


@pytest.mark.parametrize("name", STYLES)
def test_a_script_stays_short(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 96, "so wide is the column of the page"


# -- the page ----------------------------------------------------------------------------------------------------------


def code(name: str) -> str:
    """The lines of a script, without its docstring and the last two lines."""
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    return text.partition('"""\n')[2].partition("\nif __name__")[0]


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_page_shows_the_whole_script_and_what_differs_with_objects() -> None:
    page = (ROOT / "docs" / "template.md").read_text(encoding="utf-8")
    first, _, second = page.partition("## With objects")
    assert lines("".join(block for block in blocks(first) if block in code("template"))) == lines(code("template"))
    script, shown = lines(code("template_objects")), {*lines(code("template"))}
    for block in blocks(second):
        found = [line in script for line in lines(block)]
        assert all(found) or not any(found), block
        shown.update(lines(block))
    assert [line for line in script if line not in shown and '"--out"' not in line] == []
