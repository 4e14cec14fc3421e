"""`Child`: a function with a scope of its own below another one, to call any number of times, also inside lifts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from ..errors import hide_frames

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["Child"]


class Child:
    """A function whose first argument is a child scope; `Scope.child` returns it.

    Each call begins with all names in the child scope free, so all calls use the same variables. In the body of a lift
    over a scope that the child belongs to, a call uses the variables and the streams that the lift passes in.

    Args:
        fn: a function of a scope.
        scope: the child scope.
        named_call: whether profiles show the name of the scope.
        kwargs: keyword arguments that are passed to every call.
    """

    def __init__(self, fn: Callable[..., Any], scope: Scope, named_call: bool, kwargs: Mapping[str, Any]) -> None:
        self._fn, self._scope, self._named_call, self._kwargs = fn, scope, named_call, dict(kwargs)
        self.__name__ = getattr(fn, "__name__", "fn")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the child scope."""
        scope = self._scope
        (scope.parent or scope).check_valid()
        named = jax.named_scope(str(scope.name)) if self._named_call else contextlib.nullcontext()
        try:
            with named:
                return self._fn(scope.here().rewound(), *args, **{**self._kwargs, **kwargs})
        except Exception as error:
            hide_frames(error)
            raise

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Child]]:
        """See `liftcore.Scoped`."""
        return [self._scope], _OnOther(self._fn, self._named_call, self._kwargs)

    def __repr__(self) -> str:
        return f"<child {self.__name__} at {self._scope.path_text}>"


@dataclasses.dataclass(frozen=True)
class _OnOther:
    """Rebuilds a child on another scope."""

    fn: Callable[..., Any]
    named_call: bool
    kwargs: Mapping[str, Any]

    def __call__(self, scopes: Sequence[Scope]) -> Child:
        return Child(self.fn, scopes[0], self.named_call, self.kwargs)
