"""What a lift knows without its arrays: its layout before the body runs, and a record of what the body did."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ..scopes.groups import Groups
from ..scopes.tree import Names, Sown
from ..typing import Path, PyTree

__all__ = ["Changes", "Layout", "Record"]


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
        rewound: where scopes were rewound together with their draws, as `(index of the scope, relative path, for each
            time the sequences that went on as they were)`: `draws` count since then.
    """

    draws: tuple[tuple[tuple[int, Path, str], int], ...] = ()
    names: tuple[Names, ...] = ()
    sown: tuple[tuple[Sown, ...], ...] = ()
    mixed: frozenset[tuple[int, Path]] = frozenset()
    rewound: tuple[tuple[int, Path, tuple[frozenset[str], ...]], ...] = ()


class Layout(NamedTuple):
    """All that is static about one use of a lift, without paths and counts: equal layouts give equal traces.

    Attributes:
        name: how the lift shows in paths, such as `vmap(block)`.
        groups: what it takes in and lets out.
        scopes: the pytree structure of the given scopes.
        routes: for each given scope, the index of its outermost scope and the way from there.
        trees: for each outermost scope, what of its surroundings a body can see.
        names: the names of each given scope.
        left: for each outermost scope the paths of the variables that are not lifted: a body that asks is told so.
        shown: whether it shows in the paths of scopes inside.
    """

    name: str
    groups: Groups
    scopes: Any
    routes: tuple[tuple[int, Path], ...]
    trees: tuple[Any, ...]
    names: tuple[Names, ...]
    left: tuple[tuple[Path, ...], ...]
    shown: bool
