"""Errors at a place in a state; each has the names of the containers around the place.

`unwritable` finds values that no format can hold.
"""

from __future__ import annotations

from typing import Any

import jax

from ..errors import SerializationError
from ..typing import Path

__all__ = ["TRACER", "StateError", "damaged", "printable", "unwritable"]

TRACER = "a tracer, which has no value while JAX traces a function"
_SURROGATE = "the text contains one half of a surrogate pair, a character that UTF-8 cannot encode"


class StateError(SerializationError):
    """An error at a path in a state. While it passes through the containers, their names are added in front."""

    def __init__(self, what: str, fix: str, path: Path = ()) -> None:
        super().__init__(f"state at /{printable('/'.join(path))}", what, fix)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix, self.path)

    def below(self, name: Any) -> StateError:
        """Return the error for a container of the place, which has it under the given name."""
        return type(self)(self.what, self.fix, (str(name), *self.path))


def damaged(what: str) -> StateError:
    """Return the error for bytes that are not as they were written."""
    return StateError(what, "The bytes are damaged, cut off, or in another format.")


def printable(text: str) -> str:
    r"""Return a text that any stream can print: halves of surrogate pairs are escaped.

    Example:
        >>> printable("a\ud800")
        'a\\ud800'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def unwritable(value: Any) -> tuple[str, str] | None:
    """Return why no format can hold a leaf or a name, and the fix, or `None` if a format can."""
    if isinstance(value, jax.core.Tracer):
        fix = "Return it from the traced function, and save what that returned."
        return f"this is {TRACER}.", fix
    if isinstance(value, jax.Array) and value.is_deleted():
        return "this array was deleted, probably donated to a compiled function.", "Save what that function returned."
    if isinstance(value, str) and printable(value) != value:
        return f"{_SURROGATE}.", 'Replace it, with `text.encode("utf-8", "replace").decode()`.'
    return None
