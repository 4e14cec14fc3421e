"""Updates and averages keep the dtypes of parameters, also where JAX promotes none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.training import ExponentialMovingAverage, TrainState, apply_updates, update_average

HALF = {"w": jnp.ones(2, jnp.bfloat16)}


@pytest.fixture(autouse=True, params=["standard", "strict"])
def promotion(request: pytest.FixtureRequest) -> Any:
    with jax.numpy_dtype_promotion(request.param):
        yield


def test_an_update_is_added_before_it_is_rounded() -> None:
    added = apply_updates({"w": jnp.bfloat16(1), "b": 2.0}, {"w": jnp.float32(2**-7 + 2**-20), "b": None})
    assert (added["w"].dtype, added["w"], added["b"]) == (jnp.bfloat16, 1 + 2**-7, 2.0)


def test_an_average_keeps_its_dtype_and_takes_values_of_any() -> None:
    assert update_average(jnp.float32(1), jnp.bfloat16(2), 0.75) == 1.25
    assert update_average(jnp.bfloat16(1), jnp.float32(2), 0.75).dtype == jnp.bfloat16


def test_a_state_of_half_precision_takes_gradients_of_float32() -> None:
    state = TrainState.create(apply_fn=None, params=HALF, tx=optax.sgd(0.5))
    state = state.apply_gradients(grads={"w": jnp.ones(2, jnp.float32)})
    assert (state.params["w"].dtype, state.params["w"].tolist()) == (jnp.bfloat16, [0.5, 0.5])


def test_an_average_of_half_precision_is_kept_in_float32() -> None:
    average = ExponentialMovingAverage.create({"params": HALF}, decay=0.5).update({"params": {"w": 3 * HALF["w"]}})
    (kept,) = jax.tree.leaves(average.averages)
    assert (kept.dtype, kept.tolist()) == (jnp.float32, [2.0, 2.0])


def test_a_sum_never_has_another_shape() -> None:
    with pytest.raises(LiftArgumentError, match=r"apply_updates, w: an update of shape \(5, 2\)"):
        apply_updates({"w": jnp.ones(2)}, {"w": jnp.ones((5, 2))})
    with pytest.raises(LiftArgumentError, match=r"update_average: a value of shape \(5, 2\)"):
        update_average(jnp.ones(2), jnp.ones((5, 2)), 0.5)
    assert apply_updates({"w": jnp.ones((3, 2))}, {"w": jnp.ones(2)})["w"].shape == (3, 2)
    assert update_average(jnp.ones((3, 2)), 2.0, 0.5).shape == (3, 2)


@pytest.mark.parametrize("decay", ["0.9", None, -0.1, 1.5, float("nan"), jnp.ones(3), [[0.5], [0.5, 0.5]]])
def test_a_decay_is_a_number_from_zero_to_one(decay: Any) -> None:
    with pytest.raises(LiftArgumentError, match="update_average, decay: expected a number from 0 to 1, given"):
        update_average(jnp.ones(2), jnp.ones(2), decay)
    for whole in (0, 1, jnp.float32(0.5), [0.0, 1.0]):
        assert update_average(jnp.ones(2), jnp.ones(2), jnp.asarray(whole)).tolist() == [1, 1]
