"""Mutable arrays (`jax.new_ref`) under filtered transformations: traced like arrays, and changed by the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore

X = jnp.arange(3.0)


class Counter(eqx.Module):
    ref: Any
    step: Any = 1.0

    def __call__(self, x: Any) -> Any:
        self.ref[...] += x
        return self.ref[...] * self.step


def call(counter: Any, x: Any) -> Any:
    return counter(x)


def total(x: Any, counter: Any) -> Any:
    return counter(x).sum()


def converted(counter: Any, x: Any) -> Any:
    return eqx.filter_closure_convert(call, counter, x)(counter, x)


def lifted(lift: Callable[..., Any]) -> Callable[..., Any]:
    run = liftcore.apply(liftcore.filtered(lift, lambda scope, counter, x: counter(x)))
    return lambda counter, x: run({}, counter, x)


ALL: dict[str, Callable[[Any, Any], Any]] = {
    "jit": eqx.filter_jit(call),
    "jit of a module": lambda counter, x: eqx.filter_jit(counter)(x),
    "jit of a method": lambda counter, x: eqx.filter_jit(counter.__call__)(x),
    "jit with donation": lambda counter, x: eqx.filter_jit(call, donate="all")(counter, jnp.copy(x)),
    "compiled ahead of time": lambda counter, x: eqx.filter_jit(call).lower(counter, x).compile()(counter, x),
    "vmap": eqx.filter_vmap(call),
    "vmap in a jit": eqx.filter_jit(eqx.filter_vmap(call)),
    "checkpoint": eqx.filter_checkpoint(call),
    "converted closure": converted,
    "lifted jit": lifted(liftcore.jit),
    "lifted vmap": lifted(liftcore.vmap),
    "lifted remat": lifted(liftcore.remat),
}


@pytest.mark.parametrize("name", ALL)
def test_a_mutable_array_is_traced_and_changed(name: str) -> None:
    counter = Counter(jax.new_ref(X), 2.0)
    np.testing.assert_array_equal(ALL[name](counter, X), 4 * X)
    np.testing.assert_array_equal(counter.ref[...], 2 * X)


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda counter: eqx.filter_grad(total)(X, counter),
    "grad in a jit": lambda counter: eqx.filter_jit(eqx.filter_grad(total))(X, counter),
    "grad of the counter": lambda counter: eqx.filter_grad(lambda pair: total(*pair))((X, counter))[0],
    "vjp": lambda counter: eqx.filter_vjp(total, X, counter)[1](jnp.float32(1))[0],
    "jvp": lambda counter: eqx.filter_jvp(total, (X, counter), (jnp.ones(3), None))[1] * jnp.ones(3) / 3,
    "jacrev": lambda counter: eqx.filter_jacrev(total)(X, counter),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_is_not_with_respect_to_a_mutable_array(name: str) -> None:
    def read(self: Any, x: Any) -> Any:
        return self.ref[...] * x

    class Reader(Counter):
        __call__ = read

    np.testing.assert_allclose(DERIVATIVES[name](Reader(jax.new_ref(jnp.ones(3)))), jnp.ones(3))


def test_a_mutable_array_without_an_axis_is_read() -> None:
    run = eqx.filter_vmap(lambda counter, x: counter.ref[...] + x, in_axes=(None, 0))
    np.testing.assert_array_equal(run(Counter(jax.new_ref(X)), X)[1], X + 1)


def test_the_calls_of_a_jit_share_one_trace() -> None:
    runs = []
    run = eqx.filter_jit(lambda ref: (runs.append(ref), ref.__setitem__(..., ref[...] + 1))[1])
    first, second = jax.new_ref(X), jax.new_ref(X)
    for ref in (first, first, second):
        run(ref)
    assert len(runs) == 1
    np.testing.assert_array_equal(first[...], X + 2)


def test_shapes_and_jaxprs_do_not_change_a_mutable_array() -> None:
    counter = Counter(jax.new_ref(X))
    assert eqx.filter_eval_shape(call, counter, X).shape == (3,)
    assert len(eqx.filter_make_jaxpr(call)(counter, X)[0].jaxpr.invars) == 2
    np.testing.assert_array_equal(counter.ref[...], X)


def test_a_mutable_array_that_is_returned_is_the_error_of_jax() -> None:
    with pytest.raises(ValueError, match="mutable array references cannot be returned"):
        eqx.filter_jit(lambda ref: ref)(jax.new_ref(X))
