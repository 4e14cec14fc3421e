"""One of two processes of a run, with two devices: `python -m tests.devices.worker PORT NUMBER FILE`."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from liftcore.checkpoints import OrbaxCheckpoints
from tests.devices.model import mesh_of, run


def check_checkpoints(folder: str) -> None:
    """Saves and restores what all processes hold a part of, and what each of them holds as a whole."""
    on = NamedSharding(mesh_of(jax.devices()), PartitionSpec("data"))
    values = np.arange(8.0, dtype=np.float32)
    tree = {
        "parts": jax.make_array_from_callback((8,), on, values.__getitem__),
        "local": jnp.arange(3.0),
        "numpy": np.arange(2),
        "key": jax.random.key(3),
        "position": 4,
    }
    with OrbaxCheckpoints(folder) as checkpoints:
        checkpoints.save(0, tree)
        restored = checkpoints.restore(tree)
    assert restored["parts"].sharding == on
    for shard in restored["parts"].addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index])
    for name in ("local", "numpy", "key", "position"):
        assert type(restored[name]) is type(tree[name])
        assert np.all(restored[name] == tree[name])


def main(port: str, number: str, file: str) -> None:
    """Joins the other process, runs the model, and the first of them saves what it gives."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number), initialization_timeout=20)
    assert (jax.process_count(), jax.local_device_count(), jax.device_count()) == (2, 2, 4)
    found = run(mesh_of(jax.devices()))
    check_checkpoints(f"{file}.steps")
    if number == "0":
        np.savez(file, **found)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
