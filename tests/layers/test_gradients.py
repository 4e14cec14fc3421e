"""The gradients of every layer, against differences of its values in `float64`.

The derivative along one direction without a pattern is that of all parameters and floating arguments at once. Rows that
compute in a given dtype, or in 8 bits, are left out, since that would be the precision of the differences: their
gradients are compared by the tests of parity.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.layers.bits import quick
from tests.layers.keys import quick_sequences
from tests.layers.layered import Layered, trained_of
from tests.layers.row import Row, differentiable
from tests.layers.structure import BRIEF, SECONDARY

STEP = 1e-5

NO_DERIVATIVE = {"weight norm, all", "weight norm, empty filter"}
"""A bias of zeros is divided by its length."""


def converged(row: Row) -> Row:
    """A spectral norm takes its singular vectors for constants: its gradient is exact where they have converged."""
    config = row.config
    if row.layer != "SpectralNorm" or not callable(config):
        return row
    return row._replace(config=lambda nn: {**config(nn), "n_steps": 20, "epsilon": 1e-12})


IN_FLOAT32 = {"attention, as a whole"}
"""JAX computes the softmax in `float32`, whatever it is given."""

WIDE = {
    name: converged(row)
    for name, row in BRIEF.items()
    if "fp8" not in name and name not in NO_DERIVATIVE | IN_FLOAT32
    if callable(row.config) or not SECONDARY & set(row.config) - {"precision"}
}


def wide(tree: Any) -> Any:
    """All floating-point numbers as `float64`."""

    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def along(tree: Any) -> Any:
    """A direction without a pattern."""
    return jax.tree.map(lambda leaf: jnp.cos(3.0 * jnp.arange(leaf.size) + leaf.ndim).reshape(leaf.shape), tree)


def derivatives(row: Row) -> tuple[Any, Any, Any]:
    """The derivative along the direction as a difference and by the gradient, and the result.

    The variables are arguments of the program: where XLA computes them from a key, it rounds them differently in each
    of the places that use them.
    """
    layer, rngs, args = Layered(row), quick_sequences(), wide(row.args)
    variables = wide(quick(layer.init)(rngs, *args)[1])
    return quick(functools.partial(derivatives_at, layer, rngs, args))(variables)


def derivatives_at(layer: Layered, rngs: Any, args: Any, variables: Any) -> tuple[Any, Any, Any]:
    numbers = differentiable(args)
    at = (trained_of(variables), *(args[number] for number in numbers))
    directions = along(at)

    def value(trained: Any, *chosen: Any) -> tuple[Any, Any]:
        given = dict(zip(numbers, chosen, strict=True))
        return layer.loss(variables, rngs, trained, *(given.get(i, arg) for i, arg in enumerate(args)))

    def moved(by: float) -> Any:
        return value(*jax.tree.map(lambda leaf, d: leaf + by * d, at, directions))[0]

    grads, (y, _) = jax.grad(value, tuple(range(len(at))), has_aux=True)(*at)
    products = jax.tree.map(lambda grad, d: (grad * d).sum(), grads, directions)
    return (moved(STEP) - moved(-STEP)) / (2 * STEP), sum(jax.tree.leaves(products), jnp.zeros(())), y


@pytest.mark.parametrize("name", WIDE)
def test_gradient_is_the_limit_of_differences(name: str) -> None:
    with jax.enable_x64(True):
        difference, derivative, y = derivatives(WIDE[name])
        difference, derivative = float(difference), float(derivative)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(y) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert dtypes <= {jnp.dtype("float64")}
    assert abs(difference - derivative) <= 1e-7 * max(1, abs(derivative)), (difference, derivative)


def test_every_layer_is_asked() -> None:
    assert {row.layer for row in WIDE.values()} == {row.layer for row in BRIEF.values()}
