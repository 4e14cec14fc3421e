"""One of two processes that make, save and restore a tree: `python -m tests.devices.memory_worker PORT NUMBER …`.

After the port and the number come what to do, `make` or `restore`, the folder, and how many MB the tree has. The last
line that it prints is its peak memory in bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import liftcore
from liftcore.checkpoints import OrbaxCheckpoints
from liftcore.meta import unbox, with_partitioning

ARRAYS, COLUMNS = 32, 1000


def model(megabytes: int) -> Any:
    """A function of a scope with as many parameters, which are float32, as make so many MB."""
    rows = megabytes * 10**6 // (4 * COLUMNS * ARRAYS) // 8 * 8
    init = with_partitioning(jax.nn.initializers.normal(), ("data", "model"))

    def variables(scope: Any) -> None:
        for number in range(ARRAYS):
            scope.param(f"w{number}", init, (rows, COLUMNS))

    return lambda key: liftcore.init(variables)(key)[1]


def main(port: str, number: str, what: str, folder: str, megabytes: str) -> None:
    """Joins the other process, and makes and saves the tree, or restores it onto another mesh."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number), initialization_timeout=60)
    shape = (4, 2) if what == "make" else (2, 4)
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    key, make = jax.random.key(0), liftcore.init_sharded(model(int(megabytes)), mesh)
    with OrbaxCheckpoints(folder) as checkpoints:
        if what == "make":
            made = jax.block_until_ready(make(key))
            peak = _peak()
            checkpoints.save(0, made)
        else:
            made = checkpoints.restore(make.eval_shape(key))
            peak = _peak()
    first = unbox(made["params"]["w0"]) if what == "make" else made["params"]["w0"].value
    assert all(shard.data.nbytes == first.nbytes // 8 for shard in first.addressable_shards)
    assert abs(float(jnp.std(first)) - 0.01) < 1e-3
    jax.distributed.shutdown()
    print(np.int64(peak))


def _peak() -> int:
    """Of this program alone: what `getrusage` gives begins with the peak of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
