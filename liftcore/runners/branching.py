"""Branches: several bodies, of which only one runs. The variables that any of them creates belong to all of them.

Each body is traced once. Initial values are computed outside, so all of them exist whichever body runs. If several
bodies create a variable, its initial value comes from the first of them. A body that does not write a variable that
another one writes returns it unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._compat import zeros
from ..errors import Expected, LiftArgumentError, words
from ..filters.trees import by_place, merged, overlay, select
from ..pipeline.body import Body
from ..pipeline.splitting import Prologue, Split, trace
from ..pipeline.stages import Changes, without_created
from ..pytrees import is_number
from ..scopes.tree import Sown
from ..texts import path_text, types_text
from ..typing import PyTree
from .carry import check_separate

__all__ = ["Slots", "check_condition", "check_index", "check_pred", "run_one"]


def run_one(
    body: Body,
    branches: Sequence[Callable[..., Any]],
    choose: Callable[[Sequence[Callable[[], Any]]], Any],
    variable_groups: Sequence[PyTree],
    rng_groups: Any,
    operands: Sequence[Any],
) -> tuple[Any, tuple[Any, ...]]:
    """Run one of several functions of scopes.

    Args:
        body: the pure body of any of them; it has one output group and captures all sown values.
        branches: the functions.
        choose: a function such as `jax.lax.switch`, but without an index and operands.
        variable_groups: one group.
        rng_groups: the groups of RNG streams.
        operands: the arguments of the functions.
    """

    def run(body: Body) -> tuple[Any, tuple[Any, ...]]:
        return body(variable_groups, rng_groups, *operands)

    choose = functools.partial(_choose, body.where, choose)
    if not body.writes:
        result: tuple[Any, tuple[Any, ...]] = choose([functools.partial(run, body.of(branch)) for branch in branches])
        return result
    tagging, splits = body.tagging(), []
    slots = Slots()
    for branch in branches:
        body = tagging.of(branch)
        splits.append(trace(lambda body=body: without_created(*run(body)), body=body))
        slots.add(body.records[-1].sown, splits[-1].outputs[1][1])
        for one in splits[:-1]:
            check_separate(body, select(one.created[0], splits[-1].created[0]))
    made = _made(body, splits)
    before = merged(variable_groups[0], made)
    begin = _begin(body.where, before, [one.outputs[1][0] for one in splits])

    def rest(index: int) -> Any:
        created = [select(made, splits[index].created[0]), []]
        result, (values, captured) = splits[index].remainder(created)
        return result, overlay(begin, values), slots.fill(index, captured)

    output, values, captured = choose([functools.partial(rest, index) for index in range(len(splits))])
    body.capture(slots.sown)
    return output, (Changes(values, made), captured)


def _choose(where: str, choose: Callable[..., Any], branches: Sequence[Callable[[], Any]]) -> Any:
    """Run one of several functions; add the place to JAX's error about different result types."""
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
            f"the branches return different types: {', '.join(seen.values())}.",
            "Return the same structure, shapes and dtypes from all.",
            given=list(seen.values()),
        ) from error
    # Under `jax.disable_jit`, JAX runs only the chosen branch, but the draws of the others count too.
    for number in set(range(len(branches))) - seen.keys():
        jax.eval_shape(branches[number])
    return output


class Slots:
    """Captured values of several bodies: each has a place that is filled with zeros if its body does not run.

    Values that two bodies sow share a place if they have the same name and type and the same position among the values
    of that name.
    """

    def __init__(self) -> None:
        self._slots: list[list[tuple[Any, PyTree, Sown]]] = []  # for each scope, the key, type and origin of each place
        self._places: list[list[list[int]]] = []

    @property
    def sown(self) -> list[tuple[Sown, ...]]:
        """For each outermost scope, the sown values that the places belong to."""
        return [tuple(one for _, _, one in slots) for slots in self._slots]

    def add(self, sown: Sequence[Sequence[Sown]], types: Sequence[Sequence[PyTree]]) -> None:
        """Find places for the sown values of one body, for each outermost scope."""
        if not self._places:
            self._slots = [[] for _ in sown]
        self._places.append(list(map(_find, self._slots, sown, types)))

    def fill(self, body: int, captured: Sequence[Sequence[PyTree]]) -> tuple[list[PyTree], ...]:
        """Return the values of all places: those that one body captured, and zeros elsewhere."""
        full = [[jax.tree.map(zeros, value) for _, value, _ in slots] for slots in self._slots]
        for index, values in enumerate(captured):
            for place, value in zip(self._places[body][index], values, strict=True):
                full[index][place] = value
        return tuple(full)


