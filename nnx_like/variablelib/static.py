"""Static values as keys: hashable, and equal only where they are interchangeable (`1` is not `True`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from liftcore.leaves import is_numpy

__all__ = ["StaticMetadata", "metadata_key", "static_key"]


def static_key(value: Any) -> Any:
    """Return a hashable key for a static value; keys of different types differ.

    Example:
        >>> static_key(1) == static_key(True), static_key([1, {"a": 2}]) == static_key([1, {"a": 2}])
        (False, True)
        >>> hash(static_key([1])) == hash(static_key([1]))
        True

    Args:
        value: any value. Lists, dicts and sets are compared by their current contents. Other values that cannot be
            hashed are compared by value, and hashed by type.
    """
    kind = type(value)
    if kind is str:
        return value
    if kind is tuple or kind is list:
        return kind, tuple([static_key(item) for item in value])
    if kind is dict:
        return kind, frozenset([(static_key(name), static_key(item)) for name, item in value.items()])
    if kind is set or kind is frozenset:
        return kind, frozenset([static_key(item) for item in value])
    try:
        hash(value)
    except TypeError:
        return kind, _Unhashable(value)
    return kind, value


def metadata_key(metadata: Mapping[str, Any]) -> Any:
    """Return a hashable key for the metadata of a variable; the order of names does not matter.

    Args:
        metadata: names and values.
    """
    if not metadata:
        return ()
    return tuple([(name, static_key(metadata[name])) for name in sorted(metadata)])


class _Unhashable:
    """A value that cannot be hashed."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Unhashable):
            return NotImplemented
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value):
            return False
        return _equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


def _equal(first: Any, second: Any) -> bool:
    """Return whether two values of one type are equal; arrays are compared element by element."""
    if is_numpy(first):
        return first.dtype == second.dtype and np.array_equal(first, second)
    try:
        return bool(first == second)
    except Exception:  # such as for a tracer: compare by identity only
        return False


class StaticMetadata:
    """The static part of a variable, which JAX stores in the tree definition.

    Args:
        metadata: the metadata of the variable, which is never changed in place.
    """

    __slots__ = ("key", "metadata")

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata, self.key = metadata, metadata_key(metadata)

    def __eq__(self, other: object) -> bool:
        return type(other) is StaticMetadata and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.metadata)

    def __reduce__(self) -> Any:
        return StaticMetadata, (self.metadata,)
