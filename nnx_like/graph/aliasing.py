"""The error about one variable in two groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import AliasError

__all__ = ["alias_error"]


def alias_error(value: Any, place: str, leaves: Iterable[tuple[Any, ...]], before: str, now: str) -> AliasError:
    """The error.

    Args:
        value: the variable, or the array.
        place: where it is met again, such as `[1].w`.
        leaves: what was met before, as `Walk.leaves` has it.
        before: its group there, in words that follow "is", such as `on axis 0`.
        now: its group here.
    """
    # A copy by `nnx.clone` holds the very same arrays, which would be donated too.
    copy = "jax.tree.map(jnp.copy, …)" if any(one.startswith("donated") for one in (before, now)) else "nnx.clone"
    found = (key for _, key, holder, parts, *_ in leaves if holder is value or parts is value)
    first = next(found, "in an earlier place").removesuffix(".")
    return AliasError(
        f"the {type(value).__name__} at {place}",
        f"it is also {first}, which is {before}; here it is {now}.",
        f"Treat both places alike, or pass a copy in one of them: `{copy}`.",
    )
