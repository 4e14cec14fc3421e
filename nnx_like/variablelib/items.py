"""Copies of a value with one item replaced or deleted; nothing is changed in place, so that writes are noticed."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.leaves import is_numpy

__all__ = ["with_item", "without_item"]


def with_item(value: Any, index: Any, item: Any) -> Any:
    """Return a copy of a value with another item.

    Example:
        >>> with_item({"a": 1}, "b", 2), with_item(3, ..., 4)
        ({'a': 1, 'b': 2}, 4)

    Args:
        value: the value: an array, a list, a dict.
        index: the index of the item; `...` selects a whole array, or a value without items.
        item: the new item. An array is broadcast and cast to the type of the value.

    Returns:
        A new value. If the item replaces the whole value and is an array of the same type, the item itself.
    """
    if isinstance(value, jax.Array):
        if index is ... and isinstance(item, jax.Array) and jax.typeof(item) == jax.typeof(value):
            return item
        return value.at[index].set(item)
    if is_numpy(value):
        if isinstance(item, jax.core.Tracer):
            return jnp.asarray(value).at[index].set(item)
        value = np.array(value)
    elif index is ...:
        return item
    else:
        value = copy.copy(value)
    value[index] = item
    return value


def without_item(value: Any, index: Any) -> Any:
    """Return a copy of a value without an item.

    Args:
        value: the value: a list, a dict.
        index: the index of the item.

    Returns:
        A new value.
    """
    value = copy.copy(value)
    del value[index]
    return value
