"""Methods by value: `apply` of equal unbound modules is equal, so that JAX does its work for them once.

JAX keeps what it traced and compiled with the function that it was given, but holds that weakly: after
`jax.jit(Net().apply)` nobody else does, and nothing would be found for the next instance. So a method that is hashed,
as `jax.jit` does, is kept in a table of the last ones.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .context import context
from .description import Indescribable, description
from .fields import Base

__all__ = ["by_value"]

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = 256
_kept: dict[Any, _Method] = {}
_lock = threading.RLock()


def by_value(fun: F) -> F:
    """Makes methods of unbound modules equal where their modules are.

    Those of a module that cannot be described by values (see `description`) are equal only where the module is the
    same, as is usual in Python. What is no field – attributes of the class, globals, methods that are replaced later –
    is no part of the value: as with any function under `jax.jit`, a trace has what was there when it was made.

    Example:
        >>> import linen_like as nn
        >>> nn.Dense(3).apply == nn.Dense(3).apply, nn.Dense(3).apply == nn.Dense(4).apply
        (True, False)
    """
    return cast(F, _ByValue(fun))


class _ByValue:
    """The descriptor that `by_value` puts into the class."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(cast(Any, self), fun)
        self.fun = fun

    def __get__(self, module: Any, cls: type | None = None) -> Any:
        return self.fun if module is None else _Method(self.fun, module)


class _Method:
    # A bound method that is compared by the value of its module; its docstring is that of the method.

    __slots__ = ("__func__", "__self__", "__weakref__", "_value")

    def __init__(self, fun: Callable[..., Any], module: Base) -> None:
        self.__func__, self.__self__ = fun, module
        self._value: tuple[Any, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Method) and self._compared() == other._compared())

    def __hash__(self) -> int:
        value = self._compared()
        if type(value[-1]) is not _Same:
            _keep(value, self)
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

    def _compared(self) -> tuple[Any, ...]:
        if self._value is None:
            self._value = (self.__func__, context.names_calls, _value(self.__self__))
        return self._value


class _Same:
    """What is equal only where the object in it is the same."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def _keep(value: Any, method: _Method) -> None:
    gone = None
    with _lock:
        _kept[value] = _kept.pop(value, method)  # those used last are last
        if len(_kept) > _SIZE:
            gone = _kept.pop(next(iter(_kept)))
    del gone  # only now: what it held may run code of the user's when it goes


def _value(module: Any) -> Any:
    """What a module is compared by: all that its fields say, or itself where they cannot stand for it."""
    if context.interceptors:
        return _Same(object())  # they are part of what is traced
    try:
        return description(module)
    except Indescribable:
        return _Same(module)
