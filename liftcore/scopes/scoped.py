"""Values that hold scopes: such a value lists its scopes, and can be rebuilt on other scopes.

A transformation of arbitrary Python objects needs to know no more about a bound module or a variable among its
arguments: it lifts the scopes, and rebuilds the value inside.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .scope import Scope

__all__ = ["Scoped", "is_scoped", "split_scoped"]


class Scoped(Protocol):
    """The protocol of a value that holds scopes: its class defines the method `__scopes__`.

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
        ... class OnOther:  # a dataclass, because equal instances reuse the same trace
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
        """Return the scopes, and a function that rebuilds the value on other scopes in the same order.

        The function is a part of the key of the trace cache, as static values are: see `static_key`.
        """


def is_scoped(value: Any) -> bool:
    """Whether a value may hold scopes: a scope, a variable, a module, or a method of one.

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
    """Return the scopes of a value, and a function that rebuilds the value on other scopes.

    Example:
        >>> import liftcore
        >>> n = liftcore.bind({"state": {"n": 3}}).variable("state", "n")
        >>> scopes, make = split_scoped(n)
        >>> other = liftcore.bind({"state": {"n": 4}})
        >>> make([other]).value
        4

    Args:
        value: a value for which `is_scoped` returns True.
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
    """Rebuilds a bound method."""

    make: Callable[[Sequence[Scope]], Any]
    function: Callable[..., Any]

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        return types.MethodType(self.function, self.make(scopes))
