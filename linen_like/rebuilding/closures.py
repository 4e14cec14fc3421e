"""Closures: the modules and variables that a function closes over, and uses without taking them as arguments.

They are those in its closure, its defaults, a `functools.partial` or the object of a bound method, and those that
functions among these close over in turn.
"""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from liftcore.statics import is_shareable

from ..lifecycle.fields import Base
from ..lifecycle.naming import map_instances

__all__ = ["BOUND", "closed_over", "may_keep_arrays", "parts", "with_closed_over"]


class _Scoped(abc.ABC):  # noqa: B024 - the hook finds its subclasses; nothing inherits from it
    """The types of values that hold scopes, as in `liftcore.is_scoped`: variables, adopted parts, scopes."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return hasattr(kind, "__scopes__")


BOUND = (Base, _Scoped)
"""The types of values to find."""

_HOLDERS = (types.FunctionType, types.MethodType, functools.partial)
_KINDS = (*BOUND, *_HOLDERS)


def closed_over(fn: Any) -> list[Any]:
    """Return the modules and variables that a function closes over, each once."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def visit(value: Any) -> Any:
        if isinstance(value, BOUND):
            found.setdefault(id(value), value)
        elif id(value) not in seen:
            seen.add(id(value))
            for part in parts(value):
                map_instances(part, _KINDS, visit)
        return value

    map_instances(fn, _KINDS, visit)
    return list(found.values())


def with_closed_over(fn: Any, replace: Callable[[Any], Any]) -> Any:
    """Return the same function, closed over other modules and variables.

    Example:
        >>> import linen_like as nn
        >>> class Scale(nn.Module):
        ...     by: float
        >>> def times(scale):
        ...     return lambda x: scale.by * x
        >>> doubled = times(Scale(2.0))
        >>> with_closed_over(doubled, lambda module: module.clone(by=3.0))(1.0), doubled(1.0)
        (3.0, 2.0)

    Args:
        fn: a function, or any nesting of containers with functions.
        replace: called with each module and variable; returns the value to put in its place.
    """
    made: dict[int, Any] = {}

    def rebuilt(value: Any) -> Any:
        return map_instances(value, _KINDS, one)

    def one(value: Any) -> Any:
        if isinstance(value, BOUND):
            return replace(value)
        if id(value) not in made:
            made[id(value)] = value  # unchanged, if it closes over none
            if closed_over(value):
                _rebuild(value, rebuilt, made)
        return made[id(value)]

    return rebuilt(fn)


def may_keep_arrays(fn: Any) -> bool:
    """Return whether a function may keep arrays alive: it has a closure or an object, or is a partial with arrays."""
    if isinstance(fn, functools.partial):
        arrays: list[Any] = []
        map_instances([fn.args, fn.keywords], (jax.Array, np.ndarray), arrays.append)
        return bool(arrays) or may_keep_arrays(fn.func)
    if not getattr(fn, "is_module_method", False) and not isinstance(fn, types.FunctionType | type):
        return not is_shareable(fn)  # a method of an object, or an object that can be called
    cells = getattr(fn, "__closure__", None) or ()
    return not getattr(fn, "is_module_method", False) and not all(isinstance(_content(cell), type) for cell in cells)


def parts(value: Any) -> Iterator[Any]:
    """Yield the parts of a function, a method or a partial."""
    if isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif not getattr(value, "is_module_method", False):  # a class closes over the same for all instances
        yield from map(_content, value.__closure__ or ())
        yield from (value.__defaults__, value.__kwdefaults__)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None


def _rebuild(value: Any, rebuilt: Callable[[Any], Any], made: dict[int, Any]) -> None:
    """Add to `made` the same function with its parts rebuilt."""
    if isinstance(value, functools.partial):
        args, keywords = rebuilt(value.args), rebuilt(value.keywords)
        made[id(value)] = type(value)(rebuilt(value.func), *args, **keywords)
    elif isinstance(value, types.MethodType):
        made[id(value)] = types.MethodType(rebuilt(value.__func__), rebuilt(value.__self__))
    else:
        old = value.__closure__ or ()
        # A cell without any of them is kept: `nonlocal` writes to it.
        cells = tuple(types.CellType() if closed_over(_content(cell)) else cell for cell in old)
        new = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells)
        made[id(value)] = new  # before its cells are filled: one of them may hold the function itself
        functools.update_wrapper(new, value).__dict__.pop("__wrapped__")
        new.__dict__.update(value.__dict__)
        new.__defaults__, new.__kwdefaults__ = rebuilt(value.__defaults__), rebuilt(value.__kwdefaults__)
        for cell, new_cell in zip(old, cells, strict=True):
            if new_cell is not cell:
                new_cell.cell_contents = rebuilt(_content(cell))
