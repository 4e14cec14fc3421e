"""Loops, branches and rules outside `jit`, in all styles: after the first calls, no call compiles or keeps anything."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import nnx_like as nnx
import pax_like as pax
from tests.lift.quick import key
from tests.lift.ruled import ruled_backward, ruled_forward
from tests.lift.test_eager import COMPILED, FRESH, compilations
from tests.linen.test_eager import LOOPS, OBJECTS, Loop, layer

Fn = Callable[..., Any]

X = jnp.ones((3, 4))
CONSTANTS: dict[str, Any] = {"no constant": 2.0, "NumPy": np.arange(4, dtype=np.float32)}
READ: dict[str, Any] = {"variable_broadcast": "params", "split_rngs": False}


def dense(scope: Any, x: Any) -> Any:
    return jnp.tanh(x @ scope.param("w", lambda key: jnp.eye(4)))


def with_vmap(fn: Fn) -> Fn:
    ruled = liftcore.custom_vmap(fn)
    ruled.def_vmap(lambda size, in_batched, scope, x: (fn(scope, x), True))
    return ruled


def mapped(fn: Fn) -> Fn:
    return liftcore.map_variables(fn, "params", lambda held: jax.tree.map(lambda w: 2 * w, held), init=True)


INNER: dict[str, Fn] = {
    "custom_jvp": ruled_forward,
    "custom_vjp": ruled_backward,
    "custom_vmap": with_vmap,
    "jit": liftcore.jit,
    "remat": liftcore.remat,
    "map_variables": mapped,
}
AROUND: dict[str, Fn] = {
    "scan": lambda fn: (
        lambda scope, x: liftcore.scan(lambda scope, c, _: (fn(scope, c), None), length=2, **READ)(scope, x, None)[0]
    ),
    "while_loop": lambda fn: (
        lambda scope, x: liftcore.while_loop(
            lambda scope, c: c[0] < 2, lambda scope, c: (c[0] + 1, fn(scope, c[1])), split_rngs=False
        )(scope, (0, x))[1]
    ),
    "cond": lambda fn: lambda scope, x: liftcore.cond(fn, lambda scope, x: x)(scope, True, x),
    "remat of scan": lambda fn: lambda scope, x: liftcore.remat(AROUND["scan"](fn))(scope, x),
    "vmap of scan": lambda fn: (
        lambda scope, x: liftcore.vmap(AROUND["scan"](fn), variable_axes={"params": None}, split_rngs=False)(scope, x)
    ),
    "map_variables of scan": lambda fn: lambda scope, x: mapped(AROUND["scan"](fn))(scope, x),
}


def nested(around: str, inner: str, constant: Any, held: Any) -> Any:
    """Every function is made anew in each call, as in a model."""

    def body(scope: Any, x: Any) -> Any:
        return jax.jit(lambda y: y * constant)(dense(scope, x)) * constant

    model = AROUND[around](INNER[inner](body))
    return liftcore.init(model)(key(0), X) if held is None else liftcore.apply(model)(held, X)


def of_linen(kind: str) -> Callable[[], Any]:
    model = Loop(kind)
    variables = functools.cache(lambda: model.init(jax.random.key(0), X))
    return lambda: (model.init(jax.random.key(0), X), model.apply(variables(), X))


def of_nnx(name: str) -> Callable[[], Any]:
    dense = functools.cache(layer)
    return lambda: OBJECTS[name](dense(), X)


def nnx_rule(make: Fn) -> Callable[[], Any]:
    def call() -> Any:
        ruled = make(lambda model, x: model(x) * CONSTANTS["NumPy"])
        return nnx.scan(lambda c, m: ruled(m, c), in_axes=(nnx.Carry, None), out_axes=nnx.Carry, length=2)(X, dense())

    dense = functools.cache(layer)
    return call


def nnx_vmap(fn: Fn) -> Fn:
    ruled = nnx.custom_vmap(fn)
    ruled.def_vmap(lambda size, in_batched, model, x: (fn(model, x), True))
    return ruled


def nnx_vjp(fn: Fn) -> Fn:
    ruled = nnx.custom_vjp(fn)
    ruled.defvjp(lambda model, x: (fn(model, x), x), lambda x, cotangents: (None, cotangents[1]))
    return ruled


class Tree(eqx.Module):
    w: Any

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x @ self.w)


def of_pax() -> Any:
    model = pax.Linear(4, 4, key=key(0))
    loop = lambda fn: liftcore.fori_loop(lambda scope, i, c: fn(scope, c), variable_broadcast=True)  # noqa: E731
    return pax.lift(loop, lambda model, x: model(x))(model, 0, 2, X)


CALLS: dict[str, Callable[[], Any]] = {
    **{
        f"{around} of {inner}, {name}, {act}": functools.partial(nested, around, inner, constant, held)
        for around in AROUND
        for inner in INNER
        for name, constant in CONSTANTS.items()
        for act, held in (("init", None), ("apply", {"params": {"w": jnp.eye(4)}}))
        if (around, inner) != ("vmap of scan", "custom_vmap")  # there, JAX runs the rule, which nothing can compare
    },
    **{
        f"core {name}": lambda name=name: liftcore.apply(FRESH[name])({"params": {"w": X[0]}}, 2.0, X[0])
        for name in FRESH
    },
    **{f"linen {kind}": of_linen(kind) for kind in LOOPS},
    **{f"nnx {name}": of_nnx(name) for name in OBJECTS},
    "nnx scan of custom_vjp": nnx_rule(nnx_vjp),
    "nnx scan of custom_vmap": nnx_rule(nnx_vmap),
    "equinox module in a scan": lambda: liftcore.scan(lambda scope, c, _: (Tree(jnp.eye(4))(c), None), length=2)(
        (), X, None
    ),
    "equinox filter_checkpoint": lambda: eqx.filter_checkpoint(lambda m, x: m(x))(Tree(jnp.eye(4)), X),
    "pax fori_loop": of_pax,
}


def alive() -> int:
    """The number of objects that are alive. JAX keeps the dead weak reference of each trace of a branch: no object."""
    gc.collect()
    return sum(type(one) is not weakref.ref or one() is not None for one in gc.get_objects())


@pytest.mark.parametrize("name", CALLS)
def test_fifty_calls_compile_nothing_and_keep_nothing(name: str) -> None:
    call = CALLS[name]
    for _ in range(3):
        call()
    before = alive()
    COMPILED.clear()
    for _ in range(50):
        call()
    assert (compilations(), alive() - before < 50) == (0, True)
