"""Mappings: the common part of `vmap`, `map` and `pmap`.

The body is traced for one element. Its initial values are computed by `jax.vmap`, one operation at a time, so that an
enclosing loop sees what each of them depends on. The rest runs under the mapping itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.core import ShapedArray

from .._compat import DRAWS_SHARDED
from ..errors import LoopInvarianceError
from ..leaves import split_leaves
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, transformation
from ..pipeline.splitting import Split
from ..scopes.lifts import Advice, Captured
from ..texts import path_text
from ..typing import Axis, InOutAxes, PyTree
from .axes import (
    NO_AXES,
    Arguments,
    VariableAxes,
    check_group_axes,
    check_out_axes,
    flatten_axes,
    slice_type,
    split_keys,
    split_rules,
)
from .boxes import boxes_outside, check_params, sized_inside
from .carry import fix_for
from .invariance import share_the_rest
from .mesh_axes import MeshAxis

__all__ = ["Elements", "Mapper", "over_elements"]


class Mapper(NamedTuple):
    """A transformation that maps a function over elements.

    Attributes:
        name: its name.
        advice: tells users, in error messages, how to make it take more variables and streams.
        axis_name: the name of the axis, inside.
        spmd_axis_name: see `jax.vmap`.
        donated: the numbers of the donated arguments, from 1.
        spread: runs the body instead of `jax.vmap`, if given: called as `spread(elements, fn, in_axes, out_axes)`.
        closed: whether arrays without an axis are operands too, and types do not include the mesh of arrays.
        fix: the fix of the error message if the size of the axis is unknown.
        same: a suffix of error messages: how to write the same value in all elements.
    """

    name: str
    advice: Advice
    axis_name: Any = None
    spmd_axis_name: Any = None
    donated: Collection[int] = ()
    spread: Callable[[Elements, Callable[..., Any], PyTree, PyTree], Callable[..., Any]] | None = None
    closed: bool = False
    fix: str = "Give it: `axis_size=…`."
    same: str = ", such as a `jax.lax.pmean` over `axis_name`"


def over_elements(
    mapper: Mapper,
    in_axes: InOutAxes,
    out_axes: InOutAxes,
    axis_size: int | None,
    kw_axes: InOutAxes,
    variable_axes: Mapping[Any, Any],
    split_rngs: Mapping[Any, bool] | bool,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Lifter:
    """Make a lift of functions for a mapping; the other arguments are those of `vmap`."""
    axes = VariableAxes(variable_axes)
    check_params(mapper.name, metadata_params)
    rules, key_axes = split_rules(split_rngs)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(body, 1, args, kwargs, in_axes, kw_axes)
        size, variable_groups = sized_inside(
            body.where,
            variable_groups,
            axes.in_axes,
            metadata_params,
            lambda groups: arguments.size(axis_size, groups, axes.in_axes, mapper.fix),
        )
        keys = split_keys(rng_groups, key_axes, size)
        operands, operand_axes, others = arguments.split_with(variable_groups, axes.in_axes, keys, key_axes)
        whole, static = split_leaves(others.leaves, lambda leaf: mapper.closed and isinstance(leaf, jax.Array))

        def element(body: Body, slices: Any, whole: Any) -> tuple[Any, Any]:
            variables, rngs, args, kwargs = others.join(slices, static.join(whole))
            result, groups = body(variables, rngs, *args, **kwargs)
            check_out_axes(f"{body.where}, out_axes", out_axes, result)
            check_group_axes(body.where, (*axes.out_axes, 0), groups)
            return result, groups

        along_mesh = MeshAxis(operands, operand_axes)
        split = [group for group, axis in zip(keys, key_axes, strict=True) if axis is not None]
        draws = not DRAWS_SHARDED and bool(jax.tree.leaves(split))
        operands = operands if draws else along_mesh.alike(operands, operand_axes)
        donated = [*arguments.belong_to(mapper.donated), *[False for _ in whole]] if mapper.donated else []
        gathered = along_mesh if draws else None
        elements = Elements(mapper, size, (operand_axes, None), (*axes.out_axes, 0), donated, gathered)
        result, groups = elements.run(body, element, (operands, whole), out_axes)
        return result, boxes_outside(groups, axes.out_axes, metadata_params)

    advice = mapper.advice.along("element", axes.in_axes, axes.out_axes, key_axes).listing(variable_axes)
    return transformation(
        transform, axes.in_filters, (*axes.out_filters, Captured()), rules, mapper.name, advice=advice
    )


class Elements(NamedTuple):
    """The data of one mapping of a body.

    Attributes:
        mapper: the transformation.
        size: the number of elements.
        in_axes: the axes of the operands.
        group_axes: the axes of the output groups.
        donated: for each of the last leaves of the operands, whether it is donated; empty if none is.
        gathered: the mesh axes along which operands are sharded, if they must be gathered for `jax.vmap`.
    """

    mapper: Mapper
    size: int
    in_axes: PyTree
    group_axes: tuple[Axis, ...]
    donated: Sequence[bool] = ()
    gathered: MeshAxis | None = None

    def batch(self, fn: Callable[..., Any], in_axes: PyTree, out_axes: PyTree) -> Callable[..., Any]:
        """Map a function with `jax.vmap`."""
        mapped = jax.vmap(
            fn,
            in_axes,
            out_axes,
            axis_size=self.size,
            axis_name=self.mapper.axis_name,
            spmd_axis_name=self.mapper.spmd_axis_name,
        )
        return mapped if self.gathered is None else self.gathered.gathered(mapped, in_axes, out_axes)

    def spread(self, fn: Callable[..., Any], in_axes: PyTree, out_axes: PyTree) -> Callable[..., Any]:
        """Map a function with the transformation itself."""
        if self.mapper.spread is None:
            return self.batch(fn, in_axes, out_axes)
        return self.mapper.spread(self, fn, in_axes, out_axes)

    def sliced(self, operands: PyTree, in_axes: PyTree) -> PyTree:
        """Return the types of the slices of one element."""
        leaves, treedef = jax.tree.flatten(operands)
        axes = flatten_axes("operands", in_axes, operands)
        slices = [leaf if axis is None else slice_type(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
        if self.mapper.closed:
            slices = [_without_mesh(leaf) for leaf in slices]
        return jax.tree.unflatten(treedef, slices)

    @property
    def names(self) -> list[tuple[Any, int]]:
        """The named axis, in the form that `jax.make_jaxpr` takes."""
        return [] if self.mapper.axis_name is None else [(self.mapper.axis_name, self.size)]

    def run(
        self, body: Body, element: Callable[..., Any], operands: PyTree, out_axes: InOutAxes
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Map `element(body, slices, whole) -> (result, groups)`; the operands are sliced and whole values."""
        if not body.writes:
            run = self.spread(lambda *given: element(body, *given)[0], self.in_axes, out_axes)
            return run(*operands), body.unchanged
        if not body.creates and self.mapper.spread is None:
            found = self._run_whole(body, element, operands, out_axes)
            if found is not None:
                return found
        axes = list(self.group_axes)
        parts = body.split(*self.sliced(operands, self.in_axes), axes=self.names, via=element)
        whole: Any = ([*axes, 0], *self.in_axes), (out_axes, axes)
        try:
            created = parts.batched_prologue(self.batch, operands, self.in_axes, whole[0][0])
            created = MeshAxis(operands, self.in_axes).alike(created, whole[0][0])
            if self.mapper.spread is None:
                outputs = self.batch(parts.remainder, *whole)(created, *operands)
            elif any(axis is None and jax.tree.leaves(group) for group, axis in zip(parts.values, axes, strict=True)):
                # Only `jax.vmap` detects whether a value differs between elements.
                jax.eval_shape(self.batch(parts.remainder, *whole), created, *operands)
        except ValueError as error:
            _check_shared(body, parts, axes, self.mapper, error)
            raise
        if self.mapper.spread is not None:
            outputs = self.mapper.spread(self, parts.remainder, *whole)(created, *operands)
        return parts.join(created, *outputs)

    def _run_whole(
        self, body: Body, element: Callable[..., Any], operands: PyTree, out_axes: InOutAxes
    ) -> tuple[PyTree, tuple[PyTree, ...]] | None:
        """Map a body that creates nothing, so that there is nothing to split off.

        Return None if a shared variable differs between elements: the split body then tells which one.
        """
        runs: list[None] = []

        def run(*given: Any) -> Any:
            found = element(body, *given)
            runs.append(None)
            return found

        try:
            output: tuple[PyTree, tuple[PyTree, ...]] = self.batch(run, self.in_axes, (out_axes, self.group_axes))(
                *operands
            )
            return output
        except ValueError:
            if not runs:  # an error of the body
                raise
        body.forget()
        return None


