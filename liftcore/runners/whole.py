"""Lifts that take variables and RNG streams whole: all that they lift goes in, and comes out, as one group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..pipeline import Lifter, Transform, transformation
from ..scopes.lifts import Advice, Captured
from ..typing import Filter

__all__ = ["AS_IT_IS", "whole"]

AS_IT_IS = Advice(
    '"{}" to `variables`', '"{}" to `rngs`', ("passed through",), ("passed through",), ("passed through",)
)
"""Of a lift with the options `variables` and `rngs`, under which a body sees all as it is."""


def whole(
    transform: Transform,
    name: str,
    variables: Filter = True,
    rngs: Filter = True,
    *,
    advice: Advice = AS_IT_IS,
    prepare: Callable[[Callable[..., Any]], Any] | None = None,
) -> Lifter:
    """A lift with one group of variables and one of RNG streams, out of which all captured values come too.

    Args:
        transform: see `transformation`.
        name: that of the lift.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        advice: see `transformation`.
        prepare: see `transformation`.
    """
    out = (variables, Captured(all=True))
    return transformation(transform, [variables], out, [rngs], name, advice=advice, prepare=prepare)
