"""Mappings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import liftcore
from tests.lift.plain import PART, Body, Rule
from tests.lift.rows.row import DEVICES, Row
from tests.machine import devices, make_mesh


def _spread(x: Any, size: int) -> Any:
    return jnp.stack([(1 + 0.5 * index) * x for index in range(size)])


def _plain_elements(rule: Rule, own: bool = True) -> Callable[[Body], Body]:
    """Element for element, each with an `x` of its own or all with the same."""

    def plain(body: Body) -> Body:
        def loop(scope: Any, x: Any) -> Any:
            xs = _spread(x, rule.size)
            return jnp.stack(rule.run(scope, lambda inner, index: body(inner, xs[index] if own else x))).mean(0)

        return loop

    return plain


def over_elements(rule: Rule, own: bool, lift: Callable[..., Any] = liftcore.vmap, **options: Any) -> Row:
    """A mapping, where each element has an `x` of its own or all have the same."""

    def lifted(body: Body) -> Body:
        over = lift(
            body,
            in_axes=0 if own else None,
            axis_size=None if own else rule.size,
            variable_axes=rule.axes,
            split_rngs=rule.split,
            **options,
        )
        return lambda scope, x: over(scope, _spread(x, rule.size) if own else x).mean(0)

    return Row(lifted, _plain_elements(rule, own), rule)


def stacked(rule: Rule, lift: Callable[..., Any], needs: frozenset[str] = frozenset(), **options: Any) -> Row:
    """A mapping of another kind, where each element has an `x` of its own."""

    def lifted(body: Body) -> Body:
        devices(rule.size if needs & DEVICES else 1)
        over = lift(body, variable_axes=rule.axes, split_rngs=rule.split, **options)
        return lambda scope, x: over(scope, _spread(x, rule.size)).mean(0)

    return Row(lifted, _plain_elements(rule), rule, needs=needs, refuses=needs)


def over_shards(rule: Rule) -> Row:
    """A mapping over parts: what is not shared is put together along the axis 0 that it has in each."""
    specs = {name: P("shards") if kind == PART else P() for name, kind in rule.axes.items()}

    def lifted(body: Body) -> Body:
        over = liftcore.shard_map(
            lambda scope, part: body(scope, part[0])[None],
            mesh=make_mesh((rule.size,), "shards"),
            in_specs=P("shards"),
            out_specs=P("shards"),
            variable_specs=specs,
            split_rngs=rule.split,
        )
        return lambda scope, x: over(scope, _spread(x, rule.size)).mean(0)

    return Row(lifted, _plain_elements(rule), rule, needs=DEVICES, refuses=DEVICES)
