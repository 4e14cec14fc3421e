"""Calls of values that exist only during a call: the parts that they reach, and whether they create variables."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from liftcore import Scope, is_scoped, split_scoped
from liftcore.statics import surrounds

__all__ = ["Reach", "Steps", "initializing", "is_initializing"]

# --- parts of a value -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Steps:
    """A path of attributes and items from a value to one of its parts or methods.

    Example:
        >>> Steps(((False, "real"),))(3 + 4j)
        3.0

    Attributes:
        each: attributes by name, as `(False, name)`, and items by key, as `(True, key)`.
    """

    each: tuple[tuple[bool, Any], ...] = ()

    def __call__(self, value: Any) -> Any:
        """Return the part of a value that the path leads to."""
        for is_item, name in self.each:
            value = value[name] if is_item else getattr(value, name)
        return value

    def attribute(self, name: str) -> Steps:
        """Return the path with an attribute appended."""
        return Steps((*self.each, (False, name)))

    def item(self, key: Any) -> Steps:
        """Return the path with an item appended."""
        return Steps((*self.each, (True, key)))


class Reach:
    """A method, or a part with methods, of a value that exists only during a call. Attributes and items select parts.

    Args:
        run: called as `run(steps, args, kwargs)`; makes the value and calls the part at `steps`.
        steps: the path to the part.
        owner: the object that it is a method of; transformations refuse bound methods.
    """

    __slots__ = ("__self__", "_run", "_steps")

    def __init__(self, run: Callable[[Steps, tuple[Any, ...], dict[str, Any]], Any], steps: Steps, owner: Any) -> None:
        self._run, self._steps, self.__self__ = run, steps, owner

    @property
    def __name__(self) -> str:
        names = [str(name) for is_item, name in self._steps.each if not is_item]
        return names[-1] if names else "__call__"

    def __getattr__(self, name: str) -> Reach:
        if name[:2] == "__":  # Python's protocols look these up on this object
            raise AttributeError(name)
        return Reach(self._run, self._steps.attribute(name), self.__self__)

    def __getitem__(self, key: Any) -> Reach:
        return Reach(self._run, self._steps.item(key), self.__self__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return self._run(self._steps, args, kwargs)

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        """See `liftcore.Scoped`; without an owner that holds scopes, it holds none."""
        owner = self.__self__
        scopes, make = split_scoped(owner) if is_scoped(owner) else ((), functools.partial(_itself, owner))
        return scopes, functools.partial(_reached, self._steps, make)


def _itself(owner: Any, scopes: Sequence[Scope]) -> Any:
    """Return an owner that holds no scopes."""
    return owner


def _reached(steps: Steps, make: Callable[[Sequence[Scope]], Any], scopes: Sequence[Scope]) -> Any:
    """Return the same part of an owner on other scopes."""
    return steps(make(scopes))


# --- whether variables are created ------------------------------------------------------------------------------------


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
