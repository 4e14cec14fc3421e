"""Errors at a place in a state; each has the names of the containers around the place.

What comes from a file is shortened in them, by `printable` and `several`. `unwritable` finds values that no format can
hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import jax

from ..errors import Expected, SerializationError
from ..typing import Path

__all__ = ["DAMAGED", "TRACER", "StateError", "damaged", "printable", "several", "unwritable"]

DAMAGED = "The bytes are damaged, cut off, or in another format."
TRACER = "a tracer, which has no value while JAX traces a function"
_SURROGATE = "the text contains one half of a surrogate pair, a character that UTF-8 cannot encode"


class StateError(SerializationError):
    """An error at a path in a state. While it passes through the containers, their names are added in front."""

    def __init__(self, what: str | Expected, fix: str, path: Path = (), **facts: Any) -> None:
        place = printable("/".join(path))
        super().__init__(f"state at /{place}", what, fix, **{**facts, "variable": place or None})
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.fix, self.path), vars(self)

    def below(self, name: Any) -> StateError:
        """Return the error for a container of the place, which has it under the given name."""
        return type(self)(self.what, self.fix, (printable(str(name)), *self.path), **self.facts)


def damaged(what: str, path: Path = ()) -> StateError:
    """Return the error for bytes that are not as they were written."""
    return StateError(printable(what), DAMAGED, path)


def printable(text: str) -> str:
    r"""Return a text that any stream can print, and that is not long, whatever a file holds.

    Halves of surrogate pairs are escaped.

    Example:
        >>> printable("a\ud800")
        'a\\ud800'
        >>> len(printable("a" * 1_000_000))
        501
    """
    text = text if len(text) <= _LONGEST else f"{text[:400]}…{text[-100:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_LONGEST, _MOST = 500, 10


def several(texts: Iterable[str], separator: str = ", ") -> str:
    """Join texts, as errors show them: the first ten, and how many more there are.

    Example:
        >>> several(map(str, range(1_000_000)))
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 999990 more'

    Args:
        texts: the texts.
        separator: what comes between two of them.
    """
    left = iter(texts)
    first = [printable(text) for text in itertools.islice(left, _MOST)]
    more = sum(1 for _ in left)
    return separator.join(first + [f"and {more} more"] * bool(more))


def unwritable(value: Any) -> tuple[str, str] | None:
    """Return why no format can hold a leaf or a name, and the fix, or `None` if a format can."""
    if isinstance(value, jax.core.Tracer):
        fix = "Return it from the traced function, and save what that returned."
        return f"this is {TRACER}.", fix
    if isinstance(value, jax.Array) and value.is_deleted():
        return "this array was deleted, probably donated to a compiled function.", "Save what that function returned."
    if isinstance(value, str) and value.encode("utf-8", "replace").decode("utf-8") != value:
        return f"{_SURROGATE}.", 'Replace it, with `text.encode("utf-8", "replace").decode()`.'
    return None
