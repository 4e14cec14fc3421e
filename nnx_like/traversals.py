"""Converts nested mappings to flat ones and back: `liftcore.traverse_util` under other names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from liftcore.traverse_util import empty_node, flatten_dict, unflatten_dict

__all__ = ["empty_node", "flatten_mapping", "flatten_to_sequence", "unflatten_mapping"]

IsLeaf = Callable[[tuple[Any, ...], Any], bool]


def flatten_mapping(
    xs: Mapping[Any, Any], /, *, keep_empty_nodes: bool = False, is_leaf: IsLeaf | None = None, sep: str | None = None
) -> dict[Any, Any]:
    """Flatten nested mappings into one dict whose keys are paths.

    Example:
        >>> flatten_mapping({"dense": {"kernel": 1, "bias": 2}}, sep="/")
        {'dense/kernel': 1, 'dense/bias': 2}

    Args:
        xs: nested mappings; anything that is not a mapping is a leaf.
        keep_empty_nodes: whether to keep an empty mapping as `empty_node` instead of dropping it.
        is_leaf: `(path, mapping) -> bool`; returns True for a mapping to keep as a leaf.
        sep: joins the keys of a path, which are strings then; without it a path is a tuple.

    Returns:
        `{path: leaf}`, in the order of `xs`.

    Raises:
        TypeError: if `xs` is not a mapping.
    """
    return flatten_dict(xs, keep_empty_nodes=keep_empty_nodes, is_leaf=is_leaf, sep=sep)


def flatten_to_sequence(xs: Mapping[Any, Any], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Any, Any]]:
    """Flatten nested mappings into a list of pairs of path and leaf. Empty mappings are dropped.

    Example:
        >>> flatten_to_sequence({"dense": {"kernel": 1, "bias": 2}})
        [(('dense', 'kernel'), 1), (('dense', 'bias'), 2)]

    Args:
        xs: nested mappings; anything that is not a mapping is a leaf.
        is_leaf: `(path, mapping) -> bool`; returns True for a mapping to keep as a leaf.

    Returns:
        The pairs, in the order of `xs`.

    Raises:
        TypeError: if `xs` is not a mapping.
    """
    return list(flatten_dict(xs, is_leaf=is_leaf).items())


def unflatten_mapping(
    xs: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /, *, sep: str | None = None
) -> dict[Any, Any]:
    """Nest a flat dict, or pairs of path and leaf: the inverse of the other two functions.

    Example:
        >>> unflatten_mapping([(("dense", "kernel"), 1), (("dense", "bias"), 2)])
        {'dense': {'kernel': 1, 'bias': 2}}

    Args:
        xs: `{path: leaf}`, or pairs; `empty_node` becomes an empty dict.
        sep: the separator of the keys, if paths are strings.

    Returns:
        Nested dicts.

    Raises:
        TypeError: if `xs` is neither.
        ValueError: if a path is empty, or continues below a leaf.
    """
    return unflatten_dict(xs if isinstance(xs, Mapping) else dict(xs), sep=sep)
