"""Pure functions of modules: they change copies, and return them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from liftcore.errors import LiftArgumentError, check_function, name_of, shown

from .structure import check_shared, is_module

__all__ = ["check_first", "module_and_value", "pure"]


def pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes copies of the modules that it is given.

    Example:
        >>> import jax, pax_like as pax
        >>> norm = pax.BatchNorm(3)
        >>> @jax.jit
        ... @pax.pure
        ... def step(norm, x):
        ...     y = norm(x)
        ...     return norm, y.mean()
        >>> changed, mean = step(norm, jax.numpy.ones((4, 3)))
        >>> norm.mean.tolist(), [round(float(one), 2) for one in changed.mean]
        ([0.0, 0.0, 0.0], [0.01, 0.01, 0.01])

    Args:
        fn: called with copies of the modules among its arguments; one that is to come out changed it returns. A method
            of a module, or a module, is called on a copy too.

    Raises:
        SharedModuleError: when it is called with a module in two places.
    """
    module, method = _of_module("pure", fn)
    if module is None:
        return _pure(fn)
    bound = _pure(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return bound(module, *args, **kwargs)

    return call


def module_and_value(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns the changed module beside its result, and leaves the one that it is given as it is.

    Example:
        >>> import jax, pax_like as pax
        >>> norm = pax.BatchNorm(3)
        >>> norm, y = jax.jit(pax.module_and_value(norm))(jax.numpy.ones((4, 3)))
        >>> y.shape, round(float(norm.mean[0]), 2)
        ((4, 3), 0.01)

    Args:
        fn: a function whose first argument is a module; or a method of a module, or a module that can be called, and
            then the result has no such argument.

    Returns:
        A function that returns the module after the call, and the result.

    Raises:
        LiftArgumentError: when it is called, where the first argument is no module.
        SharedModuleError: when it is called with a module in two places.
    """
    module, method = _of_module("module_and_value", fn)

    def both(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        result = method(module, *args, **kwargs)
        return module, result

    changed = _pure(both)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if module is not None:
            args = (module, *args)
        check_first(f"module_and_value({name_of(method)})", args)
        made: tuple[Any, Any] = changed(*args, **kwargs)
        return made

    return call


def check_first(where: str, args: tuple[Any, ...]) -> None:
    """Checks that the first argument is a module.

    Args:
        where: the function that was called, for the error.
        args: its arguments.
    """
    if not args or not is_module(args[0]):
        raise LiftArgumentError(
            where,
            f"expected a module as its first argument, given {shown(args[0]) if args else 'none'}.",
            "Call it as `fn(module, …)`.",
        )


def _of_module(where: str, fn: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
    """The module that a function is called on, or None, and the function that takes it first."""
    check_function(where, fn)
    if isinstance(fn, types.MethodType) and is_module(fn.__self__):
        return fn.__self__, fn.__func__
    if is_module(fn):
        return fn, type(fn).__call__
    return None, fn


def _pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_shared((args, kwargs))
        args, kwargs = jax.tree.map(lambda leaf: leaf, (args, kwargs))
        return fn(*args, **kwargs)

    return call
