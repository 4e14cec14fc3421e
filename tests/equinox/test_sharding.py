"""`filter_shard`: arrays are placed by a prefix of shardings, inside and outside of `filter_jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import equinox_like as eqx
from liftcore.errors import LiftArgumentError

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


def test_a_device_is_a_sharding_and_none_is_no_sharding() -> None:
    device = jax.devices()[0]
    assert eqx.filter_shard(MODEL, device)["w"].sharding == SingleDeviceSharding(device)
    assert eqx.filter_shard(MODEL, None)["w"] is MODEL["w"]


def test_another_structure_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match="device_or_shardings of filter_shard: expected a pytree prefix"):
        eqx.filter_shard(MODEL, {"w": NAMED})
