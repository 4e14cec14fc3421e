"""Mappings: the common part of `vmap`, `map` and `pmap`.

The body is traced for one element. Its initial values are computed by `jax.vmap`, one operation at a time, so that an
enclosing loop sees what each of them depends on. The rest runs under the mapping itself.

On a mesh of Explicit axes, `jax.vmap` requires the same sharding along the mapped axis for all arrays. So the keys that
are split for the elements, and the variables that are created for them, are sharded along that axis in the same way as
the arguments and variables of the mapping (`MeshAxis`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .._compat import DRAWS_SHARDED
from ..errors import LoopInvarianceError, words
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, transformation
from ..pipeline.splitting import Split
from ..pytrees import Others
from ..scopes.lifts import Advice, Captured
from ..texts import path_text
from ..typing import Axis, InOutAxes, PyTree
from .axes import (
    NO_AXES,
    Arguments,
    VariableAxes,
    boxes_inside,
    boxes_outside,
    check_group_axes,
    check_out_axes,
    check_params,
    checked_axes,
    flatten_axes,
    slice_type,
    split_keys,
    split_rules,
    splits,
)
from .carry import fix_for, share_the_rest

__all__ = ["Elements", "Mapper", "MeshAxis", "Spread", "advice_for", "over_elements"]


@dataclasses.dataclass(eq=False)
class Elements:
    """One mapping of a body, by `jax.vmap`.

    Attributes:
        mapper: the transformation.
        arguments: the arguments of the call.
        size: the number of elements.
        names: the name of the axis and its size, in the form that `jax.make_jaxpr` takes; empty without a name.
        others: what is not mapped; joins slices to the arguments of the body.
        operands: the arrays that are mapped, in lists.
        in_axes: their axes, in lists.
        group_axes: the axes of the output groups.
        created_axes: the axes of the initial values: those of the output groups, and of the results of effects.
        mesh: how operands are sharded along their mapped axes; None, as usual, if none is.
    """

    mapper: Mapper
    arguments: Arguments
    size: int
    names: list[tuple[Any, int]]
    others: Others
    operands: tuple[list[Any], ...]
    in_axes: tuple[list[Axis], ...]
    group_axes: list[Axis]
    created_axes: list[Axis]
    mesh: MeshAxis | None

    def join(self, *slices: Any) -> Any:
        """Return the arguments of the body for one element, given its slice of each operand."""
        return self.others.join(*slices)

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
        if self.mesh is None or not self.mesh.gathers:
            return mapped
        return self.mesh.gathered(mapped, in_axes, out_axes)

    def types(self, arrays: Sequence[Any], axes: Sequence[Axis]) -> list[Any]:
        """Return the types of the slices of one element."""
        return [leaf if axis is None else slice_type(leaf, axis) for leaf, axis in zip(arrays, axes, strict=True)]

    def run(self, body: Body, element: Callable[..., Any], out_axes: InOutAxes) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Map `element(body, *slices) -> (result, groups)` over the elements."""
        if not body.writes:
            run = self.batch(lambda *slices: element(body, *slices)[0], self.in_axes, out_axes)
            return run(*self.operands), body.unchanged
        if not body.creates:
            found = self._run_unsplit(body, element, out_axes)
            if found is not None:
                return found
        split = self.split(body, element)
        axes = (self.created_axes, *self.in_axes), (out_axes, self.group_axes)
        try:
            created = self.created(split)
            outputs = self.batch(split.remainder, *axes)(created, *self.operands)
        except ValueError as error:
            _check_shared(body, split, self, error)
            raise
        return split.join(created, *outputs)

    def split(self, body: Body, element: Callable[..., Any]) -> Split:
        """Trace the body for one element, in two parts."""
        return body.split(*map(self.types, self.operands, self.in_axes), axes=self.names, via=element)

    def created(self, split: Split) -> list[PyTree]:
        """Return the initial values of all elements, and the results of effects."""
        form = None if self.mesh is None else self.mesh.form([self.created_axes[part] for part in split.parts])
        return split.batched_prologue(self.batch, self.operands, self.in_axes, self.created_axes, form)

    def _run_unsplit(
        self, body: Body, element: Callable[..., Any], out_axes: InOutAxes
    ) -> tuple[PyTree, tuple[PyTree, ...]] | None:
        """Map a body that creates nothing, so that there is nothing to split off.

        Return None if a shared variable differs between elements: the split body then tells which one.
        """
        runs: list[None] = []

        def run(*slices: Any) -> Any:
            found = element(body, *slices)
            runs.append(None)
            return found

        mapped = self.batch(run, self.in_axes, (out_axes, tuple(self.group_axes)))
        try:
            output: tuple[PyTree, tuple[PyTree, ...]] = mapped(*self.operands)
            return output
        except ValueError:
            if not runs:  # an error of the body
                raise
        body.forget()
        return None