_SLICES = 0
"""The index of the operand that differs between elements, as in `Split.reads`."""


def _without_mesh(leaf: Any) -> jax.ShapeDtypeStruct:
    aval = leaf if isinstance(leaf, ShapedArray) else jax.typeof(leaf)
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        aval.shape, aval.dtype, weak_type=aval.weak_type
    )


def _check_shared(body: Body, parts: Split, axes: Sequence[Axis], mapper: Mapper, error: ValueError) -> None:
    """Raise if a shared variable, created or written, depends on the element."""
    mapped = {number for number, part in enumerate(parts.parts) if part < len(axes) and axes[part] is not None}
    created = parts.reads(), parts.tree(dict(enumerate(parts.earlier)))
    written = (one[1] for one in parts.output_reads())
    advices = (
        "do not split the stream that its initializer draws from",
        f"write the same value in all elements{mapper.same}",
    )
    for both, advice in zip((created, written), advices, strict=True):
        reads, earlier = ([part if axis is None else () for part, axis in zip(one, axes, strict=False)] for one in both)
        differ = jax.tree.map(lambda read, made: _SLICES in read or not mapped.isdisjoint(made), reads, earlier)
        paths = [path for path, one in jax.tree.leaves_with_path(differ) if one]
        names = sorted({path_text(path[2:]) for path in paths})
        if names:
            differing = [body.path(path[1:]) for path in paths]
            axis = share_the_rest(body, differing, paths[0][0].idx)
            axis = axis or f'Give it an axis, `variable_axes={{"{differing[0][0]}": 0}}`'
            raise LoopInvarianceError(
                body.where,
                f"{names} is shared by all elements (axis None), but its new value differs between them.",
                fix_for(body, names, f"{axis}, or {advice}."),
            ) from error
