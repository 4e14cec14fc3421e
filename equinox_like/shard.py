"""`filter_shard`: place the arrays of a pytree on devices."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding, get_abstract_mesh

from liftcore import is_array

from .split import leafwise

__all__ = ["filter_shard"]


def filter_shard(x: Any, device_or_shardings: Any) -> Any:
    """Place the arrays of a pytree on devices. All other leaves are returned unchanged.

    It works both inside and outside `filter_jit`. Along the Auto axes of a mesh, it applies
    `jax.lax.with_sharding_constraint`; along the Explicit axes, which are part of the types of arrays, it applies
    `jax.sharding.reshard`.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        >>> model = eqx.filter_shard({"w": jnp.ones(3), "act": jnp.tanh}, sharding)
        >>> model["w"].sharding == sharding, model["act"] is jnp.tanh
        (True, True)

    Args:
        x: the pytree.
        device_or_shardings: a pytree prefix of shardings, or of functions from a leaf to one. A `PartitionSpec` is for
            the mesh of `jax.set_mesh`. A device places the whole array on it; None leaves the sharding unchanged.

    Returns:
        A pytree of the same structure.

    Raises:
        LiftArgumentError: if `device_or_shardings` is not such a prefix.
    """
    shardings = leafwise("device_or_shardings of filter_shard", device_or_shardings, x)
    leaves, structure = jax.tree.flatten(x)
    return jax.tree.unflatten(structure, map(_placed, leaves, shardings))


def _placed(leaf: Any, sharding: Any) -> Any:
    if not is_array(leaf) or sharding is None:
        return leaf
    if isinstance(sharding, jax.Device):
        sharding = SingleDeviceSharding(sharding)
    named = sharding
    if isinstance(sharding, PartitionSpec) and not get_abstract_mesh().empty:
        named = NamedSharding(get_abstract_mesh(), sharding)
    if not isinstance(named, NamedSharding):
        return jax.lax.with_sharding_constraint(leaf, sharding)
    if not isinstance(leaf, jax.core.Tracer):
        leaf = jax.device_put(leaf, sharding)
    return _constrained(leaf, named) if isinstance(leaf, jax.core.Tracer) else leaf


def _constrained(leaf: Any, sharding: NamedSharding) -> Any:
    """Place a traced array on a mesh: first along its Explicit axes, then along its Auto axes."""
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return jax.lax.with_sharding_constraint(leaf, sharding)
    explicit, auto = _along(sharding, AxisType.Explicit), _along(sharding, AxisType.Auto)
    if get_abstract_mesh().empty and jax.typeof(leaf).sharding.mesh.empty:
        leaf = jax.device_put(leaf, explicit)  # JAX does not compile `reshard` if the call knows no mesh
    else:
        leaf = jax.sharding.reshard(leaf, explicit)
    return jax.lax.with_sharding_constraint(leaf, auto) if any(auto.spec) else leaf


def _along(sharding: NamedSharding, kind: AxisType) -> NamedSharding:
    """Return the part of a sharding along the axes of one kind."""
    kinds = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))

    def part(entry: Any) -> Any:
        names = [name for name in (entry if isinstance(entry, tuple) else (entry,)) if kinds.get(name) == kind]
        return tuple(names) or None

    return NamedSharding(sharding.mesh, PartitionSpec(*map(part, sharding.spec)))
