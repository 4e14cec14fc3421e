"""Initial values of mapped variables: `map_out` gives the stored form, and `map_in` the form that the body reads.

If no mapped initial value reads another one, all are computed at once. If one does, the maps are traced and cut like a
body: the parts of a map that some variables need run before the others are computed. So a map still receives the
whole tree, and may refer to variables in it by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax

from .._compat import tag
from ..errors import LiftArgumentError
from ..filters.trees import apart, by_place, merged
from ..pipeline.splitting import Prologue, trace
from ..typing import PyTree
from .variable_maps import VariableMaps

__all__ = ["make_mapped"]

_Views = Callable[[Any], tuple[PyTree, PyTree]]
"""From the stored form of new variables to the body's form of them, and of the variables that existed before."""


def make_mapped(maps: VariableMaps, prologue: Prologue, before: Any, seen: Any) -> tuple[Any, Any]:
    """Compute the mapped initial values of a body, and all others that these read.

    Args:
        maps: the two maps.
        prologue: the prologue of the body. Mapped initial values are its first part; afterwards, it holds them in the
            form that the body sees.
        before: the mapped variables that existed before, in stored form.
        seen: the same in the form that the body sees.

    Returns:
        The stored form of the new variables, and the body's current form of those that existed before.
    """
    traced = prologue.split
    mapped = traced.numbers(0)
    read = traced.read_by(mapped)

    def views(stored: Any) -> tuple[PyTree, PyTree]:
        view = maps.view(merged(before, stored))
        return maps.fitting(view, traced.created[0]), maps.fitting(view, seen)

    if True in [one and other for one, other in zip(mapped, read, strict=True)]:
        if getattr(maps.map_out, "by_parts", False):
            return _by_parts(maps, prologue, before, seen)
        return _InOrder(maps, prologue, views).run()
    prologue.make(read)
    prologue.evaluate(mapped)
    stored = maps.body.bind(maps.stored(prologue.tree(mapped)[0]))
    if jax.tree.leaves(stored):
        fitting, seen = views(stored)
        for number, value in enumerate(jax.tree.leaves(fitting)):  # they come first among all initial values
            prologue.replace(number, value)
    return stored, seen


def _by_parts(maps: VariableMaps, prologue: Prologue, before: Any, seen: Any) -> tuple[Any, Any]:
    """Like `_InOrder`, but maps each part as soon as it is computed, without tracing."""
    traced = prologue.split
    mapped = traced.numbers(0)
    read = traced.read_by(mapped)
    parts: list[Any] = [tuple({} for _ in traced.created[0])]
    for level in traced.levels([one or other for one, other in zip(mapped, read, strict=True)]):
        prologue.make([chosen and not one for chosen, one in zip(level, mapped, strict=True)])
        now = [chosen and one for chosen, one in zip(level, mapped, strict=True)]
        if True in now:
            prologue.evaluate(now)
            made, types = (_without_none(tree[0]) for tree in (prologue.tree(now), traced.tree(now, traced.types(now))))
            parts.append(maps.body.bind(maps.stored(made)))
            values = jax.tree.leaves(maps.fitting(maps.view(parts[-1]), types))
            for number, value in zip(itertools.compress(range(len(now)), now), values, strict=True):
                prologue.replace(number, value)
    stored = merged(*parts)
    if jax.tree.leaves(seen):
        seen = maps.fitting(maps.view(merged(before, stored)), seen)
    return stored, seen


def _without_none(group: PyTree) -> PyTree:
    """Return a group without the variables that are None."""
    return apart(group, {place for place, value in by_place(group).items() if value is not None})[0]


class _InOrder:
    """Computes mapped initial values that read each other, each after the body's form of those that it reads."""

    def __init__(self, maps: VariableMaps, prologue: Prologue, views: _Views) -> None:
        self._variables, self._body = maps, prologue
        types, treedef = jax.tree.flatten(prologue.split.created[0])

        def through(*made: Any) -> tuple[list[PyTree], PyTree]:
            stored = tag(maps.stored(jax.tree.unflatten(treedef, made)))
            fitting, seen = views(stored)
            return [stored, tag(fitting)], seen

        self._traced = trace(through, *types).with_effects()
        self._maps = Prologue(self._traced, [None] * len(types))
        self._made: list[Any] = [None] * len(types)
        self._first = self._traced.parts.count(0)  # the first value in the body's form; the stored form comes before
        self._reads, self._seen = self._traced.depends, set[int]()

    def run(self) -> tuple[Any, Any]:
        """Compute all of them; return what `make_mapped` returns."""
        traced = self._body.split
        mapped = traced.numbers(0)
        chosen = zip(mapped, traced.read_by(mapped), strict=True)
        left = {number for number, (one, other) in enumerate(chosen) if one or other}
        while left:
            ready = {number for number in left if traced.earlier[number] <= self._seen}
            if not ready:
                raise self._mixed(left)
            self._make(ready)
            left -= ready
        created = self._maps.tree()
        return created[0], self._traced.rest(None, created, *self._made)[1]

    def _make(self, ready: set[int]) -> None:
        """Compute values that read only values seen so far, and the results of the maps that are then possible."""
        count, first = len(self._made), self._first
        others = {number for number in ready if number >= count}
        self._body.make(self._body.split.picks(others))
        self._body.evaluate(self._body.split.picks(ready - others))
        self._seen |= others
        for number in ready - others:
            self._made[number] = self._body.values[number]
        self._maps.see(self._made)
        now = {number for number, value in enumerate(self._maps.values) if value is None and not self._wants(number)}
        stored = {number for number in now if number < first}
        self._maps.evaluate(self._traced.picks(stored), bind=lambda _, value: self._variables.body.bind(value))
        self._maps.evaluate(self._traced.picks(now - stored))
        for number in now & set(range(first, first + count)):
            self._body.replace(number - first, self._maps.values[number])
            self._seen.add(number - first)

    def _wants(self, number: int) -> set[int]:
        """Return the initial values that the maps need for one of their results, and that are not computed yet."""
        return {one for one in self._reads[number] if self._made[one] is None}

    def _mixed(self, left: set[int]) -> LiftArgumentError:
        """Return the error for values that read variables which can be seen only after them."""
        earlier = self._body.split.earlier
        unseen = {number: earlier[number] - self._seen for number in left}
        reader = next(number for number in sorted(left) if unseen[number].isdisjoint(left))
        read = min(unseen[reader])
        names = self._body.split.names
        wanted = sorted({names[number] for number in self._wants(self._first + read)})
        return LiftArgumentError(
            f'"{names[reader]}" in {self._variables.body.where}',
            f'its initial value reads "{names[read]}", but the form of it that `map_out` and `map_in` return '
            f"depends on {wanted}.",
            "Map them separately, each in its own `map_variables`, or create the one that is read before the lift.",
        )
