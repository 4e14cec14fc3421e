"""Two processes, joined over loopback, give what one gives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from tests.devices.model import mesh_of, run

ROOT = Path(__file__).parents[2]
SECONDS = 60
"""How long the processes may take; they need a few."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_both(file: Path) -> str | None:
    """Runs both processes.

    Returns:
        What they said, if they failed.
    """
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = [sys.executable, "-m", "tests.devices.worker", str(free_port())]
    workers = [
        subprocess.Popen(
            [*command, str(number), str(file)],
            cwd=ROOT,
            env={**env, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        said = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
    except subprocess.TimeoutExpired:
        said = [f"not done after {SECONDS} s"]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return None if all(worker.returncode == 0 for worker in workers) else "\n".join(said)


def test_two_processes_equal_one(tmp_path: Path) -> None:
    file = tmp_path / "found.npz"
    failure = run_both(file) and run_both(file)  # once more, should another process have taken the port
    assert failure is None, failure
    expected = run(mesh_of(jax.devices()[:4]))
    with np.load(file) as found:
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
