"""Outlining: what a transformation that makes one equation of its body has in common with the others that do.

Such an equation takes all that its body takes, so an enclosing loop could not see that an initial value made in it
depends on a key alone. So initial values are made outside, by equations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._compat import as_array
from ..hoist import trace
from ..layout import Changes
from ..pure import Pure

__all__ = ["outline", "with_created", "without_created"]


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
    hoisted = pure.hoisted()
    traced = trace(lambda *operands: without_created(*body(hoisted, *operands)), *operands)
    created = pure.settle(traced.create(None, *operands))
    run = transformation(lambda created, *operands: traced.rest(None, created, *operands)[1])
    return with_created(created, *jax.tree.map(as_array, run(created, *operands)))


def without_created(result: Any, groups: Sequence[Any]) -> tuple[list[Any], tuple[Any, list[Any]]]:
    """Splits the outputs of a body into its initial values and the rest."""
    created = [group.created if isinstance(group, Changes) else () for group in groups]
    return created, (result, [group.values if isinstance(group, Changes) else group for group in groups])


def with_created(created: Sequence[Any], result: Any, values: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The inverse of `without_created`."""
    groups = (Changes(value, made) if made != () else value for value, made in zip(values, created, strict=True))
    return result, tuple(groups)
