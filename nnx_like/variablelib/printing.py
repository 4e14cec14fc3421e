"""Print a variable: its kind, size, value and metadata, one per line."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

__all__ = ["block", "size_of", "size_text"]


def size_of(value: Any) -> tuple[int, int]:
    """Count the elements in the arrays of a pytree, and their bytes.

    Args:
        value: any pytree; `jax.ShapeDtypeStruct` counts as an array of its shape and dtype.
    """
    elements = size = 0
    for leaf in jax.tree.leaves(value):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
            number = math.prod(shape)
            elements += number
            size += number * (dtype.itemsize if hasattr(dtype, "itemsize") else np.dtype(dtype).itemsize)
    return elements, size


def size_text(elements: int, size: int) -> str:
    """Format a number of elements and bytes.

    Example:
        >>> size_text(10_000, 40_000), size_text(0, 0)
        ('10,000 (40.0 KB)', '')
    """
    if not elements:
        return ""
    if size < 1000:
        return f"{elements:,} ({size} B)"
    power = min(int(math.log(size, 1000)), 5)
    return f"{elements:,} ({size / 1000**power:.1f} {' KMGTP'[power]}B)"


def block(name: str, comment: str, parts: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Format named parts, one a line.

    Example:
        >>> print(block("Param", "2 (8 B)", {"value": 3, "tag": "x"}))
        Param( # 2 (8 B)
          value=3,
          tag='x'
        )

    Args:
        name: the name of the whole.
        comment: the comment after the name, or an empty string.
        parts: the names and values of the parts.
    """
    items = parts.items() if isinstance(parts, Mapping) else parts
    lines = ",\n".join(textwrap.indent(f"{key}={value!r}", "  ") for key, value in items)
    return f"{name}({f' # {comment}' if comment else ''}\n{lines}\n)"
