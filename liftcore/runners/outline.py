"""Outlining: what a transformation that makes one equation of its body has in common with the others that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .._compat import as_array
from ..pipeline.pure import Pure
from ..pipeline.split import split

__all__ = ["outline"]


def outline(
    transformation: Callable[[Callable[..., Any]], Callable[..., Any]],
    body: Callable[..., Any],
    pure: Pure,
    *operands: Any,
) -> tuple[Any, tuple[Any, ...]]:
    """Applies a transformation to a body, less the initial values that the body makes.

    Args:
        transformation: such as `jax.checkpoint`.
        body: called as `body(pure, *operands)`; returns the result and the output groups.
        pure: the function of scopes.
        *operands: pytrees of arrays.

    Returns:
        The result and the output groups.
    """
    if not pure.writes:
        return transformation(lambda *operands: body(pure, *operands)[0])(*operands), pure.unchanged
    parts = split(pure, body, *operands)
    created = parts.prologue(*operands)
    outputs = transformation(parts.remainder)(created, *operands)
    return parts.join(created, *jax.tree.map(as_array, outputs))
