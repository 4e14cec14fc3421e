"""Both operands of a product are sharded alike along their batch dimensions, on a mesh of Explicit axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from liftcore.nn.linear import affine, affine_einsum
from liftcore.nn.sharding import agree, sharding_entries
from tests.devices.mesh_run import mesh_of_sizes

LABELS = "bij", "bjk", "bik"
LEFT, RIGHT = (np.sin(np.arange(512.0, dtype=np.float32) + n).reshape(8, 8, 8) for n in range(2))

PAIRS: list[tuple[Any, Any, Any, Any]] = [
    (P("data"), P(), ("data", None, None), ("data", None, None)),
    (P(), P("data"), ("data", None, None), ("data", None, None)),
    (P("data"), P("model"), ("data", None, None), ("data", None, None)),
    (P("data"), P(None, None, "data"), ("data", None, None), ("data", None, None)),
    (P(None, "data"), P("data"), (None, "data", None), (None, None, None)),
    (P(None, None, "data"), P(None, "model"), (None, None, "data"), (None, "data", None)),
    (P(None, None, "data"), P(), (None, None, "data"), (None, None, None)),
    (P("data", "model"), P("data", None, "model"), ("data", "model", None), ("data", None, "model")),
]
"""Specs of two operands, and how they are sharded in their product."""


def on_mesh(mesh: Any, left: Any, right: Any) -> list[Any]:
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((LEFT, left), (RIGHT, right))]


@pytest.mark.parametrize(("left", "right", "left_now", "right_now"), PAIRS)
def test_operands_are_sharded_alike(left: Any, right: Any, left_now: Any, right_now: Any) -> None:
    mesh = mesh_of_sizes({"data": 2, "model": 4})
    with jax.set_mesh(mesh):
        found = agree(*on_mesh(mesh, left, right), LABELS)
    assert [*map(sharding_entries, found)] == [left_now, right_now]
    np.testing.assert_array_equal(found[0], LEFT)
    np.testing.assert_array_equal(found[1], RIGHT)


@pytest.mark.parametrize(("left", "right", "left_now", "right_now"), PAIRS)
def test_products_and_their_gradients_are_those_of_one_device(
    left: Any, right: Any, left_now: Any, right_now: Any
) -> None:
    def products(x: Any, kernel: Any) -> Any:
        both = affine(x, kernel, batch_dims=0), affine_einsum("bij,bjk->bik", x, kernel)
        return sum(jnp.square(one).sum() for one in both)

    mesh = mesh_of_sizes({"data": 2, "model": 4})
    wanted = jax.value_and_grad(products, (0, 1))(LEFT, RIGHT)
    with jax.set_mesh(mesh):
        found = jax.jit(jax.value_and_grad(products, (0, 1)))(*on_mesh(mesh, left, right))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3), found, wanted)


def test_operands_of_one_device_stay_as_they_are() -> None:
    found = agree(LEFT, RIGHT, LABELS)
    assert found[0] is LEFT
    assert found[1] is RIGHT
