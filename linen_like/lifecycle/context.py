"""The one context of linen_like: which modules are running now, and what their calls are watched for.

Each thread has its own, so modules used in several threads do not see each other. Whoever puts something on a stack
takes it off again in a `finally`, so nothing stays behind when a model raises.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

from liftcore.statics import Undescribed, surrounds

CaptureFilter: TypeAlias = Callable[[Any, str], bool]


class Context(threading.local):
    """The stacks of one thread.

    Attributes:
        modules: the modules whose methods run, innermost last; a new module becomes a child of the last one.
        captures: for each running `init` or `apply`, the filter for outputs to keep, or None.
        interceptors: the functions that stand around each call of a method, the outermost first.
        names_calls: whether the operations of a module carry its name.
    """

    interceptors: tuple[Callable[..., Any], ...] = ()
    names_calls: bool = True

    def __init__(self) -> None:
        self.modules: list[Any] = [None]
        self.captures: list[CaptureFilter | None] = [None]

    def __reduce__(self) -> str:
        return "context"  # a pickled class refers to it by this name


context = Context()


@surrounds
def _watched() -> Hashable:
    """What modules inside of a function that is traced do beside what they say; interceptors may do anything."""
    if context.interceptors:
        raise Undescribed(context.interceptors[-1])
    return context.captures[-1], context.names_calls


@contextlib.contextmanager
def capturing(capture: CaptureFilter | None) -> Iterator[None]:
    """Keeps the outputs of the methods for which `capture(module, method_name)` holds, within the `with` block."""
    context.captures.append(capture)
    try:
        yield
    finally:
        context.captures.pop()
