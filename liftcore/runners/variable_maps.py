"""Variables that a body sees in another form than the stored one: the two maps, and initial values that pass them.

`map_out` gives the stored form, and `map_in` the form that the body reads. An initial value that reads a mapped
variable is computed after the body's form of that variable. If no mapped one does, the maps run once, on all of them.
If one does, the maps are traced and cut like a body: the parts of a map that some variables need run before the others
are computed. So a map still receives the whole tree, and may refer to variables in it by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError, words
from ..filters.trees import apart, by_place, flat, merged, partition, rewrapped, select
from ..pipeline.body import Body
from ..pipeline.splitting import Prologue, Split, trace
from ..texts import path_text, type_text
from ..typing import Filter, PyTree, Variables
from ..values import Whole, tag, unwrapped

__all__ = ["VariableMaps", "make_mapped"]


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
                mapped, into, out = _options()
                raise LiftArgumentError(
                    self.body.where,
                    f"`{out}` returned {names}, which `{mapped}` does not match, so `{into}` would never receive it.",
                    f"Make `{mapped}` match the stored variables too.",
                    variable=names[0],
                    option=mapped,
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
        drawn = body.records[-1].redrawn.intersection(by_place(seen))
        if drawn:
            record = body.records.pop()
            redrawn = (record.redrawn - drawn).union(by_place(self.stored(apart(seen, drawn)[0])))
            body.records.append(dataclasses.replace(record, redrawn=redrawn))

    def fitting(self, view: Sequence[Any], like: PyTree) -> PyTree:
        """Return the variables that the body was traced with, in their present form; their types must be the same."""
        chosen = tuple(map(rewrapped, select(view, like), like))
        found = by_place(chosen)
        for place, aval in by_place(like).items():
            before, now = (jax.tree.map(type_text, unwrapped(value)) for value in (aval, found.get(place)))
            if jax.tree.flatten(before) != jax.tree.flatten(now):  # boxes may not compare by value themselves
                _, into, out = _options()
                raise LiftArgumentError(
                    f"{words().variable(path_text(place[1]))} in {self.body.where}",
                    f"the body has it as {before}, but `{into}` returns {now} for the result of `{out}`.",
                    f"Make `{into}` undo what `{out}` does to names, shapes and dtypes.",
                    variable=path_text(place[1]),
                    option=into,
                    given=str(now),
                    expected=str(before),
                )
        return jax.tree.map(_as_traced, chosen, like)

    def _mapped(self, name: str, fn: Callable[[Any], Any], tree: Any) -> Any:
        if not tree:
            return tree
        found = fn(_copied(tree))  # for the user, dicts inside values are no different from modules
        if not isinstance(found, Mapping) or not all(isinstance(below, Mapping) for below in found.values()):
            raise LiftArgumentError(
                f"`{words().option('map_variables', name)}` of {self.body.where}",
                f"expected a dict of collections, like its argument, but it returned {jax.tree.structure(found)}.",
                "Return `{collection: {…}}`, for example by `jax.tree.map` over the argument.",
                given=str(jax.tree.structure(found)),
                expected="a dict of collections",
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
    split = prologue.split
    mapped = split.numbers_in(0)
    left = mapped.union(*[split.earlier[number] for number in mapped])
    in_parts = getattr(maps.map_out, "by_parts", False)
    if not in_parts and any(mapped & split.earlier[number] for number in mapped):
        forms: _Forms = _TracedForms(maps, split, before, seen)
    else:
        forms = _Forms(maps, split, before, seen, {number: {number} if in_parts else mapped for number in mapped})
    known: set[int] = set()  # the values that others may read: those of mapped variables in the body's form
    while left:
        ready = {number for number in left if split.earlier[number] <= known}
        if not ready:
            raise forms.mixed(left, known)
        prologue.make(ready - mapped)
        prologue.evaluate(ready & mapped)
        shown = forms.take({number: prologue.values[number] for number in ready & mapped})
        for number, value in shown.items():
            prologue.know(number, value)
        known |= ready - mapped | shown.keys()
        left -= ready
    return forms.result()


class _Forms:
    """The stored form of new variables, and the form that the body sees, as their initial values become known.

    Args:
        maps: the two maps.
        split: the body.
        before: the mapped variables that existed before, in stored form.
        seen: the same in the form that the body sees.
        wants: for each new variable, by number, those whose initial values are needed to map it.
    """

    def __init__(
        self, maps: VariableMaps, split: Split, before: Any, seen: Any, wants: Mapping[int, AbstractSet[int]]
    ) -> None:
        self._maps, self._split, self._before, self._seen, self._wants = maps, split, before, seen, wants
        self._types = jax.tree.leaves(split.created[0])
        self._stored: Any = tuple({} for _ in before)
        self._made: dict[int, Any] = {}
        self._shown: set[int] = set()

    def take(self, made: Mapping[int, Any]) -> dict[int, Any]:
        """Take initial values; return the body's form of the variables that can be mapped now."""
        self._made |= made
        now = [number for number in range(len(self._types)) if number not in self._shown and not self.lacks(number)]
        self._shown.update(now)
        return dict(zip(now, self._map(now), strict=True)) if now else {}

    def lacks(self, number: int) -> AbstractSet[int]:
        """Return the numbers of the initial values that are still needed to map a variable."""
        return self._wants[number] - self._made.keys()

    def mixed(self, left: AbstractSet[int], known: AbstractSet[int]) -> LiftArgumentError:
        """Return the error for values that read variables which can be seen only after them."""
        unseen = {number: self._split.earlier[number] - known for number in sorted(left)}
        reader, read = next((number, min(some)) for number, some in unseen.items() if some.isdisjoint(left))
        names = self._split.names
        wanted = sorted({names[number] for number in self.lacks(read)})
        _, into, out = _options()
        return LiftArgumentError(
            f"{words().variable(names[reader])} in {self._maps.body.where}",
            f"its initial value reads {words().variable(names[read])}, but the form of it that `{out}` and `{into}` "
            f"return depends on {words().variables(wanted)}.",
            "Map them separately, each in its own `map_variables`, or create the one that is read before the lift.",
            variable=names[reader],
        )

    def result(self) -> tuple[Any, Any]:
        """Return what `make_mapped` returns."""
        if not self._types:  # new variables without arrays, such as empty dicts, wait for nothing
            self._map([])
        return self._stored, self._seen

    def _map(self, now: Sequence[int]) -> list[Any]:
        made, like = (self._tree({number: leaves[number] for number in now}) for leaves in (self._made, self._types))
        stored = self._maps.body.tag_outside(self._maps.stored(made))
        self._stored = merged(self._stored, stored)
        if not jax.tree.leaves(stored):
            return jax.tree.leaves(made)
        view, self._seen = self._views(stored, like)
        return jax.tree.leaves(view)

    def _tree(self, values: Mapping[int, Any]) -> Any:
        group = self._split.tree(values)[0]
        if len(values) == len(self._types):
            return group
        return apart(group, {place for place, value in by_place(group).items() if value is not None})[0]

    def _views(self, stored: Any, like: Any) -> tuple[PyTree, PyTree]:
        """Return the body's form of new variables, and of those that existed before."""
        view = self._maps.view(merged(self._before, stored))
        return self._maps.fitting(view, like), self._maps.fitting(view, self._seen)


