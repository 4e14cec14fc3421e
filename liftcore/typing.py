"""Types that signatures share; this module has no code.

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

# Variables: `{collection: {module: {name: value}}}`, and the path of one of them: `(collection, *modules, name)`.
Path: TypeAlias = tuple[str, ...]
Collection: TypeAlias = dict[str, Any]
Variables: TypeAlias = Mapping[str, Any]

# PRNG keys, typed (`jax.random.key`) or raw; a mapping of named streams, or one key for the stream `params`.
Key: TypeAlias = jax.Array
RNGs: TypeAlias = Mapping[str, Key] | Key
Initializer: TypeAlias = Callable[..., Any]

# The axis of a variable in `variable_axes`, and the values of `in_axes` and `out_axes`: a pytree prefix of axes.
Axis: TypeAlias = int | None
InOutAxes: TypeAlias = PyTree

# A predicate over `(path, value)`, and all forms that `liftcore.filters.to_predicate` accepts.
Predicate: TypeAlias = Callable[[Path, Any], bool]
Filter: TypeAlias = "Predicate | str | type | bool | EllipsisType | Sequence[Filter] | AbstractSet[Filter] | None"
