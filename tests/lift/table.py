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
from tests.lift.plain import CARRY, Body, Rule

COLLECTIONS = ("params", "consts", "state", "counter")
SEQUENCES = ("params", "dropout")


class Row(NamedTuple):
    """One configuration of a lifted transformation.

    Attributes:
        lifted: from a body to its lifted form.
        plain: from a body over plain scopes to the same, without any lift.
        rule: how state is treated; None for a transformation that changes nothing.
    """

    lifted: Callable[[Body], Body]
    plain: Callable[[Body], Body]
    rule: Rule | None = None


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
}
"""The rows by name."""

SHARED = frozenset({"vmap, shared", "scan, shared"})
"""Rows with shared parameters, which must not depend on what differs between lanes."""

TRANSPARENT = frozenset(name for name, row in TABLE.items() if row.rule is None)
"""Rows that must change no name, no value and no draw."""
