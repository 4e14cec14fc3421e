"""Whether variables are being made: then what is wrapped in an object behaves as in `init`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from liftcore.statics import surrounds

__all__ = ["initializing", "is_initializing"]

_running: contextvars.ContextVar[bool] = contextvars.ContextVar("initializing", default=False)


@contextlib.contextmanager
def initializing(on: bool) -> Iterator[None]:
    """A `with` block in which variables are being made, or are not.

    Args:
        on: whether they are.
    """
    token = _running.set(on)
    try:
        yield
    finally:
        _running.reset(token)


@surrounds
def is_initializing() -> bool:
    """Whether variables are being made here. A trace is found again only where that is as it was."""
    return _running.get()
