"""Layers that are random while training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import LiftArgumentError
from ..scopes.scope import Scope
from ..typing import Array, Key
from .axes import normalize_axes

__all__ = ["drop", "dropout"]


def dropout(
    scope: Scope,
    inputs: Array,
    rate: float,
    *,
    broadcast_dims: Sequence[int] = (),
    deterministic: bool | None = None,
    rng_collection: str = "dropout",
    key: Key | None = None,
) -> Array:
    """Zeroes each element with probability `rate` and divides the others by `1 - rate`, which keeps the mean.

    Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014.

    Shapes: any, unchanged.
    Streams: one draw from `rng_collection`, unless `key` is given or nothing is random.

    Example:
        >>> import liftcore
        >>> drop = liftcore.apply(dropout)
        >>> drop({}, jnp.ones(6), 0.5, deterministic=False, rngs={"dropout": jax.random.key(0)})
        Array([2., 2., 2., 0., 2., 2.], dtype=float32)
        >>> drop({}, jnp.ones(6), 0.5, deterministic=True)
        Array([1., 1., 1., 1., 1., 1.], dtype=float32)

    Args:
        scope: where the key is drawn.
        inputs: an array of a floating or complex dtype.
        rate: the probability to drop an element, from 0 to 1.
        broadcast_dims: axes along which all elements are dropped or kept together.
        deterministic: whether to return the inputs as they are, as when the model is evaluated.
        rng_collection: the name of the RNG stream.
        key: the key to use, in place of a draw.

    Raises:
        LiftArgumentError: where `deterministic` is missing, the rate is no probability, an axis does not exist or the
            inputs are integers.
        InvalidRngError: where a key is needed and no stream was given.
    """
    where = f"dropout at {scope.path_text}"
    _check_deterministic(where, deterministic)
    _check_rate(where, rate)
    if deterministic:
        return inputs

    def new_key() -> Key:
        return scope.make_rng(rng_collection) if key is None else key

    return drop(new_key, inputs, rate, broadcast_dims, where=where)


def drop(
    key: Key | Callable[[], Key], inputs: Array, rate: float, broadcast_dims: Sequence[int] = (), *, where: str = "drop"
) -> Array:
    """What `dropout` computes: zero with probability `rate`, and else the element divided by `1 - rate`.

    Shapes: any, unchanged.

    Example:
        >>> drop(jax.random.key(0), jnp.ones(6), 0.5)
        Array([0., 0., 2., 2., 0., 2.], dtype=float32)

    Args:
        key: the key, or what makes one: it is called once, and only where it decides anything.
        inputs: an array of a floating or complex dtype.
        rate: the probability to drop an element, from 0 to 1.
        broadcast_dims: axes along which all elements are dropped or kept together.
        where: the layer, for errors.

    Raises:
        LiftArgumentError: where the rate is no probability, an axis does not exist or the inputs are integers.
    """
    _check_rate(where, rate)
    if rate == 0:
        return inputs
    if rate == 1:  # the general formula would divide by zero, and its gradient would be NaN
        return jnp.zeros_like(inputs)
    x = jnp.asarray(inputs)  # NumPy would divide its own arrays, some dtypes as float32
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise LiftArgumentError(
            where,
            f"expected inputs of a floating or complex dtype, given {x.dtype}.",
            "Convert them: `inputs.astype(jnp.float32)`.",
        )
    shared = normalize_axes(where, "broadcast_dims", broadcast_dims, x.ndim)
    shape = [1 if axis in shared else size for axis, size in enumerate(x.shape)]
    keep = 1.0 - rate
    mask = jax.random.bernoulli(key() if callable(key) else key, p=keep, shape=shape)
    return lax.select(_like(jnp.broadcast_to(mask, x.shape), x), x / keep, jnp.zeros_like(x))


def _like(mask: Array, x: Array) -> Array:
    """The mask, sharded as the array is on axes that are explicit; on others the compiler decides."""
    sharding: Any = jax.typeof(x).sharding
    reshard: Callable[..., Array] = jax.sharding.reshard
    return reshard(mask, sharding) if any(sharding.spec) else mask


def _check_deterministic(where: str, deterministic: bool | None) -> None:
    if deterministic is None:
        raise LiftArgumentError(
            where,
            "`deterministic` is missing, so it is open whether to drop anything.",
            "Pass `deterministic=not train`.",
        )


def _check_rate(where: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise LiftArgumentError(
            where,
            f"rate is {rate}, and a probability lies between 0 and 1.",
            "Pass the share to drop, such as `rate=0.1`.",
        )
