"""Options of Linen that are not supported."""

from __future__ import annotations

from typing import Any

from liftcore.errors import LiftArgumentError

__all__ = ["refuse"]


def refuse(name: str, **options: Any) -> None:
    """Raise an error if an option of Linen is used that is not supported."""
    for option, value in options.items():
        if value:
            raise LiftArgumentError(
                f"nn.{name}", f"{option}={value!r} is not supported; see the arguments of `nn.{name}`.", "Leave it out."
            )
