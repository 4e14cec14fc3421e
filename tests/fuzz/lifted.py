"""What a lift of a program means to liftcore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore import filters
from tests.fuzz.programs import CARRY, Call, Filter, Lift, like, run, small, spread

Run = Callable[..., Any]
"""A lifted function: of a scope and arguments."""


def caller() -> Callable[..., Any]:
    """A function that runs the lifts of one run of a body: equal ones are one lifted function, called again."""
    known: dict[Any, Callable[..., Any]] = {}

    def call(statement: Call, scope: Any, env: Mapping[str, Any], args: list[Any]) -> Any:
        same = statement.lift, repr(statement.bodies)  # as text, 1 is not 1.0
        if same not in known:
            bodies = [body_of(statement, index, env) for index in range(len(statement.bodies))]
            known[same] = KINDS[statement.lift.kind](statement.lift, bodies)
        return known[same](scope, *args)

    return call


def body_of(statement: Call, index: int, env: Mapping[str, Any]) -> Callable[..., Any]:
    """A body as a function of a scope and its local values."""

    def body(scope: Any, **given: Any) -> Any:
        return run(statement.bodies[index], scope, {**env, **given}, caller())

    return body


def to_filter(found: Filter) -> Any:
    """A filter in the language of the library."""
    if isinstance(found, str):
        return found
    return filters.All(found[0], filters.PathContains(found[1]))


def chosen(lift: Lift, wanted: Callable[[Any], bool]) -> list[Any]:
    """The filters with some treatment."""
    return [to_filter(found) for found, axis in lift.groups if wanted(axis)]


def axes(lift: Lift) -> dict[Any, Any]:
    return {to_filter(found): axis for found, axis in lift.groups}


def _vmap(lift: Lift, bodies: Any) -> Run:
    lifted = liftcore.vmap(
        lambda scope, x, y: bodies[0](scope, x=x, y=y)[0],
        in_axes=(0, None),
        variable_axes=axes(lift),
        split_rngs=dict(lift.splits),
    )
    return lambda scope, x, y=0: jnp.sum(lifted(scope, spread(x, lift.size), y), 0)


def _scan(lift: Lift, bodies: Any) -> Run:
    def body(scope: Any, carry: Any, y: Any) -> Any:
        result, stacked = bodies[0](scope, x=carry, y=y)
        return like(result, carry), stacked

    lifted = liftcore.scan(
        body,
        variable_broadcast=chosen(lift, lambda axis: axis is None),
        variable_carry=chosen(lift, lambda axis: axis == CARRY),
        variable_axes={to_filter(found): axis for found, axis in lift.groups if isinstance(axis, int)},
        split_rngs=dict(lift.splits),
        reverse="reverse" in lift.flags,
        unroll=2 if "unroll" in lift.flags else 1,
    )

    def run_all(scope: Any, x: Any, y: Any = 0) -> Any:
        carry, stacked = lifted(scope, x, spread(y, lift.size))
        return jnp.add(carry, jnp.sum(stacked, 0))

    return run_all


def _fori_loop(lift: Lift, bodies: Any) -> Run:
    lifted = liftcore.fori_loop(
        lambda scope, i, x: like(bodies[0](scope, x=x, y=jnp.asarray(i, jnp.int32))[0], x),
        variable_carry=chosen(lift, lambda axis: axis == CARRY),
        variable_broadcast=chosen(lift, lambda axis: axis is None),
        split_rngs=dict(lift.splits),
    )
    bounds = (jnp.int32(0), jnp.int32(lift.size)) if "traced" in lift.flags else (0, lift.size)
    if "traced" in lift.flags:
        bounds = jax.lax.optimization_barrier(bounds)
    return lambda scope, x: lifted(scope, *bounds, x)


def _while_loop(lift: Lift, bodies: Any) -> Run:
    def body(scope: Any, state: Any) -> Any:
        return state[0] + 1, like(bodies[0](scope, x=state[1], y=state[0])[0], state[1])

    def condition(scope: Any, state: Any) -> Any:
        going = state[0] < lift.size
        return going if lift.until is None else going & small(scope.get_variable(*lift.until))

    lifted = liftcore.while_loop(
        condition,
        body,
        variable_carry=chosen(lift, lambda axis: axis == CARRY),
        variable_broadcast=chosen(lift, lambda axis: axis is None),
        split_rngs=dict(lift.splits),
    )
    return lambda scope, x: lifted(scope, (jnp.int32(0), x))[1]


def _call(lift: Lift, bodies: Any) -> Run:
    """No lift at all."""
    return lambda scope, x: bodies[0](scope, x=x)[0]


def _one(lift: Lift, bodies: Any) -> Run:
    """A transformation that changes nothing."""

    def body(scope: Any, x: Any) -> Any:
        return bodies[0](scope, x=x)[0]

    lifted: Run = getattr(liftcore, lift.kind)(body)
    return lifted


def _pack(lift: Lift, bodies: Any) -> Run:
    """A lift of one's own, which changes nothing."""

    def transform(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any, x: Any) -> Any:
        inner = scope_fn(variable_groups, rng_groups)
        return bodies[0](inner, x=x)[0], repack_fn(inner)

    return liftcore.pack(transform, [True], [True, liftcore.Captured(all=True)], [True], "own")