class _TracedForms(_Forms):
    """The same for maps that are traced and cut like a body."""

    def __init__(self, maps: VariableMaps, split: Split, before: Any, seen: Any) -> None:
        super().__init__(maps, split, before, seen, {})
        treedef = jax.tree.structure(split.created[0])

        def through(*made: Any) -> tuple[list[PyTree], PyTree]:
            stored = tag(maps.stored(jax.tree.unflatten(treedef, made)))
            view, seen = self._views(stored, split.created[0])
            return [stored, tag(view)], seen

        split = trace(through, *self._types).with_effects()
        self._through = Prologue(split, [None for _ in self._types])
        self._reads, self._first = split.depends, split.parts.count(0)
        self._wants = {number: {number} | self._reads[self._first + number] for number in range(len(self._types))}

    def result(self) -> tuple[Any, Any]:
        """Return what `make_mapped` returns."""
        created = self._through.tree()
        return created[0], self._through.split.remainder(created, *map(self._made.get, self._wants))

    def _map(self, now: Sequence[int]) -> list[Any]:
        through, first = self._through, self._first
        through.see(list(map(self._made.get, self._wants)))
        able = {
            number for number, reads in enumerate(self._reads) if reads <= self._made.keys()
        } - through.values.keys()
        through.evaluate(
            [number for number in able if number < first], form=lambda _, value: self._maps.body.tag_outside(value)
        )
        through.evaluate([number for number in able if number >= first])
        return [through.values[first + number] for number in now]


def _options() -> list[str]:
    """Return the names of the options `mapped`, `map_in` and `map_out`, for errors."""
    return [words().option("map_variables", name) for name in ("mapped", "map_in", "map_out")]
