"""Each example runs small, and leaves something to look at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "four_styles": ("--epochs", "1"),
    "mixture_of_experts": ("--epochs", "1"),
    "neural_ode": ("--steps", "3"),
}


def run(name: str, *options: object) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rest
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_small(name: str, tmp_path: Path) -> None:
    assert run(name, *SMALL[name], "--out", tmp_path)
    assert list(tmp_path.iterdir()), "it leaves something to look at"
