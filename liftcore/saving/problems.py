"""Errors at a place in a state: what is wrong, and the names of the containers that the place is in.

`unwritable` finds what no format can hold.
"""

from __future__ import annotations

from typing import Any

import jax

from ..errors import SerializationError
from ..typing import Path

__all__ = ["TRACER", "StateError", "damaged", "printable", "unwritable"]

TRACER = "a tracer, which has no value while JAX traces a function"
_SURROGATE = "the text has a character that UTF-8 cannot hold, one half of a surrogate pair"


class StateError(SerializationError):
    """An error at a path in a state, which grows at its front while the error passes through the containers."""

    def __init__(self, what: str, fix: str, path: Path = ()) -> None:
        super().__init__(f"state at /{printable('/'.join(path))}", what, fix)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix, self.path)

    def below(self, name: Any) -> StateError:
        """Returns the error as one of what contains the place, under that name."""
        return type(self)(self.what, self.fix, (str(name), *self.path))


def damaged(what: str) -> StateError:
    """Returns the error of bytes that are not what was written."""
    return StateError(what, "The bytes are damaged, cut off, or in another format.")


def printable(text: str) -> str:
    r"""A text that any stream takes: halves of surrogate pairs are escaped.

    Example:
        >>> printable("a\ud800")
        'a\\ud800'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def unwritable(value: Any) -> tuple[str, str] | None:
    """Why no format can hold a leaf or a name, and what to do instead; or `None` if one may."""
    if isinstance(value, jax.core.Tracer):
        fix = "Return it from the traced function, and save what that returned."
        return f"this is {TRACER}.", fix
    if isinstance(value, str) and printable(value) != value:
        return f"{_SURROGATE}.", 'Replace it, with `text.encode("utf-8", "replace").decode()`.'
    return None
