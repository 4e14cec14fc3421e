"""Bound methods that a module keeps, so that `jax.jit(module.apply)` traces only once while the module is unchanged.

JAX caches a trace under the function that it was given, and holds that function weakly. Python makes a new bound method
at each access, so the cache would never hit. A module therefore keeps a method that is hashed, as `jax.jit` does. Equal
modules do not share their methods: the result of a method depends on more than the fields of its module.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from liftcore.errors import hide_frames
from liftcore.statics import Undescribed, static_key

from .lifecycle.context import context
from .lifecycle.fields import Base

__all__ = ["cached_method"]

F = TypeVar("F", bound=Callable[..., Any])


def cached_method(fun: F) -> F:
    """Turn a method into one that each module keeps.

    Two bound methods are equal if they belong to the same module, and its fields still have the same values.

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
    # A bound method; its docstring is the docstring of the function.

    __slots__ = ("__func__", "__self__", "__weakref__", "_value")

    def __init__(self, fun: Callable[..., Any], module: Base) -> None:
        self.__func__, self.__self__ = fun, module
        self._value: tuple[Hashable, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _BoundMethod) and self._compared() == other._compared())

    def __hash__(self) -> int:
        value = self._compared()
        methods, name = self.__self__._state.methods, self.__func__.__name__
        if methods.get(name) != self:  # JAX knows the first of equal methods
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
        """Return what is compared: the function, the module itself, the values of its fields, and interceptors."""
        if self._value is None:
            # Interceptors are part of the trace, so a method with interceptors equals no other method.
            around = object() if context.interceptors else context.names_calls
            self._value = self.__func__, id(self.__self__), around, _fields_of(self.__self__)
        return self._value


def _fields_of(module: Base) -> Hashable:
    """Return the values of a module's fields; None if they have no key, so that only the module itself is compared."""
    try:
        return static_key(module)
    except Undescribed:
        return None
