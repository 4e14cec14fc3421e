"""Loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import liftcore
from tests.lift.plain import CARRY, Body, Rule
from tests.lift.rows.row import REVERSE, SOWN, Row


def scanned(rule: Rule, lift: Callable[..., Any] = liftcore.scan, **options: Any) -> Row:
    """A loop over numbers, that carries `x`."""
    numbers = jnp.arange(1.0, rule.size + 1)

    def lifted(body: Body) -> Body:
        def step(scope: Any, x: Any, number: Any) -> tuple[Any, Any]:
            y = body(scope, x)
            return y, y * number

        kinds: dict[Any, list[str]] = {None: [], CARRY: []}
        for collection, axis in rule.axes.items():
            kinds.setdefault(axis, []).append(collection)
        over = lift(
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


def uncounted_loop(rule: Rule) -> Row:
    """A loop that runs as long as the number that it carries is small."""

    def lifted(body: Body) -> Body:
        carried, shared = _kinds(rule)
        over = liftcore.while_loop(
            lambda scope, value: value[0] < rule.size,
            lambda scope, value: (value[0] + 1, body(scope, value[1])),
            variable_carry=carried,
            variable_broadcast=shared,
            split_rngs=rule.split,
        )
        return lambda scope, x: over(scope, (jnp.int32(0), x))[1]

    return Row(lifted, _plain_loop(rule), rule, refuses=REVERSE | SOWN)


def counted_loop(rule: Rule, traced: bool = False) -> Row:
    """A loop over the numbers from 1 on, that carries `x`; how far may be known when it runs only."""

    def lifted(body: Body) -> Body:
        carried, shared = _kinds(rule)
        over = liftcore.fori_loop(
            lambda scope, number, x: body(scope, x) + 0.1 * number,
            variable_carry=carried,
            variable_broadcast=shared,
            split_rngs=rule.split,
        )

        def call(scope: Any, x: Any) -> Any:
            last = 1 + rule.size
            return over(scope, 1, last + jnp.isnan(x[0]).astype(int) if traced else last, x)

        return call

    refuses = REVERSE | SOWN if traced else frozenset()
    return Row(lifted, _plain_loop(rule, lambda index: 0.1 * (1 + index)), rule, shown="fori_loop", refuses=refuses)


def rematerialized_loop(rule: Rule) -> Row:
    """A loop that carries `x`."""

    def lifted(body: Body) -> Body:
        return liftcore.remat_scan(
            body,
            (rule.size,),
            variable_axes={name: axis for name, axis in rule.axes.items() if axis is not None},
            variable_broadcast=[name for name, axis in rule.axes.items() if axis is None],
            split_rngs=rule.split,
        )

    return Row(lifted, _plain_loop(rule), rule, shown="scan")


def branch(lift: Callable[[Body], Any], pred: Any) -> Row:
    """A body as the branch that runs, where another one makes nothing."""

    def lifted(body: Body) -> Body:
        chosen = lift(body)
        return lambda scope, x: chosen(scope, pred(x), x)

    return Row(lifted, lambda body: body)


def negated(scope: Any, x: Any) -> Any:
    """Another branch."""
    return -x


def _kinds(rule: Rule) -> list[list[str]]:
    return [[name for name, axis in rule.axes.items() if axis == kind] for kind in (CARRY, None)]


def _plain_loop(rule: Rule, offset: Callable[[int], float] = lambda index: 0.0) -> Callable[[Body], Body]:
    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            carry = [x]
            rule.run(scope, lambda inner, index: carry.append(body(inner, carry[-1]) + offset(index)))
            return carry[-1]

        return loop

    return plain
