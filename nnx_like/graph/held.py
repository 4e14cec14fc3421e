"""`Held`: a static attribute that is compared by identity."""

from __future__ import annotations

from typing import Any

__all__ = ["Held"]


class Held:
    """A static attribute value that is equal only to the same object, whatever `__eq__` its class defines.

    Args:
        value: the value, such as an optax transformation, which is a tuple of functions.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return False
        # When objects are rebuilt, a tuple of functions is copied, so compare the functions.
        return self.value is other.value or (isinstance(self.value, tuple) and bool(self.value == other.value))

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __repr__(self) -> str:
        return repr(self.value)
