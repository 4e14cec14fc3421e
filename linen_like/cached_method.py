"""Bound methods that a module keeps, so that `jax.jit(module.apply)` traces once for as long as the module is the same.

JAX keeps what it traced with the function that it was given, and holds that weakly. Python makes a new bound method
each time that one is asked for, so nothing would be found. So a method that is hashed, as `jax.jit` does, is kept by
its module. Equal modules do not share theirs: what a method does depends on more than the fields of its module.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from liftcore.statics import Undescribed, static_key

from .lifecycle.context import context
from .lifecycle.fields import Base

__all__ = ["cached_method"]

F = TypeVar("F", bound=Callable[..., Any])


def cached_method(fun: F) -> F:
    """Makes a method one that each module keeps.

    Two are equal where their modules are one and the same, with the same values in its fields.

    Example:
        >>> import linen_like as nn
        >>> model = nn.Dense(3)
        >>> model.apply == model.apply, model.apply == nn.Dense(3).apply
        (True, False)
    """
    return cast(F, _CachedMethod(fun))


class _CachedMethod:
    """The descriptor that `cached_method` puts into the class."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(cast(Any, self), fun)
        self.fun = fun

    def __get__(self, module: Base, cls: type | None = None) -> Any:
        return self.fun if module is None else _BoundMethod(self.fun, module)


class _BoundMethod:
    # A bound method; its docstring is that of the method.

    __slots__ = ("__func__", "__self__", "__weakref__", "_value")

    def __init__(self, fun: Callable[..., Any], module: Base) -> None:
        self.__func__, self.__self__ = fun, module
        self._value: tuple[Hashable, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _BoundMethod) and self._compared() == other._compared())

    def __hash__(self) -> int:
        value = self._compared()
        methods, name = self.__self__._state.methods, self.__func__.__name__
        if methods.get(name) != self:  # the first of equal ones is the one that JAX knows
            methods[name] = self
        return hash(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__func__.__name__)

    def __repr__(self) -> str:
        return repr(self._bound())

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.__func__.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._bound())

    def _bound(self) -> types.MethodType:
        return types.MethodType(self.__func__, self.__self__)

    def _compared(self) -> tuple[Hashable, ...]:
        """What tells it from others: the module itself, not one like it, its fields as they are, what surrounds it."""
        if self._value is None:
            # Interceptors are part of what is traced, so a method that they surround equals no other.
            around = object() if context.interceptors else context.names_calls
            self._value = self.__func__, id(self.__self__), around, _fields_of(self.__self__)
        return self._value


def _fields_of(module: Base) -> Hashable:
    """The values of a module's fields; None where they have no key, and the module alone tells."""
    try:
        return static_key(module)
    except Undescribed:
        return None
