"""Places: what errors call the parts of a call, `[1].layers[0].w` or `model.layers[0].w`, as its user counts them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["Name", "PositionNames", "in_call", "named_by", "names_of"]

Name = str | Callable[[tuple[Any, ...]], str]
"""What errors call a pytree; or what says, by the path of a part as JAX has it, what they call that part."""


def named_by(name: Name, path: tuple[Any, ...]) -> str:
    """What errors call a part of a pytree.

    Args:
        name: what they call the pytree, or its parts.
        path: the path of the part, as JAX has it.
    """
    return name + jax.tree_util.keystr(path) if isinstance(name, str) else name(path)


@functools.lru_cache(512)
def names_of(structure: Any, name: Name) -> tuple[str, ...]:
    """What errors call each leaf of a pytree.

    Args:
        structure: that of the pytree.
        name: see `named_by`.
    """
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    return tuple([named_by(name, path) for path, _ in jax.tree_util.tree_leaves_with_path(numbered)])


def in_call(path: tuple[Any, ...]) -> str:
    """The name of a part of a pair of `args` and `kwargs`: `[0]` is the first argument, `model` one given by name."""
    if len(path) < 2:
        return ""
    return jax.tree_util.keystr(path[1:]) if path[0].idx == 0 else path[1].key + jax.tree_util.keystr(path[2:])


class PositionNames:
    """The names of what is in a tuple.

    Args:
        names: for each item, in order.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def __call__(self, path: tuple[Any, ...]) -> str:
        """The name of a part."""
        return self._names[path[0].idx] + jax.tree_util.keystr(path[1:]) if path else ""

    def __eq__(self, other: object) -> bool:
        return type(other) is PositionNames and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)
