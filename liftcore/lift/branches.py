"""Branches: bodies of which one runs, and which together own what any of them creates.

Each body is traced once. Initial values are made outside, so that all of them exist whichever body runs; where several
bodies create one variable, it begins as the first of them makes it. A body that does not write a variable that another
one writes gives it back as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from ..errors import LiftArgumentError
from ..filters import leaves_of, merge
from ..hoist import Traced, trace
from ..layout import Changes
from ..pack import Pure
from ..traverse_util import unflatten_dict
from ..tree import Sown
from ..typing import Path, PyTree
from .carry import overlay, select
from .outline import without_created

__all__ = ["Slots", "run_one"]


def run_one(
    pure: Pure,
    branches: Sequence[Callable[..., Any]],
    choose: Callable[[Sequence[Callable[[], Any]]], Any],
    variable_groups: Sequence[PyTree],
    rng_groups: Any,
    operands: Sequence[Any],
) -> tuple[Any, tuple[Any, ...]]:
    """Runs one of some functions of scopes.

    Args:
        pure: any of them, made pure; it has one output group and captures all that is sown.
        branches: the functions.
        choose: such as `jax.lax.switch`, less its index and its operands.
        variable_groups: one group.
        rng_groups: as they were given.
        operands: what the functions are called with.
    """

    def run(pure: Pure) -> tuple[Any, tuple[Any, ...]]:
        return pure(variable_groups, rng_groups, *operands)

    if not pure.writes:
        result: tuple[Any, tuple[Any, ...]] = choose([functools.partial(run, pure.of(branch)) for branch in branches])
        return result
    hoisted, traced = pure.hoisted(), []
    slots = Slots()
    for branch in branches:
        body = hoisted.of(branch)
        traced.append(trace(lambda body=body: without_created(*run(body))))
        slots.add(pure.crossing.records[-1].sown, traced[-1].outputs[1][1])
    made = pure.settle([_made(pure.where, traced)])[0]
    before = tuple(map(merge, variable_groups[0], made))
    begin = _begin(pure.where, before, [one.outputs[1][0] for one in traced])

    def rest(index: int) -> Any:
        given = [select(made, traced[index].created[0]), ()]
        _, (result, (values, captured)) = traced[index].rest(None, given)
        return result, overlay(begin, values), slots.fill(index, captured)

    output, values, captured = choose([functools.partial(rest, index) for index in range(len(traced))])
    pure.capture(slots.sown)
    return output, (Changes(values, made), captured)


class Slots:
    """Captured values of several bodies, each with a place that is filled with zeros where its body does not run.

    Values that two bodies sow under one name, as the first there or both as the second, share a place if they are of
    one type.

    Attributes:
        sown: for each outermost scope, what the places are for.
    """

    def __init__(self) -> None:
        self._types: list[list[PyTree]] = []
        self._keys: list[list[Any]] = []
        self._places: list[list[list[int]]] = []
        self.sown: list[tuple[Sown, ...]] = []

    def add(self, sown: Sequence[Sequence[Sown]], types: Sequence[Sequence[PyTree]]) -> None:
        """Finds places for what one body sows, for each outermost scope."""
        if not self._places:
            self._types, self._keys = [[] for _ in sown], [[] for _ in sown]
            self.sown = [() for _ in sown]
        self._places.append([self._find(index, *both) for index, both in enumerate(zip(sown, types, strict=True))])

    def _find(self, index: int, sown: Sequence[Sown], types: Sequence[PyTree]) -> list[int]:
        places: list[int] = []
        for one, value in zip(sown, types, strict=True):
            name = one.path, one.collection, one.name
            key = name, _types(value)
            found = (place for place, known in enumerate(self._keys[index]) if known == key and place not in places)
            place = next(found, len(self._keys[index]))
            if place == len(self._keys[index]):
                self._keys[index].append(key)
                self._types[index].append(value)
                self.sown[index] = (*self.sown[index], one)
            places.append(place)
        return places

    def fill(self, body: int, captured: Sequence[Sequence[PyTree]]) -> tuple[list[PyTree], ...]:
        """All places, with what one body captured where it has one, and zeros elsewhere."""
        full = [[jax.tree.map(_zeros, value) for value in types] for types in self._types]
        for index, values in enumerate(captured):
            for place, value in zip(self._places[body][index], values, strict=True):
                full[index][place] = value
        return tuple(full)


def _zeros(leaf: Any) -> Any:
    return jnp.zeros(leaf.shape, leaf.dtype)


def _made(where: str, traced: Sequence[Traced]) -> PyTree:
    """The initial values of all bodies, each as the first that creates it makes it."""
    made: list[dict[Path, Any]] = [{} for _ in traced[0].created[0]]
    types: list[dict[Path, Any]] = [{} for _ in made]
    for number, one in enumerate(traced):
        created = [dict(leaves_of(tree)) for tree in one.created[0]]
        for known, new in zip(types, created, strict=True):
            for path in known.keys() & new.keys():
                _check_same(f'"{"/".join(path)}" in {where}', "creates it as", number, new[path], known[path])
        chosen = [
            {path: jax.tree.map(lambda _, new=path not in known: new, aval) for path, aval in new.items()}
            for known, new in zip(types, created, strict=True)
        ]
        values = one.create([tuple(map(unflatten_dict, chosen)), ()])[0]
        for index, tree in enumerate(values):
            made[index] |= {path: value for path, value in leaves_of(tree) if path not in types[index]}
            types[index] = {**created[index], **types[index]}
    return tuple(map(unflatten_dict, made))


def _begin(where: str, before: PyTree, written: Sequence[PyTree]) -> PyTree:
    """The values that variables have which any body writes, before it does."""
    begin: list[dict[Path, Any]] = []
    for index, tree in enumerate(before):
        known = dict(leaves_of(tree))
        begin.append({})
        for number, group in enumerate(written):
            for path, aval in leaves_of(group[index]):
                name = f'"{"/".join(path)}" in {where}'
                if path not in known:
                    raise LiftArgumentError(
                        name,
                        f"branch {number} writes it, and where another branch runs there is no such variable.",
                        "Create it first, `scope.variable(collection, name, init_fn)`, in the branch or before it.",
                    )
                _check_same(name, "writes it as", number, aval, known[path])
                begin[index][path] = known[path]
    return tuple(map(unflatten_dict, begin))


def _check_same(name: str, does: str, number: int, given: PyTree, expected: PyTree) -> None:
    if _types(given) != _types(expected):
        raise LiftArgumentError(
            name,
            f"branch {number} {does} {_types(given)}, elsewhere it is {_types(expected)}.",
            "Give it one type in all branches, or a name of its own in each.",
        )


def _types(value: PyTree) -> str:
    leaves, treedef = jax.tree.flatten(value)
    return str(jax.tree.unflatten(treedef, [f"{leaf.dtype}{list(leaf.shape)}" for leaf in map(_aval, leaves)]))


def _aval(leaf: Any) -> Any:
    return leaf if isinstance(leaf, ShapedArray) else jax.typeof(leaf)
