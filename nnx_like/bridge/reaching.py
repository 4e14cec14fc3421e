"""`Reach`: a method or a part of something that exists during a call only; a call makes it, and goes there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Reach", "Steps"]


@dataclasses.dataclass(frozen=True)
class Steps:
    """What leads from a value to a part of it, or to a method.

    Example:
        >>> Steps(((False, "real"),))(3 + 4j)
        3.0

    Attributes:
        each: attributes by name, as `(False, name)`, and items by key, as `(True, key)`.
    """

    each: tuple[tuple[bool, Any], ...] = ()

    def __call__(self, value: Any) -> Any:
        """The part of a value."""
        for is_item, name in self.each:
            value = value[name] if is_item else getattr(value, name)
        return value

    def attribute(self, name: str) -> Steps:
        """These steps, and an attribute."""
        return Steps((*self.each, (False, name)))

    def item(self, key: Any) -> Steps:
        """These steps, and an item."""
        return Steps((*self.each, (True, key)))


class Reach:
    """A method, or a part with methods, of what exists during a call only: attributes and items lead on.

    Args:
        run: called as `run(steps, args, kwargs)`; makes the value, and calls what the steps lead to.
        steps: the steps.
        owner: what it is a method of, for transformations that refuse methods of one object.
    """

    __slots__ = ("__self__", "_run", "_steps")

    def __init__(self, run: Callable[[Steps, tuple[Any, ...], dict[str, Any]], Any], steps: Steps, owner: Any) -> None:
        self._run, self._steps, self.__self__ = run, steps, owner

    @property
    def __name__(self) -> str:
        names = [str(name) for is_item, name in self._steps.each if not is_item]
        return names[-1] if names else "__call__"

    def __getattr__(self, name: str) -> Reach:
        if name[:2] == "__":  # protocols of Python ask for methods of this object
            raise AttributeError(name)
        return Reach(self._run, self._steps.attribute(name), self.__self__)

    def __getitem__(self, key: Any) -> Reach:
        return Reach(self._run, self._steps.item(key), self.__self__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the method."""
        return self._run(self._steps, args, kwargs)
