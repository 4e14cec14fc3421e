"""Methods of modules. A bound method is a pytree."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from liftcore.errors import hide_frames

__all__ = ["BoundMethod", "BoundMethods", "described_by_function"]


class _OfFunction:
    """An attribute of a callable object that is the one of its function; the class keeps its own.

    Args:
        name: the name of the attribute.
        own: the value for the class.
    """

    def __init__(self, name: str, own: Any) -> None:
        self._name, self._own = name, own

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        return self._own if instance is None else getattr(instance.__wrapped__, self._name, None)


def described_by_function(cls: Any) -> Any:
    """Give objects of a dataclass the docstring and the annotations of the function that they wrap.

    JAX makes such objects without their constructor, so nothing can be kept in them.

    Args:
        cls: the class. Its attribute `__wrapped__` is the function.
    """
    for name in ("__annotations__", "__doc__"):
        setattr(cls, name, _OfFunction(name, getattr(cls, name)))
    return cls


class BoundMethods:
    """A descriptor for a method: access through an instance returns a bound method that is a pytree.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __get__(self, module: Any, cls: Any = None) -> Any:
        return self.fn if module is None else BoundMethod(self.fn, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, as `super().__call__` of a class does."""
        return self.fn(*args, **kwargs)


@described_by_function
@functools.partial(jax.tree_util.register_dataclass, data_fields=["__self__"], meta_fields=["__func__"])
@dataclasses.dataclass(frozen=True, eq=False)
class BoundMethod:
    """A method of a module, as a pytree with the leaves of the module.

    Like a method of Python, it equals only the same method of the same object. So it can be hashed, which
    `jax.checkpoint`, `jax.lax.cond` and `jax.jit` do with functions.
    """

    __func__: Callable[..., Any]
    __self__: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        try:
            return self.__func__(self.__self__, *args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMethod):
            return NotImplemented
        return self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((self.__func__, id(self.__self__)))

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return types.MethodType(self.__func__, self.__self__)

    @property
    def __name__(self) -> str:
        return self.__func__.__name__

    def __getattr__(self, name: str) -> Any:
        if name == "__qualname__":
            return self.__func__.__qualname__
        raise AttributeError(name)
