"""Options that several transformations treat alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftcore.errors import LiftArgumentError

__all__ = ["flags", "refuse"]


def refuse(name: str, **options: Any) -> None:
    """Raises where an option of Linen is used that has no meaning here."""
    for option, value in options.items():
        if value:
            raise LiftArgumentError(
                f"nn.{name}", f"{option}={value!r} is not supported; see the arguments of `nn.{name}`.", "Leave it out."
            )


def flags(split_rngs: Any) -> Any:
    """The argument `split_rngs`, where 0 and 1 are bools, as in Linen."""
    if not isinstance(split_rngs, Mapping):
        return split_rngs
    return {name: bool(flag) if type(flag) is int and flag in (0, 1) else flag for name, flag in split_rngs.items()}
