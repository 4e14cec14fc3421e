"""`filter_shard`: arrays are placed by a prefix of shardings, inside and outside of `filter_jit`."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import equinox_like as eqx
from liftcore.errors import LiftArgumentError
from tests.machine import devices

MODEL = {"w": jnp.ones((2, 3)), "act": jnp.tanh, "steps": 5}
NAMED = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))


@pytest.mark.parametrize("given", [NAMED, {"w": NAMED, "act": None, "steps": None}, lambda leaf: NAMED])
@pytest.mark.parametrize("jitted", [False, True])
def test_arrays_are_placed_and_all_else_is_returned_unchanged(given: Any, jitted: bool) -> None:
    def place(model: Any) -> Any:
        return eqx.filter_shard(model, given)

    placed = (eqx.filter_jit(place) if jitted else place)(MODEL)
    assert placed["w"].sharding.is_equivalent_to(NAMED, 2)
    assert (placed["act"], placed["steps"]) == (jnp.tanh, 5)
    np.testing.assert_array_equal(placed["w"], MODEL["w"])


MESHES = {
    "auto": (AxisType.Auto, AxisType.Auto),
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "mixed": (AxisType.Explicit, AxisType.Auto),
}
SPECS = [PartitionSpec("a"), PartitionSpec("a", "b"), PartitionSpec(("a", "b")), PartitionSpec(None, "b")]


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("form", ["a sharding", "a sharding of the context", "a spec"])
def test_arrays_are_placed_on_every_kind_of_mesh(kind: str, form: str) -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=MESHES[kind], devices=devices(4))
    x = jnp.arange(16.0).reshape(4, 4)
    with contextlib.nullcontext() if form == "a sharding" else jax.set_mesh(mesh):
        for spec in SPECS:
            expected = NamedSharding(mesh, spec)
            given: Any = spec if form == "a spec" else expected

            def place(x: Any, given: Any = given) -> Any:
                return eqx.filter_shard({"x": x, "act": jnp.tanh}, {"x": given, "act": None})["x"]

            outside = place(x)
            inside = [eqx.filter_jit(place)(x), eqx.filter_jit(place)(outside)]
            if (kind, form, spec) == ("mixed", "a sharding", SPECS[0]):
                inside.pop(0)  # JAX drops an Explicit axis of a result if neither arguments nor context have the mesh
            for placed in (outside, *inside):
                assert placed.sharding.is_equivalent_to(expected, 2), (spec, placed.sharding)
                np.testing.assert_array_equal(placed, x)
        gradient = eqx.filter_jit(eqx.filter_grad(lambda x: (place(x) ** 2).sum()))(outside)
        np.testing.assert_array_equal(gradient, 2 * x)


def test_an_array_under_vmap_is_placed_without_the_mapped_axis() -> None:
    mesh = jax.make_mesh((2,), ("a",), devices=devices(2))
    with jax.set_mesh(mesh):
        place = eqx.filter_vmap(lambda x: eqx.filter_shard(x, PartitionSpec("a")))
        placed = eqx.filter_jit(place)(jnp.ones((4, 4)))
    assert placed.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "a")), 2)


def test_a_device_is_a_sharding_and_none_is_no_sharding() -> None:
    device = jax.devices()[0]
    assert eqx.filter_shard(MODEL, device)["w"].sharding == SingleDeviceSharding(device)
    assert eqx.filter_shard(MODEL, None)["w"] is MODEL["w"]


def test_another_structure_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match="device_or_shardings of filter_shard: expected a pytree prefix"):
        eqx.filter_shard(MODEL, {"w": NAMED})
