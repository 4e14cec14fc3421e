"""Outlining: what a transformation that makes one equation of its body has in common with the others that do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._compat import as_array
from .use import Body, Via

__all__ = ["outline"]


def outline(
    transformation: Callable[[Callable[..., Any]], Callable[..., Any]],
    body: Body,
    *operands: Any,
    via: Via | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """Applies a transformation to a body, less the initial values that the body makes: those are made outside.

    Args:
        transformation: such as `jax.checkpoint`: from a pure function to another one of the same arguments.
        body: the body.
        *operands: what it is called with: the groups of variables, those of streams, and arguments; pytrees of arrays.
        via: called as `via(body, *operands)` instead of the body, where the operands are others; returns the result and
            the output groups.

    Returns:
        The result and the output groups.
    """
    run = body if via is None else functools.partial(via, body)
    if not body.writes:  # the usual `apply`: groups that tell of no change would be outputs of the equation
        return transformation(lambda *operands: run(*operands)[0])(*operands), body.unchanged
    if not body.creates:  # variables may be written, and there are no initial values to hoist
        output: tuple[Any, tuple[Any, ...]] = jax.tree.map(as_array, transformation(run)(*operands))
        return output
    split = body.split(*operands, via=via)
    created = split.prologue(*operands)
    outputs = transformation(split.remainder)(created, *operands)
    return split.join(created, *jax.tree.map(as_array, outputs))
