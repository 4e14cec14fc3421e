"""`Dropout`: zeroes random elements while training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array

from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from .parameters import chosen, stream_of

__all__ = ["Dropout"]


class Dropout(Module):
    """Zeroes each element with probability `rate` and divides the others by `1 - rate`, which keeps the mean.

    `train()` and `eval()` of the model set `deterministic`. Source: Srivastava et al., "Dropout: A Simple Way to
    Prevent Neural Networks from Overfitting", 2014.

    Shapes: any, unchanged. The layer has its own stream, forked from the one that it is given.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        >>> drop(jnp.ones(6))
        Array([2., 0., 2., 0., 2., 2.], dtype=float32)
        >>> drop.eval()
        >>> drop(jnp.ones(6))
        Array([1., 1., 1., 1., 1., 1.], dtype=float32)

    Args:
        rate: the probability of dropping an element, from 0 to 1.
        broadcast_dims: axes along which all elements are dropped or kept together.
        deterministic: whether to return the inputs unchanged; None if each call gives it.
        rng_collection: the name of the stream to fork, and of the stream to use from a call's `rngs`.
        rngs: the streams, or one stream, to fork into the attribute `rngs`; None if each call passes one.

    Attributes:
        rngs: an `RngStream`, or None.

    Raises:
        LiftArgumentError: if `rngs` has another type, or lacks the stream.
    """

    @nn.checks_options
    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ) -> None:
        self.rate = rate
        self.broadcast_dims = broadcast_dims
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        stream = stream_of("Dropout", rngs, rng_collection, "an Rngs, an RngStream or None")
        self.rngs = None if stream is None else stream.fork()

    @nn.checks_options
    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> Array:
        """Drop elements, unless `deterministic` is True.

        Args:
            inputs: an array of a floating or complex dtype.
            deterministic: used instead of the attribute, if given.
            rngs: the streams, the stream or the key to use; used instead of the attribute, if given.

        Raises:
            LiftArgumentError: if `deterministic` or a stream is missing, the rate is not a probability, an axis does
                not exist or the inputs are integers.
        """
        if chosen(self, "deterministic", deterministic):
            return inputs
        draw = functools.partial(self._draw, self.rngs if rngs is None else rngs)  # only if the rate is above 0
        return nn.drop(draw, inputs, self.rate, self.broadcast_dims, where="Dropout")

    def _draw(self, source: Any) -> jax.Array:
        """Return the key that was given, or one that is drawn."""
        if isinstance(source, jax.Array):
            return source
        stream = stream_of("Dropout", source, self.rng_collection, "an Rngs, an RngStream or a key")
        if stream is None:
            what = "`deterministic` is False, but `rngs` was given neither to the constructor nor in the call."
            fix = "Write `Dropout(rate, rngs=rngs)`, or `dropout(x, rngs=rngs)`."
            raise LiftArgumentError("Dropout", what, fix, option="rngs")
        return stream()

    @nn.checks_options
    def set_view(self, deterministic: bool | None = None) -> None:
        """Change the mode of the layer; `nnx.view` calls this.

        Args:
            deterministic: whether to return the inputs unchanged.
        """
        if deterministic is not None:
            self.deterministic = deterministic
