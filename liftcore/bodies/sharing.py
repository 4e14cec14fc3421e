"""What uses of a lift share: one trace serves all that are equal, as far as their bodies can tell."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from ..filters import names_collections
from ..packing import Crossing
from ..retrace import Counted
from ..typing import Path

__all__ = ["is_exact", "is_plain", "is_shareable", "seen_paths"]


def is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it has no closure, or it compares by value."""
    if isinstance(fn, Counted):
        return is_shareable(fn.__wrapped__)
    if isinstance(fn, types.FunctionType):
        return fn.__closure__ is None
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


def is_exact(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept, and equal ones do the very same.

    A function without a closure equals itself alone. An object that compares by value says it by a method `is_exact`.
    """
    if isinstance(fn, Counted | types.FunctionType):
        return is_shareable(fn)
    says = getattr(fn, "is_exact", None)
    return says is not None and bool(says())


def is_plain(value: Any) -> bool:
    """Whether a value does the same as any other of its type that equals it.

    That is not so of 0.0 and -0.0, of tuples with 1 and 1.0 in them, and of objects that say themselves what is equal.
    """
    kind = type(value)
    if kind is types.FunctionType:
        return value.__closure__ is None
    return kind in _PLAIN or (kind is float and value != 0) or isinstance(value, type)


_PLAIN = (bool, bytes, int, str, type(None), jax.tree_util.PyTreeDef)


def seen_paths(crossing: Crossing, asked: bool) -> tuple[Path, ...]:
    """The paths of what is lifted, where a filter may ask for them: one of the lift (`asked`), or that of `mutable`."""
    asked = asked or not all(names_collections(outer.tree.mutable) for outer in crossing.outers)
    return tuple(outer.path for outer in crossing.outers) if asked else ()