class Spread(Elements):
    """One mapping of a body that does not run under `jax.vmap`; a subclass defines how it runs."""

    def spread(self, fn: Callable[..., Any], operands: tuple[PyTree, ...], in_axes: PyTree, out_axes: PyTree) -> PyTree:
        """Return the results of a function of the operands for all elements."""
        raise NotImplementedError

    def run(self, body: Body, element: Callable[..., Any], out_axes: InOutAxes) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Map `element(body, *slices) -> (result, groups)` over the elements."""
        if not body.writes:
            result = self.spread(lambda *one: element(body, *one)[0], self.operands, self.in_axes, out_axes)
            return result, body.unchanged
        split = self.split(body, element)
        axes = (self.created_axes, *self.in_axes), (out_axes, self.group_axes)
        shared = [group for group, axis in zip(split.values, self.group_axes, strict=True) if axis is None]
        try:
            operands = self.created(split), *self.operands
            if jax.tree.leaves(shared):  # only `jax.vmap` detects whether a value differs between elements
                jax.eval_shape(self.batch(split.remainder, *axes), *operands)
        except ValueError as error:
            _check_shared(body, split, self, error)
            raise
        return split.join(operands[0], *self.spread(split.remainder, operands, *axes))


class Mapper(NamedTuple):
    """A transformation that maps a function over elements.

    Attributes:
        name: its name.
        advice: tells users, in error messages, how to make it take more variables and streams.
        axis_name: the name of the axis, inside.
        spmd_axis_name: see `jax.vmap`.
        elements: makes the mapping for one call; it takes the arguments of `Elements`.
        sized_by: the argument that gives the size of the axis.
        fix: the fix of the error message if that is unknown.
        same: a suffix of error messages: how to write the same value in all elements.
    """

    name: str
    advice: Advice
    axis_name: Any = None
    spmd_axis_name: Any = None
    elements: Callable[..., Elements] = Elements
    sized_by: str = "axis_size"
    fix: str = "Give it: `axis_size=…`."
    same: str = ", such as a `jax.lax.pmean` over `axis_name`"


def advice_for(elements: str, note: str = "") -> Advice:
    """Return the advice of a mapping.

    Args:
        elements: where a value may be the same, such as "in all elements".
        note: a clause about equal keys.
    """
    collection = f'`variable_axes={{{{"{{}}": 0}}}}`, or None for one value {elements}'
    stream = f'`split_rngs={{{{"{{}}": True}}}}`, or False for the same keys {elements}{note}'
    part = '`variable_axes={{filters.All("{0}", filters.PathContains("{1}")): None, "{0}": 0}}`'
    return Advice(collection, stream, part=part)


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
    in_axes = checked_axes(f"{mapper.name}, in_axes", in_axes)
    checked_axes(f"{mapper.name}, out_axes", out_axes)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(body, 1, args, kwargs, in_axes, kw_axes)
        size_of = functools.partial(
            arguments.size, axis_size, axes=axes.in_axes, option=mapper.sized_by, fix=mapper.fix
        )
        variable_groups = boxes_inside(body, variable_groups, axes.in_axes, metadata_params, size_of)
        size = size_of(variable_groups)
        keys = split_keys(rng_groups, key_axes, size)
        operands, along, others = arguments.split_with(variable_groups, axes.in_axes, keys, key_axes)

        def element(body: Body, *slices: Any) -> tuple[Any, Any]:
            variables, rngs, args, kwargs = elements.join(*slices)
            result, groups = body(variables, rngs, *args, **kwargs)
            if out_axes != 0:  # there is always a position 0
                check_out_axes("out_axes", out_axes, result, body)
            if any(axes.out_axes):
                check_group_axes(body, axes.out_axes, groups[:-1])
            return result, groups

        mesh = MeshAxis.of(operands, along, not DRAWS_SHARDED and splits(keys, key_axes))
        if mesh is not None and not mesh.gathers:
            operands = mesh.alike(operands, along)
        group_axes = [*axes.out_axes, 0]  # what is sown is stacked, and so are the results of effects
        mapping = (operands,), (along,), group_axes, [*group_axes, 0]
        names = [] if mapper.axis_name is None else [(mapper.axis_name, size)]
        elements = mapper.elements(mapper, arguments, size, names, others, *mapping, mesh)
        result, groups = elements.run(body, element, out_axes)
        return result, boxes_outside(groups, axes.out_axes, metadata_params)

    advice = mapper.advice.along("element", axes.in_axes, axes.out_axes, key_axes).listing(variable_axes)
    return transformation(
        transform, axes.in_filters, (*axes.out_filters, Captured()), rules, mapper.name, advice=advice
    )


_SLICES = 0
"""The index of the operand that differs between elements, as in `Split.reads`."""


def _check_shared(body: Body, split: Split, elements: Elements, error: ValueError) -> None:
    """Raise if a shared variable, created or written, depends on the element."""
    axes = elements.group_axes
    mapped = {number for number, part in enumerate(split.parts) if part < len(axes) and axes[part] is not None}
    created = split.reads(), split.tree(dict(enumerate(split.earlier)))
    written = (one[1] for one in split.output_reads())
    advices = (
        "do not split the stream that its initializer draws from",
        f"write the same value in all elements{elements.mapper.same}",
    )
    for both, advice, which in zip((created, written), advices, ("initial", "new"), strict=True):
        reads, earlier = ([part if axis is None else () for part, axis in zip(one, axes, strict=False)] for one in both)
        differ = jax.tree.map(lambda read, made: _SLICES in read or not mapped.isdisjoint(made), reads, earlier)
        paths = [path for path, one in jax.tree.leaves_with_path(differ) if one]
        names = sorted({path_text(path[2:]) for path in paths})
        if names:
            differing = [body.path(path[1:]) for path in paths]
            code = words().setting(f'`variable_axes={{"{differing[0][0]}": 0}}`', "variable_axes", "0", names)
            axis = share_the_rest(body, differing, paths[0][0].idx) or f"Give it an axis, {code}"
            raise LoopInvarianceError(
                body.where,
                f"{words().variables(names)} is shared by all elements (axis None), but its {which} value differs "
                "between them.",
                fix_for(body, names, f"{axis}, or {advice}."),
                variable=names[0],
                option="variable_axes",
            ) from (None if isinstance(error, LoopInvarianceError) else error)


_reshard: Callable[..., Any] = jax.sharding.reshard  # JAX has no types for these two
_to_spec: Callable[..., Any] = P


class MeshAxis(NamedTuple):
    """The mesh axes along which mapped values are sharded.

    Attributes:
        mesh: the mesh.
        entry: its axes, as in a partition spec.
        gathers: whether `jax.vmap` needs operands that are gathered along them; see `gathered`.
    """

    mesh: Any
    entry: Any
    gathers: bool

    @classmethod
    def of(cls, operands: Sequence[Any], axes: Sequence[int], gathers: bool) -> MeshAxis | None:
        """Return those of the first operand that is sharded along its mapped axis; None if there is none."""
        # A glance at all types comes first, since almost no mapping has arrays on a mesh, and all run this.
        if True not in [isinstance(leaf, jax.Array) and not jax.typeof(leaf).sharding.mesh.empty for leaf in operands]:
            return None
        found = next(filter(None, map(_entry, operands, axes)), None)
        return None if found is None else cls(found[0], found[1], gathers)

    def alike(self, tree: PyTree, axes: PyTree) -> PyTree:
        """Return arrays that are mapped together with the operands, sharded alike along their own mapped axes."""
        leaves, treedef = jax.tree.flatten(tree)
        pairs = zip(leaves, flatten_axes("variables", axes, tree), strict=True)
        return jax.tree.unflatten(treedef, [leaf if axis is None else self._placed(leaf, axis) for leaf, axis in pairs])

    def form(self, axes: Sequence[Axis]) -> Callable[[int, Any], Any]:
        """Return the function that shards initial values alike, as `Split.batched_prologue` takes it.

        Args:
            axes: for each initial value, its mapped axis, or None.
        """
        return lambda number, leaf: leaf if (axis := axes[number]) is None else self._placed(leaf, axis)

    def gathered(self, mapped: Callable[..., Any], in_axes: PyTree, out_axes: PyTree) -> Callable[..., Any]:
        """Return the mapping with operands gathered along their mapped axes, and results sharded along theirs.

        Before JAX 0.10, `jax.vmap` cannot draw random arrays from keys that are sharded along the mapped axis. So each
        device computes all elements.
        """

        def run(*operands: Any) -> Any:
            leaves, treedef = jax.tree.flatten(operands)
            axes = flatten_axes("operands", tuple(in_axes) if isinstance(in_axes, list) else in_axes, operands)
            full = [leaf if axis is None else _unsharded(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
            return self.alike(mapped(*jax.tree.unflatten(treedef, full)), out_axes)

        return run

    def _placed(self, leaf: Any, axis: int) -> Any:
        is_free = jax.typeof(leaf).sharding.spec[axis] is None
        return _resharded(leaf, axis, self.mesh, self.entry) if is_free else leaf


def _unsharded(leaf: Any, axis: int) -> Any:
    """Return an array gathered along an axis."""
    found = _entry(leaf, axis)
    return leaf if found is None else _resharded(leaf, axis, found[0], None)


def _resharded(leaf: Any, axis: int, mesh: Any, entry: Any) -> Any:
    """Return an array on a mesh with another sharding along one axis."""
    entries = [*jax.typeof(leaf).sharding.spec]
    entries[axis] = entry
    return _reshard(leaf, NamedSharding(mesh, _to_spec(*entries)))


def _entry(leaf: Any, axis: int) -> Any:
    """Return the mesh of an array and its sharding along an axis; None if it is not sharded along it."""
    sharding: Any = getattr(jax.typeof(leaf), "sharding", None) if isinstance(leaf, jax.Array) else None
    entry = sharding.spec[axis] if sharding is not None and len(sharding.spec) else None
    return None if entry is None else (sharding.mesh, entry)
