"""Decides for which functions a trace is kept: those that refer to nothing that may change from call to call.

A loop or a branch that was traced once can reuse the trace only if the function would read the same values. JAX assumes
this of every function. But a function that uses a model by closure reads the model's current variables. For such a
function no trace is kept, and the cache does not keep the model alive.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..graph.walk import is_object

__all__ = ["another", "is_steady", "kept"]

_KEPT = 64
"""How many results are kept for each function; each holds what was compiled for it."""

_STEADY = (
    bool,
    bytes,
    complex,
    float,
    int,
    str,
    type(None),
    type(Ellipsis),
    type,
    types.BuiltinFunctionType,
    types.ModuleType,
    enum.Enum,
    np.dtype,
    np.ufunc,
    type(jax.jit(len)),
    jax.custom_jvp,
    jax.custom_vjp,
)
"""Types whose values are immutable, or assumed to be."""


def kept(make: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the result of a function of functions and options, if each of them is steady.

    Args:
        make: called with functions, tuples of them, and options.
    """
    cached = functools.lru_cache(_KEPT, typed=True)(make)

    @functools.wraps(make)
    def made(*args: Any) -> Any:
        return (cached if is_steady(args) else make)(*args)

    return made


def another(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function as a new object, for which nothing is cached.

    Args:
        f: the function.
    """

    @functools.wraps(f)
    def anew(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    return anew


def is_steady(value: Any) -> bool:
    """Return whether nothing that a value refers to may change, such as a function's closure and globals.

    Args:
        value: any value, such as a function. In the modules and classes that it uses, only the attributes that it
            names are checked. Everything else in them, and in libraries, is assumed not to change.
    """
    todo, seen = [value], {id(value)}
    while todo:
        one = todo.pop()
        below = _below(one)
        if below is None:
            return False
        for part in below:
            if id(part) not in seen:
                seen.add(id(part))
                todo.append(part)
    return True


def _below(value: Any) -> Iterator[Any] | tuple[Any, ...] | None:
    """Return the values that a value refers to; None if it may change in place."""
    if isinstance(value, _STEADY):
        return ()
    if isinstance(value, jax.Array):  # a tracer belongs to a call that ends
        return None if isinstance(value, jax.core.Tracer) else ()
    if isinstance(value, types.FunctionType):
        inner = getattr(value, "__wrapped__", None)  # such as the function under `remat`
        return (inner,) if inner is not None and _is_ours(value.__globals__["__name__"]) else _referred(value)
    if callable(value) and hasattr(value, "__wrapped__") and _is_ours(type(value).__module__):
        return ()  # JAX assumes that a function under `jit` does not change
    if type(value) in (tuple, frozenset):
        return tuple(value)
    if type(value) is functools.partial:
        return (value.func, *value.args, *value.keywords.values())
    return None


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _referred(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable is assigned later
            yield []
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, types.FunctionType) or not _is_of_library(value):
            yield value
        if isinstance(value, (types.ModuleType, type)):  # such as `settings.model` in the body
            yield from [vars(value)[one] for one in names & vars(value).keys() if is_object(vars(value)[one])]


def _is_of_library(function: types.FunctionType) -> bool:
    """Return whether a function is part of Python or an installed package, and so refers to no model of the user."""
    module, file = function.__globals__["__name__"], function.__globals__.get("__file__") or ""
    root = module.partition(".")[0]
    return _is_ours(module) or root == "liftcore" or root in sys.stdlib_module_names or "-packages" in file


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)
