"""The error about one variable in two groups."""

from __future__ import annotations

from typing import Any

from ..errors import AliasError

__all__ = ["in_two_groups"]


def in_two_groups(value: Any, place: str, first: str, before: str, now: str) -> AliasError:
    """The error.

    Args:
        value: the variable, or the array.
        place: where it is met again, such as `[1].w`.
        first: where it was met first.
        before: its group there, in words that follow "is", such as `on axis 0`.
        now: its group here.
    """
    return AliasError(
        f"the {type(value).__name__} at {place}",
        f"it is also {first}, which is {before}; here it is {now}.",
        "Treat both places alike, or pass a copy in one of them: `nnx.clone`.",
    )
