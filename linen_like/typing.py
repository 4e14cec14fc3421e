"""Types for the signatures of Linen models, with the names and meanings of `flax.typing`; nothing here runs.

`liftcore.typing` has the types of liftcore itself. Three names have another meaning there: `Path` is a tuple, `Key` is
a PRNG key, and `Collection` can be written.

Example:
    >>> from linen_like.typing import Array, PathParts
    >>> def is_kernel(path: PathParts, value: Array) -> bool:
    ...     return path[-1] == "kernel"
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.lax import PrecisionLike

from liftcore import FrozenDict, In, InOut, InPlace, Out
from liftcore.nn import PaddingLike, PromoteDtypeFn
from liftcore.typing import Array, Axis, Dtype, Filter, Initializer, Shape

__all__ = [
    "Array",
    "ArrayPytree",
    "Axes",
    "Axis",
    "AxisName",
    "Collection",
    "CollectionFilter",
    "ConvGeneralDilatedT",
    "DotGeneralT",
    "Dtype",
    "EinsumT",
    "FrozenVariableDict",
    "In",
    "InOutAxis",
    "InOutScanAxis",
    "Initializer",
    "Key",
    "LaxPadding",
    "Leaf",
    "LogicalNames",
    "LogicalPartitionSpec",
    "LogicalPartitionSpecPytree",
    "LogicalRules",
    "MutableCollection",
    "MutableVariableDict",
    "Out",
    "PRNGFoldable",
    "PRNGKey",
    "PRNGSequenceFilter",
    "PaddingLike",
    "PartitionSpecPytree",
    "Path",
    "PathParts",
    "PrecisionLike",
    "PromoteDtypeFn",
    "RNGSequences",
    "ScanAxis",
    "Shape",
    "Sharding",
    "VariableDict",
]

# PRNG keys, named RNG streams, and the fold-in data for a module's path.
PRNGKey: TypeAlias = jax.Array
RNGSequences: TypeAlias = dict[str, PRNGKey]
PRNGFoldable: TypeAlias = int | str

# Trees, and the path to a leaf: joined by slashes, or in parts.
Leaf: TypeAlias = Any
ArrayPytree: TypeAlias = Any
Key: TypeAlias = Hashable
Path: TypeAlias = str
PathParts: TypeAlias = tuple[Key, ...]

# Variables: `{collection: {module: {name: value}}}`, and filters for collections and for streams.
Collection: TypeAlias = Mapping[str, Any]
VariableDict: TypeAlias = Mapping[str, Collection]
FrozenVariableDict: TypeAlias = FrozenDict[str, Collection]
MutableCollection: TypeAlias = dict[str, Any]
MutableVariableDict: TypeAlias = dict[str, MutableCollection]
CollectionFilter: TypeAlias = Filter
PRNGSequenceFilter: TypeAlias = Filter

# Options of layers.
DotGeneralT: TypeAlias = Callable[..., Array]
ConvGeneralDilatedT: TypeAlias = Callable[..., Array]
EinsumT: TypeAlias = Callable[..., Array]
LaxPadding: TypeAlias = str | Sequence[tuple[int, int]]
Axes: TypeAlias = int | Sequence[int]

# The values of the mapping `variable_axes`.
InOutAxis: TypeAlias = Axis | In | Out | InOut
ScanAxis: TypeAlias = int
InOutScanAxis: TypeAlias = ScanAxis | In | Out | InOut | InPlace

# Axes of arrays, named by the model or by the mesh.
LogicalNames: TypeAlias = tuple[str | None, ...]
AxisName: TypeAlias = str | tuple[str, ...] | None
LogicalRules: TypeAlias = Sequence[tuple[str, AxisName]]
LogicalPartitionSpec: TypeAlias = Any
LogicalPartitionSpecPytree: TypeAlias = Any
PartitionSpecPytree: TypeAlias = Any
Sharding: TypeAlias = tuple[AxisName, ...]
