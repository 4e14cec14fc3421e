"""`Caller`: calls methods of a graph that exists only as a definition and states, on an object made for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Caller"]


class Caller:
    """A proxy for an object, or a part of it, that is made at each call. Attributes and items select parts.

    Example:
        >>> class Line:
        ...     slope = 2.0
        ...     def at(self, x):
        ...         return self.slope * x
        >>> Caller(Line, lambda line: line.slope).at(3.0)
        (6.0, 2.0)

    Args:
        make: makes the object.
        after: called with the object after each method call; its result is returned together with the method's.
        steps: the attributes and items that lead from the object to this part.
    """

    __slots__ = ("_after", "_make", "_steps")

    def __init__(
        self, make: Callable[[], Any], after: Callable[[Any], Any], steps: tuple[Callable[[Any], Any], ...] = ()
    ) -> None:
        self._make, self._after, self._steps = make, after, steps

    def __getattr__(self, name: str) -> Caller:
        if name[:2] == "__":  # Python's protocols look these up on this object
            raise AttributeError(name)
        return Caller(self._make, self._after, (*self._steps, lambda value: getattr(value, name)))

    def __getitem__(self, key: Any) -> Caller:
        return Caller(self._make, self._after, (*self._steps, lambda value: value[key]))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Make the object, and call it or the selected part.

        Args:
            *args: the arguments of the method.
            **kwargs: the keyword arguments.

        Returns:
            The result of the method, and of `after`.
        """
        made = method = self._make()
        for step in self._steps:
            method = step(method)
        return method(*args, **kwargs), self._after(made)
