"""Lifted `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import LoopInvarianceError
from ..hoist import trace
from ..layout import Captured
from ..pack import Pure, lift
from ..tree import Advice
from ..typing import Axis, InOutAxes, PyTree
from .axes import (
    NO_AXES,
    Arguments,
    VariableAxes,
    flatten_axes,
    infer_size,
    named_groups,
    replace_mapped,
    select_mapped,
    slice_type,
    split_keys,
    split_rules,
)
from .outline import with_created, without_created

__all__ = ["vmap"]

_ADVICE = Advice(
    '`variable_axes={{"{}": 0}}`, or None for one value in all lanes',
    '`split_rngs={{"{}": True}}`, or False for the same keys in all lanes',
)


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
    rules, key_axes = split_rules(split_rngs)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    def transform(pure: Pure, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(pure.where, args, kwargs, in_axes, kw_axes)
        mapped = [*arguments.named(pure.fn, 1), *named_groups(variable_groups, axes.in_axes)]
        size = infer_size(pure.where, axis_size, mapped, "Give it: `axis_size=…`.")
        keys = split_keys(rng_groups, key_axes, size)

        def lane(pure: Pure, slices: Any) -> tuple[Any, Any]:
            variables = replace_mapped(variable_groups, axes.in_axes, slices[0])
            rngs = replace_mapped(keys, key_axes, slices[1])
            args, kwargs = arguments.join(slices[2])
            result, groups = pure(variables, rngs, *args, **kwargs)
            flatten_axes(f"{pure.where}, out_axes", out_axes, result)
            return result, groups

        operands = (
            select_mapped(variable_groups, axes.in_axes),
            select_mapped(keys, key_axes),
            arguments.sliced,
        )
        operand_axes = ([axis for axis in axes.in_axes if axis is not None], 0, arguments.axes)
        lanes = Lanes(size, operand_axes, (*axes.out_axes, 0), axis_name, spmd_axis_name)
        return lanes.run(pure, lane, operands, out_axes)

    return lift(transform, fn, axes.in_filters, (*axes.out_filters, Captured()), rules, "vmap", _ADVICE)


class Lanes(NamedTuple):
    """How a body is mapped: `jax.vmap` less its function and `out_axes`."""

    size: int
    in_axes: PyTree
    group_axes: tuple[Axis, ...]
    axis_name: Any
    spmd_axis_name: Any

    def map(self, fn: Callable[..., Any], in_axes: PyTree, out_axes: PyTree) -> Callable[..., Any]:
        """`jax.vmap`."""
        return jax.vmap(
            fn,
            in_axes,
            out_axes,
            axis_size=self.size,
            axis_name=self.axis_name,
            spmd_axis_name=self.spmd_axis_name,
        )

    def run(
        self, pure: Pure, lane: Callable[..., Any], operands: PyTree, out_axes: InOutAxes
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Maps `lane(pure, slices) -> (result, groups)`."""
        if not pure.writes:
            run = self.map(lambda slices: lane(pure, slices), (self.in_axes,), (out_axes, self.group_axes))
            return run(operands)  # type: ignore[no-any-return]
        axes, hoisted = list(self.group_axes), pure.hoisted()

        def flat(slices: Any) -> tuple[tuple[Any, Any], Any]:
            created, (result, values) = without_created(*lane(hoisted, slices))
            shared = [group if axis is None else () for group, axis in zip(values, axes, strict=True)]
            mapped = [() if axis is None else group for group, axis in zip(values, axes, strict=True)]
            return (created, shared), (result, mapped)

        named = [] if self.axis_name is None else [(self.axis_name, self.size)]
        traced = trace(flat, self._slices(operands), axes=named)
        created, shared = traced.created
        chosen = jax.tree.map(lambda _: True, created), jax.tree.map(lambda _: False, shared)
        make = self.map(lambda slices: traced.create(chosen, slices)[0], (self.in_axes,), axes)
        run = self.map(
            lambda created, slices: traced.rest(chosen, (created, chosen[1]), slices),
            (axes, self.in_axes),
            (None, (out_axes, axes)),
        )
        try:
            made = pure.settle(make(operands)[:-1])
            (_, shared), (result, mapped) = run([*made, ()], operands)
        except ValueError as error:
            _check_shared(pure.where, traced.reads(), axes, error)
            raise
        values = [one if axis is None else other for one, other, axis in zip(shared, mapped, axes, strict=True)]
        return with_created([*made, ()], result, values)

    def _slices(self, operands: PyTree) -> PyTree:
        """The types of one lane's slices."""
        leaves, treedef = jax.tree.flatten(operands)
        axes = flatten_axes("operands", self.in_axes, operands)
        return jax.tree.unflatten(treedef, [slice_type(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)])


def _check_shared(where: str, reads: PyTree, axes: Sequence[Axis], error: ValueError) -> None:
    """Raises where a shared variable, created or written, depends on the lane."""
    for part, advice in zip(reads, _ADVICE_SHARED, strict=True):
        shared = [group if axis is None else () for group, axis in zip(part, axes, strict=True)]
        differ = [path for path, read in jax.tree.leaves_with_path(shared) if read]
        names = sorted({jax.tree_util.keystr(path[2:], simple=True, separator="/") for path in differ})
        if names:
            raise LoopInvarianceError(
                where,
                f"{names} is shared by all lanes (axis None), but its new value differs between them.",
                f'Give it an axis, `variable_axes={{"{names[0].split("/")[0]}": 0}}`, or {advice}.',
            ) from error


_ADVICE_SHARED = (
    "do not split the sequence that its initializer draws from",
    "write the same in all lanes, such as a `jax.lax.pmean` over `axis_name`",
)
"""What else can be done about a shared variable that differs, if it was created and if it was written."""
