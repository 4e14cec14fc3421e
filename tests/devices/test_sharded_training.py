"""`examples/sharded_training.py`: on eight devices, and in two processes, the losses are those on one device."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import linen_like as nn
from tests.machine import devices

FILE = Path(__file__).parents[2] / "examples/sharded_training.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("sharded_training", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses(module: Any, on: list[Any], kind: AxisType) -> list[float]:
    mesh = Mesh(np.array(on).reshape(-1, min(2, len(on))), ("data", "model"), axis_types=(kind, kind))
    rng = np.random.default_rng(0)
    data = [np.float32(rng.random((128, 8, 8))), rng.integers(0, 10, 128, dtype=np.int32)]
    with jax.set_mesh(mesh), nn.logical_axis_rules(module.RULES):
        state = nn.init_sharded(module.create, mesh)(jax.random.key(0), data[0][:2])
        return module.train(state, mesh, data, 3)[1]


@pytest.mark.rest
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_losses_on_eight_devices_are_those_on_one(kind: AxisType, capsys: pytest.CaptureFixture[str]) -> None:
    module = example()
    one, eight = losses(module, devices(8)[:1], kind), losses(module, devices(8), kind)
    np.testing.assert_allclose(eight, one, rtol=1e-5)
    assert one[0] > one[2]
    assert "compiling …" in capsys.readouterr().err


@pytest.mark.rest
@pytest.mark.parametrize(("axes", "processes"), [("auto", 2), ("explicit", 1)])
def test_the_example_runs_and_compares(axes: str, processes: int, tmp_path: Path) -> None:
    options = ["--devices", "8", "--processes", str(processes), "--axes", axes, "--compare", "--steps", "20"]
    command = [sys.executable, "-W", "error", str(FILE), *options, "--out", str(tmp_path)]
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "blocks/Dense_0/kernel" in done.stdout
    assert "restored onto a mesh of {'data': 2, 'model': 4}" in done.stdout
    found, expected = (json.loads((tmp_path / name).read_text()) for name in ("losses.json", "single/losses.json"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
