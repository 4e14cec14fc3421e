"""Layers that are random during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..rng import is_key
from ..scopes.scope import Scope
from ..typing import Array, Key
from .layer import checks_options, normalize_axes
from .sharding import on_auto_axes, shard_like, sharding_entries, sharding_with

__all__ = ["check_rate", "draw_kept", "drop", "dropout"]


@checks_options
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
    """Zero each element with probability `rate` and divide the others by `1 - rate`, which keeps the mean.

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
        scope: the scope to draw the key in.
        inputs: an array of a floating or complex dtype.
        rate: the probability to drop an element, from 0 to 1.
        broadcast_dims: axes along which all elements are dropped or kept together.
        deterministic: whether to return the inputs unchanged, as in evaluation.
        rng_collection: the name of the RNG stream.
        key: the key to use, instead of a draw.

    Raises:
        LiftArgumentError: if `deterministic` is missing, the rate is not a probability, an axis does not exist or the
            inputs are integers.
        InvalidRngError: if a key is needed and no stream was given.
    """
    where = f"dropout at {scope.path_text}"
    if deterministic is None:
        what = "`deterministic` is missing; it decides whether to drop anything."
        raise LiftArgumentError(where, what, "Pass `deterministic=not train`.", option="deterministic")
    check_rate(where, "rate", rate)
    if deterministic:
        return inputs

    def new_key() -> Key:
        return scope.make_rng(rng_collection) if key is None else key

    return drop(new_key, inputs, rate, broadcast_dims, where=where)


def drop(
    key: Key | Callable[[], Key], inputs: Array, rate: float, broadcast_dims: Sequence[int] = (), *, where: str = "drop"
) -> Array:
    """Zero each element with probability `rate` and divide the others by `1 - rate`; see `dropout`.

    Shapes: any, unchanged.

    Example:
        >>> drop(jax.random.key(0), jnp.ones(6), 0.5)
        Array([0., 0., 2., 2., 0., 2.], dtype=float32)

    Args:
        key: the key, or a function that makes it; that is called once, and only if the key is needed.
        inputs: an array of a floating or complex dtype.
        rate: the probability to drop an element, from 0 to 1.
        broadcast_dims: axes along which all elements are dropped or kept together.
        where: the layer, for errors.

    Raises:
        LiftArgumentError: if the rate is not a probability, an axis does not exist, the inputs are integers, or `key`
            is needed and is not a PRNG key.
    """
    check_rate(where, "rate", rate)
    if rate == 0:
        return inputs
    if rate == 1:  # the general formula would divide by zero, and its gradient would be NaN
        return jnp.zeros_like(inputs)
    x = jnp.asarray(inputs)  # NumPy would divide its own arrays, some dtypes as float32
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise LiftArgumentError(
            where,
            Expected("inputs of a floating or complex dtype", given=x.dtype),
            "Convert them: `inputs.astype(jnp.float32)`.",
        )
    shared = normalize_axes(where, "broadcast_dims", broadcast_dims, x.ndim)
    shape = [1 if axis in shared else size for axis, size in enumerate(x.shape)]
    keep = 1.0 - rate
    drawn_from = key() if callable(key) else key
    if not is_key(drawn_from):
        raise LiftArgumentError(
            where,
            Expected("a PRNG key", given=drawn_from),
            "Pass `key=` to the layer that calls it; or set its field `inference` to True, so that it drops nothing.",
            option="key",
        )
    mask = jnp.broadcast_to(draw_kept(drawn_from, keep, shape, x), x.shape)
    return lax.select(shard_like(mask, x), x / keep, jnp.zeros_like(x))


def draw_kept(key: Key, keep: float, shape: Sequence[int], like: Array) -> Array:
    """Draw which elements of an array to keep; the result is sharded like the array.

    Args:
        key: the key.
        keep: the probability to keep an element.
        shape: the shape of the result: that of the array, with 1 for dimensions along which elements are kept together.
        like: the array.
    """
    entries = [None if size == 1 else entry for size, entry in zip(shape, sharding_entries(like), strict=True)]

    def draw(key: Key) -> Array:
        return jax.random.bernoulli(key, p=keep, shape=shape)

    if jax.sharding.get_abstract_mesh().empty:  # without `jax.set_mesh`, JAX makes arrays on one device only
        return draw(key)
    return on_auto_axes(draw, None, key, out_sharding=sharding_with(entries, like))


def check_rate(where: str, name: str, rate: float) -> None:
    """Check that a rate of dropout is a probability.

    Raises:
        LiftArgumentError: if it is not.
    """
    if not 0 <= rate <= 1:
        fix = f"Pass the fraction to drop, such as `{name}=0.1`."
        raise LiftArgumentError(where, Expected("a probability from 0 to 1", given=rate), fix, option=name)
