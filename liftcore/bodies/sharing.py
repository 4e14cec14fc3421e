"""What uses of a lift share: which functions, values and pytrees do the same as any others that equal them."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from .. import filters
from ..filters import names_collections
from ..packing import Crossing
from ..retrace import Counted
from ..typing import Path

__all__ = ["exact_as", "is_exact", "is_plain", "is_plain_filter", "is_plain_structure", "is_shareable", "seen_paths"]

Lifted = TypeVar("Lifted", bound=Callable[..., Any])

_PLAIN = frozenset({bool, bytes, int, str, type(None)})
_NAMED = frozenset({str, type(None)})
_SIMPLE = (filters.Everything, filters.Nothing, filters.WithTag, filters.OfType, filters.PathContains)
_LIFTED: weakref.WeakSet[Any] = weakref.WeakSet()


def is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it holds nothing, or it compares by value."""
    if isinstance(fn, Counted):
        return is_shareable(fn.__wrapped__)
    if isinstance(fn, types.FunctionType):
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        return fn.__closure__ is None and all(map(is_plain, defaults))
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


def is_exact(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept, and equal ones do the very same.

    A function that holds nothing equals itself alone. So does a lifted one of such a function. The class of others says
    it by a method `__exact__`.
    """
    if isinstance(fn, Counted | types.FunctionType):
        return is_shareable(fn) or fn in _LIFTED
    says = getattr(type(fn), "__exact__", None)
    return says is not None and bool(says(fn))


def exact_as(fn: Callable[..., Any], lifted: Lifted) -> Lifted:
    """A lifted function, which is exact if the function itself is."""
    if is_exact(fn):
        _LIFTED.add(lifted)
    return lifted


def is_plain(value: Any) -> bool:
    """Whether a value does the same as any other of its type that equals it.

    That is not so of 0.0 and -0.0, of tuples with 1 and 1.0 in them, and of objects that say themselves what is equal.
    """
    if isinstance(value, types.FunctionType):
        return is_shareable(value)
    return type(value) in _PLAIN or (type(value) is float and value != 0) or isinstance(value, type)


def is_plain_structure(treedef: Any) -> bool:
    """Whether the structure of a pytree is the same as all that equal it: names and types alone tell its nodes apart.

    To JAX 0.0 and -0.0, or 1 and True, are one key of a dict, and one value of a static field.
    """
    left: list[Any] = [treedef]
    for node in left:
        data = node.node_data()
        if data is not None:  # no leaf
            if not _is_named(data[1]):
                return False
            left.extend(node.children())
    return True


def _is_named(data: Any) -> bool:
    if type(data) in (list, tuple):
        return _NAMED.issuperset(map(type, data)) or all(map(_is_named, data))
    return type(data) in _NAMED or isinstance(data, type)


def is_plain_filter(predicate: Any) -> bool:
    """Whether a filter is made of those of liftcore alone, which compare by value."""
    kind = type(predicate)
    if kind in (filters.All, filters.Any):
        return all(map(is_plain_filter, predicate.filters))
    return kind in _SIMPLE or (kind in (filters.Not, filters.DenyList) and is_plain_filter(predicate.filter))


def seen_paths(crossing: Crossing, asked: bool) -> tuple[Path, ...]:
    """The paths of what is lifted, where a filter may ask for them: one of the lift (`asked`), or that of `mutable`."""
    asked = asked or not all(names_collections(outer.tree.mutable) for outer in crossing.outers)
    return tuple(outer.path for outer in crossing.outers) if asked else ()