def _find(slots: list[tuple[Any, PyTree, Sown]], sown: Sequence[Sown], types: Sequence[PyTree]) -> list[int]:
    """Return the places of the values that one body sows in one scope, among its slots; add those that are missing."""
    places: list[int] = []
    for one, value in zip(sown, types, strict=True):
        name = one.path, one.collection, one.name
        key = name, types_text(value)
        last = max((place for place in places if slots[place][0][0] == name), default=-1)
        place = next((place for place in range(last + 1, len(slots)) if slots[place][0] == key), len(slots))
        if place == len(slots):
            slots.append((key, value, one))
        places.append(place)
    return places


def _made(body: Body, splits: Sequence[Split]) -> PyTree:
    """Return the initial values of all bodies, each computed by the first body that creates it."""
    made: Any = tuple({} for _ in splits[0].created[0])
    types: Any = made
    for number, one in enumerate(splits):
        created = one.created[0]
        _check_same(body.where, "creates", number, created, types)
        known = select(made, created)
        marks = jax.tree.map(lambda _: True, created), jax.tree.map(lambda _: False, known)
        missing = {place for place, lacks in enumerate(jax.tree.leaves(overlay(*marks))) if lacks}
        prologue = Prologue(one, [])
        # If an earlier body creates a variable too, values that depend on it must use the initial value that is kept.
        for place, value in enumerate(jax.tree.leaves(overlay(created, known))):
            if place not in missing:
                prologue.know(place, value)
        prologue.make(missing)
        made, types = merged(prologue.tree(missing)[0], made), merged(created, types)
    if body.observer is not None:
        body.observer.created([made])
    return made


def _begin(where: str, before: PyTree, written: Sequence[PyTree]) -> PyTree:
    """Return the values, before the branch runs, of the variables that any body writes."""
    begin: Any = tuple({} for _ in before)
    # If all bodies write a variable, they may change its type, all in the same way: its old value is not seen again.
    expected = merged(before, functools.reduce(select, written))
    for number, group in enumerate(written):
        held = select(before, group)
        for _, path in sorted(by_place(group).keys() - by_place(held).keys()):
            raise LiftArgumentError(
                f"{words().variable(path_text(path))} in {where}",
                f"branch {number} writes it, but there is no such variable if another branch runs.",
                f"Create it first, `{words().scope}.variable(collection, name, init_fn)`, in the branch or before it.",
                variable=path_text(path),
                collection=path[0],
            )
        _check_same(where, "writes", number, group, expected)
        begin = merged(begin, held)
    return begin


def _check_same(where: str, does: str, number: int, group: PyTree, expected: PyTree) -> None:
    held = by_place(select(expected, group))
    for place, value in by_place(group).items():
        now, there = types_text(value), types_text(held.get(place, value))
        if now != there:
            raise LiftArgumentError(
                f"{words().variable(path_text(place[1]))} in {where}",
                f"branch {number} {does} it as {now}, but elsewhere it is {there}.",
                "Give it one type in all branches, or a different name in each.",
                variable=path_text(place[1]),
                given=now,
                expected=there,
            )


_REDUCE = "Reduce it, `pred.any()` or `pred.all()`"


def check_pred(where: str, pred: Any) -> None:
    """Check the predicate of a branch: a scalar, for which 0 means false.

    Raises:
        LiftArgumentError: if it is not a scalar bool or number.
    """
    kinds = jnp.bool_, jnp.integer, jnp.floating
    fix = f"{_REDUCE}; to choose for each element, use `jnp.where`; for each batch element, `vmap` the function."
    _check(where, "one bool as its predicate", pred, kinds, fix)


def check_index(where: str, index: Any) -> None:
    """Check the index of a branch: a scalar integer.

    Raises:
        LiftArgumentError: if it is not a scalar integer.
    """
    fix = "Pass one, `index.astype(int)`; for a different index in each batch element, `vmap` the function."
    _check(where, "one integer as its index", index, (jnp.integer,), fix)


def check_condition(where: str, pred: Any) -> None:
    """Check that the condition of a loop returned a scalar bool.

    Raises:
        LiftArgumentError: if it did not.
    """
    _check(where, "its condition to return one bool", pred, (jnp.bool_,), f"{_REDUCE}, or compare: `value > 0`.")


def _check(where: str, expected: str, given: Any, kinds: tuple[Any, ...], fix: str) -> None:
    if hasattr(given, "dtype") or is_number(given):
        dtype = jnp.result_type(given)
        if jnp.shape(given) == () and any(jnp.issubdtype(dtype, kind) for kind in kinds):
            return
    raise LiftArgumentError(where, Expected(expected, given=given), fix)
