"""Names for the types that signatures share; nothing here runs.

Example:
    >>> from liftcore.typing import Path
    >>> kernel: Path = ("params", "encoder", "Dense_0", "kernel")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import EllipsisType
from typing import Any, TypeAlias

import jax
import jax.typing

__all__ = [
    "Array",
    "ArrayLike",
    "Axis",
    "Collection",
    "Dtype",
    "Filter",
    "InOutAxes",
    "Initializer",
    "Key",
    "Path",
    "Predicate",
    "PyTree",
    "RNGs",
    "Shape",
    "Variables",
]

# Values.
Array: TypeAlias = jax.Array
ArrayLike: TypeAlias = jax.typing.ArrayLike
Dtype: TypeAlias = jax.typing.DTypeLike
Shape: TypeAlias = Sequence[int]
PyTree: TypeAlias = Any

# Variables: `{collection: {module: {name: value}}}`, and the way to one of them: `(collection, *modules, name)`.
Path: TypeAlias = tuple[str, ...]
Collection: TypeAlias = dict[str, Any]
Variables: TypeAlias = Mapping[str, Any]

# Random keys, typed (`jax.random.key`) or raw; named streams of them, or one that is the `params` stream.
Key: TypeAlias = jax.Array
RNGs: TypeAlias = Mapping[str, Key] | Key
Initializer: TypeAlias = Callable[..., Any]

# What `variable_axes` maps a filter to, and what `in_axes` and `out_axes` are: a pytree prefix of axes.
Axis: TypeAlias = int | None
InOutAxes: TypeAlias = PyTree

# A predicate over `(path, value)`, and everything that `liftcore.filters.to_predicate` reads as one.
Predicate: TypeAlias = Callable[[Path, Any], bool]
Filter: TypeAlias = "Predicate | str | type | bool | EllipsisType | Sequence[Filter] | AbstractSet[Filter] | None"
