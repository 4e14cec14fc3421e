"""Nested mappings: as pairs of path and leaf, with values in place of variables, and as text."""

from __future__ import annotations

import importlib
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from liftcore.errors import LiftArgumentError
from liftcore.pytrees import check_acyclic

from ..filterlib import PathParts
from ..variablelib.values import block
from ..variablelib.variable import Variable

__all__ = [
    "as_pure",
    "flat_text",
    "joined",
    "nest",
    "nested_text",
    "nested_view",
    "pairs_of",
    "pure",
    "put_pure_values",
    "sorted_keys",
    "sorted_pairs",
]


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
                    raise LiftArgumentError(f"path {path!r}", what, "Leave out one of the two.", given=path)
        if not path:
            what = "the path of a leaf must have at least one key."
            raise LiftArgumentError("path ()", what, "Add a key.", given=path)
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


# --- values without the variables that hold them ----------------------------------------------------------------------

T = TypeVar("T")


def as_pure(tree: T) -> T:
    """Return a pytree with values in place of variables, for export or a checkpoint.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.as_pure({"kernel": nnx.Param(1.0), "steps": 3})
        {'kernel': 1.0, 'steps': 3}

    Args:
        tree: a state, an object, or any other pytree.

    Returns:
        A new pytree; `tree` does not change.
    """
    check_acyclic(tree)

    def value(leaf: Any) -> Any:
        return as_pure(leaf.get_value()) if isinstance(leaf, Variable) else leaf  # a value may contain variables too

    result: T = jax.tree.map(value, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))
    return result


pure = as_pure
"""Another name of `as_pure`."""


def _with_value(leaf: Any, value: Any) -> Any:
    return leaf.replace(value) if isinstance(leaf, Variable) else value


def put_pure_values(
    mapping: Any, values: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Put values into nested dicts: replaces each leaf by `replace_fn(leaf, value)`.

    Example:
        >>> nested = {"layers": {0: 1, 1: 2}}
        >>> put_pure_values(nested, {"layers": {"1": 5}})
        >>> nested
        {'layers': {0: 1, 1: 5}}

    Raises:
        LiftArgumentError: if a path of `values` is not the path of a leaf; then nothing changes.
    """
    replace = _with_value if replace_fn is None else replace_fn
    for node, key, value in list(_places(mapping, values, ())):  # find all of them before changing one
        node[key] = replace(node[key], value)


def _places(mapping: Any, values: Mapping[Any, Any], path: PathParts) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the dict, the key and the new value of each leaf for which `values` has one."""
    for given, value in values.items():
        is_number = isinstance(given, str) and given.isdecimal()
        key = int(given) if is_number and given not in mapping else given
        here = (*path, given)
        if key not in mapping:
            raise _no_leaf(here, f"the state has no such key; the keys there are {list(mapping)}")
        below = mapping[key]
        if isinstance(below, Mapping):
            if not isinstance(value, Mapping):
                raise _no_leaf(here, "it is not a leaf")
            yield from _places(below, value, here)
        elif isinstance(value, Mapping) and not isinstance(below, Variable):  # the value of a variable may be a dict
            raise _no_leaf(here, "it is a leaf, but the values continue below it")
        else:
            yield mapping, key, value


def _no_leaf(path: PathParts, why: str) -> LiftArgumentError:
    what = f"the state has no leaf for the value at {path!r}; {why}."
    return LiftArgumentError("replace_by_pure_dict", what, "Use the paths of leaves that the state has.", given=path)


# --- text -------------------------------------------------------------------------------------------------------------


def nested_text(mapping: Mapping[Any, Any]) -> str:
    r"""Format nested dicts as a string, each leaf by its own `repr`.

    Example:
        >>> print(nested_text({"a": {"b": 1}, "c": {}}))
        {
          'a': {
            'b': 1
          },
          'c': {}
        }
    """
    shown = ((key, nested_text(x) if isinstance(x, dict) else repr(x)) for key, x in mapping.items())
    return block("{", (f"{key!r}: {text}" for key, text in shown), "}")


def flat_text(name: str, pairs: Iterable[tuple[Any, Any]]) -> str:
    """Format pairs as a string, one pair a line.

    Example:
        >>> print(flat_text("Pairs", [(("a",), 1)]))
        Pairs([
          (('a',), 1)
        ])
    """
    return block(f"{name}([", (f"({path!r}, {leaf!r})" for path, leaf in pairs), "])")


def nested_view(kind: type, mapping: Mapping[Any, Any], path: str | None, subtree_renderer: Any) -> Any:
    """Return the view of nested dicts in `treescope`, which calls this."""
    return importlib.import_module("treescope.repr_lib").render_dictionary_wrapper(
        object_type=kind, wrapped_dict=dict(mapping), path=path, subtree_renderer=subtree_renderer
    )
