"""`filter_shard`: place the arrays of a pytree on devices."""

from __future__ import annotations

from typing import Any

import jax

from liftcore import is_array

from .prefixes import leafwise

__all__ = ["filter_shard"]


def filter_shard(x: Any, device_or_shardings: Any) -> Any:
    """Apply `jax.lax.with_sharding_constraint` to the arrays of a pytree. All other leaves are returned unchanged.

    It works both inside and outside of `filter_jit`.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        >>> model = eqx.filter_shard({"w": jnp.ones(3), "act": jnp.tanh}, sharding)
        >>> model["w"].sharding == sharding, model["act"] is jnp.tanh
        (True, True)

    Args:
        x: the pytree.
        device_or_shardings: a pytree prefix of shardings, or of functions from a leaf to one. A device places the whole
            array on it; None leaves the sharding unchanged.

    Returns:
        A pytree of the same structure.

    Raises:
        LiftArgumentError: if `device_or_shardings` is not such a prefix.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(x)
    shardings = leafwise("device_or_shardings of filter_shard", device_or_shardings, x)
    return structure.unflatten(map(_placed, leaves, shardings))


def _placed(leaf: Any, sharding: Any) -> Any:
    if not is_array(leaf) or sharding is None:
        return leaf
    if isinstance(sharding, jax.Device):
        sharding = jax.sharding.SingleDeviceSharding(sharding)
    return jax.lax.with_sharding_constraint(leaf, sharding)
