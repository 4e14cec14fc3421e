"""Pure functions of modules, which change copies and return them."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from liftcore.errors import LiftArgumentError, boundary, call_user, check_function, name_of, shown

from .structure import check_shared, is_module

__all__ = ["check_first", "module_and_value", "pure"]


def pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function pure: it gets copies of the modules among its arguments, and changes only these.

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
        fn: the function. To keep the changes of a module, it must return the module. A method of a module, or a module,
            is called on a copy too.

    Raises:
        SharedModuleError: when the pure function is called, if a module is in two places of its arguments.
    """
    module, method = _of_module("pure", fn)
    if module is None:
        return _pure(fn)
    bound = _pure(method)

    @functools.wraps(method)
    @boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        return bound(module, *args, **kwargs)

    return call


def module_and_value(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Make a function pure: it returns the changed module and its result, and does not change the module it is given.

    Example:
        >>> import jax, pax_like as pax
        >>> norm = pax.BatchNorm(3)
        >>> norm, y = jax.jit(pax.module_and_value(norm))(jax.numpy.ones((4, 3)))
        >>> y.shape, round(float(norm.mean[0]), 2)
        ((4, 3), 0.01)

    Args:
        fn: a function whose first argument is a module; or a method of a module, or a callable module, for which the
            pure function has no such argument.

    Returns:
        A function that returns the module after the call, and the result.

    Raises:
        LiftArgumentError: when it is called, if the first argument is not a module.
        SharedModuleError: when it is called, if a module is in two places of its arguments.
    """
    module, method = _of_module("module_and_value", fn)

    def both(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        result = call_user(f"module_and_value({name_of(method)})", method, module, *args, **kwargs)
        return module, result

    changed = _pure(both)

    @functools.wraps(method)
    @boundary
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if module is not None:
            args = (module, *args)
        check_first(f"module_and_value({name_of(method)})", args)
        made: tuple[Any, Any] = changed(*args, **kwargs)
        return made

    return call


def check_first(where: str, args: tuple[Any, ...]) -> None:
    """Check that the first argument is a module.

    Args:
        where: the name of the function, for the error.
        args: its arguments.
    """
    if not args or not is_module(args[0]):
        raise LiftArgumentError(
            where,
            f"expected a module as its first argument, given {shown(args[0]) if args else 'none'}.",
            "Call it as `fn(module, …)`.",
        )


def _of_module(where: str, fn: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
    """Return the module that a function is bound to, or None, and the function that takes it as first argument."""
    check_function(where, fn)
    if isinstance(fn, types.MethodType) and is_module(fn.__self__):
        return fn.__self__, fn.__func__
    if is_module(fn):
        return fn, type(fn).__call__
    return None, fn


def _pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    @boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        check_shared((args, kwargs))
        args, kwargs = jax.tree.map(lambda leaf: leaf, (args, kwargs))
        return call_user(f"pure({name_of(fn)})", fn, *args, **kwargs)

    return call
