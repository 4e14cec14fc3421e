"""A body that runs on the shards of a mesh, and may create variables.

It is traced for one shard, inside a `jax.shard_map`, so that its types show along which mesh axes a value varies. The
jaxpr is cut into parts for two kinds of `jax.shard_map`: one kind computes initial values, and the other one runs the
rest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import PartitionSpec

from .._compat import vary as add_axes
from .._compat import varying_axes
from ..caches import bounded
from ..errors import LiftArgumentError, LoopInvarianceError, name_of, words
from ..pipeline.body import Body, call_inside
from ..pipeline.splitting import Split, trace
from ..pipeline.stages import without_created
from ..scopes.scope import Scope
from ..scopes.scoped import on_other_scopes
from ..texts import path_text
from ..typing import Path, Predicate, PyTree

__all__ = ["REPLICATED", "Shards", "SplitOver", "spec_axes", "typed"]

REPLICATED = PartitionSpec()  # type: ignore[no-untyped-call]
"""The spec of a value that is the same on all shards."""

SplitOver = bool | str | tuple[str, ...]
"""The axes over which a stream is split: True for all, False for none, or names."""


class Shards(NamedTuple):
    """The data to run a body: the arguments of `jax.shard_map`, except the function and the specs.

    Attributes:
        where: the lift, for error messages.
        axes: the names of the manual axes, in the order of the mesh, and their sizes.
        options: the arguments of `jax.shard_map` besides the specs.
    """

    where: str
    axes: dict[Any, int]
    options: dict[str, Any]

    @classmethod
    def of(cls, where: str, mesh: Any, axis_names: AbstractSet[Any], check_vma: bool) -> Shards:
        """Return the data for the arguments of `shard_map`; by default, the mesh is that of the context."""
        shape = dict((jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape)
        axes = {name: size for name, size in shape.items() if not axis_names or name in axis_names}
        return cls(where, axes, {"mesh": mesh, "axis_names": frozenset(axis_names), "check_vma": check_vma})

    def chosen(self, split: SplitOver) -> tuple[Any, ...]:
        """Return the axes that a stream is split over."""
        if isinstance(split, bool):
            return tuple(self.axes) if split else ()
        names = (split,) if isinstance(split, str) else split
        if not set(names) <= set(self.axes):
            raise LiftArgumentError(
                f"split_rngs of {self.where}",
                f"{split!r} is not an axis that it maps over (these are {list(self.axes)}).",
                "Name one or several of these, or write True for all.",
                option="split_rngs",
                given=split,
                available=self.axes,
            )
        return names

    def split_keys(self, group: PyTree, axes: tuple[Any, ...]) -> PyTree:
        """Return the root keys of one shard."""
        if not axes:
            return group
        size = math.prod(self.axes[name] for name in axes)
        return jax.tree.map(lambda key: jax.random.split(key, size)[jax.lax.axis_index(axes)], group)

    def map(self, fn: Callable[..., Any], in_specs: PyTree, out_specs: PyTree) -> Callable[..., Any]:
        """Apply `jax.shard_map` to a function."""
        return jax.shard_map(fn, in_specs=in_specs, out_specs=out_specs, **self.options)

    def run(
        self,
        body: Body,
        shard: Callable[..., Any],
        operands: tuple[PyTree, ...],
        in_specs: tuple[PyTree, ...],
        out_specs: PyTree,
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Run `shard(body, *slices) -> (result, groups)`; the first operand and its spec belong to the groups."""
        self.check_parts(operands[0], in_specs[0])
        if not body.writes:
            run = self.map(lambda *slices: shard(body, *slices)[0], in_specs, out_specs)
            return run(*operands), body.unchanged
        tagging = body.tagging()
        split = self.split(lambda *slices: without_created(*shard(tagging, *slices)), in_specs, operands).within(body)
        specs = [*in_specs[0], PartitionSpec(tuple(self.axes))]  # type: ignore[no-untyped-call]
        self.check_new(split.created, specs, "do not split the stream that its initializer draws from")
        self.check_new(split.values[:-1], specs[:-1], "write the same value on all shards, such as a `jax.lax.pmean`")
        created = split.batched_prologue(self._part, operands, in_specs, specs)

        def rest(created: Any, *slices: Any) -> Any:
            result, (*values, captured) = split.remainder(created, *slices)
            return result, [*values, jax.tree.map(lambda leaf: leaf[None], captured)]

        return split.join(created, *self.map(rest, (specs, *in_specs), (out_specs, specs))(created, *operands))

    def split(self, shard: Callable[..., Any], in_specs: PyTree, operands: PyTree) -> Split:
        """Trace a body once, on the types of one shard."""
        found: list[Split] = []

        def probe(*slices: Any) -> tuple[()]:
            found.append(trace(shard, *slices))
            return ()

        jax.eval_shape(self.map(probe, in_specs, ()), *operands)
        return found[0]

    def _part(self, part: Callable[..., Any], in_specs: Sequence[Any], out_specs: Sequence[Any]) -> Callable[..., Any]:
        """Map equations that compute initial values; a constant has no spec, and is the same on all shards."""
        return self.map(part, tuple(REPLICATED if spec is None else spec for spec in in_specs), list(out_specs))

    def check_parts(self, groups: Sequence[PyTree], specs: Sequence[PartitionSpec]) -> None:
        """Check that the variables can be partitioned according to their specs."""
        for group, spec in zip(groups, specs, strict=True):
            if not spec_axes(spec) <= set(self.axes):
                raise LiftArgumentError(
                    f"variable_specs of {self.where}",
                    f"{spec} names an axis that it does not map over (these are {list(self.axes)}).",
                    "Name one or several of these, or none.",
                    option="variable_specs",
                    given=spec,
                    available=self.axes,
                )
            for path, value in jax.tree.leaves_with_path(group):
                entries = (entry if isinstance(entry, tuple) else (entry,) for entry in spec)
                sizes = [math.prod(self.axes.get(name, 1) for name in entry) for entry in entries]
                shape = np.shape(value)
                if len(shape) < len(sizes) or any(dim % size for dim, size in zip(shape, sizes, strict=False)):
                    raise LiftArgumentError(
                        f"{words().variable(path_text(path[1:]))} in {self.where}",
                        f"its spec {spec} cannot partition shape {shape} (axes of the mesh: {self.axes}).",
                        f"Give it a separate filter and spec in `{_option()}`.",
                        variable=path_text(path[1:]),
                        option="variable_specs",
                        given=shape,
                        expected=spec,
                    )

    def check_new(self, groups: Sequence[PyTree], specs: Sequence[PartitionSpec], advice: str) -> None:
        """Check that the new values of variables can be joined according to their specs."""
        for group, spec in zip(groups, specs, strict=True):
            for path, value in jax.tree.leaves_with_path(group):
                name = path_text(path[1:])
                where = f"{words().variable(name)} in {self.where}"
                if value.ndim < len(spec):
                    raise LiftArgumentError(
                        where,
                        f"its new value has shape {value.shape} on each shard, too few axes for its spec {spec}.",
                        f"Give it a separate filter and spec in `{_option()}`, or add an axis.",
                        variable=name,
                        option="variable_specs",
                        given=value.shape,
                        expected=spec,
                    )
                extra = [axis for axis in self.axes if axis in varying_axes(value) - spec_axes(spec)]
                if extra:
                    both = tuple(axis for axis in self.axes if axis in spec_axes(spec) or axis in extra)
                    wider = f"P({both if len(both) > 1 else both[0]!r})"
                    code = f'`variable_specs={{"{path_text(path[1:2])}": {wider}}}`'
                    fix = words().setting(code, "variable_specs", wider, [name])
                    raise LoopInvarianceError(
                        where,
                        f"its spec {spec} declares it the same along {extra}, but its new value differs there.",
                        f"Partition it there too, such as {fix}, or {advice}.",
                        variable=name,
                        option="variable_specs",
                        given=spec,
                        expected=wider,
                    )


