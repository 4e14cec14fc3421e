"""The transformations, one row for each configuration: every law is asked of every row.

A row lifts `body(scope, x) -> y`, where `x` and `y` have one shape, and knows the loop or call in plain Python that
must give the same. Bodies may use the collections and sequences of `COLLECTIONS` and `SEQUENCES`, as `Row.rule` says;
values of `state` have one or more dimensions. What is shared must not differ between lanes: that goes for `consts`, and
in a row of `SHARED` for `params` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import liftcore
from tests.lift.plain import CARRY, Body, Rule, again, opaque

COLLECTIONS = ("params", "consts", "state", "counter")
SEQUENCES = ("params", "dropout")


class Row(NamedTuple):
    """One configuration of a lifted transformation.

    Attributes:
        lifted: from a body to its lifted form.
        plain: from a body over plain scopes to the same, without any lift.
        rule: how state is treated; None for a transformation that changes nothing.
        runs: how often the body's Python runs.
        shown: how it shows in paths, if otherwise than by its name; empty for one that lifts nothing.
    """

    lifted: Callable[[Body], Body]
    plain: Callable[[Body], Body]
    rule: Rule | None = None
    runs: int = 1
    shown: str | None = None


def _over_lanes(rule: Rule, own: bool, **options: Any) -> Row:
    """A mapping, where each lane has an `x` of its own or all have the same."""

    def spread(x: Any) -> Any:
        return jnp.stack([(1 + 0.5 * index) * x for index in range(rule.size)]) if own else x

    def lifted(body: Body) -> Body:
        over = liftcore.vmap(
            body,
            in_axes=0 if own else None,
            axis_size=None if own else rule.size,
            variable_axes=rule.axes,
            split_rngs=rule.split,
            **options,
        )
        return lambda scope, x: over(scope, spread(x)).mean(0)

    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            xs = spread(x)
            ys = rule.run(scope, lambda inner, index: body(inner, xs[index] if own else x))
            return jnp.stack(ys).mean(0)

        return loop

    return Row(lifted, plain, rule)


def _loop(rule: Rule, **options: Any) -> Row:
    """A loop over numbers, that carries `x`."""
    numbers = jnp.arange(1.0, rule.size + 1)

    def lifted(body: Body) -> Body:
        def step(scope: Any, x: Any, number: Any) -> tuple[Any, Any]:
            y = body(scope, x)
            return y, y * number

        kinds: dict[Any, list[str]] = {None: [], CARRY: []}
        for collection, axis in rule.axes.items():
            kinds.setdefault(axis, []).append(collection)
        over = liftcore.scan(
            step,
            reverse=rule.reverse,
            variable_axes={name: axis for name, axis in rule.axes.items() if isinstance(axis, int)},
            variable_broadcast=kinds[None],
            variable_carry=kinds[CARRY],
            split_rngs=rule.split,
            **options,
        )

        def call(scope: Any, x: Any) -> Any:
            x, ys = over(scope, x, numbers)
            return x + ys.mean(0)

        return call

    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            carry = [x]

            def one(inner: Any, index: int) -> Any:
                carry.append(body(inner, carry[-1]))
                return carry[-1] * numbers[index]

            ys = rule.run(scope, one)
            return carry[-1] + jnp.stack(ys).mean(0)

        return loop

    return Row(lifted, plain, rule)


def _unchanged(lift: Callable[..., Any], **options: Any) -> Row:
    return Row(lambda body: lift(body, **options), lambda body: body)


def _branch(lift: Callable[[Body], Any], pred: Any) -> Row:
    """A body as the branch that runs, where another one makes nothing."""

    def lifted(body: Body) -> Body:
        chosen = lift(body)
        return lambda scope, x: chosen(scope, pred(x), x)

    return Row(lifted, lambda body: body)


def _negated(scope: Any, x: Any) -> Any:
    return -x


def _counted_loop(rule: Rule) -> Row:
    """A loop over the numbers from 1 on, that carries `x`."""

    def lifted(body: Body) -> Body:
        kinds = [[name for name, axis in rule.axes.items() if axis == kind] for kind in (CARRY, None)]
        over = liftcore.fori_loop(
            lambda scope, number, x: body(scope, x) + 0.1 * number,
            variable_carry=kinds[0],
            variable_broadcast=kinds[1],
            split_rngs=rule.split,
        )
        return lambda scope, x: over(scope, 1, 1 + rule.size, x)

    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            carry = [x]
            rule.run(scope, lambda inner, index: carry.append(body(inner, carry[-1]) + 0.1 * (1 + index)))
            return carry[-1]

        return loop

    return Row(lifted, plain, rule)


def _batches(rule: Rule) -> Row:
    """A mapping that takes its lanes in batches."""

    def spread(x: Any) -> Any:
        return jnp.stack([(1 + 0.5 * index) * x for index in range(rule.size)])

    def lifted(body: Body) -> Body:
        over = liftcore.map(body, batch_size=2, variable_axes=rule.axes, split_rngs=rule.split)
        return lambda scope, x: over(scope, spread(x)).mean(0)

    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            xs = spread(x)
            return jnp.stack(rule.run(scope, lambda inner, index: body(inner, xs[index]))).mean(0)

        return loop

    return Row(lifted, plain, rule)


def _rematerialized_loop(rule: Rule) -> Row:
    """A loop that carries `x`."""

    def lifted(body: Body) -> Body:
        return liftcore.remat_scan(
            body,
            (rule.size,),
            variable_axes={name: axis for name, axis in rule.axes.items() if axis is not None},
            variable_broadcast=[name for name, axis in rule.axes.items() if axis is None],
            split_rngs=rule.split,
        )

    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            carry = [x]
            rule.run(scope, lambda inner, index: carry.append(body(inner, carry[-1])))
            return carry[-1]

        return loop

    return Row(lifted, plain, rule, shown="scan")


def _checked(body: Body) -> Body:
    checked = liftcore.checkify(body)
    return lambda scope, x: checked(scope, x)[1]


def _seen_doubled() -> Row:
    """A body that sees its parameters twice as large as they are stored."""

    def times(number: float) -> Callable[[Any], Any]:
        return lambda variables: jax.tree.map(lambda leaf: number * leaf, variables)

    def lifted(body: Body) -> Body:
        return liftcore.map_variables(body, "params", times(2.0), times(0.5), init=True)

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            world = scope.world
            stored = {path: value for path, value in world.values.items() if path[0] == "params"}
            world.values |= {path: 2 * value for path, value in stored.items()}
            world.pending |= {path: 2 * value for path, value in world.pending.items() if path[0] == "params"}
            y = body(scope, x)
            for values in (world.values, world.pending, world.first):
                values |= {path: 0.5 * value for path, value in values.items() if path[0] == "params"}
            world.values |= stored
            return y

        return call

    return Row(lifted, plain)


def _total(tree: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


def _pulled_back() -> Row:
    """A body and a bit of its gradients."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, pullback = liftcore.vjp(body)(scope, x)
            variables, dx = pullback(jnp.ones_like(y))
            outermost = variables[0] if isinstance(variables, tuple) else variables
            return y + 0.1 * dx + 0.01 * _total(outermost)

        return call

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, run, params = again(scope, body, x)
            variables, dx = jax.vjp(run, params, x)[1](jnp.ones_like(y))
            return y + 0.1 * dx + 0.01 * _total(variables)

        return call

    return Row(lifted, plain)


