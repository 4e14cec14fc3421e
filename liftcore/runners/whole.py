"""Lifts of all variables and RNG streams in one group: everything that is lifted goes in and comes out together."""

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
"""The advice for a lift with the options `variables` and `rngs` whose body sees everything unchanged."""


def whole(
    transform: Transform,
    name: str,
    variables: Filter = True,
    rngs: Filter = True,
    *,
    advice: Advice = AS_IT_IS,
    prepare: Callable[[Callable[..., Any]], Any] | None = None,
) -> Lifter:
    """Make a lift with one group of variables and one group of RNG streams; all captured values come out too.

    Args:
        transform: see `transformation`.
        name: the name of the lift.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        advice: see `transformation`.
        prepare: see `transformation`.
    """
    out = (variables, Captured(all=True))
    return transformation(transform, [variables], out, [rngs], name, advice=advice, prepare=prepare)
