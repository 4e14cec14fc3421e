"""`Held`: a static attribute that is compared by identity."""

from __future__ import annotations

from typing import Any

__all__ = ["Held"]


class Held:
    """A value as an attribute: it is the same where it is the very same object, whatever its class says of that.

    Args:
        value: what is held, such as an optax transformation, which is a tuple of functions.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return False
        # A tuple of functions is copied when objects are built anew, and has the same functions then.
        return self.value is other.value or (isinstance(self.value, tuple) and bool(self.value == other.value))

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __repr__(self) -> str:
        return repr(self.value)
