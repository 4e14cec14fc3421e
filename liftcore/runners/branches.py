"""Branches: bodies of which one runs, and which together own what any of them creates.

Each body is traced once. Initial values are made outside, so that all of them exist whichever body runs; where several
bodies create one variable, it begins as the first of them makes it. A body that does not write a variable that another
one writes gives it back as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .._compat import zeros
from ..errors import LiftArgumentError
from ..filters import leaves_of, merge
from ..pipeline.changes import Changes, without_created
from ..pipeline.splitting import Prologue, Split, trace
from ..pipeline.use import Body
from ..scopes.tree import Sown
from ..texts import path_text, types_text
from ..typing import PyTree
from ..values import rewrapped
from .carry import check_separate, overlay, select

__all__ = ["Slots", "run_one"]


def run_one(
    body: Body,
    branches: Sequence[Callable[..., Any]],
    choose: Callable[[Sequence[Callable[[], Any]]], Any],
    variable_groups: Sequence[PyTree],
    rng_groups: Any,
    operands: Sequence[Any],
) -> tuple[Any, tuple[Any, ...]]:
    """Runs one of some functions of scopes.

    Args:
        body: any of them, made pure; it has one output group and captures all that is sown.
        branches: the functions.
        choose: such as `jax.lax.switch`, less its index and its operands.
        variable_groups: one group.
        rng_groups: as they were given.
        operands: what the functions are called with.
    """

    def run(body: Body) -> tuple[Any, tuple[Any, ...]]:
        return body(variable_groups, rng_groups, *operands)

    choose = functools.partial(_choose, body.where, choose)
    if not body.writes:
        result: tuple[Any, tuple[Any, ...]] = choose([functools.partial(run, body.of(branch)) for branch in branches])
        return result
    marked, traced = body.marked(), []
    slots = Slots()
    for branch in branches:
        body = marked.of(branch)
        traced.append(trace(lambda body=body: without_created(*run(body)), use=body.use))
        slots.add(body.use.record.sown, traced[-1].outputs[1][1])
        for one in traced[:-1]:
            check_separate(body, select(one.created[0], traced[-1].created[0]))
    made = _made(body, traced)
    before = tuple(map(merge, variable_groups[0], made))
    begin = _begin(body.where, before, [one.outputs[1][0] for one in traced])

    def rest(index: int) -> Any:
        given = [select(made, traced[index].created[0]), []]
        _, (result, (values, captured)) = traced[index].rest(None, given)
        return result, overlay(begin, values), slots.fill(index, captured)

    output, values, captured = choose([functools.partial(rest, index) for index in range(len(traced))])
    body.capture(slots.sown)
    return output, (Changes(values, made), captured)


def _choose(where: str, choose: Callable[..., Any], branches: Sequence[Callable[[], Any]]) -> Any:
    """Runs one of some functions; JAX says that they return different types, this says where."""
    seen: dict[int, str] = {}

    def watched(number: int) -> Any:
        output = branches[number]()
        seen[number] = types_text(output[0])
        return output

    try:
        output = choose([functools.partial(watched, number) for number in range(len(branches))])
    except TypeError as error:
        if len(seen) < len(branches) or len(set(seen.values())) == 1:
            raise
        raise LiftArgumentError(
            where,
            f"its branches return {', '.join(seen.values())}.",
            "Return the same structure, shapes and dtypes from all.",
        ) from error
    # Under `jax.disable_jit` JAX runs the chosen branch alone; the draws of the others count all the same.
    for number in set(range(len(branches))) - seen.keys():
        jax.eval_shape(branches[number])
    return output


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
            key = name, types_text(value)
            last = max((place for place in places if self._keys[index][place][0] == name), default=-1)
            found = (place for place, known in enumerate(self._keys[index]) if known == key and place > last)
            place = next(found, len(self._keys[index]))
            if place == len(self._keys[index]):
                self._keys[index].append(key)
                self._types[index].append(value)
                self.sown[index] = (*self.sown[index], one)
            places.append(place)
        return places

    def fill(self, body: int, captured: Sequence[Sequence[PyTree]]) -> tuple[list[PyTree], ...]:
        """All places, with what one body captured where it has one, and zeros elsewhere."""
        full = [[jax.tree.map(zeros, value) for value in types] for types in self._types]
        for index, values in enumerate(captured):
            for place, value in zip(self._places[body][index], values, strict=True):
                full[index][place] = value
        return tuple(full)


def _made(body: Body, traced: Sequence[Split]) -> PyTree:
    """The initial values of all bodies, each as the first that creates it makes it."""
    made: Any = tuple({} for _ in traced[0].created[0])
    types: Any = made
    for number, one in enumerate(traced):
        created = one.created[0]
        _check_same(body.where, "creates", number, created, types)
        missing = jax.tree.leaves(tuple(map(_missing, created, types)))
        prologue = Prologue(one, [])
        # What this body derives from a variable that an earlier one makes too, it derives from the value that stays.
        for place, value in enumerate(jax.tree.leaves(overlay(created, select(made, created)))):
            if not missing[place]:
                prologue.know(place, value)
        prologue.make(missing)
        made, types = tuple(map(merge, prologue.tree(missing)[0], made)), tuple(map(merge, created, types))
    body.use.made([made])
    return made


def _missing(tree: Any, known: Any) -> Any:
    """Like a tree of variables, with True for those that another one lacks."""
    if isinstance(tree, Mapping):
        return {name: _missing(below, known.get(name, {})) for name, below in tree.items()}
    return jax.tree.map(lambda _: isinstance(known, Mapping), tree)


def _begin(where: str, before: PyTree, written: Sequence[PyTree]) -> PyTree:
    """The values that variables have which any body writes, before it does."""
    begin: Any = tuple({} for _ in before)
    # What all bodies write may become of another type, the same in all of them: no one sees what it was before.
    expected = tuple(map(merge, before, functools.reduce(select, written)))
    for number, group in enumerate(written):
        for tree, known in zip(group, before, strict=True):
            held = dict(leaves_of(rewrapped(known, tree)))
            for path, _ in leaves_of(tree):
                if path not in held:
                    raise LiftArgumentError(
                        f'"{path_text(path)}" in {where}',
                        f"branch {number} writes it, and where another branch runs there is no such variable.",
                        "Create it first, `scope.variable(collection, name, init_fn)`, in the branch or before it.",
                    )
        _check_same(where, "writes", number, group, expected)
        begin = tuple(map(merge, begin, select(before, group)))
    return begin


def _check_same(where: str, does: str, number: int, given: PyTree, expected: PyTree) -> None:
    for tree, other in zip(given, expected, strict=True):
        held = dict(leaves_of(rewrapped(other, tree)))
        for path, value in leaves_of(tree):
            if path in held and types_text(value) != types_text(held[path]):
                raise LiftArgumentError(
                    f'"{path_text(path)}" in {where}',
                    f"branch {number} {does} it as {types_text(value)}, elsewhere it is {types_text(held[path])}.",
                    "Give it one type in all branches, or a name of its own in each.",
                )
