"""Calls leave nothing behind: what a body closed over, the body, and traces that failed are released."""

from __future__ import annotations

import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from tests.lift.table import TABLE

Call = Callable[[Callable[..., Any]], Any]
"""Calls a function of an array in a lift."""

X = jnp.ones((2, 3))
VARIABLES = {"params": {"w": jnp.ones(3)}}
SHARED: dict[str, Any] = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}


class Failed(Exception):
    """The body raised."""


def of_core(name: str) -> Call:
    def call(fn: Callable[..., Any]) -> Any:
        def body(scope: Any, x: Any) -> Any:
            scope.variable("state", "s", lambda: jnp.zeros(3))
            return fn(x) * scope.param("w", lambda key, shape: jnp.ones(shape), (3,))

        return liftcore.init(TABLE[name].lifted(body))(jax.random.key(0), jnp.arange(3.0))

    return call


class Linen(nn.Module):
    run: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.run(nn.Dense(3, name="layer"), x)


def of_linen(lift: Callable[..., Any]) -> Call:
    variables = {"params": {"layer": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}}}
    return lambda fn: Linen(lambda layer, x: lift(lambda m, x: fn(m(x)), layer, x)).apply(variables, X)


def of_nnx(lift: Callable[..., Any]) -> Call:
    return lambda fn: lift(lambda m, x: fn(m(x)), nnx.Linear(3, 3, rngs=nnx.Rngs(0)), X)


class Tree(eqx.Module):
    w: Any

    def __call__(self, x: Any) -> Any:
        return self.w * x


def of_equinox(lift: Callable[..., Any]) -> Call:
    return lambda fn: lift(lambda m, x: fn(m(x)), Tree(jnp.ones(3)), X)


def of_pax(lift: Callable[..., Any]) -> Call:
    return lambda fn: lift(lambda m, x: fn(m(x)), pax.Linear(3, 3, key=jax.random.key(0)), X)


STYLES: dict[str, Call] = {
    "linen scan": of_linen(
        lambda f, m, x: nn.scan(lambda m, c, _: (f(m, c), None), variable_broadcast="params", length=2)(m, x, None)
    ),
    "linen vmap": of_linen(lambda f, m, x: nn.vmap(f, **SHARED)(m, x)),
    "linen remat": of_linen(lambda f, m, x: nn.remat(f)(m, x)),
    "linen jit": of_linen(lambda f, m, x: nn.jit(f)(m, x)),
    "linen cond": of_linen(lambda f, m, x: nn.cond(True, f, f, m, x)),
    "linen switch": of_linen(lambda f, m, x: nn.switch(0, [f, f], m, x)),
    "linen while_loop": of_linen(
        lambda f, m, x: nn.while_loop(lambda m, c: c[0] < 2, lambda m, c: (c[0] + 1, f(m, c[1])), m, (0, x))
    ),
    "linen vjp": of_linen(lambda f, m, x: nn.vjp(f, m, x)[0]),
    "linen value_and_grad": of_linen(lambda f, m, x: nn.value_and_grad(lambda m, x: f(m, x).sum(), m, x)),
    "nnx jit": of_nnx(lambda f, m, x: nnx.jit(f)(m, x)),
    "nnx remat": of_nnx(lambda f, m, x: nnx.remat(f)(m, x)),
    "nnx vmap": of_nnx(lambda f, m, x: nnx.vmap(f, in_axes=(None, 0))(m, x)),
    "nnx scan": of_nnx(
        lambda f, m, x: nnx.scan(lambda c, m: f(m, c), in_axes=(nnx.Carry, None), out_axes=nnx.Carry, length=2)(x, m)
    ),
    "nnx cond": of_nnx(lambda f, m, x: nnx.cond(True, f, f, m, x)),
    "nnx switch": of_nnx(lambda f, m, x: nnx.switch(0, [f, f], m, x)),
    "nnx while_loop": of_nnx(
        lambda f, m, x: nnx.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1], f(*c[1:])), (0, m, x))
    ),
    "nnx fori_loop": of_nnx(lambda f, m, x: nnx.fori_loop(0, 2, lambda i, c: (c[0], f(*c)), (m, x))),
    "nnx batched_map": of_nnx(lambda f, m, x: nnx.batched_map(f, in_axes=(None, 0))(m, x)),
    "nnx grad": of_nnx(lambda f, m, x: nnx.grad(lambda m, x: f(m, x).sum())(m, x)),
    "nnx vjp": of_nnx(lambda f, m, x: nnx.vjp(f, m, x)[0]),
    "nnx eval_shape": of_nnx(lambda f, m, x: nnx.eval_shape(f, m, x)),
    "nnx make_jaxpr": of_nnx(lambda f, m, x: nnx.make_jaxpr(f)(m, x)),
    "nnx checkify": of_nnx(lambda f, m, x: nnx.checkify(f)(m, x)),
    "equinox filter_jit": of_equinox(lambda f, m, x: eqx.filter_jit(f)(m, x)),
    "equinox filter_jit of filter_grad": of_equinox(
        lambda f, m, x: eqx.filter_jit(eqx.filter_grad(lambda m, x: f(m, x).sum()))(m, x)
    ),
    "equinox filter_grad": of_equinox(lambda f, m, x: eqx.filter_grad(lambda m, x: f(m, x).sum())(m, x)),
    "equinox filter_vmap": of_equinox(
        lambda f, m, x: eqx.filter_vmap(lambda m, x: f(m, x[None])[0], in_axes=(None, 0))(m, x)
    ),
    "equinox filter_checkpoint": of_equinox(lambda f, m, x: eqx.filter_checkpoint(f)(m, x)),
    "equinox filter_vjp": of_equinox(lambda f, m, x: eqx.filter_vjp(f, m, x)[0]),
    "equinox filter_eval_shape": of_equinox(lambda f, m, x: eqx.filter_eval_shape(f, m, x)),
    "equinox filter_make_jaxpr": of_equinox(lambda f, m, x: eqx.filter_make_jaxpr(f)(m, x)),
    "equinox filter_closure_convert": of_equinox(lambda f, m, x: eqx.filter_closure_convert(f, m, x)),
    "pax value_and_grad": of_pax(lambda f, m, x: pax.value_and_grad(lambda m, x: f(m, x).sum())(m, x)),
    "pax lift": of_pax(lambda f, m, x: pax.lift(liftcore.jit, f)(m, x)),
}
CALLS: dict[str, Call] = {**{f"core {name}": of_core(name) for name in TABLE}, **STYLES}


