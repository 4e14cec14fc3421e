"""A new axis that a value has no place for is an error with the lifted path, the shape and the axes that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
from liftcore.errors import LiftArgumentError

X = jnp.ones((3, 4))
KEYS = {"split_rngs": True}
VARIABLES = {"params": {"bias": X}}


def bias(scope: Any, x: Any) -> Any:
    return x + scope.param("bias", jax.nn.initializers.zeros, (4,))


def step(scope: Any, carry: Any, x: Any) -> Any:
    return carry, bias(scope, x)


def init(fn: Any, *args: Any) -> Any:
    return liftcore.init(fn)(jax.random.key(0), *args)


class Bias(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return bias(self, x)


CASES: dict[str, tuple[str, Callable[[int], Any]]] = {
    "vmap, init": (
        "vmap(bias) at /, out_axes",
        lambda axis: init(liftcore.vmap(bias, out_axes=axis, variable_axes={"params": 0}, **KEYS), X),
    ),
    "vmap, apply": (
        "vmap(bias) at /, out_axes",
        lambda axis: liftcore.apply(liftcore.vmap(bias, out_axes=axis, variable_axes={"params": 0}))(VARIABLES, X),
    ),
    "vmap, variables": (
        '"params/bias" in vmap(bias) at /',
        lambda axis: init(liftcore.vmap(bias, variable_axes={"params": axis}, **KEYS), X),
    ),
    "scan, init": (
        "scan(step) at /, out_axes",
        lambda axis: init(liftcore.scan(step, out_axes=axis, variable_axes={"params": 0}, **KEYS), None, X),
    ),
    "scan, apply": (
        "scan(step) at /, out_axes",
        lambda axis: liftcore.apply(liftcore.scan(step, out_axes=axis, variable_axes={"params": 0}))(
            VARIABLES, None, X
        ),
    ),
    "scan, variables": (
        '"params/bias" in scan(step) at /',
        lambda axis: init(liftcore.scan(step, variable_axes={"params": axis}, **KEYS), None, X),
    ),
    "modules": (
        "vmap(Bias) at /, out_axes",
        lambda axis: nn.vmap(Bias, variable_axes={"params": 0}, split_rngs={"params": True}, out_axes=axis)().init(
            jax.random.key(0), X
        ),
    ),
    "objects": ("out_axes", lambda axis: nnx.vmap(lambda x: x, out_axes=axis)(X)),
    "pytrees": ("out_axes of filter_vmap", lambda axis: eqx.filter_vmap(lambda x: x, out_axes=axis)(X)),
}


@pytest.mark.parametrize("axis", [2, -3])
@pytest.mark.parametrize("case", CASES)
def test_an_axis_that_a_value_has_no_place_for_is_refused(case: str, axis: int) -> None:
    where, run = CASES[case]
    with pytest.raises(LiftArgumentError) as caught:
        run(axis)
    assert where in caught.value.where
    assert caught.value.what == f"a value of shape (4,) cannot have its new axis at position {axis}."
    assert caught.value.fix == "Give it an axis from -2 to 1, such as 0."
    run(1)
    run(-2)
