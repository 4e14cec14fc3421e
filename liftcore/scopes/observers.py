"""Observers: the core notifies them of what it runs and traces, and does not depend on what they do with it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..typing import Filter, PyTree

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["OBSERVERS", "BodyObserver", "LiftObserver", "TraceObserver", "observing"]


class BodyObserver(Protocol):
    """Observes one run of a body on scopes; it is the `watch` of their tree."""

    def lift(self, body: Any) -> LiftObserver:
        """Called for each lift in the body, with the `Body` of that lift; returns the observer of the call."""


class LiftObserver(Protocol):
    """Observes one call of a lifted function."""

    def body(self) -> BodyObserver:
        """Called before each run of a body; returns the observer of that run."""

    def created(self, created: Sequence[PyTree]) -> None:
        """Called with the initial values that were computed outside the lift; the others are None."""

    def close(self, body: Any) -> None:
        """Called when the outputs of the lift have been written to the scopes outside."""


class TraceObserver(Protocol):
    """Observes what is traced in one thread."""

    def applied(self, fn: Callable[..., Any], root: Scope, mutable: Filter, args: Any, kwargs: Any) -> None:
        """Called before `apply` or `init` runs a function of a scope, traced or not."""

    def compiled(self, compiled: Any, trace: Any) -> None:
        """Called after a `Compiled` traced its body; `trace` is the signature of that trace."""


OBSERVERS: contextvars.ContextVar[tuple[TraceObserver, ...]] = contextvars.ContextVar("liftcore.observers", default=())
"""The active observers, outermost first."""


@contextlib.contextmanager
def observing(observer: TraceObserver) -> Iterator[None]:
    """A context in which an observer is active."""
    token = OBSERVERS.set((*OBSERVERS.get(), observer))
    try:
        yield
    finally:
        OBSERVERS.reset(token)
