"""Layers that are random during training."""

from __future__ import annotations

from collections.abc import Sequence

from liftcore import nn
from liftcore.typing import Array, Key

from .lifecycle.calling import compact
from .lifecycle.fields import options
from .module import Module, merge_param

__all__ = ["Dropout"]


class Dropout(Module):
    """Zeroes each element with probability `rate` and divides the others by `1 - rate`; see `liftcore.nn.dropout`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> Dropout(0.5, deterministic=False).apply({}, jnp.ones(6), rngs={"dropout": jax.random.key(0)})
        Array([2., 2., 2., 0., 2., 2.], dtype=float32)

    Attributes:
        rate: the probability to drop an element, from 0 to 1.
        broadcast_dims: axes along which all elements are dropped or kept together.
        deterministic: whether to return the inputs unchanged; given here or at the call.
        rng_collection: the name of the RNG stream.
    """

    rate: float
    broadcast_dims: Sequence[int] = ()
    deterministic: bool | None = None
    rng_collection: str = "dropout"

    @compact
    def __call__(self, inputs: Array, deterministic: bool | None = None, rng: Key | None = None) -> Array:
        """Drop elements, unless `deterministic` is True; `rng` is the key to use instead of a draw."""
        drops_nothing = merge_param("deterministic", self.deterministic, deterministic)
        return nn.dropout(self.scope, inputs, **options(self, nn.dropout, deterministic=drops_nothing, key=rng))
