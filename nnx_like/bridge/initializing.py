"""Tracks whether variables are being created; what is wrapped in an object then behaves as in `init`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from liftcore.statics import surrounds

__all__ = ["initializing", "is_initializing"]

_running: contextvars.ContextVar[bool] = contextvars.ContextVar("initializing", default=False)


@contextlib.contextmanager
def initializing(on: bool) -> Iterator[None]:
    """Mark a `with` block as creating variables, or as not creating them.

    Args:
        on: whether variables are created.
    """
    token = _running.set(on)
    try:
        yield
    finally:
        _running.reset(token)


@surrounds
def is_initializing() -> bool:
    """Return whether variables are being created here. A trace is reused only if the answer is the same."""
    return _running.get()
