"""What a lift knows without its arrays: its layout before the body runs, and a record of what the body did."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from .tree import Advice, Names, Sown
from .typing import Path, Predicate, PyTree

__all__ = ["Captured", "Changes", "Layout", "Record"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """The last output filter of a lift that lets sown values through which no other filter takes.

    Attributes:
        all: whether it takes those too that another filter would.
    """

    all: bool = False


class Changes(NamedTuple):
    """One output group: what a body did to the variables of one filter.

    Attributes:
        values: the last value of each variable that was written.
        created: the first value of each variable that was created.
    """

    values: PyTree
    created: PyTree


@dataclasses.dataclass(frozen=True)
class Record:
    """What a body did that is no array, so that it can be known again when a compiled body is not run.

    Attributes:
        draws: how many keys were drawn, as `((index of the scope, relative path, sequence), count)`.
        names: the names of each given scope afterwards.
        sown: the captured values of each outermost scope.
        mixed: the variables that a lift created without telling the first value from what the body made of it.
    """

    draws: tuple[tuple[tuple[int, Path, str], int], ...] = ()
    names: tuple[Names, ...] = ()
    sown: tuple[tuple[Sown, ...], ...] = ()
    mixed: frozenset[tuple[int, Path]] = frozenset()


class Layout(NamedTuple):
    """All that is static about one use of a lift, without paths and counts: equal layouts give equal traces.

    Attributes:
        name: how the lift shows in paths, such as `vmap(block)`.
        scopes: the pytree structure of the given scopes.
        routes: for each given scope, the index of its outermost scope and the way from there.
        taken: what any output filter takes.
        in_filters: the filters of the variable groups that go in.
        out_filters: those of the groups that come out.
        rng_filters: those of the groups of PRNG sequences.
        captures: whether, and which, captured values come out in a last group.
        trees: for each outermost scope, what of its surroundings a body can see.
        names: the names of each given scope.
        left: for each outermost scope the paths of the variables that are not lifted: a body that asks is told so.
        advice: how to make the lift take more, for the text of errors.
    """

    name: str
    scopes: Any
    routes: tuple[tuple[int, Path], ...]
    taken: Predicate
    in_filters: tuple[Predicate, ...]
    out_filters: tuple[Predicate, ...]
    rng_filters: tuple[Predicate, ...]
    captures: Captured | None
    trees: tuple[Any, ...]
    names: tuple[Names, ...]
    left: tuple[tuple[Path, ...], ...]
    advice: Advice
