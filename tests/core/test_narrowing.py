"""Equations that contain jaxprs are divided by what their results read, whatever the primitive, at any depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from liftcore.pipeline.equations import cut, evaluate, steps_of
from liftcore.pipeline.narrowing import narrowed
from tests.lift.quick import assert_same, compiled

Fn = Callable[..., Any]

A, B, C = jnp.arange(3.0), jnp.array([2.0, 2.0, 2.5]), jnp.array([5.0, 4.0, 5.0])


def pair(a: Any, b: Any, c: Any) -> Any:
    """Two results: one reads `a` alone, the other one all; nothing reads what is computed last."""
    idle = jnp.sin(c) * b
    return a * 2, a + b * c, idle


def two(fn: Fn) -> Fn:
    return lambda a, b, c: fn(a, b, c)[:2]


def in_while(fn: Fn) -> Fn:
    """A carried value that only itself needs (`c`), one that the condition needs, and constants of both functions."""

    def run(a: Any, b: Any, c: Any) -> Any:
        def going(now: Any) -> Any:
            jnp.cos(b)  # nothing needs it
            return now[0] < 2

        def step(now: Any) -> Any:
            count, first, second, idle = now
            x, y, z = fn(a, b, idle)
            return count + 1, first + x, second + y, z

        return jax.lax.while_loop(going, step, (0, jnp.zeros(3), jnp.zeros(3), c))[1:3]

    return run


def in_scan(fn: Fn) -> Fn:
    """A first result in the carry, together with a count that both need; a second one that is stacked, and summed.

    The last iteration alone decides about one part of the first result, which begins as `c`.
    """

    def run(a: Any, b: Any, c: Any) -> Any:
        def step(now: Any, slices: Any) -> Any:
            count, first, idle, _ = now
            x, y, z = fn(a, slices, idle)
            return (count + 1, first + x * count, z, x), y * count

        (_, first, _, last), ys = jax.lax.scan(step, (1, jnp.zeros(3), c, c), jnp.stack([b, 2 * b]))
        return first + last, ys.sum(0)

    return run


def with_jvp(fn: Fn) -> Fn:
    ruled = jax.custom_jvp(two(fn))
    ruled.defjvp(lambda primals, tangents: (two(fn)(*primals), two(fn)(*tangents)))
    return ruled


def with_vjp(fn: Fn) -> Fn:
    ruled = jax.custom_vjp(two(fn))
    ruled.defvjp(lambda *args: (two(fn)(*args), args), lambda _, cotangents: (*cotangents, None))
    return ruled


def with_vmap(fn: Fn) -> Fn:
    ruled = jax.custom_batching.custom_vmap(two(fn))
    ruled.def_vmap(lambda size, in_batched, *args: (jax.vmap(two(fn))(*args), (True, True)))
    return ruled


def opaque(fn: Fn) -> Fn:
    """What a lifted function with a rule writes: no gradient flows through it."""
    return lambda *args: jax.tree.map(jax.lax.stop_gradient, fn(*args))


PRIMITIVES: dict[str, Fn] = {
    "jit": lambda fn: jax.jit(two(fn)),
    "remat2": lambda fn: jax.checkpoint(two(fn)),
    "cond": lambda fn: lambda a, b, c: jax.lax.cond(a[1] > 0, two(fn), lambda a, b, c: (a, b * c), a, b, c),
    "while": in_while,
    "scan": in_scan,
    "custom_vmap_call": with_vmap,
    "shard_map": lambda fn: jax.shard_map(
        two(fn), mesh=jax.make_mesh((1,), ("a",)), in_specs=jax.P(), out_specs=jax.P()
    ),
}


RULED = {"custom_jvp_call": with_jvp, "custom_vjp_call": with_vjp}
"""A rule may need all inputs for each result, so nothing is left out, unless the result has no derivative."""

OPAQUE: dict[str, Fn] = {f"{name}, opaque": lambda fn, of=of: of(opaque(fn)) for name, of in RULED.items()}
TABLE = PRIMITIVES | RULED | OPAQUE


def idle_again(fn: Fn) -> Fn:
    """The function of one primitive as the body of another one, which wants three results."""
    return lambda a, b, c: (*fn(a, b, c), c * b)


def divided(fn: Fn, wanted: int) -> tuple[set[int], Fn]:
    """Narrow equations for one result; return the numbers of the inputs that it reads, and the function as divided."""
    jaxpr = jax.make_jaxpr(fn)(A, B, C).jaxpr
    steps = narrowed(jaxpr, steps_of(jaxpr), [jaxpr.outvars[wanted]])
    needs: dict[Any, set[int]] = {var: {place} for place, var in enumerate(jaxpr.invars)}
    for step in steps:
        for var in step.eqn.outvars:
            assert var not in needs, "two equations give the same result"
            needs[var] = set().union(*[needs[one] for one in step.reads])
    now = cut(jaxpr, list(jaxpr.invars), steps, jaxpr.outvars)
    return needs[jaxpr.outvars[wanted]], lambda *args: evaluate(now, *args)


@pytest.mark.parametrize("outer", TABLE)
def test_a_result_reads_only_what_it_needs(outer: str) -> None:
    inner = {"nothing": pair} | {
        name: idle_again(of(pair)) for name, of in TABLE.items() if (outer, name) != ("shard_map", "shard_map")
    }
    found: dict[str, list[Fn]] = {}
    for name, fn in inner.items():
        whole = TABLE[outer](fn)
        first, second = divided(whole, 0), divided(whole, 1)
        assert first[0] == ({0, 1, 2} if {outer, name} & RULED.keys() else {0}), name
        assert second[0] == {0, 1, 2}, name
        found[name] = [whole, first[1], second[1]]
    values = compiled(lambda *args: {name: [list(fn(*args)) for fn in fns] for name, fns in found.items()}, A, B, C)
    assert_same(values, {name: [expected] * 3 for name, (expected, *_) in values.items()})
