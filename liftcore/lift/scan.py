"""Lifted `jax.lax.scan`.

The body is traced once. Its variables lie in three kinds of groups: *shared* ones are the same in all iterations,
*carried* ones go from one iteration to the next, *stacked* ones have an axis with one slice an iteration. A variable of
each kind may be created in the body; `hoist` cuts out what makes it:

    shared     is made once, before the loop; it may depend on neither carry nor slices
    carried    is made once, as iteration 0 would make it, and is what the loop begins with
    stacked    is made by a loop of its own, unless it depends on the carry: then it is made in the loop itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._compat import tag
from ..errors import AxisSizeError, CarryTypeError, LoopInvarianceError
from ..filters import merge
from ..hoist import Traced, trace
from ..pack import Captured, Changes, Pure, lift
from ..typing import Axis, Filter, InOutAxes, PyTree
from .axes import (
    NO_AXES,
    VariableAxes,
    flatten_axes,
    infer_size,
    keyword_axes,
    named_arguments,
    named_groups,
    slice_type,
    split_keys,
    split_rules,
)
from .carry import check_carry, overlay, promoted, select

__all__ = ["scan"]


def scan(
    fn: Callable[..., tuple[Any, Any]],
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    kw_axes: InOutAxes = 0,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
) -> Callable[..., Any]:
    """`jax.lax.scan` for a function of scopes.

    Example:
        >>> import liftcore
        >>> def layer(scope, x, _):
        ...     w = scope.param("w", jax.random.normal, (3, 3))
        ...     return jnp.tanh(x @ w), x.sum()
        >>> layers = liftcore.scan(layer, length=4, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> (x, sums), variables = liftcore.init(layers)(jax.random.key(0), jnp.ones(3), None)
        >>> x.shape, sums.shape, variables["params"]["w"].shape
        ((3,), (4,), (4, 3, 3))

    Args:
        fn: called as `fn(scopes, carry, *slices, **kwargs)`; returns the next carry and a pytree to stack.
        length: see `jax.lax.scan`.
        reverse: see `jax.lax.scan`.
        unroll: see `jax.lax.scan`.
        in_axes: for each argument after the carry the axis to slice, or `broadcast` for the whole of it each time; a
            pytree prefix.
        out_axes: for what is stacked the new axis, or `broadcast` for a value that is the same in all iterations.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are no arrays are passed
            on unchanged.
        variable_axes: for each filter of stacked variables their axis, or `In`, `Out`, `InOut`.
        variable_broadcast: a filter of the shared variables.
        variable_carry: a filter of the carried variables.
        split_rngs: for each filter of PRNG sequences whether iterations draw different keys; or one bool for all.

    Returns:
        `lifted(scopes, carry, *xs, **kwargs)`, which returns the last carry and what was stacked.

    Raises:
        AxisSizeError: when called, where lengths disagree or there is none.
        CarryTypeError: when called, where the body changes the type of the carry.
        LoopInvarianceError: when called, where something shared depends on the iteration.
    """
    axes = VariableAxes(variable_axes)
    rules, flags = split_rules(split_rngs)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    def transform(pure: Pure, variable_groups: Any, rng_groups: Any, carry: Any, *args: Any, **kwargs: Any) -> Any:
        arg_axes, kwarg_axes = flatten_axes("in_axes", in_axes, args), keyword_axes(kw_axes, kwargs)
        shared, carried, *stacked = variable_groups
        mapped = [
            *named_arguments(pure.fn, 2, args, arg_axes),
            ("keyword arguments", kwargs, kwarg_axes),
            *named_groups(stacked, axes.in_axes),
        ]
        size = infer_size(pure.where, length, mapped, "Give it: `length=…`.")
        leaves, treedef = jax.tree.flatten((args, kwargs))
        leaf_axes = [*arg_axes, *kwarg_axes]
        keys = split_keys(rng_groups, flags, size)

        def body(pure: Pure, state: Any, slices: Any) -> tuple[Any, Any, Any]:
            carried, carry = state
            stacked, split, now = slices[0], iter(slices[1]), iter(slices[2])
            rng_groups = [next(split) if flag else group for group, flag in zip(keys, flags, strict=True)]
            full = [leaf if axis is None else next(now) for leaf, axis in zip(leaves, leaf_axes, strict=True)]
            args, kwargs = jax.tree.unflatten(treedef, full)
            (carry, ys), groups = pure([shared, carried, *stacked], rng_groups, carry, *args, **kwargs)
            return carry, ys, groups

        xs = (
            [_to_front(group, axis) for group, axis in zip(stacked, axes.in_axes, strict=True)],
            [group for group, flag in zip(keys, flags, strict=True) if flag],
            [_to_front(leaf, axis) for leaf, axis in zip(leaves, leaf_axes, strict=True) if axis is not None],
        )
        loop = Loop(size, reverse, unroll)
        carry, ys, groups = loop.run(pure, body, (carried, carry), xs, out_axes)
        out = [_to_axis(group, axis) for group, axis in zip(groups[2:-1], axes.out_axes, strict=True)]
        return (carry, ys), (*groups[:2], *out, groups[-1])

    into = (variable_broadcast, variable_carry, *axes.in_filters)
    out = (variable_broadcast, variable_carry, *axes.out_filters, Captured())
    return lift(transform, fn, into, out, rules, "scan")


class Created(NamedTuple):
    """The initial values that a body makes, by how the loop treats them; `constant` are outputs, not variables."""

    shared: PyTree
    carried: PyTree
    stacked: PyTree
    constant: PyTree


class Loop(NamedTuple):
    """How a body is run: `jax.lax.scan` less its function."""

    size: int
    reverse: bool
    unroll: int | bool

    def scan(self, step: Callable[..., Any], carry: PyTree, xs: PyTree) -> Any:
        return jax.lax.scan(step, carry, xs, self.size, self.reverse, self.unroll)

    def run(
        self, pure: Pure, body: Callable[..., Any], state: tuple[PyTree, PyTree], xs: PyTree, out_axes: InOutAxes
    ) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
        """Runs `body(pure, (carried variables, carry), slices) -> (carry, ys, groups)` in a loop."""
        if pure.writes or not all(isinstance(axis, int) for axis in jax.tree.leaves(out_axes)):
            return self._run_hoisted(pure, body, state, xs, out_axes)

        def step(carry: Any, slices: Any) -> Any:
            carry, ys, groups = body(pure, (state[0], carry), slices)
            return carry, (ys, groups)

        try:
            carry, (ys, groups) = self.scan(step, state[1], xs)
        except TypeError as error:
            if "carry" not in str(error):
                raise
            raise CarryTypeError(pure.where, str(error), "Return a carry of the type that came in.") from error
        return carry, Outputs(out_axes).join(ys, ()), groups

    def _run_hoisted(
        self, pure: Pure, body: Callable[..., Any], state: tuple[PyTree, PyTree], xs: PyTree, out_axes: InOutAxes
    ) -> tuple[PyTree, PyTree, tuple[PyTree, ...]]:
        outputs = Outputs(out_axes)
        hoisted = pure.hoisted()

        def flat(state: Any, slices: Any) -> Any:
            carry, ys, (shared, carried, *stacked, captured) = body(hoisted, state, slices)
            _check_unwritten(pure.where, shared.values)
            stackable, constant = outputs.split(ys)
            created = Created(shared.created, carried.created, [one.created for one in stacked], tag(constant))
            return created, ((carried.values, carry), ([one.values for one in stacked], captured, stackable))

        traced, (carried, carry) = _trace(flat, state, jax.tree.map(lambda leaf: slice_type(leaf, 0), xs))
        made, chosen = self._create(pure.where, traced, (carried, carry), xs)
        begin = select(_merged(carried, made.carried), traced.outputs[0][0]), carry
        check_carry(pure.where, "the carry", begin, traced.outputs[0])

        def step(now: Any, slices: Any) -> Any:
            (written, carry), (slices, stacked) = now, slices
            given = Created(made.shared, overlay(made.carried, written), stacked, made.constant)
            left, (now, ys) = traced.rest(chosen, given, (overlay(carried, written), carry), slices)
            return now, (left.stacked, ys)

        (written, carry), (left, (values, captured, ys)) = self.scan(step, begin, (xs, made.stacked))
        stacked = jax.tree.map(lambda one, other: other if one is None else one, made.stacked, left, is_leaf=_is_none)
        groups = (
            Changes(tuple({} for _ in made.shared), made.shared),
            Changes(written, made.carried),
            *(Changes(*pair) for pair in zip(values, stacked, strict=True)),
            captured,
        )
        return carry, outputs.join(ys, made.constant), groups

    def _create(self, where: str, traced: Traced, state: Any, xs: Any) -> tuple[Created, Created]:
        """Makes the initial values, but those of stacked variables that depend on the carry.

        Returns:
            The values, and for each whether it was made.
        """
        reads = traced.reads()
        _check_constant(where, reads)

        def only(*parts: int) -> Created:
            picked = [jax.tree.map(lambda _, on=index in parts: on, part) for index, part in enumerate(reads)]
            return Created(*picked)

        first = None
        if any(_SLICES in read for read in jax.tree.leaves(reads.carried)):
            first = _first(where, xs, self.size, self.reverse)
        outside = traced.create(only(0, 3), None, None)
        carried = traced.create(only(1), state, first).carried
        alone = only()._replace(stacked=jax.tree.map(lambda read: _STATE not in read, reads.stacked))
        stacked = traced.create(alone._replace(stacked=jax.tree.map(lambda _: False, reads.stacked)), None, None).stacked
        if any(jax.tree.leaves(alone)):
            _, stacked = self.scan(lambda _, slices: (None, traced.create(alone, None, slices).stacked), None, xs)
        return Created(outside.shared, carried, stacked, outside.constant), only(0, 1, 3)._replace(stacked=alone.stacked)


_STATE, _SLICES = 0, 1
"""The operands of a traced body, as `Traced.reads` numbers them."""


class Outputs:
    """What a body gives to be stacked, along the axes that `out_axes` says."""

    def __init__(self, out_axes: InOutAxes) -> None:
        self._out_axes = out_axes

    def split(self, ys: PyTree) -> tuple[list[Any], list[Any]]:
        """The leaves to stack, and those that are the same in all iterations."""
        axes = flatten_axes("out_axes", self._out_axes, ys)
        leaves, self._treedef = jax.tree.flatten(ys)
        pairs = list(zip(leaves, axes, strict=True))
        return [y for y, axis in pairs if axis is not None], [y for y, axis in pairs if axis is None]

    def join(self, stacked: PyTree, constant: PyTree) -> PyTree:
        """The pytree again, from stacked and constant leaves; or from the stacked pytree, if that was never split."""
        treedef = getattr(self, "_treedef", jax.tree.structure(stacked))
        axes = flatten_axes("out_axes", self._out_axes, jax.tree.unflatten(treedef, [0] * treedef.num_leaves))
        leaves, constants = iter(jax.tree.leaves(stacked)), iter(constant)
        each = [next(constants) if axis is None else _to_axis(next(leaves), axis) for axis in axes]
        return jax.tree.unflatten(treedef, each)


def _trace(body: Callable[..., Any], state: Any, slices: Any) -> tuple[Traced, Any]:
    """Traces a body, and again where a weakly typed carry must be cast, as `jax.lax.scan` does."""
    while True:
        traced = trace(body, state, slices)
        carried, carry = state
        written, after = traced.outputs[0]
        cast = promoted((select(carried, written), carry), (select(written, carried), after))
        if cast is None:
            return traced, state
        state = overlay(carried, cast[0]), cast[1]


def _merged(group: PyTree, other: PyTree) -> PyTree:
    return tuple(merge(*trees) for trees in zip(group, other, strict=True))


def _first(where: str, xs: PyTree, size: int, reverse: bool) -> PyTree:
    """The slices of the iteration that runs first."""
    if size == 0:
        raise AxisSizeError(
            where,
            "a carried variable is made from the slices of iteration 0, and there is none.",
            "Create it outside the loop, or loop at least once.",
        )
    return jax.tree.map(lambda leaf: leaf[size - 1 if reverse else 0], xs)


def _check_unwritten(where: str, shared: PyTree) -> None:
    names = _variable_names(shared)
    if names:
        raise LoopInvarianceError(
            where,
            f"{names} is shared by all iterations (variable_broadcast), but the body writes it.",
            f'Carry it from one iteration to the next: `variable_carry="{names[0].split("/")[0]}"`.',
        )


def _check_constant(where: str, reads: Created) -> None:
    """Checks that what all iterations share depends on none of them."""
    names = [name for name in _variable_names(jax.tree.map(lambda read: read or None, reads.shared))]
    if names:
        raise LoopInvarianceError(
            where,
            f"{names} is shared by all iterations (variable_broadcast), but its initial value depends on "
            "the carry, on a slice or on a key that is split.",
            f'Stack it, `variable_axes={{"{names[0].split("/")[0]}": 0}}`, or do not split the sequence it draws from.',
        )
    if any(reads.constant):
        raise LoopInvarianceError(
            where,
            "an output with `broadcast` in `out_axes` depends on the carry, on a slice or on a key that is split.",
            "Give it an axis, and take one of the stacked values.",
        )


def _variable_names(group: PyTree) -> list[str]:
    paths = (path for path, _ in jax.tree.leaves_with_path(group))
    return sorted({jax.tree_util.keystr(path[1:], simple=True, separator="/") for path in paths})


def _to_front(group: PyTree, axis: Axis) -> PyTree:
    return group if axis in (0, None) else jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), group)


def _to_axis(group: PyTree, axis: Axis) -> PyTree:
    return group if axis in (0, None) else jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), group)


def _is_none(value: Any) -> bool:
    return value is None
