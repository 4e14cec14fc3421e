"""Errors at a place in a state: what is wrong, and the names of the containers that the place is in."""

from __future__ import annotations

from typing import Any

from ..errors import SerializationError
from ..typing import Path

__all__ = ["StateError", "damaged"]


class StateError(SerializationError):
    """An error at a path in a state, which grows at its front while the error passes through the containers."""

    def __init__(self, what: str, fix: str, path: Path = ()) -> None:
        super().__init__(f"state at /{'/'.join(path)}", what, fix)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix, self.path)

    def below(self, name: Any) -> StateError:
        """Returns the error as one of what contains the place, under that name."""
        return type(self)(self.what, self.fix, (str(name), *self.path))


def damaged(what: str) -> StateError:
    """Returns the error of bytes that are not what was written."""
    return StateError(what, "The bytes are damaged, cut off, or in another format.")
