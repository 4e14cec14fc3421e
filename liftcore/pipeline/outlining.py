"""Outlining: the common part of all transformations that turn a body into one equation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._compat import as_array
from ..leaves import split_leaves
from .body import Body, Via

__all__ = ["outline"]


def outline(
    transformation: Callable[[Callable[..., Any]], Callable[..., Any]],
    body: Body,
    *operands: Any,
    via: Via | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """Apply a transformation to a body without the computation of initial values, which then runs outside.

    Args:
        transformation: a transformation such as `jax.checkpoint`, from a pure function to one with the same arguments.
        body: the body.
        *operands: the arguments of the body: groups of variables, groups of streams, and others; pytrees of arrays.
        via: if given, called as `via(body, *operands)` in place of the body, when the operands are others; returns the
            result and the output groups.

    Returns:
        The result and the output groups.
    """
    run = body if via is None else functools.partial(via, body)
    if not body.writes:  # the usual `apply`: groups without changes would only add outputs to the equation
        return transformation(lambda *operands: run(*operands)[0])(*operands), body.unchanged
    if not body.creates:  # variables may be written, but there are no initial values to hoist
        output: tuple[Any, tuple[Any, ...]] = jax.tree.map(as_array, transformation(run)(*operands))
        return output
    split = body.split(*operands, via=via)
    created = split.prologue(*operands)
    # A rule of a derivative keeps its function, which must not hold values of a trace that ends before it is used.
    held, others = split_leaves(split.consts, lambda const: isinstance(const, jax.core.Tracer))

    def remainder(held: Sequence[Any], created: Any, *operands: Any) -> Any:
        return split.closed_over(others.join(held)).remainder(created, *operands)

    outputs = transformation(remainder)(held, created, *operands)
    return split.join(created, *jax.tree.map(as_array, outputs))
