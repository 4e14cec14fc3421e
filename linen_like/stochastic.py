"""Layers that are random while training."""

from __future__ import annotations

from collections.abc import Sequence

from liftcore import nn
from liftcore.typing import Array, Key

from .lifecycle.calling import compact
from .module import Module, merge_param

__all__ = ["Dropout"]


class Dropout(Module):
    """Zeroes each element with probability `rate` and divides the others by `1 - rate`; see `liftcore.nn.dropout`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> Dropout(0.5, deterministic=False).apply({}, jnp.ones(6), rngs={"dropout": jax.random.key(0)})
        Array([2., 2., 2., 0., 2., 2.], dtype=float32)

    Attributes:
        rate: the probability to drop an element.
        broadcast_dims: axes along which all elements are dropped or kept together.
        deterministic: whether to drop nothing; given here or at the call.
        rng_collection: the name of the RNG stream.
    """

    rate: float
    broadcast_dims: Sequence[int] = ()
    deterministic: bool | None = None
    rng_collection: str = "dropout"

    @compact
    def __call__(self, inputs: Array, deterministic: bool | None = None, rng: Key | None = None) -> Array:
        """Maps an array to one of its shape; `rng` is the key to use in place of a draw."""
        return nn.dropout(
            self.scope,
            inputs,
            self.rate,
            broadcast_dims=self.broadcast_dims,
            deterministic=merge_param("deterministic", self.deterministic, deterministic),
            rng_collection=self.rng_collection,
            key=rng,
        )
