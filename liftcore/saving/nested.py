"""Nested dicts and lists, which every format holds: their leaves by path, and functions of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..typing import Path

__all__ = ["leaves_of", "mapped"]


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves with their paths, where items of lists have their indices. An empty container has no leaves."""
    if isinstance(tree, Mapping):
        items: Any = tree.items()
    elif type(tree) in (list, tuple):
        items = enumerate(tree)
    else:
        yield path, tree
        return
    for name, below in items:
        if isinstance(below, Mapping | list | tuple):
            yield from leaves_of(below, (*path, str(name)))
        else:  # without a generator for each leaf: a file may hold millions of them
            yield (*path, str(name)), below


def mapped(fn: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """Return containers of the same structure, with a function of each path and leaf."""
    if isinstance(tree, Mapping):
        return {name: mapped(fn, below, (*path, str(name))) for name, below in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([mapped(fn, below, (*path, str(index))) for index, below in enumerate(tree)])
    return fn(path, tree)
