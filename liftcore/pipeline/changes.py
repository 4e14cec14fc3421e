"""The effects of a body: the changes to its variables, and a record of the effects that are not arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..scopes.scope import Scope
from ..scopes.tree import Names, Sown
from ..typing import Path, PyTree

__all__ = ["Changes", "Record", "record_of", "with_created", "without_created"]


class Changes(NamedTuple):
    """One output group: the changes that a body made to the variables of one filter.

    Attributes:
        values: the last value of each variable that was written.
        created: the first value of each variable that was created.
    """

    values: PyTree
    created: PyTree


@dataclasses.dataclass(frozen=True)
class Record:
    """The effects of a body that are not arrays, stored so that they can be repeated when a compiled body is not run.

    Attributes:
        draws: how many keys were drawn, as `((index of the scope, relative path, stream), count)`.
        names: the names in each given scope after the body ran.
        sown: the captured values of each outermost scope.
        unsplit: the variables that a lift created without separating the first value from later computation, for
            example with `pack` around a raw transformation. An outer loop cannot carry them: `carry.check_separate`.
        redrawn: the variables whose draws were counted again; see `Tree.must_redraw`.
    """

    draws: tuple[tuple[tuple[int, Path, str], int], ...] = ()
    names: tuple[Names, ...] = ()
    sown: tuple[tuple[Sown, ...], ...] = ()
    unsplit: frozenset[tuple[int, Path]] = frozenset()
    redrawn: frozenset[tuple[int, Path]] = frozenset()


def record_of(
    roots: Sequence[Scope], scopes: Sequence[Scope], sown: tuple[tuple[Sown, ...], ...], restarted: frozenset[str]
) -> Record:
    """Return the record of a body that has run.

    Args:
        roots: the outermost scopes that were created inside.
        scopes: the scopes inside that correspond to the given ones.
        sown: the captured values of each outermost scope.
        restarted: the streams that started again for the body; draws from them do not count outside.
    """
    draws = {
        (index, path, name): count
        for index, root in enumerate(roots)
        for path, name, count in root.counter.drawn()
        if name not in restarted
    }
    unsplit = frozenset([(index, path) for index, root in enumerate(roots) for path in root.tree.unsplit])
    redrawn = [
        (index, (path[0], *path[len(root.path) + 1 :]))
        for index, root in enumerate(roots)
        for path in root.tree.made_again
    ]
    names = tuple([inner.names() for inner in scopes])
    return Record(tuple(draws.items()), names, sown, unsplit, frozenset(redrawn))


def without_created(result: Any, groups: Sequence[Any]) -> tuple[list[Any], tuple[Any, list[Any]]]:
    """Separate the outputs of a body into its initial values and the rest.

    Args:
        result: what the body returned.
        groups: its output groups.
    """
    created = [group.created if isinstance(group, Changes) else [] for group in groups]
    return created, (result, [group.values if isinstance(group, Changes) else group for group in groups])


def with_created(created: Sequence[Any], result: Any, values: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The inverse of `without_created`.

    Args:
        created: the initial values, one pytree for each output group.
        result: what the body returned.
        values: the last values, one pytree for each output group.
    """
    # A group of captured values has an empty list as its initial values; a group of variables has a tuple of trees.
    groups = (value if made == [] else Changes(value, made) for value, made in zip(values, created, strict=True))
    return result, tuple(groups)
