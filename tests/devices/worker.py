"""One of two processes of a run: `python -m tests.devices.worker PORT NUMBER FILE`."""

from __future__ import annotations

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np

from tests.devices.model import mesh_of, run


def main(port: str, number: str, file: str) -> None:
    """Joins the other process, runs the model, and the first of them saves what it gives."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number), initialization_timeout=20)
    assert (jax.process_count(), jax.local_device_count(), jax.device_count()) == (2, 2, 4)
    found = run(mesh_of(jax.devices()))
    if number == "0":
        np.savez(file, **found)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
