"""Who looks on. The core tells observers what it runs and traces; what they make of it, it does not know."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..typing import Filter, PyTree

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["BodyObserver", "LiftObserver", "TraceObserver", "observers", "observing"]


class BodyObserver(Protocol):
    """Looks on while one body runs on scopes; it is the `watch` of their tree."""

    def lift(self, use: Any) -> LiftObserver:
        """Told of each `Use` of a lift in the body."""


class LiftObserver(Protocol):
    """Looks on at one use of a lift."""

    def body(self) -> BodyObserver:
        """Told of each run of a body; returns what looks on while it runs."""

    def made(self, created: Sequence[PyTree]) -> None:
        """Told which initial values were made outside of the lift; those that were not are None."""

    def close(self, use: Any) -> None:
        """Told that what came out of the lift lies in the scopes outside."""


class TraceObserver(Protocol):
    """Looks on at what is traced, in one thread."""

    def applied(self, fn: Callable[..., Any], root: Scope, mutable: Filter, args: Any, kwargs: Any) -> None:
        """Told before `apply` or `init` runs a function of a scope, traced or not."""

    def compiled(self, compiled: Any, trace: Any) -> None:
        """Told after a `Compiled` traced its body; `trace` is the signature that it was traced for."""


_OBSERVERS: contextvars.ContextVar[tuple[TraceObserver, ...]] = contextvars.ContextVar("liftcore.observers", default=())


def observers() -> tuple[TraceObserver, ...]:
    """Those that look on now, outermost first."""
    return _OBSERVERS.get()


@contextlib.contextmanager
def observing(observer: TraceObserver) -> Iterator[None]:
    """A context in which an observer looks on."""
    token = _OBSERVERS.set((*_OBSERVERS.get(), observer))
    try:
        yield
    finally:
        _OBSERVERS.reset(token)