def left_behind(call: Call, raises: bool, times: int) -> int:
    """Return how many arrays and functions of the calls are alive afterwards; each call has new ones."""
    alive: list[Any] = []

    def once(number: int) -> None:
        big = jnp.full((4, 3), float(number))

        def fn(y: Any) -> Any:
            result = y * big.sum()
            if raises:
                raise Failed
            return result

        alive.extend((weakref.ref(big), weakref.ref(fn)))
        call(fn)

    for number in range(times):
        if raises:
            with pytest.raises(Failed):
                once(number)
        else:
            once(number)
    gc.collect()
    return sum(one() is not None for one in alive)


@pytest.mark.parametrize("name", CALLS)
def test_a_body_that_raises_leaves_nothing_behind(name: str) -> None:
    assert left_behind(CALLS[name], raises=True, times=3) == 0


@pytest.mark.parametrize("name", STYLES)
def test_a_new_closure_in_each_call_leaves_nothing_behind(name: str) -> None:
    assert left_behind(CALLS[name], raises=False, times=2) == 0


@pytest.mark.parametrize("lift", [liftcore.jit, eqx.filter_jit], ids=["jit", "filter_jit"])
def test_a_new_function_without_a_closure_leaves_nothing_behind(lift: Callable[..., Any]) -> None:
    alive: list[Any] = []
    for _ in range(3):

        def fn(scope: Any, x: Any) -> Any:
            return 2 * x

        alive.append(weakref.ref(fn))
        assert lift(fn)((), X).shape == X.shape
        assert pickle.dumps(fn.__dict__)  # what is kept with it does not pickle
        del fn
    gc.collect()
    assert [one() for one in alive] == [None] * 3


@pytest.mark.parametrize("lift", [liftcore.jit, eqx.filter_jit], ids=["jit", "filter_jit"])
def test_that_a_function_is_made_anew_is_the_explanation_of_a_retrace(lift: Callable[..., Any]) -> None:
    with liftcore.retraces() as found:
        for _ in range(2):

            def fn(scope: Any, x: Any) -> Any:
                return 2 * x

            lift(fn)((), X)
    assert "a function that is made anew" in str(found)
    assert "weakref" not in str(found)


def test_a_function_that_is_lifted_again_is_not_traced_again() -> None:
    traces: list[Any] = []

    def count(scope: Any, x: Any) -> Any:
        traces.append(x)
        return x

    @functools.wraps(count)
    def wrapper(scope: Any, x: Any) -> Any:
        return count(scope, x) + 1

    for _ in range(3):
        assert eqx.filter_jit(count)((), 1.0) == 1.0
        assert eqx.filter_jit(wrapper)((), 1.0) == 2.0
    assert len(traces) == 2


@pytest.mark.parametrize("name", ["core scan", "linen cond", "nnx scan", "equinox filter_jit"])
def test_neither_does_one_inside_jit(name: str) -> None:
    def inside(fn: Callable[..., Any]) -> Any:
        def run() -> None:
            CALLS[name](fn)

        return jax.jit(run)()

    assert left_behind(inside, raises=True, times=3) == 0


def test_the_number_of_objects_does_not_grow_with_the_number_of_errors() -> None:
    def fails(fn: Callable[..., Any]) -> None:
        with pytest.raises(Failed):
            CALLS["nnx cond"](fn)

    def body(y: Any) -> Any:
        raise Failed

    for _ in range(5):
        fails(body)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        fails(body)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_a_surrounding_trace_goes_on_after_an_error_in_a_lift() -> None:
    def body(scope: Any, x: Any) -> Any:
        raise Failed

    def model(scope: Any, x: Any) -> Any:
        y = x * scope.param("w", lambda key: X)  # in the trace around the lifts
        for lift in (liftcore.jit, liftcore.remat, liftcore.grad, lambda body: liftcore.vmap(body, **SHARED)):
            with pytest.raises(Failed):
                lift(body)(scope, y)
        return (y * X).sum()

    run = jax.jit(jax.value_and_grad(liftcore.apply(liftcore.remat(model))))
    value, gradient = run({"params": {"w": X}}, X)
    assert value == 6.0
    assert jnp.array_equal(gradient["params"]["w"], X)


def test_a_rule_of_a_derivative_that_raises_leaves_the_traces_outside_alone() -> None:
    def rule(*_: Any) -> Any:
        raise Failed

    def body(scope: Any, x: Any) -> Any:
        return x * X

    def model(x: Any) -> Any:
        lifted = liftcore.custom_jvp(body)
        lifted.defjvp(rule)
        y = jnp.sin(x) * X
        with pytest.raises(Failed):
            jax.jvp(liftcore.apply(lifted), ({}, y), ({}, y))
        return (y * X).sum()

    assert jnp.allclose(jax.jit(jax.grad(model))(X), jnp.cos(X))