def _pushed_forward() -> Row:
    """A body and a bit of its derivative along its argument."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, dy = liftcore.jvp(body)(scope, (x,), (x + 1,))
            return y + 0.1 * dy

        return call

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, run, params = again(scope, body, x)
            return y + 0.1 * jax.jvp(lambda x: run(params, x), (x,), (x + 1,))[1]

        return call

    return Row(lifted, plain)


def _with_a_rule() -> Row:
    """A body whose derivative is its own, told by a rule."""

    def lifted(body: Body) -> Body:
        def rule(scope: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
            return liftcore.jvp(body)(scope, primals, tangents, variable_tangents)

        ruled = liftcore.custom_jvp(body)
        ruled.defjvp(rule)
        return ruled

    return Row(lifted, lambda body: lambda scope, x: opaque(scope, body, x), runs=2)


ALL = {"params": True, "dropout": True}
SHARED_PARAMS = {"params": False, "dropout": True}

TABLE = {
    "vmap": _over_lanes(Rule({"params": 0, "consts": None, "state": 1, "counter": 0}, ALL, 2), own=True),
    "vmap, shared": _over_lanes(
        Rule({"params": None, "consts": None, "state": -1, "counter": 0}, {**SHARED_PARAMS, "noise": True}, 3),
        own=False,
        axis_name="lanes",
    ),
    "scan": _loop(Rule({"params": 0, "consts": None, "state": 1, "counter": CARRY}, ALL, 2)),
    "scan, shared": _loop(
        Rule(
            {"params": None, "consts": None, "state": CARRY, "counter": 0},
            SHARED_PARAMS,
            3,
            reverse=True,
        ),
        unroll=2,
    ),
    "remat": _unchanged(liftcore.remat),
    "remat, policy": _unchanged(liftcore.remat, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False),
    "jit": _unchanged(liftcore.jit),
    "cond": _branch(lambda body: liftcore.cond(body, _negated), lambda x: jnp.isfinite(x).all()),
    "switch": _branch(lambda body: liftcore.switch([_negated, body, _negated]), lambda x: 1 + 0 * x[0].astype(int)),
    "fori_loop": _counted_loop(
        Rule({"params": None, "consts": None, "state": CARRY, "counter": CARRY}, SHARED_PARAMS, 2, folds=True)
    ),
    "vjp": _pulled_back(),
    "jvp": _pushed_forward(),
    "custom_jvp": _with_a_rule(),
    "map": _batches(Rule({"params": 0, "consts": None, "state": 1, "counter": 0}, ALL, 3)),
    "remat_scan": _rematerialized_loop(Rule({"params": 0, "consts": None, "state": 1, "counter": 0}, ALL, 2)),
    "map_variables": _seen_doubled(),
    "checkify": Row(_checked, lambda body: body),
    "named_call": _unchanged(liftcore.named_call, name="named")._replace(shown=""),
}
"""The rows by name."""

SHOWN = {name: name.split(",")[0] if row.shown is None else row.shown for name, row in TABLE.items()}
"""How each row shows in paths."""

SHARED = frozenset({"vmap, shared", "scan, shared", "fori_loop"})
"""Rows with shared parameters, which must not depend on what differs between lanes."""

TRANSPARENT = frozenset({"remat", "remat, policy", "jit", "named_call"})
"""Rows that must change no name, no value and no draw."""