def _map_variables(lift: Lift, bodies: Any) -> Run:
    mapped = [to_filter(found) for found, _ in lift.groups]

    def body(scope: Any, x: Any) -> Any:
        return bodies[0](scope, x=x)[0]

    return liftcore.map_variables(body, mapped, negated, negated, init=True, mutable=True)


def negated(tree: Any) -> Any:
    """What `map_variables` maps with, both ways."""
    return jax.tree.map(lambda leaf: leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.bool_) else -leaf, tree)


def _branches(lift: Lift, bodies: Any) -> Run:
    functions = [lambda scope, x, body=body: like(body(scope, x=x)[0], x) for body in bodies]
    return liftcore.cond(*functions) if lift.kind == "cond" else liftcore.switch(functions)


def _vjp(lift: Lift, bodies: Any) -> Run:
    lifted = liftcore.vjp(lambda scope, x: like(bodies[0](scope, x=x)[0], x))

    def run_both(scope: Any, x: Any) -> Any:
        y, pullback = lifted(scope, floating(x))
        variables, dx = pullback(jnp.ones_like(y))
        return y + dx + total(variables)

    return run_both


def _grad(lift: Lift, bodies: Any) -> Run:
    lifted = liftcore.value_and_grad(lambda scope, x: like(bodies[0](scope, x=x)[0], x.sum()), argnums=(0, 1))

    def run_both(scope: Any, x: Any) -> Any:
        y, (variables, dx) = lifted(scope, floating(x))
        return y + dx + total(variables)

    return run_both


def _jvp(lift: Lift, bodies: Any) -> Run:
    lifted = liftcore.jvp(lambda scope, x: like(bodies[0](scope, x=x)[0], x))

    def run_both(scope: Any, x: Any) -> Any:
        x = floating(x)
        return sum(lifted(scope, (x,), (jnp.ones_like(x),)))

    return run_both


def _with_rule(rule: Callable[[Run, Run], Any]) -> Callable[[Lift, Any], Run]:
    """A function with a rule that gives what there is without it; `rule` is given the function and a call of it."""

    def build(lift: Lift, bodies: Any) -> Run:
        lifted = rule(getattr(liftcore, lift.kind), lambda scope, x: like(bodies[0](scope, x=x)[0], x))
        return lambda scope, x: lifted(scope, floating(x))

    return build


def _pulled(lift: Run, body: Run) -> Any:
    lifted = lift(body)
    lifted.defvjp(lambda scope, x: liftcore.vjp(body)(scope, x), lambda pullback, cotangent: pullback(cotangent))
    return lifted


def _pushed(lift: Run, body: Run) -> Any:
    lifted = lift(body)
    lifted.defjvp(lambda scope, *args: liftcore.jvp(body)(scope, *args))
    return lifted


def _batched(lift: Run, body: Run) -> Any:
    lifted = lift(body)

    @lifted.def_vmap
    def rule(size: int, in_batched: Any, scope: Any, x: Any) -> Any:
        axes = jax.tree.map(lambda flag: 0 if flag else None, tuple(in_batched))
        return jax.vmap(liftcore.apply(body), axes, axis_size=size)(scope.variables(), x), True

    return lifted


def floating(x: Any) -> Any:
    """Something that one can differentiate by."""
    x = jnp.asarray(x)
    return jnp.asarray(x, x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32)


def total(tree: Any) -> Any:
    """The sum of all numbers in a gradient."""
    return sum((jnp.sum(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


KINDS: Mapping[str, Callable[[Lift, Any], Run]] = {
    "call": _call,
    **dict.fromkeys(("remat", "jit", "named_call"), _one),
    **dict.fromkeys(("cond", "switch"), _branches),
    "vmap": _vmap,
    "scan": _scan,
    "fori_loop": _fori_loop,
    "while_loop": _while_loop,
    "vjp": _vjp,
    "grad": _grad,
    "jvp": _jvp,
    "pack": _pack,
    "map_variables": _map_variables,
    "custom_vjp": _with_rule(_pulled),
    "custom_jvp": _with_rule(_pushed),
    "custom_vmap": _with_rule(_batched),
}
