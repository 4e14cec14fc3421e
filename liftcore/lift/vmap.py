"""Lifted `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.tree import leaves_with_path as leaves_of

from ..errors import LoopInvarianceError
from ..hoist import trace
from ..pack import Captured, Pure, lift
from ..typing import Axis, InOutAxes
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

__all__ = ["vmap"]


def vmap(
    fn: Callable[..., Any],
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    *,
    kw_axes: InOutAxes = 0,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
) -> Callable[..., Any]:
    """`jax.vmap` for a function of scopes: each lane has variables and keys of its own, or shares them.

    Example:
        >>> import liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))
        >>> ensemble = liftcore.vmap(layer, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> y, variables = liftcore.init(ensemble)(jax.random.key(0), jnp.ones((5, 3)))
        >>> y.shape, variables["params"]["w"].shape
        ((5, 2), (5, 3, 2))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        in_axes: see `jax.vmap`; it counts the arguments after the scopes.
        out_axes: see `jax.vmap`.
        axis_name: see `jax.vmap`.
        axis_size: see `jax.vmap`.
        spmd_axis_name: see `jax.vmap`.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are no arrays are passed
            on unchanged.
        variable_axes: for each filter of variables an axis, None (shared by the lanes), or `In`, `Out`, `InOut`.
        split_rngs: for each filter of PRNG sequences whether lanes draw different keys; or one bool for all.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        AxisSizeError: when called, where sizes disagree or there is none.
        LoopInvarianceError: when called, where a shared variable gets a value that differs between lanes.
    """
    axes = VariableAxes(variable_axes)
    rules, flags = split_rules(split_rngs)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    def transform(pure: Pure, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arg_axes, kwarg_axes = flatten_axes("in_axes", in_axes, args), keyword_axes(kw_axes, kwargs)
        mapped = [
            *named_arguments(pure.fn, 1, args, arg_axes),
            ("keyword arguments", kwargs, kwarg_axes),
            *named_groups(variable_groups, axes.in_axes),
        ]
        size = infer_size(pure.where, axis_size, mapped, "Give it: `axis_size=…`.")
        leaves, treedef = jax.tree.flatten((args, kwargs))
        leaf_axes = [*arg_axes, *kwarg_axes]

        def lane(variable_groups: Any, rng_groups: Any, slices: list[Any]) -> Any:
            now = iter(slices)
            full = [leaf if axis is None else next(now) for leaf, axis in zip(leaves, leaf_axes, strict=True)]
            args, kwargs = jax.tree.unflatten(treedef, full)
            return pure(variable_groups, rng_groups, *args, **kwargs)

        operands = (
            list(variable_groups),
            split_keys(rng_groups, flags, size),
            [leaf for leaf, axis in zip(leaves, leaf_axes, strict=True) if axis is not None],
        )
        operand_axes = (
            axes.in_axes,
            [0 if flag else None for flag in flags],
            [axis for axis in leaf_axes if axis is not None],
        )
        mapping = jax.vmap(
            lane,
            in_axes=operand_axes,
            out_axes=(out_axes, (*axes.out_axes, 0)),
            axis_name=axis_name,
            axis_size=size,
            spmd_axis_name=spmd_axis_name,
        )
        try:
            return mapping(*operands)
        except ValueError as error:
            differing = _differing(lane, axes.out_axes, operands, operand_axes)
            if differing:
                raise _not_shared(pure.where, differing) from error
            raise

    return lift(transform, fn, axes.in_filters, (*axes.out_filters, Captured()), rules, "vmap")


def _differing(lane: Callable[..., Any], out_axes: Sequence[Axis], operands: Any, operand_axes: Any) -> list[str]:
    """The shared variables whose new value differs between lanes, as far as a trace of one lane can tell."""
    leaves, treedef = jax.tree.flatten(operands)
    flat_axes = flatten_axes("operands", operand_axes, operands)
    slices = {i: slice_type(leaves[i], axis) for i, axis in enumerate(flat_axes) if axis is not None}

    def shared(slices: dict[int, Any]) -> Any:
        full = [slices.get(index, leaf) for index, leaf in enumerate(leaves)]
        _, groups = lane(*jax.tree.unflatten(treedef, full))
        return [group for group, axis in zip(groups, out_axes, strict=False) if axis is None], ()

    try:
        reads = trace(shared, slices).reads()
    except Exception:  # the lane cannot be traced alone, say for a collective over its axis: JAX's own error stands
        return []
    named = ((jax.tree_util.keystr(path[3:], simple=True, separator="/"), read) for path, read in leaves_of(reads))
    return sorted({name for name, read in named if read})


def _not_shared(where: str, differing: Sequence[str]) -> LoopInvarianceError:
    collection = differing[0].split("/")[0]
    return LoopInvarianceError(
        where,
        f"{list(differing)} is shared by all lanes (axis None), but its new value differs between them.",
        f'Give it an axis, `variable_axes={{"{collection}": 0}}`, or do not split the sequence that its initializer '
        "draws from.",
    )
