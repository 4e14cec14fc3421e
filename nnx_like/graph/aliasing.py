"""The error for one variable in two groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import AliasError

__all__ = ["alias_error"]


def alias_error(value: Any, place: str, leaves: Iterable[tuple[Any, ...]], before: str, now: str) -> AliasError:
    """Return the error for one variable in two groups.

    Args:
        value: the variable, or the array.
        place: the second place where it was found, such as `[1].w`.
        leaves: the values found before, in the form of `Walk.leaves`.
        before: its group at the first place, in words that follow "is", such as `on axis 0`.
        now: its group at the second place.
    """
    # A copy by `nnx.clone` shares the arrays, so both copies would be donated.
    copy = "jax.tree.map(jnp.copy, …)" if any(one.startswith("donated") for one in (before, now)) else "nnx.clone"
    found = (key for _, key, holder, parts, *_ in leaves if holder is value or parts is value)
    first = next(found, "in an earlier place").removesuffix(".")
    return AliasError(
        f"the {type(value).__name__} at {place}",
        f"it is also {first}, which is {before}; here it is {now}.",
        f"Treat both places the same way, or pass a copy in one of them: `{copy}`.",
    )
