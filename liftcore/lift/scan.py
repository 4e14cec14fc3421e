"""Lifted `jax.lax.scan`.

The body is traced once. Its variables form three kinds of groups: *shared* variables are the same in all iterations,
*carried* variables pass from one iteration to the next, and *stacked* variables have an axis with one slice for each
iteration. `liftcore.runners.looping` describes how the body may create a variable of each kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Expected, LiftArgumentError, words
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..runners.arguments import parameter_names
from ..runners.axes import (
    NO_AXES,
    Arguments,
    VariableAxes,
    boxes_inside,
    boxes_outside,
    check_params,
    checked_axes,
    split_keys,
    split_rules,
    to_front,
)
from ..runners.carry import LoopAdvice
from ..runners.eager import cached_when_eager
from ..runners.in_place import places_of
from ..runners.looping import Loop, lax_scan
from ..scopes.lifts import Advice, Captured
from ..typing import Filter, InOutAxes

__all__ = ["scan"]

_ADVICE = Advice(
    '`variable_axes={{"{0}": 0}}`, `variable_broadcast="{0}"` or `variable_carry="{0}"`',
    '`split_rngs={{"{}": True}}`, or False for the same keys in all iterations, as a shared variable needs',
    part='`variable_broadcast=filters.All("{0}", filters.PathContains("{1}")), variable_axes={{"{0}": 0}}`',
    whole='`variable_broadcast="{}"`',
    size="length",
)
_LOOP_ADVICE = LoopAdvice("Stack it, {variable_axes}", "Carry it: {variable_carry}", lift="scan")
_INSTEAD = 'Carry it, and share the others: `variable_broadcast=DenyList("{0}"), variable_carry="{0}"`'
_SHARED_AND_CARRIED = ("broadcast, one value for all iterations", "carry, from one iteration to the next")

_LENGTH = "Give it: `length=…`."
_AFTER_CARRY = " The first argument is the carry; mapped arguments follow it."


@cached_when_eager(numbers=[1])  # outside `jax.jit`, a hidden jit runs what follows; skip it at first reading
def scan(
    fn: Callable[..., tuple[Any, Any]],
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    kw_axes: InOutAxes = 0,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Callable[..., Any]:
    """`jax.lax.scan` for a function of scopes.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x, _):
        ...     w = scope.param("w", jax.random.normal, (3, 3))
        ...     return jnp.tanh(x @ w), x.sum()
        >>> layers = liftcore.scan(layer, length=4, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> (x, sums), variables = liftcore.init(layers)(jax.random.key(0), jnp.ones(3), None)
        >>> x.shape, sums.shape, variables["params"]["w"].shape
        ((3,), (4,), (4, 3, 3))

    Args:
        fn: called as `fn(scopes, carry, *slices, **kwargs)`; returns the next carry and a pytree to stack.
        length: the number of iterations; needed only if nothing is sliced.
        reverse: whether to run from the last slice to the first.
        unroll: the number of iterations in one step of the compiled loop; True for all of them.
        _split_transpose: whether to split the backward pass into two loops: one for the operations that depend on the
            order of iterations, one for the others. Experimental in JAX.
        in_axes: the axis to slice for each argument after the carry, or `broadcast` to pass the whole argument to each
            iteration; a pytree prefix.
        out_axes: the new axis of each stacked result, or `broadcast` for a value that is the same in all iterations.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are not arrays are passed
            on unchanged.
        variable_axes: maps filters of stacked variables to axes: an int, or `In`, `Out`, `InOut`, `InPlace`.
        variable_broadcast: a filter of the shared variables.
        variable_carry: a filter of the carried variables.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, carry, *xs, **kwargs)`, which returns the last carry and the stacked results.

    Raises:
        AxisSizeError: when called, if lengths disagree, or nothing is sliced and `length` is missing.
        LiftArgumentError: if `variable_axes` holds None.
        CarryTypeError: when called, if the body changes the type of the carry.
        LoopInvarianceError: when called, if a shared value depends on the iteration.
    """
    axes = VariableAxes(variable_axes)
    # Each filter has an axis: unlike a mapping, a loop has a separate filter for variables without one.
    if None in [*axes.in_axes, *axes.out_axes]:
        raise LiftArgumentError(
            f"variable_axes={dict(variable_axes)!r} of scan",
            Expected("an axis for each filter", given=None),
            'Share these variables by `variable_broadcast="params"`, or carry them by `variable_carry`.',
            option="variable_axes",
        )
    check_params("scan", metadata_params)
    rules, key_axes = split_rules(split_rngs)
    in_axes = checked_axes("scan, in_axes", in_axes)
    checked_axes("scan, out_axes", out_axes)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        carry, args, kwargs = (args[0], args[1:], kwargs) if args else _named_carry(body, kwargs)
        arguments = Arguments(body, 2, args, kwargs, in_axes, kw_axes)
        shared, carried, *stacked = variable_groups
        size_of = functools.partial(
            arguments.size, length, axes=axes.in_axes, option="length", fix=_LENGTH, aside=_AFTER_CARRY
        )
        stacked = boxes_inside(body, stacked, axes.in_axes, metadata_params, size_of)
        size = size_of(stacked)
        keys = split_keys(rng_groups, key_axes, size)

        def iteration(body: Body, shared: Any, state: Any, slices: Any) -> tuple[Any, Any, Any]:
            (carried, carry), (stacked, rngs, args, kwargs) = state, others.join(slices)
            result, groups = body([shared, carried, *stacked], rngs, carry, *args, **kwargs)
            return *_pair(body, result), groups

        sliced, along, others = arguments.split_with(stacked, axes.in_axes, keys, key_axes)
        xs = [to_front(leaf, axis) for leaf, axis in zip(sliced, along, strict=True)]
        run = lax_scan(size, reverse=reverse, unroll=unroll, _split_transpose=_split_transpose)
        in_place = places_of(stacked, axes.in_place) if axes.in_place else None
        loop = Loop(size, run, axes.out_axes, reverse, loop_advice, in_place)
        carry, ys, groups = loop.run(body, iteration, shared, (carried, carry), xs, out_axes)
        return (carry, ys), boxes_outside(groups, [None, None, *axes.out_axes], metadata_params)

    loop_advice = _LOOP_ADVICE if variable_broadcast is not True else _LOOP_ADVICE._replace(carry=_INSTEAD)
    into = (variable_broadcast, variable_carry, *axes.in_filters)
    out = (variable_broadcast, variable_carry, *axes.out_filters, Captured())
    advice = _ADVICE.along("iteration", axes.in_axes, axes.out_axes, key_axes, _SHARED_AND_CARRIED)
    advice = advice.listing(variable_axes)
    return transformation(transform, into, out, rules, "scan", advice=advice)(fn)


def _named_carry(body: Body, kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the carry, which is passed by the name of the parameter after the scopes, and the arguments left."""
    names = parameter_names(body.fn)[1:2]
    if not names or names[0] not in kwargs:
        fix = f"Call it as `lifted({words().first}carry, *xs)`."
        raise LiftArgumentError(body.where, "it was called without a carry.", fix, option="carry")
    return kwargs[names[0]], (), {name: value for name, value in kwargs.items() if name != names[0]}


def _pair(body: Body, result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise LiftArgumentError(
            body.where,
            Expected("the body to return a pair, `(carry, ys)`", given=result),
            "Write `return carry, ys`, or `return carry, None`.",
        )
    return result[0], result[1]
