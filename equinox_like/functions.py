"""Filtered functions: the results of the transformations, which are callable pytrees.

So `filter_jit(filter_vmap(fn))` finds its trace again, even if you write it anew for each call. And if `fn` holds
arrays, as a module does, they are traced like those in its arguments.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from liftcore.errors import boundary, check_function, name_of

from .methods import described_by_function

__all__ = ["MISSING", "FilteredFunction", "filtered", "in_module_of", "partial_function"]

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


def filtered(make: Callable[..., Any], transformation: Callable[..., Any], fun: Any, options: dict[str, Any]) -> Any:
    """Return a function under a transformation; without a function, return a decorator.

    Args:
        make: the public function, such as `filter_vmap`, which the decorator calls.
        transformation: see `FilteredFunction`.
        fun: the function, or `MISSING`.
        options: the options of the transformation.
    """
    if fun is MISSING:
        return functools.partial(make, **options)
    check_function(name_of(make), fun)
    return in_module_of(FilteredFunction(transformation, fun, options))


def in_module_of(made: FilteredFunction) -> FilteredFunction:
    """Give a filtered function the module of its function, where doctest looks for it, and return it."""
    made.__dict__["__module__"] = getattr(made.fun, "__module__", None)
    return made
