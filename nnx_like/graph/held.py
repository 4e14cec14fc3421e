"""`Held`: a static attribute that is compared by identity."""

from __future__ import annotations

import copy
from typing import Any

from liftcore.pickling import portable

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

    def __copy__(self) -> Held:
        return Held(self.value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return Held(copy.deepcopy(self.value, memo))

    def __reduce__(self) -> Any:
        return Held, (portable(self.value, "pickle of an optimizer, tx"),)
