"""Two processes that run one module, joined over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

__all__ = ["run_pair"]

ROOT = Path(__file__).parents[2]


def run_pair(module: str, *args: str, devices: int, seconds: float = 60) -> list[str]:
    """What two processes print, each `python -m MODULE PORT NUMBER ARGS…` with so many simulated devices.

    They are started once more if they fail, should another process have taken the port.
    """
    failure, said = _run(module, args, devices, seconds)
    if failure:
        failure, said = _run(module, args, devices, seconds)
    assert not failure, "\n".join([failure, *said])
    return said


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _run(module: str, args: tuple[str, ...], devices: int, seconds: float) -> tuple[str, list[str]]:
    """What failed, if anything did, and what they printed."""
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    port = str(_free_port())
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", module, port, str(number), *args],
            cwd=ROOT,
            env={**env, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        said = [worker.communicate(timeout=seconds)[0] for worker in workers]
    except subprocess.TimeoutExpired:
        return f"not done after {seconds} s", []
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return "" if all(worker.returncode == 0 for worker in workers) else "a process failed", said
