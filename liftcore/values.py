"""Values: arrays, pytrees of arrays, and dicts of such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["cast", "copied", "lacks_keys", "shapes"]


def shapes(tree: Any) -> list[Any]:
    """The shapes of the leaves of a value; first of all whether it is one leaf."""
    return [jax.tree_util.all_leaves([tree]), *map(np.shape, jax.tree.leaves(tree))]


def cast(value: Any, dtypes: Sequence[Any]) -> Any:
    """A value with each of its leaves cast to a dtype, or left where that is None; without dtypes, as it is."""
    if not dtypes:
        return value
    leaves, treedef = jax.tree.flatten(value)
    pairs = zip(leaves, dtypes, strict=True)
    return jax.tree.unflatten(
        treedef, [leaf if dtype is None else jax.lax.convert_element_type(leaf, dtype) for leaf, dtype in pairs]
    )


def copied(value: Any) -> Any:
    """Nested mappings as new plain dicts, without empty ones."""
    if not isinstance(value, Mapping):
        return value
    return {name: copied(below) for name, below in value.items() if not (isinstance(below, Mapping) and not below)}


def lacks_keys(value: Any, old: Any) -> bool:
    """Whether a nested dict lacks a key that another one has: a lift could not tell it from an untouched one."""
    if not isinstance(old, Mapping):
        return False
    if not isinstance(value, Mapping):
        return True
    return any(key not in value or lacks_keys(value[key], below) for key, below in old.items())
