"""A model over the shards of a mesh, run alike by one process and by several."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore import Scope
from liftcore.lift.shard_map import shard_map

SPECS = {"params": P("model"), "stats": P()}


def mesh_of(devices: Any) -> Mesh:
    """Two shards of the batch, and the rest of the model."""
    return Mesh(np.array(devices).reshape(2, -1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def layer(scope: Scope, x: Any) -> Any:
    """A dense layer with its inputs in parts, and running means of the whole batch."""
    w = scope.param("w", jax.random.normal, (x.shape[-1], 3))
    mean = scope.variable("stats", "mean", lambda: jnp.zeros(3))
    y = jax.lax.psum(x @ w, "model")
    if scope.is_mutable_collection("stats"):
        mean.value = 0.5 * mean.value + 0.5 * jax.lax.pmean(y.mean(0), "data")
    noise = jax.random.normal(scope.make_rng("dropout"), y.shape)
    return jnp.tanh(y - mean.value) + 0.1 * noise


def run(mesh: Mesh) -> dict[str, np.ndarray]:
    """What `init` and a gradient of `apply` give, as arrays of this process."""
    lifted = shard_map(
        layer,
        mesh=mesh,
        in_specs=P("data", "model"),
        out_specs=P("data"),
        variable_specs=SPECS,
        split_rngs={"params": "model", "dropout": "data"},
    )
    whole = NamedSharding(mesh, P())
    values = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data", "model")), values.__getitem__)

    def step(x: Any) -> Any:
        y, variables = liftcore.init(lifted)({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)

        def loss(params: Any) -> Any:
            apply = liftcore.apply(lifted, mutable=["stats"])
            y, mutated = apply({**variables, "params": params}, x, rngs={"dropout": jax.random.key(2)})
            return (y**2).sum(), mutated

        (value, mutated), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        return {
            "y": y,
            "w": variables["params"]["w"],
            "loss": value,
            "mean": mutated["stats"]["mean"],
            "grad": grads["w"],
        }

    found = jax.jit(step, out_shardings=whole)(x)
    return {name: np.asarray(value.addressable_data(0)) for name, value in found.items()}
