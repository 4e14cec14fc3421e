"""The mesh axes of a variable: their names in its metadata, the rules for them, and the mesh."""

from __future__ import annotations

from typing import Any

import jax

from liftcore import mesh_specs
from liftcore.mesh_specs import LogicalRules
from liftcore.meta import constrain

from .variable import Variable

__all__ = ["axis_names", "axis_rules", "is_variable", "mesh_of", "on_mesh"]


def is_variable(leaf: Any) -> bool:
    """Return whether a leaf is a variable."""
    return isinstance(leaf, Variable)


def axis_names(leaf: Any) -> tuple[Any, ...]:
    """Return the names of axes in the metadata: a tuple, a `PartitionSpec`, or the spec of a `NamedSharding`."""
    names = leaf.get_metadata("out_sharding", None) if is_variable(leaf) else None
    return tuple(getattr(names, "spec", names) or ())


def axis_rules(leaf: Any) -> LogicalRules:
    """Return the rules for the names of a leaf: those in its metadata, and then those of the `with` block."""
    own = leaf.get_metadata("sharding_rules", None) if is_variable(leaf) else None
    return mesh_specs.hashable_rules((*(own or ()), *mesh_specs.get_logical_axis_rules()))


def mesh_of(leaf: Any) -> Any:
    """Return the mesh of a variable: that in its metadata, or the one of `jax.set_mesh`."""
    own = leaf.get_metadata("mesh", None) if is_variable(leaf) else None
    return jax.sharding.get_abstract_mesh() if own is None else own


def on_mesh(where: str, variable: Variable[Any]) -> Any:
    """Return the value of a variable, sharded as its metadata says if there is a mesh.

    Args:
        where: the name of the variable, for errors.
        variable: the variable. A value with fewer axes than names is not sharded.

    Raises:
        LiftArgumentError: if the names do not fit the mesh.
    """
    value, mesh, names = variable.get_raw_value(), mesh_of(variable), axis_names(variable)
    if not names or not mesh.axis_names:
        return value

    def placed(array: Any) -> Any:
        spec, misfits = mesh_specs.spec_on_mesh(where, names, array.shape, mesh, axis_rules(variable))
        mesh_specs.raise_misfits(where, misfits)
        return constrain(array, spec, variable.get_metadata("mesh", None))

    return jax.tree.map(placed, value)
