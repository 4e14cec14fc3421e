from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import LiftArgumentError
from liftcore.filters import DenyList, PathContains
from liftcore.meta import Partitioned
from liftcore.training import count, size_bytes

VARIABLES = {
    "params": {
        "dense": {"kernel": Partitioned(jnp.ones((3, 4)), ("in", "out")), "bias": jnp.ones(4, jnp.bfloat16)},
        "several": [np.ones(2, np.int8), 1.0],
    },
    "state": {"key": jax.random.key(0), "empty": {}},
}


@pytest.mark.parametrize(
    ("filter", "numbers", "size"),
    [
        (True, 20, 48 + 8 + 2 + 4 + 8),
        ("params", 19, 62),
        (PathContains("bias"), 4, 8),
        (DenyList("params"), 1, 8),
        (None, 0, 0),
    ],
)
def test_what_a_filter_takes_is_counted(filter: object, numbers: int, size: int) -> None:
    assert (count(VARIABLES, filter), size_bytes(VARIABLES, filter)) == (numbers, size)
    shapes = jax.eval_shape(lambda: VARIABLES)
    assert (count(shapes, filter), size_bytes(shapes, filter)) == (numbers, size)


@pytest.mark.parametrize("of", [count, size_bytes])
def test_a_filter_that_matches_nothing_is_an_error(of: Any) -> None:
    with pytest.raises(
        LiftArgumentError, match=rf"{of.__name__}: the filter .* matches no variable .available: params/"
    ):
        of(VARIABLES, "parms")
    assert of({}, "params") == 0


def test_a_model_is_counted_without_being_made() -> None:
    model = nn.Dense(10_000)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 100_000)))
    assert count(shapes) == 1_000_010_000
    lazy = liftcore.lazy_init(lambda scope, x: liftcore.nn.dense(scope, x, 5))(jax.random.key(0), jnp.ones((1, 3)))
    assert size_bytes(lazy) == 80
