"""`Variable`: a handle to one named value of a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import meta

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["Variable"]


class Variable:
    """One named value of a collection, read and written through `value`.

    Example:
        >>> import liftcore
        >>> def count(scope):
        ...     n = scope.variable("state", "n", lambda: 0)
        ...     n.value += 1
        ...     return n.value
        >>> liftcore.apply(count, mutable=["state"])({"state": {"n": 41}})
        (42, {'state': {'n': 42}})
    """

    __slots__ = ("collection", "name", "scope", "unbox")

    def __init__(self, scope: Scope, collection: str, name: str, unbox: bool = True) -> None:
        self.scope, self.collection, self.name, self.unbox = scope, collection, name, unbox

    @property
    def value(self) -> Any:
        """The current value; if it is boxed (see `liftcore.meta`), the content of the box, unless `unbox` is False."""
        value = self.scope.get_variable(self.collection, self.name)
        return meta.unbox(value) if self.unbox else value

    @value.setter
    def value(self, value: Any) -> None:
        put = self.scope.put_unboxed if self.unbox else self.scope.put_variable
        put(self.collection, self.name, value)

    def __scopes__(self) -> tuple[list[Scope], Callable[[Sequence[Scope]], Variable]]:
        """See `liftcore.Scoped`."""
        return [self.scope], _Named(self.collection, self.name, self.unbox)

    def is_mutable(self) -> bool:
        """Whether the value may be written."""
        return self.scope.is_mutable_collection(self.collection)

    def __repr__(self) -> str:
        return f"Variable({self.collection}/{'/'.join((*self.scope.path, self.name))})"


@dataclasses.dataclass(frozen=True)
class _Named:
    """Rebuilds a variable in another scope."""

    collection: str
    name: str
    unbox: bool

    def __call__(self, scopes: Sequence[Scope]) -> Variable:
        return Variable(scopes[0], self.collection, self.name, self.unbox)
