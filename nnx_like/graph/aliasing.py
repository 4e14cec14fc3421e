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
    # What `nnx.clone` makes holds the very same arrays, which would be donated too.
    copy = "jax.tree.map(jnp.copy, …)" if any(one.startswith("donated") for one in (before, now)) else "nnx.clone"
    return AliasError(
        f"the {type(value).__name__} at {place}",
        f"it is also {first}, which is {before}; here it is {now}.",
        f"Treat both places alike, or pass a copy in one of them: `{copy}`.",
    )
