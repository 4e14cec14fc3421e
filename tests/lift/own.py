"""Lifts of a user's own, written with public names of liftcore only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import liftcore

ALL = ([True], [True, liftcore.Captured(all=True)], [True])


def inline(fn: Callable[..., Any]) -> Callable[..., Any]:
    """One that does nothing: what the body creates stands in the enclosing trace by itself."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        scope = scope_fn(variables, rngs)
        return fn(scope, *args), repack_fn(scope)

    return liftcore.pack(transform, [True], [True], [True])


def one_equation(fn: Callable[..., Any]) -> Callable[..., Any]:
    """One that makes one equation of all that the body does: no one can tell what it creates from the rest."""

    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        def inner(variables: Any, rngs: Any, *args: Any) -> Any:
            scope = scope_fn(variables, rngs)
            return fn(scope, *args), repack_fn(scope)

        return jax.jit(inner)(variables, rngs, *args)

    return liftcore.pack(transform, [True], [True], [True])


def _compiled(body: liftcore.Body, variables: Any, rngs: Any, *args: Any) -> Any:
    return liftcore.outline(jax.jit, body, variables, rngs, *args)


jit = liftcore.transformation(_compiled, *ALL, name="jit")
"""`jax.jit`, by the runner for what makes one equation of its body."""


def vmap(
    fn: Callable[..., Any],
    *,
    variable_axes: dict[Any, int | None],
    split_rngs: dict[str, bool],
    in_axes: int | None = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., Any]:
    """`jax.vmap`, from the two parts of a body."""
    group_axes, key_axes = list(variable_axes.values()), [0 if split else None for split in split_rngs.values()]

    def transform(body: liftcore.Body, variables: Any, rngs: Any, *args: Any) -> Any:
        size = jax.tree.leaves(args)[0].shape[0] if axis_size is None else axis_size
        keys = [
            group if axis is None else jax.tree.map(lambda key: jax.random.split(key, size), group)
            for group, axis in zip(rngs, key_axes, strict=True)
        ]
        operands, axes = (variables, tuple(keys), *args), (tuple(group_axes), tuple(key_axes), *[in_axes for _ in args])

        def batch(part: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
            return jax.vmap(part, tuple(in_axes), out_axes, axis_size=size, axis_name=axis_name)

        def element(axis: int | None, part: Any) -> Any:
            take = functools.partial(jax.lax.index_in_dim, index=0, axis=axis, keepdims=False)
            return part if axis is None else jax.eval_shape(lambda part: jax.tree.map(take, part), part)

        types = jax.tree.map(element, axes, operands, is_leaf=lambda axis: axis is None)
        split = body.split(*types, axes=[] if axis_name is None else [(axis_name, size)])
        out_axes = [*group_axes, 0]
        created = split.batched_prologue(batch, operands, axes, [*out_axes, 0])
        result, values = batch(split.remainder, ([*out_axes, 0], *axes), (0, out_axes))(created, *operands)
        return split.join(created, result, values)

    filters = list(variable_axes)
    return liftcore.transformation(transform, filters, [*filters, liftcore.Captured()], list(split_rngs), name="vmap")(
        fn
    )


def scan(
    fn: Callable[..., Any],
    *,
    variable_axes: dict[Any, int],
    variable_broadcast: Any,
    variable_carry: Any,
    split_rngs: dict[str, bool],
    reverse: bool = False,
) -> Callable[..., Any]:
    """A scan on a loop of one's own, a `jax.lax.while_loop` that writes what it stacks into arrays."""
    axes = list(variable_axes.values())

    def transform(body: liftcore.Body, variables: Any, rngs: Any, carry: Any, xs: Any) -> Any:
        shared, carried, *stacked = variables
        size = jax.tree.leaves(xs)[0].shape[0]
        keys = [
            jax.tree.map(lambda key: jax.random.split(key, size), group) if split else None
            for group, split in zip(rngs, split_rngs.values(), strict=True)
        ]
        moved = [jax.tree.map(functools.partial(_to_front, axis), one) for one, axis in zip(stacked, axes, strict=True)]

        def iteration(body: liftcore.Body, shared: Any, state: Any, slices: Any) -> Any:
            carried, carry = state
            now = tuple(one if split is None else split for one, split in zip(rngs, slices[1], strict=True))
            (carry, ys), groups = body((shared, carried, *slices[0]), now, carry, slices[2])
            return carry, ys, groups

        loop = liftcore.Loop(size, _while_scan(size, reverse), axes, reverse)
        carry, ys, groups = loop.run(body, iteration, shared, (carried, carry), (moved, keys, xs), 0)
        return (carry, ys), groups

    filters = [variable_broadcast, variable_carry, *variable_axes]
    lift = liftcore.transformation(transform, filters, [*filters, liftcore.Captured()], list(split_rngs), name="scan")
    return lift(fn)


def _to_front(axis: int, leaf: Any) -> Any:
    return jnp.moveaxis(leaf, axis, 0)


def _while_scan(size: int, reverse: bool) -> Callable[..., Any]:
    """What `jax.lax.scan` does, by `jax.lax.fori_loop`."""

    def scan(step: Callable[..., Any], carry: Any, xs: Any) -> Any:
        step = jax.jit(step)  # so that it is traced once

        def sliced(number: Any) -> Any:
            return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), xs)

        def run(count: Any, state: Any) -> Any:
            carry, ys = state
            number = size - 1 - count if reverse else count
            carry, y = step(carry, sliced(number))
            return carry, jax.tree.map(lambda all, one: all.at[number].set(one), ys, y)

        _, types = jax.eval_shape(step, carry, sliced(0))
        ys = jax.tree.map(lambda one: jnp.zeros((size, *one.shape), one.dtype), types)
        return jax.lax.fori_loop(0, size, run, (carry, ys))

    return scan
