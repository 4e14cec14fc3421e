"""Methods of modules, and filtered functions: callables that are pytrees.

A filtered function is the result of a transformation. So `filter_jit(filter_vmap(fn))` finds its trace again, even if
you write it again in each call. And if `fn` holds arrays, as a module does, they are traced like those in its
arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from liftcore.calls import boundary, hide_frames
from liftcore.errors import check_function, name_of

__all__ = [
    "MISSING",
    "BoundMethod",
    "BoundMethods",
    "FilteredFunction",
    "described_by_function",
    "filtered",
    "partial_function",
]

# --- methods ----------------------------------------------------------------------------------------------------------


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


# --- filtered functions -----------------------------------------------------------------------------------------------

MISSING: Any = object()
"""The default for the function of a transformation: called with only options, it returns a decorator."""


@described_by_function
@functools.partial(jax.tree_util.register_dataclass, data_fields=["fun", "options"], meta_fields=["transformation"])
@dataclasses.dataclass(frozen=True, eq=False)  # a function equals only itself; as pytrees, equal ones share a trace
class FilteredFunction:
    """A function under a transformation.

    Attributes:
        transformation: called as `transformation(fun, options, args, kwargs)`.
        fun: the function, or any callable pytree.
        options: the options of the transformation, by name.
    """

    transformation: Callable[..., Any]
    fun: Callable[..., Any]
    options: dict[str, Any]

    @boundary
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function under the transformation."""
        return self.transformation(self.fun, self.options, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the function as a method: `instance` is its first argument, and its arrays are traced too."""
        return self if instance is None else partial_function(self, (instance,), {})

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        if self.transformation is _call_partial:
            return functools.partial(self.fun, *self.options["args"], **self.options["keywords"])
        return self.fun

    @property
    def __name__(self) -> str:
        return name_of(self.fun)

    def __getattr__(self, name: str) -> Any:
        if name == "__qualname__":
            return self.fun.__qualname__
        raise AttributeError(name)


def partial_function(fun: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> FilteredFunction:
    """Return a function with some of its arguments, like `functools.partial`, as a pytree.

    Args:
        fun: the function, or any callable pytree.
        args: its first positional arguments.
        keywords: its keyword arguments.
    """
    return FilteredFunction(_call_partial, fun, {"args": args, "keywords": keywords})


def _call_partial(fun: Any, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fun(*options["args"], *args, **{**options["keywords"], **kwargs})


def filtered(
    make: Callable[..., Any],
    transformation: Callable[..., Any],
    fun: Any,
    options: dict[str, Any],
    cls: type[FilteredFunction] = FilteredFunction,
) -> Any:
    """Return a function under a transformation; without a function, return a decorator.

    Args:
        make: the public function, such as `filter_vmap`, which the decorator calls.
        transformation: see `FilteredFunction`.
        fun: the function, or `MISSING`.
        options: the options of the transformation.
        cls: the class of the function.
    """
    if fun is MISSING:
        return functools.partial(make, **options)
    check_function(name_of(make), fun)
    made = cls(transformation, fun, options)
    made.__dict__["__module__"] = getattr(fun, "__module__", None)  # where doctest looks for it
    return made
