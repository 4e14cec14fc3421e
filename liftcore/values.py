"""Values of variables: arrays, pytrees of arrays, and dicts of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["Whole", "cast", "copied", "only", "overlaid", "shapes", "unwrapped", "wrapped"]


class Whole:
    """A mapping that is the value of one variable.

    In a tree of variables, a mapping is a module. So a scope stores a mapping that is a value in a `Whole`: a pytree
    node like the mapping itself, but filters and lifts do not look for variables in it.

    Attributes:
        value: the mapping.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _children(whole: Whole) -> tuple[list[tuple[Any, Any]], Any]:
    value = whole.value
    pairs, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda inner: inner is not value)
    return [(path[0], child) for path, child in pairs], treedef


jax.tree_util.register_pytree_with_keys(Whole, _children, lambda treedef, children: Whole(treedef.unflatten(children)))


def wrapped(value: Any) -> Any:
    """Return a value in the form that a scope stores."""
    return Whole(value) if isinstance(value, Mapping) else value


def unwrapped(value: Any) -> Any:
    """Return a value in the form that a user sees."""
    return value.value if type(value) is Whole else value


def only(tree: Any, kinds: Any) -> Any:
    """Return a pytree with None in place of each leaf that has none of the given types."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, kinds) else None, tree)


def overlaid(tree: Any, part: Any) -> Any:
    """Return a pytree with its leaves replaced by those of another one, where that does not have None."""
    return jax.tree.map(lambda leaf, other: leaf if other is None else other, tree, part)


def shapes(tree: Any) -> list[Any]:
    """Return the shapes of the leaves of a value, preceded by whether the value is a single leaf."""
    return [jax.tree_util.all_leaves([tree]), *map(np.shape, jax.tree.leaves(tree))]


def cast(value: Any, dtypes: Sequence[Any]) -> Any:
    """Return a value with each leaf cast to a dtype, or unchanged if that is None; without dtypes, the value itself."""
    if not dtypes:
        return value
    leaves, treedef = jax.tree.flatten(value)
    pairs = zip(leaves, dtypes, strict=True)
    return jax.tree.unflatten(
        treedef, [leaf if dtype is None else jax.lax.convert_element_type(leaf, dtype) for leaf, dtype in pairs]
    )


def copied(value: Any, empty: bool = False) -> Any:
    """Return nested mappings as new plain dicts, with values as a user sees them, and empty ones only if `empty`."""
    if not isinstance(value, Mapping):
        return unwrapped(value)
    kept = {name: below for name, below in value.items() if empty or not isinstance(below, Mapping) or below}
    return {name: copied(below, empty) for name, below in kept.items()}
