"""Mapped values on a mesh of Explicit axes: `jax.vmap` requires the same sharding along the mapped axis for all arrays.

So the keys that are split for the elements, and the variables that are created for them, are sharded along that axis in
the same way as the arguments and variables of the mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ..typing import Axis, PyTree
from .axes import flatten_axes

__all__ = ["MeshAxis"]

_reshard: Callable[..., Any] = jax.sharding.reshard  # JAX has no types for these two
_to_spec: Callable[..., Any] = P


class MeshAxis:
    """The mesh axes along which mapped values are sharded.

    Args:
        operands: the mapped values.
        axes: a pytree prefix of the mapped axes.
    """

    def __init__(self, operands: PyTree, axes: PyTree) -> None:
        leaves = jax.tree.leaves(operands)
        self._sharding: Any = None
        # A glance at all types comes first, since almost no mapping has arrays on a mesh, and all run this.
        if True in [isinstance(leaf, jax.Array) and not jax.typeof(leaf).sharding.mesh.empty for leaf in leaves]:
            pairs = zip(leaves, flatten_axes("operands", axes, operands), strict=True)
            found = (_entry(leaf, axis) for leaf, axis in pairs if axis is not None)
            self._sharding = next((sharding for sharding in found if sharding is not None), None)

    def alike(self, tree: PyTree, axes: PyTree) -> PyTree:
        """Return arrays that are mapped together with the operands, sharded alike along their own mapped axes."""
        if self._sharding is None:
            return tree
        leaves, treedef = jax.tree.flatten(tree)
        pairs = zip(leaves, flatten_axes("variables", axes, tree), strict=True)
        return jax.tree.unflatten(treedef, [leaf if axis is None else self._placed(leaf, axis) for leaf, axis in pairs])

    def form(self, axes: Sequence[Axis]) -> Callable[[int, Any], Any] | None:
        """Return the function that shards initial values alike, as `Split.batched_prologue` takes it; None if none is.

        Args:
            axes: for each initial value, its mapped axis, or None.
        """
        if self._sharding is None:
            return None
        return lambda number, leaf: leaf if (axis := axes[number]) is None else self._placed(leaf, axis)

    def gathered(self, mapped: Callable[..., Any], in_axes: PyTree, out_axes: PyTree) -> Callable[..., Any]:
        """Return the mapping with operands gathered along their mapped axes, and results sharded along theirs.

        Before JAX 0.10, `jax.vmap` cannot draw random arrays from keys that are sharded along the mapped axis. So each
        device computes all elements.
        """
        if self._sharding is None:
            return mapped

        def run(*operands: Any) -> Any:
            leaves, treedef = jax.tree.flatten(operands)
            axes = flatten_axes("operands", tuple(in_axes) if isinstance(in_axes, list) else in_axes, operands)
            whole = [leaf if axis is None else self._whole(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
            return self.alike(mapped(*jax.tree.unflatten(treedef, whole)), out_axes)

        return run

    def _placed(self, leaf: Any, axis: int) -> Any:
        entries = [*jax.typeof(leaf).sharding.spec]
        if entries[axis] is not None:
            return leaf
        mesh, entries[axis] = self._sharding
        return _reshard(leaf, NamedSharding(mesh, _to_spec(*entries)))

    def _whole(self, leaf: Any, axis: int) -> Any:
        found = _entry(leaf, axis)
        if found is None:
            return leaf
        entries = [*jax.typeof(leaf).sharding.spec]
        entries[axis] = None
        return _reshard(leaf, NamedSharding(found[0], _to_spec(*entries)))


def _entry(leaf: Any, axis: int) -> Any:
    """Return the mesh of an array and its sharding along an axis; None if it is not sharded along it."""
    sharding: Any = getattr(jax.typeof(leaf), "sharding", None) if isinstance(leaf, jax.Array) else None
    entry = sharding.spec[axis] if sharding is not None and len(sharding.spec) else None
    return None if entry is None else (sharding.mesh, entry)
