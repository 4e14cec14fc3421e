"""What a body changed, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..filters import leaves_of
from ..typing import PyTree

__all__ = ["names_of", "path_text"]


def path_text(path: Iterable[Any]) -> str:
    """A path as errors show it; the keys of a variable that is a dict may be anything."""
    return "/".join(map(str, path))


def names_of(group: PyTree) -> list[str]:
    """The names of the variables of a group."""
    return sorted({path_text(path) for tree in group for path, _ in leaves_of(tree)})
