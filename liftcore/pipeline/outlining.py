"""Outlining: the common part of all transformations that turn a body into one equation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..leaves import split_leaves
from ..values import as_array
from .body import Body, Via
from .splitting import closure_convert

__all__ = ["outline"]


def outline(
    transformation: Callable[[Callable[..., Any]], Callable[..., Any]],
    body: Body,
    *operands: Any,
    via: Via | None = None,
    late: bool = True,
) -> tuple[Any, tuple[Any, ...]]:
    """Apply a transformation to a body without the computation of initial values, which then runs outside.

    Args:
        transformation: a transformation such as `jax.checkpoint`, from a pure function to one with the same arguments.
        body: the body.
        *operands: the arguments of the body: groups of variables, groups of streams, and others; pytrees of arrays.
        via: if given, called as `via(body, *operands)` in place of the body, when the operands are others; returns the
            result and the output groups.
        late: whether the transformation may keep its function and run it after the call, as JAX does with the rule of a
            derivative. False saves a trace if nothing can be created.

    Returns:
        The result and the output groups.
    """
    run = body if via is None else functools.partial(via, body)
    if body.creates:
        split = body.split(*operands, via=via)
        created = split.prologue(*operands)
        # A function that is kept must hold no values of a trace, and no scopes.
        held, others = split_leaves(split.consts, lambda const: isinstance(const, jax.core.Tracer))
        bare = split.closed_over(())

        def remainder(held: Sequence[Any], created: Any, *operands: Any) -> Any:
            return bare.closed_over(others.join(held)).remainder(created, *operands)

        outputs = transformation(remainder)(held, created, *operands)
        return split.join(created, *jax.tree.map(as_array, outputs))

    def reads(*operands: Any) -> Any:  # groups without changes would only add outputs to the equation
        return run(*operands)[0], ()

    pure = run if body.writes else reads
    if late:
        converted, consts, _ = closure_convert(pure, *operands)
        outputs = transformation(converted)(consts, *operands)
    else:
        outputs = transformation(pure)(*operands)
    if not body.writes:
        return outputs[0], body.unchanged
    result, groups = jax.tree.map(as_array, outputs)
    return result, groups
