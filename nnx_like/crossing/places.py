"""Names of the parts of a call in errors, from the user's view: `[1].layers[0].w` or `model.layers[0].w`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from liftcore.caches import bounded

__all__ = ["Name", "PositionNames", "in_call", "named_by", "names_of"]

Name = str | Callable[[tuple[Any, ...]], str]
"""The name of a pytree in errors, or a function from the JAX path of a part to the name of the part."""


def named_by(name: Name, path: tuple[Any, ...]) -> str:
    """Return the name of a part of a pytree, for errors.

    Args:
        name: the name of the pytree, or a function that names its parts.
        path: the JAX path of the part.
    """
    return name + jax.tree_util.keystr(path) if isinstance(name, str) else name(path)


@bounded(512)
def names_of(structure: Any, name: Name) -> tuple[str, ...]:
    """Return the name of each leaf of a pytree, for errors.

    Args:
        structure: the structure of the pytree.
        name: see `named_by`.
    """
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    return tuple([named_by(name, path) for path, _ in jax.tree_util.tree_leaves_with_path(numbered)])


def in_call(path: tuple[Any, ...]) -> str:
    """Names a part of a pair of `args` and `kwargs`: `[0]` is the first argument, `model` a keyword argument."""
    if len(path) < 2:
        return ""
    return jax.tree_util.keystr(path[1:]) if path[0].idx == 0 else path[1].key + jax.tree_util.keystr(path[2:])


class PositionNames:
    """Names the parts of a tuple.

    Args:
        names: the name of each item, in order.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def __call__(self, path: tuple[Any, ...]) -> str:
        """Return the name of a part."""
        return self._names[path[0].idx] + jax.tree_util.keystr(path[1:]) if path else ""

    def __eq__(self, other: object) -> bool:
        return type(other) is PositionNames and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)
