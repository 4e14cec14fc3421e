"""The names of the leaves of a call, as the user wrote them: for errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax

from liftcore.errors import name_of

__all__ = ["leaf_name"]


def leaf_name(fun: Callable[..., Any], keys: Any) -> str:
    """Return the name of a leaf of a call, such as `model.layers[0].weight`.

    Example:
        >>> keys, _ = jax.tree.leaves_with_path((abs, ({"w": 1},), {}))[1]
        >>> leaf_name(lambda model: 0, keys)
        "model['w']"

    Args:
        fun: the function.
        keys: the path of the leaf in `(fun, args, kwargs)`; empty if it is unknown.
    """
    if not keys:
        return "of an argument"
    part, *below = keys
    if part.idx == 0:
        return name_of(fun) + jax.tree_util.keystr(tuple(below))
    first, *below = below
    name = str(first.key) if part.idx == 2 else _parameter(fun, first.idx)
    return name + jax.tree_util.keystr(tuple(below))


def _parameter(fun: Callable[..., Any], index: int) -> str:
    """Return the name of a positional parameter."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())[: index + 1]
    except (TypeError, ValueError):
        parameters = []
    by_position = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return by_position[index] if index < len(by_position) else f"args[{index}]"
