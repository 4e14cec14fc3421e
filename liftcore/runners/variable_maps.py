"""The two maps between the stored form of variables and the form that a function sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError
from ..filters.trees import apart, by_place, flat, partition, rewrapped, select
from ..pipeline.body import Body
from ..texts import path_text, type_text
from ..typing import Filter, PyTree, Variables
from ..values import Whole, unwrapped

__all__ = ["VariableMaps"]


class VariableMaps(NamedTuple):
    """The two maps, in one call of a lifted function.

    Attributes:
        body: the function of scopes.
        mapped: a filter of the variables that are mapped.
        map_in: maps stored variables to variables that the body sees.
        map_out: maps variables that the body created or wrote to variables to store.
    """

    body: Body
    mapped: Filter
    map_in: Callable[[Any], Variables]
    map_out: Callable[[Any], Variables]

    def view(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """Return the variables in the form that the body sees."""
        return tuple(self._mapped("map_in", self.map_in, tree) for tree in stored)

    def stored(self, changed: Sequence[Any]) -> tuple[Any, ...]:
        """Return variables that the body created or wrote, in the form to store."""
        trees = tuple(self._mapped("map_out", self.map_out, tree) for tree in changed)
        for tree, outer in zip(trees, self.body.outers, strict=True):
            astray = partition(tree, [self.mapped], outer.path)[1]
            if astray:
                names = [path_text(path) for path in flat(astray)]
                raise LiftArgumentError(
                    self.body.where,
                    f"`map_out` returned {names}, which `mapped` does not match, so `map_in` would never receive it.",
                    "Make `mapped` match the stored variables too.",
                )
        return trees

    def redrawing(self, stored: Sequence[Any], seen: Sequence[Any]) -> Body:
        """Return the body, which draws again for what it sees only because stored variables exist that are redrawn.

        See `Tree.must_redraw`. The body may see them under other names.

        Args:
            stored: the stored variables.
            seen: the variables that the body sees.
        """
        outers = self.body.outers
        if not any(outer.tree.redrawn for outer in outers):
            return self.body
        at = self.body.from_root
        waiting = {place for place in by_place(stored) if outers[place[0]].tree.must_redraw(at(*place))}
        known = by_place(self.view(apart(stored, waiting)[1]))
        return self.body.redrawing(by_place(seen).keys() - known, waiting)

    def note_redrawn(self, seen: Sequence[Any]) -> None:
        """Replace, in the record of the body, the variables that it has drawn again for by the stored ones."""
        body = self.body
        drawn = body.record.redrawn.intersection(by_place(seen))
        if drawn:
            record = body.take_record()
            redrawn = (record.redrawn - drawn).union(by_place(self.stored(apart(seen, drawn)[0])))
            body.replay(dataclasses.replace(record, redrawn=redrawn))

    def fitting(self, view: Sequence[Any], like: PyTree) -> PyTree:
        """Return the variables that the body was traced with, in their present form; their types must be the same."""
        chosen = tuple(map(rewrapped, select(view, like), like))
        found = by_place(chosen)
        for place, aval in by_place(like).items():
            before, now = (jax.tree.map(type_text, unwrapped(value)) for value in (aval, found.get(place)))
            if jax.tree.flatten(before) != jax.tree.flatten(now):  # boxes may not compare by value themselves
                raise LiftArgumentError(
                    f'"{path_text(place[1])}" in {self.body.where}',
                    f"the body has it as {before}, but `map_in` returns {now} for the result of `map_out`.",
                    "Make `map_in` undo what `map_out` does to names, shapes and dtypes.",
                )
        return jax.tree.map(_as_traced, chosen, like)

    def _mapped(self, name: str, fn: Callable[[Any], Any], tree: Any) -> Any:
        if not tree:
            return tree
        found = fn(_copied(tree))  # for the user, dicts inside values are no different from modules
        if not isinstance(found, Mapping) or not all(isinstance(below, Mapping) for below in found.values()):
            raise LiftArgumentError(
                f"`{name}` of {self.body.where}",
                f"expected a dict of collections, like its argument, but it returned {jax.tree.structure(found)}.",
                "Return `{collection: {…}}`, for example by `jax.tree.map` over the argument.",
            )
        return rewrapped(found, tree)


def _as_traced(leaf: Any, like: Any) -> Any:
    """Return a leaf, strongly typed unless the value or type that the body was traced with is weakly typed."""
    aval = like if isinstance(like, jax.core.ShapedArray) else jax.typeof(like)
    weak = jax.typeof(leaf).weak_type and not aval.weak_type
    return jax.lax.convert_element_type(jnp.asarray(leaf), aval.dtype) if weak else leaf


def _copied(tree: Any) -> Any:
    """Return a copy of nested dicts, which a function may modify."""
    if type(tree) is Whole:
        return jax.tree.map(lambda leaf: leaf, tree.value)
    return {name: _copied(below) for name, below in tree.items()} if isinstance(tree, Mapping) else tree
