"""Values that stand on scopes: such a value names its scopes, and can be made again on others.

That is all that a transformation of any Python objects has to know of a bound module or a variable among its arguments:
it lifts the scopes, and makes the value again inside.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .scope import Scope

__all__ = ["Scoped", "is_scoped", "split_scoped"]


class Scoped(Protocol):
    """A value that stands on scopes. A class is one by its method `__scopes__`.

    Example:
        >>> import dataclasses, liftcore
        >>> @dataclasses.dataclass(frozen=True)
        ... class Counter:
        ...     scope: liftcore.Scope
        ...     step: int
        ...     def count(self):
        ...         n = self.scope.variable("state", "n", lambda: 0)
        ...         n.value += self.step
        ...         return n.value
        ...     def __scopes__(self):
        ...         return [self.scope], OnOther(self.step)
        >>> @dataclasses.dataclass(frozen=True)
        ... class OnOther:  # a class with fields: equal ones find the same trace
        ...     step: int
        ...     def __call__(self, scopes):
        ...         return Counter(scopes[0], self.step)
        >>> import equinox_like as eqx
        >>> counter = Counter(liftcore.bind({}, mutable=True), 2)
        >>> compiled = eqx.filter_jit(lambda counter: counter.count())
        >>> int(compiled(counter)), int(compiled(counter))
        (2, 4)
    """

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        """The scopes, and what makes the value again on others: those in the same order.

        A trace is kept for the second, as for what is static: see `static_key`.
        """


def is_scoped(value: Any) -> bool:
    """Whether a value may stand on scopes: a scope, a variable, a module, a method of one.

    Example:
        >>> import liftcore
        >>> is_scoped(liftcore.bind({})), is_scoped(3)
        (True, False)

    Args:
        value: any value.
    """
    kind = type(value)
    if kind is types.MethodType:
        kind = type(value.__self__)
    return hasattr(kind, "__scopes__") or issubclass(kind, Scope)


def split_scoped(value: Any) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
    """The scopes of a value, and what makes it again on others.

    Example:
        >>> import liftcore
        >>> n = liftcore.bind({"state": {"n": 3}}).variable("state", "n")
        >>> scopes, make = split_scoped(n)
        >>> other = liftcore.bind({"state": {"n": 4}})
        >>> make([other]).value
        4

    Args:
        value: one for which `is_scoped` says so.
    """
    if isinstance(value, Scope):
        return [value], _first
    if type(value) is types.MethodType:
        scopes, make = split_scoped(value.__self__)
        return scopes, _Method(make, value.__func__)
    parts: tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]] = value.__scopes__()
    return parts


def _first(scopes: Sequence[Scope]) -> Scope:
    return scopes[0]


@dataclasses.dataclass(frozen=True)
class _Method:
    """Makes a bound method again."""

    make: Callable[[Sequence[Scope]], Any]
    function: Callable[..., Any]

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        return types.MethodType(self.function, self.make(scopes))
