from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import InvalidRngError, LiftArgumentError

drop = liftcore.apply(nn.dropout)
ONES = jnp.ones((50, 40))
RNGS = {"dropout": jax.random.key(0)}


def test_dropout_drops_the_rate_and_keeps_the_mean() -> None:
    y = np.asarray(drop({}, ONES, 0.25, deterministic=False, rngs=RNGS))
    np.testing.assert_allclose(np.unique(y), [0, 1 / 0.75])
    assert abs((y == 0).mean() - 0.25) < 0.03


def test_broadcast_dims_share_their_fate() -> None:
    y = np.asarray(drop({}, ONES, 0.5, broadcast_dims=(-1,), deterministic=False, rngs=RNGS))
    assert (y == y[:, :1]).all()
    assert len(np.unique(y)) == 2


def test_nothing_is_drawn_where_nothing_is_random() -> None:
    for rate, deterministic, factor in [(0.5, True, 1), (0.0, False, 1), (1.0, False, 0)]:
        np.testing.assert_array_equal(drop({}, ONES, rate, deterministic=deterministic), ONES * factor)


def test_two_draws_differ_and_a_given_key_decides() -> None:
    def twice(scope: liftcore.Scope, key: Any = None) -> Any:
        return [nn.dropout(scope, ONES, 0.5, deterministic=False, key=key) for _ in range(2)]

    first, second = liftcore.apply(twice)({}, rngs=RNGS)
    assert (first != second).any()
    first, second = liftcore.apply(twice)({}, RNGS["dropout"])
    assert (first == second).all()


def test_gradient_is_finite_where_all_is_dropped() -> None:
    grad = jax.grad(lambda x: drop({}, x, 1.0, deterministic=False).sum())(ONES)
    np.testing.assert_array_equal(grad, 0)


def test_dropout_without_a_key_names_the_sequence() -> None:
    with pytest.raises(InvalidRngError, match='no RNG stream "noise" was given'):
        drop({}, ONES, 0.5, deterministic=False, rng_collection="noise")


@pytest.mark.parametrize(
    ("x", "arguments", "message"),
    [
        (ONES, {"rate": 0.5}, "dropout at /: `deterministic` is missing"),
        (
            ONES,
            {"rate": 1.5, "deterministic": True},
            "dropout at /: expected a probability from 0 to 1 as `rate`, given 1.5",
        ),
        (ONES, {"rate": -0.1, "deterministic": False}, "as `rate`, given -0.1"),
        (ONES, {"rate": float("nan"), "deterministic": False}, "as `rate`, given nan"),
        (ONES.astype(int), {"rate": 0.5, "deterministic": False}, "floating or complex dtype, given int32"),
        (ONES, {"rate": 0.5, "deterministic": False, "broadcast_dims": (2,)}, "broadcast_dims is (2,), but the inputs"),
    ],
)
def test_what_cannot_be_is_refused(x: Any, arguments: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        drop({}, x, rngs=RNGS, **arguments)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 7)])
def test_any_shape_is_kept(shape: tuple[int, ...]) -> None:
    y = np.asarray(drop({}, jnp.ones(shape), 0.5, deterministic=False, rngs=RNGS))
    assert y.shape == shape
    assert set(y.ravel().tolist()) <= {0.0, 2.0}


def test_raw_and_typed_keys_decide_alike() -> None:
    raw, typed = (
        drop({}, ONES, 0.5, deterministic=False, key=key) for key in (jax.random.PRNGKey(3), jax.random.key(3))
    )
    np.testing.assert_array_equal(raw, typed)
