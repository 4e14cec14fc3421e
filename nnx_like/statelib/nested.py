"""Nested mappings as pairs of path and leaf, and back."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from liftcore.errors import LiftArgumentError

from ..filterlib import PathParts

__all__ = ["joined", "nest", "pairs_of", "sorted_keys", "sorted_pairs"]


def sorted_keys(keys: Iterable[Any]) -> list[Any]:
    """Sort the keys of one node: numbers first, then strings, then anything else by type.

    Example:
        >>> sorted_keys(["b", 10, ("a", 1), "a", 2])
        [2, 10, 'a', 'b', ('a', 1)]
    """
    keys = list(keys)
    try:
        if not any(isinstance(key, frozenset) for key in keys):  # their `<` is no order
            return sorted(keys)
    except TypeError:
        pass
    return sorted(keys, key=_rank)


def _rank(key: Any) -> tuple[Any, ...]:
    if isinstance(key, int | float):
        return (0, key)
    if isinstance(key, str):
        return (1, key)
    if isinstance(key, tuple | frozenset):
        parts = list(map(_rank, key))
        return (2, type(key).__name__, sorted(parts) if isinstance(key, frozenset) else parts)
    return (3, type(key).__name__, getattr(key, "__qualname__", None) or repr(key))


def sorted_pairs(pairs: Iterable[tuple[PathParts, Any]]) -> list[tuple[PathParts, Any]]:
    """Sort pairs by their paths, in the order of `sorted_keys`.

    Example:
        >>> sorted_pairs([(("b",), 1), (("a", "c"), 2), ((0,), 3)])
        [((0,), 3), (('a', 'c'), 2), (('b',), 1)]
    """
    pairs = list(pairs)
    try:
        return sorted(pairs, key=operator.itemgetter(0))
    except TypeError:
        return sorted(pairs, key=lambda pair: tuple(map(_rank, pair[0])))


def pairs_of(mapping: Mapping[Any, Any]) -> list[tuple[PathParts, Any]]:
    """Return the leaves of nested mappings with their paths, sorted. Empty mappings are dropped.

    Example:
        >>> pairs_of({"b": 1, "a": {"c": 2, "d": {}}})
        [(('a', 'c'), 2), (('b',), 1)]

    Args:
        mapping: nested mappings; anything that is not a mapping is a leaf.

    Returns:
        Pairs of path and leaf.
    """
    pairs: list[tuple[PathParts, Any]] = []
    _collect(mapping, (), pairs)
    return pairs


def _collect(mapping: Mapping[Any, Any], path: PathParts, pairs: list[tuple[PathParts, Any]]) -> None:
    for key in sorted_keys(mapping):
        below = mapping[key]
        if type(below) is dict or isinstance(below, Mapping):
            _collect(below, (*path, key), pairs)
        else:
            pairs.append(((*path, key), below))


def nest(pairs: Iterable[tuple[PathParts, Any]]) -> dict[Any, Any]:
    """Nest pairs of path and leaf: the inverse of `pairs_of`. If two leaves have one path, the later one wins.

    Example:
        >>> nest([(("a", "c"), 2), (("b",), 1)])
        {'a': {'c': 2}, 'b': 1}

    Args:
        pairs: `(path, leaf)`, in any order.

    Returns:
        Nested dicts; below the outermost, a sorted `OrderedDict` for keys of several types.

    Raises:
        LiftArgumentError: if a path is empty, or continues below a leaf.
    """
    nested: dict[Any, Any] = {}
    only_names = True
    parent: PathParts = ()
    node = nested
    for path, leaf in pairs:
        if path[:-1] != parent:  # the leaves of one object follow each other
            parent, node = path[:-1], nested
            for part in parent:
                node = node.setdefault(part, {})
                if type(node) is not dict:
                    what = f"a part of this path already holds a leaf of type {type(node).__name__}."
                    raise LiftArgumentError(f"path {path!r}", what, "Leave out one of the two.")
        if not path:
            raise LiftArgumentError("path ()", "the path of a leaf must have at least one key.", "Add a key.")
        node[path[-1]] = leaf
        only_names = only_names and all(type(part) is str for part in path)
    return nested if only_names else {key: _in_order(below) for key, below in nested.items()}


def _in_order(node: Any) -> Any:
    """Return nested dicts that JAX can flatten: it cannot order keys of several types, but keeps a given order."""
    if type(node) is not dict:
        return node
    below = {key: _in_order(node[key]) for key in node}
    try:
        sorted(node)
    except TypeError:
        return OrderedDict((key, below[key]) for key in sorted_keys(below))
    return below


def joined(mappings: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Merge nested mappings into a new one. If two leaves have one path, the later one wins.

    Empty mappings are dropped.

    Example:
        >>> joined([{"a": {"b": 1}}, {"a": {"c": 2}}])
        {'a': {'b': 1, 'c': 2}}
    """
    result: dict[Any, Any] = {}
    for mapping in mappings:
        for key in mapping:
            new = mapping[key]
            if isinstance(new, Mapping):
                old = result.get(key)
                new = joined([old, new] if isinstance(old, Mapping) else [new])
                if not new:
                    continue
            result[key] = new
    return result
