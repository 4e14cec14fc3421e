"""Lifted mappings and loops on meshes of Explicit axes give what they give on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import linen_like as nn
from tests.devices.mesh_run import assert_close, mesh_of_sizes

X = np.sin(np.arange(8 * 8 * 4, dtype=np.float32)).reshape(8, 8, 4)
RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.gelu(nn.Dense(8, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1], name="down")(nn.Dropout(0.3, deterministic=False)(y)), None


ALL = {"variable_axes": {"params": 0}, "split_rngs": {"params": True, "dropout": True}}
MODELS = {
    "vmap": lambda: nn.vmap(Block, **ALL)(),
    "shared": lambda: nn.vmap(Block, {"params": None}, {"params": False, "dropout": True})(),
    "scan": lambda: nn.scan(nn.remat(Block), length=3, **ALL)(),
    "vmap of scan": lambda: nn.vmap(nn.scan(Block, length=3, **ALL), **ALL)(),
    "jit": lambda: nn.jit(Block)(),
}


def run(make: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        y = make().apply({"params": params}, x, rngs={"dropout": RNGS["dropout"]})[0]
        return jnp.sum(jnp.square(y)), y

    params = jax.jit(make().init)(RNGS, x)["params"]
    return params, jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.mark.parametrize("name", MODELS)
def test_a_lift_gives_what_it_gives_on_one_device(name: str) -> None:
    expected = run(MODELS[name], X)
    mesh = mesh_of_sizes({"data": 8})
    with jax.set_mesh(mesh):
        found = run(MODELS[name], jax.device_put(X, NamedSharding(mesh, P("data"))))
    assert_close(found, expected, name)
