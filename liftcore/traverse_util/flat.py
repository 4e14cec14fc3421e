"""Flatten nested dicts to dicts of paths, and nest them again.

Example:
    >>> flat = flatten_dict({"dense": {"kernel": 1, "bias": 2}}, sep="/")
    >>> flat
    {'dense/kernel': 1, 'dense/bias': 2}
    >>> unflatten_dict(flat, sep="/")
    {'dense': {'kernel': 1, 'bias': 2}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..calls import boundary

__all__ = ["empty_node", "flatten_dict", "path_aware_map", "unflatten_dict"]


class _EmptyNode:
    """A placeholder for an empty dict in a flat one. It is a singleton, even after copying, pickling or a tree map."""

    def __repr__(self) -> str:
        return "empty_node"

    def __reduce__(self) -> str:
        return "empty_node"


empty_node = _EmptyNode()
jax.tree_util.register_pytree_node(_EmptyNode, lambda node: ((), None), lambda aux, children: empty_node)


def flatten_dict(
    tree: Mapping[Any, Any],
    keep_empty_nodes: bool = False,
    is_leaf: Callable[[tuple[Any, ...], Any], bool] | None = None,
    sep: str | None = None,
) -> dict[Any, Any]:
    """Flatten a nested dict into one whose keys are paths.

    Args:
        tree: nested mappings; anything that is not a mapping is a leaf.
        keep_empty_nodes: whether to put `empty_node` in place of an empty dict, instead of leaving it out.
        is_leaf: a function `(path, mapping) -> bool` that returns whether to keep a mapping as a leaf.
        sep: a separator that joins the keys of a path into one string; without it, a path is a tuple.

    Returns:
        `{path: leaf}`, in the order of the tree.

    Raises:
        TypeError: if `tree` is not a mapping.
    """
    if not isinstance(tree, Mapping):
        raise TypeError(f"flatten_dict: expected a mapping, not {type(tree).__name__}.")
    flat: dict[Any, Any] = {}

    def add(path: tuple[Any, ...], below: Any) -> None:
        is_node = isinstance(below, Mapping) and not (is_leaf is not None and is_leaf(path, below))
        for key, child in below.items() if is_node else ():
            add((*path, key), child)
        leaf = empty_node if is_node else below
        if not (is_node and below) and (leaf is not empty_node or (keep_empty_nodes and path)):
            flat[path if sep is None else sep.join(path)] = leaf

    add((), tree)
    return flat


def unflatten_dict(flat: Mapping[Any, Any], sep: str | None = None) -> dict[Any, Any]:
    """Nest a flat dict: the inverse of `flatten_dict` with the same `sep`.

    Args:
        flat: `{path: leaf}`; `empty_node` becomes an empty dict.
        sep: the separator between the keys of a path, if paths are strings.

    Returns:
        The nested dict.

    Raises:
        ValueError: if a path is empty, or is below a leaf.
    """
    leaves = {tuple(key if sep is None else key.split(sep)): leaf for key, leaf in flat.items()}
    nested: dict[Any, Any] = {}
    for path, leaf in leaves.items():
        if not path:
            raise ValueError("unflatten_dict: a path is empty. Give each leaf at least one key.")
        node = nested
        for depth, part in enumerate(path[:-1], start=1):
            if path[:depth] in leaves:
                raise ValueError(f"unflatten_dict: {path!r} is below the leaf {path[:depth]!r}. Drop one of them.")
            node = node.setdefault(part, {})
        node[path[-1]] = {} if leaf is empty_node else leaf
    return nested


@boundary
def path_aware_map(fn: Callable[[tuple[Any, ...], Any], Any], tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """Map `fn(path, leaf)` over a nested dict, and keep its empty dicts.

    Example:
        >>> path_aware_map(lambda path, x: -x if "bias" in path else x, {"dense": {"kernel": 1, "bias": 2}})
        {'dense': {'kernel': 1, 'bias': -2}}

    Args:
        fn: called as `fn(path, value)`, where `path` is a tuple of keys.
        tree: nested dicts.
    """
    flat = flatten_dict(tree, keep_empty_nodes=True)
    return unflatten_dict({path: leaf if leaf is empty_node else fn(path, leaf) for path, leaf in flat.items()})
