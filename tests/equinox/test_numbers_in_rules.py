"""Rules of differentiation that are given Python numbers, or return them: what they say is never taken for static."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
from equinox_like.errors import RuleStructureError


def with_jvp(fn: Callable[..., Any], rule: Callable[..., Any]) -> Any:
    ruled = eqx.filter_custom_jvp(fn)
    ruled.def_jvp(rule)
    return ruled


def with_vjp(fn: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    ruled = eqx.filter_custom_vjp(fn)
    ruled.def_fwd(forward)
    ruled.def_bwd(backward)
    return ruled


FUNCTIONS = {
    "jvp": with_jvp(lambda x: 2 * x, lambda primals, tangents: (2 * primals[0], 3 * tangents[0])),
    "jvp, the function returns a number": with_jvp(lambda x: 4.0, lambda primals, tangents: (4.0, 3 * tangents[0])),
    "jvp, the rule returns a number": with_jvp(lambda x: 2 * x, lambda primals, tangents: (4.0, 3 * tangents[0])),
    "vjp": with_vjp(lambda x: 2 * x, lambda p, x: (2 * x, None), lambda r, ct, p, x: 3 * ct),
    "vjp, residuals": with_vjp(lambda x: 2 * x, lambda p, x: (2 * x, (x, 1.5)), lambda r, ct, p, x: r[0] * r[1] * ct),
    "vjp, the cotangent is a number": with_vjp(lambda x: 2 * x, lambda p, x: (2 * x, x), lambda r, ct, p, x: 3.0),
    "vjp, the cotangent is an integer": with_vjp(lambda x: 2 * x, lambda p, x: (2 * x, x), lambda r, ct, p, x: 3),
}
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "grad of a number": lambda fn: jax.grad(fn)(2.0),
    "grad of an array": lambda fn: jax.grad(fn)(jnp.float32(2)),
    "filter_grad": lambda fn: eqx.filter_grad(fn)(jnp.float32(2)),
    "jit": lambda fn: jax.jit(jax.grad(fn))(2.0),
    "vmap": lambda fn: jax.vmap(jax.grad(fn))(jnp.float32([2]))[0],
    "vjp": lambda fn: jax.vjp(fn, 2.0)[1](1.0)[0],
}


@pytest.mark.parametrize("how", GRADIENTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_rule(name: str, how: str) -> None:
    assert float(GRADIENTS[how](FUNCTIONS[name])) == 3


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.startswith("jvp")])
def test_tangents_are_those_of_the_rule(name: str) -> None:
    for jvp in (jax.jvp, eqx.filter_jvp):
        for number in (float, jnp.float32):
            y, along = jvp(FUNCTIONS[name], (number(2),), (number(1),))
            assert (float(y), float(along)) == (4, 3)


def test_a_cotangent_takes_the_dtype_of_what_it_is_for() -> None:
    gradient = jax.grad(FUNCTIONS["vjp, the cotangent is a number"])(jnp.bfloat16(2))
    assert (gradient.dtype, float(gradient)) == (jnp.bfloat16, 3)


@pytest.mark.parametrize("returned", ["text", (1.0, 2.0)], ids=repr)
def test_a_rule_that_returns_no_array_is_an_error(returned: Any) -> None:
    ruled = with_jvp(lambda x: 2 * x, lambda primals, tangents: (2 * primals[0], returned))
    with pytest.raises(RuleStructureError, match=r"its rule returned .*, expected an array like a float32\[\] array"):
        jax.grad(ruled)(jnp.float32(1))
    ruled = with_vjp(lambda x: 2 * x, lambda p, x: (2 * x, None), lambda r, ct, p, x: returned)
    with pytest.raises(RuleStructureError, match=r"its rule returned .*, expected an array like a float32\[\] array"):
        jax.grad(ruled)(jnp.float32(1))


def test_none_stands_for_a_tangent_that_is_zero() -> None:
    ruled = with_jvp(lambda x: (2 * x, 3 * x), lambda primals, tangents: ((4.0, 6.0), (None, tangents[0])))
    assert eqx.filter_jvp(ruled, (jnp.float32(2),), (jnp.float32(1),))[1] == (None, 1)
    assert float(jax.grad(lambda x: sum(ruled(x)))(2.0)) == 1
