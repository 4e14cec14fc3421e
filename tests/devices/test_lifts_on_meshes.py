"""Lifted mappings and loops on meshes of Explicit axes give what they give on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
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
    params = jax.jit(make().init)(RNGS, x)["params"]
    return params, trained(make, params, x)


def trained(make: Any, params: Any, x: Any) -> Any:
    def loss(params: Any, x: Any) -> Any:
        y = make().apply({"params": params}, x, rngs={"dropout": RNGS["dropout"]})[0]
        return jnp.sum(jnp.square(y)), y

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params, x)


@pytest.mark.parametrize("name", MODELS)
def test_a_lift_gives_what_it_gives_on_one_device(name: str) -> None:
    expected = run(MODELS[name], X)
    mesh = mesh_of_sizes({"data": 8})
    with jax.set_mesh(mesh):
        found = run(MODELS[name], jax.device_put(X, NamedSharding(mesh, P("data"))))
    assert_close(found, expected, name)


def test_a_loop_carries_what_a_mapping_inside_creates_on_a_mesh() -> None:
    def counter(scope: liftcore.Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(4))
        n.value = n.value + x
        return n.value

    def run(x: Any) -> Any:
        count = liftcore.vmap(counter, variable_axes={"state": 0})
        loop = liftcore.scan(lambda scope, x, _: (count(scope, x), None), length=2, variable_carry="state")
        return liftcore.init(loop)(RNGS, x, None)

    mesh = mesh_of_sizes({"data": 8})
    with jax.set_mesh(mesh):
        found = run(jax.device_put(X[0], NamedSharding(mesh, P("data"))))
    assert_close(found, run(X[0]), "vmap")


@pytest.mark.rest
@pytest.mark.parametrize("spec", [P("data", "model"), P("data", None, "model"), P(("data", "model")), P(None, "data")])
@pytest.mark.parametrize("name", MODELS)
def test_a_lift_takes_inputs_that_are_sharded_along_two_axes_or_another_one(name: str, spec: Any) -> None:
    expected = run(MODELS[name], X)
    mesh = mesh_of_sizes({"data": 2, "model": 4})
    with jax.set_mesh(mesh):
        found = run(MODELS[name], jax.device_put(X, NamedSharding(mesh, spec)))
    assert_close(found, expected, name)


@pytest.mark.parametrize("name", ["vmap", "shared", "scan", "jit"])
def test_arrays_of_a_mesh_that_is_not_set_are_taken_where_all_lie_on_it(name: str) -> None:
    mesh = mesh_of_sizes({"data": 8})
    params = jax.jit(MODELS[name]().init)(RNGS, X)["params"]
    placed = jax.device_put(params, NamedSharding(mesh, P()))
    found = trained(MODELS[name], placed, jax.device_put(X, NamedSharding(mesh, P("data"))))
    assert_close(found, trained(MODELS[name], params, X), name)
