"""What a body changed, by name; and the output groups of one that changed nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..filters import leaves_of
from ..layout import Changes
from ..packing import Pure
from ..typing import PyTree

__all__ = ["names_of", "no_changes", "path_text"]


def path_text(path: Iterable[Any]) -> str:
    """A path as errors show it; the keys of a variable that is a dict may be anything."""
    return "/".join(map(str, path))


def names_of(group: PyTree) -> list[str]:
    """The names of the variables of a group."""
    return sorted({path_text(path) for tree in group for path, _ in leaves_of(tree)})


def no_changes(pure: Pure, filters: int = 1) -> tuple[Any, ...]:
    """Output groups of a body that leaves the scopes as they were: those of some filters, and the captured values."""
    nothing: tuple[Any, ...] = tuple({} for _ in pure.crossing.outers)
    return *(Changes(nothing, nothing) for _ in range(filters)), tuple([] for _ in nothing)
