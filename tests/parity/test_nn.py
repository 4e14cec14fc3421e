"""Functional layers against `flax.linen`: the same key gives the same tree, values and gradients, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import nn
from tests.layers.bits import assert_same_bits, quick
from tests.layers.functional import functional
from tests.layers.row import ROWS, Row, array, modular

linen = pytest.importorskip("flax.linen")


def test_attend_is_that_of_linen() -> None:
    theirs = linen.Embed(5, 4)

    def both(x: Any) -> tuple[Any, Any]:
        variables = theirs.init(jax.random.key(0), jnp.array([1]))
        ours = liftcore.apply(lambda scope, x: nn.embedding(scope, 5, 4).attend(x))
        return ours(variables, x), theirs.apply(variables, x, method="attend")

    assert_same_bits(*quick(both)(ROWS))


def test_dropout_with_a_key_is_that_of_linen() -> None:
    def both(key: Any) -> tuple[Any, Any]:
        ours = liftcore.apply(nn.dropout)({}, ROWS, 0.5, deterministic=False, key=key)
        return ours, linen.Dropout(0.5).apply({}, ROWS, deterministic=False, rng=key)

    assert_same_bits(*quick(both)(jax.random.key(3)))


@pytest.mark.parametrize(("layer", "call"), [("BatchNorm", {"use_running_average": False}), ("LayerNorm", {})])
def test_norm_over_a_mapped_axis_is_that_of_linen(layer: str, call: dict[str, Any]) -> None:
    row = Row(layer, {"axis_name": "elements"}, array(3, 2, 4), call)
    theirs = modular(getattr(linen, layer)(**row.config), row)
    ours = functional(row)

    def both(x: Any) -> tuple[Any, Any]:
        made = getattr(linen, layer)().init(jax.random.key(0), x[0], **call)
        over = {"in_axes": (None, None, 0), "axis_name": "elements"}
        return tuple(jax.vmap(side.apply, **over)(made, {}, x) for side in (ours, theirs))

    assert_same_bits(*quick(both)(row.inputs))


DTYPES = [jnp.int8, jnp.int64, jnp.uint32, jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64, jnp.complex64]


@pytest.mark.parametrize("kind", ["max_pool", "min_pool", "avg_pool"])
@pytest.mark.parametrize(
    ("shape", "args"),
    [
        ((2, 5, 6, 3), ((2, 3),)),
        ((2, 5, 6, 3), ((2, 2), (2, 1), "SAME")),
        ((5, 3), ((2,), (2,), [(1, 0)])),
        ((2, 2, 5, 3), ((2,), None, "SAME")),
    ],
)
def test_pooling_is_that_of_linen(kind: str, shape: tuple[int, ...], args: tuple[Any, ...]) -> None:
    options = [{}, {"count_include_pad": False}] if kind == "avg_pool" else [{}]
    sides = getattr(nn, kind), getattr(linen.pooling, kind)
    both = quick(lambda x: tuple([side(x, *args, **option) for option in options] for side in sides))
    assert_same_bits(*both(array(*shape)))


def test_dtype_functions_are_those_of_linen() -> None:
    with jax.enable_x64(True):
        for given in [*DTYPES[:-1], jnp.bool_]:
            args = (jnp.ones(2, given), None, 1.5 if jnp.issubdtype(given, jnp.inexact) else 2)
            for inexact in (True, False):
                for dtype in (None, jnp.bfloat16):
                    ours = nn.promote_dtype(*args, dtype=dtype, inexact=inexact)
                    assert_same_bits(ours, linen.dtypes.promote_dtype(*args, dtype=dtype, inexact=inexact))
