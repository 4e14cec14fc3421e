"""Types inside a `shard_map`: the mesh axes along which the parts of a value differ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jax.sharding import PartitionSpec

from .._compat import vary as add_axes
from .._compat import varying_axes
from ..caches import bounded
from ..errors import name_of
from ..pipeline.body import call_inside
from ..scopes.scope import Scope
from ..typing import Path, Predicate, PyTree

__all__ = ["spec_axes", "typed"]

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
        flat: list[Scope]
        flat, treedef = jax.tree.flatten(scopes, is_leaf=lambda value: isinstance(value, Scope))
        given = [_class(type(scope), rules).over(scope) for scope in flat]
        for scope, inner in zip(flat, given, strict=True):
            inner.stand_for(scope)
        result = call_inside(fn, jax.tree.unflatten(treedef, given), *args, **kwargs)
        for scope, inner in zip(flat, given, strict=True):
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