def _option() -> str:
    return words().option("shard_map", "variable_specs")


Rules: TypeAlias = tuple[tuple[Predicate, PartitionSpec], ...]
"""Filters of variables, each with a partition spec."""

_CLASSES = 256
"""The number of classes of scopes that are kept."""


def spec_axes(spec: PartitionSpec) -> frozenset[Any]:
    """Return the mesh axes that a spec names."""
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in spec if entry is not None]
    return frozenset().union(*entries)


def typed(fn: Callable[..., Any], rules: Rules) -> Callable[..., Any]:
    """Return the function with initial values of the types that variables of their specs have when passed in again."""

    def call(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        pairs: list[tuple[Scope, Scope]] = []

        def inside(scope: Scope) -> Scope:
            inner: Scope = _class(type(scope), rules).over(scope)
            inner.stand_for(scope)
            pairs.append((scope, inner))
            return inner

        result = call_inside(fn, on_other_scopes(scopes, inside), *args, **kwargs)
        for scope, inner in pairs:
            scope.take_names(inner.names())
        return result

    functools.update_wrapper(call, fn)
    call.__name__ = name_of(fn)
    return call


@bounded(_CLASSES)
def _class(kind: type[Scope], rules: Rules) -> type[Scope]:
    """Return a class of scopes whose initial values vary along the axes of their specs, even if they are all equal.

    Child scopes, and scopes inside other lifts, are of the same class. Equal rules give the same class.
    """

    class Typed(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def create_variable(self, collection: str, name: str, value: Any, *, tagged: bool = False) -> None:
            path: Path = (collection, *self.path, name)
            axes = next((spec_axes(spec) for matches, spec in rules if matches(path, value)), frozenset())
            super().create_variable(collection, name, _vary(value, axes), tagged=tagged)

    return Typed


def _vary(value: PyTree, axes: frozenset[Any]) -> PyTree:
    """Return a value whose type varies along the given axes."""

    def vary(leaf: Any) -> Any:
        leaf = jax.numpy.asarray(leaf)
        return add_axes(leaf, axes - varying_axes(jax.typeof(leaf)))

    return jax.tree.map(vary, value) if axes else value
