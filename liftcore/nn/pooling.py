"""Pooling: one number for each window of an array, without parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..typing import Array
from .layer import checks_options
from .sharding import gather, on_auto_axes, sharding_entries, to_spec

__all__ = ["avg_pool", "max_pool", "min_pool", "pool"]

Padding: TypeAlias = str | Sequence[tuple[int, int]]


def pool(
    inputs: Array,
    init: float,
    reduce_fn: Callable[[Array, Array], Array],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> Array:
    """Combine the elements of each window: `reduce_fn(... reduce_fn(init, x[0]) ..., x[n])`.

    Shapes: `(*batch, *spatial, features)`, with any number of batch dimensions, to the same with other spatial sizes. A
    differentiable `reduce_fn` does not make the result differentiable; the results of the functions below are.

    Example:
        >>> x = jnp.arange(6.0).reshape(1, 6, 1)
        >>> pool(x, 1.0, lax.mul, (2,), (2,), "VALID")[0, :, 0]
        Array([ 0.,  6., 20.], dtype=float32)

    Args:
        inputs: an array, channels last.
        init: the initial value of the combination, and the value of padding.
        reduce_fn: combines two values; must be associative and commutative.
        window_shape: the size of the window along each spatial axis.
        strides: the step of the window along each spatial axis; by default 1.
        padding: `"SAME"`, `"SAME_LOWER"`, `"VALID"`, or a pair `(low, high)` for each spatial axis.

    Raises:
        LiftArgumentError: if the inputs have too few dimensions, a size is not positive, or strides or padding do not
            match the window.
    """
    window = _sizes("window_shape", window_shape)
    steps = _sizes("strides", strides or (1,) * len(window))
    _check(inputs.shape, window, steps, padding)
    batch = (1,) * max(inputs.ndim - len(window) - 1, 1)
    pads: Padding = padding
    if not isinstance(padding, str):
        pads = [*((0, 0) for _ in batch), *((low, high) for low, high in padding), (0, 0)]
    single = inputs.ndim == len(window) + 1
    x = inputs[None] if single else inputs
    sizes = (*batch, *window, 1), (*batch, *steps, 1)
    spec = to_spec(*sharding_entries(x))
    x = gather(
        x, range(len(batch), x.ndim - 1)
    )  # XLA's partitioner cannot handle padded windows over sharded dimensions
    y: Array = on_auto_axes(lambda x: lax.reduce_window(x, init, reduce_fn, *sizes, pads), spec, x)
    return jnp.squeeze(y, axis=0) if single else y


def max_pool(
    inputs: Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Return the largest element of each window; padding does not count.

    Example:
        >>> max_pool(jnp.arange(6.0).reshape(1, 6, 1), (2,), (2,))[0, :, 0]
        Array([1., 3., 5.], dtype=float32)

    Args:
        inputs: an array, channels last.
        window_shape: the size of the window along each spatial axis.
        strides: the step of the window along each spatial axis; by default 1.
        padding: `"SAME"`, `"SAME_LOWER"`, `"VALID"`, or a pair `(low, high)` for each spatial axis.
    """
    return pool(inputs, -jnp.inf, lax.max, window_shape, strides, padding)


def min_pool(
    inputs: Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Return the smallest element of each window; padding does not count.

    Example:
        >>> min_pool(jnp.arange(6.0).reshape(1, 6, 1), (2,), (2,))[0, :, 0]
        Array([0., 2., 4.], dtype=float32)

    Args:
        inputs: an array, channels last.
        window_shape: the size of the window along each spatial axis.
        strides: the step of the window along each spatial axis; by default 1.
        padding: `"SAME"`, `"SAME_LOWER"`, `"VALID"`, or a pair `(low, high)` for each spatial axis.
    """
    return pool(inputs, jnp.inf, lax.min, window_shape, strides, padding)


@checks_options
def avg_pool(
    inputs: Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """Return the mean of each window.

    Example:
        >>> x = jnp.ones((1, 3, 1))
        >>> avg_pool(x, (2,), padding="SAME")[0, :, 0]
        Array([1. , 1. , 0.5], dtype=float32)
        >>> avg_pool(x, (2,), padding="SAME", count_include_pad=False)[0, :, 0]
        Array([1., 1., 1.], dtype=float32)

    Args:
        inputs: an array, channels last.
        window_shape: the size of the window along each spatial axis.
        strides: the step of the window along each spatial axis; by default 1.
        padding: `"SAME"`, `"SAME_LOWER"`, `"VALID"`, or a pair `(low, high)` for each spatial axis.
        count_include_pad: whether the mean includes the padding, which counts as zeros.
    """
    total = pool(inputs, 0.0, lax.add, window_shape, strides, padding)
    if count_include_pad:
        return total / np.prod(window_shape)  # a NumPy integer: it decides what integers promote to
    batch = inputs.ndim - len(window_shape) - 1
    ones = jnp.ones((*(1 for _ in range(batch)), *inputs.shape[batch:-1], 1))
    return total / pool(ones, 0.0, lax.add, window_shape, strides, padding)


def _sizes(name: str, given: Sequence[int]) -> tuple[int, ...]:
    """Check that there is one positive size for each spatial dimension, and return them as a tuple."""
    sizes = tuple(given) if isinstance(given, Sequence) else ()
    if not sizes or min(sizes) < 1:
        raise LiftArgumentError(
            "pooling",
            Expected("a positive size for each spatial dimension of the inputs", given=given),
            f"Pass `{name}=(2, 2)` for images, or (2,) for series.",
            option=name,
        )
    return sizes


def _check(shape: tuple[int, ...], window: tuple[int, ...], strides: tuple[int, ...], padding: Padding) -> None:
    where, n = f"pooling with window_shape={window}", len(window)
    if len(shape) < n + 1:
        what = Expected(f"inputs of {n} spatial dimensions, as `window_shape` has, and one of features", given=shape)
        fix = "Give one size for each spatial dimension of the inputs: `window_shape=(2, 2)` for images."
        raise LiftArgumentError(where, what, fix, option="window_shape")
    if len(strides) != n:
        fix = f"Pass `strides={(2,) * n}`, or None for 1."
        raise LiftArgumentError(where, Expected("a stride for each spatial dimension", strides), fix, option="strides")
    if isinstance(padding, str):
        fits = padding.upper() in ("SAME", "SAME_LOWER", "VALID")
    else:
        fits = len(padding) == n and all(len(tuple(pair)) == 2 for pair in padding)
    if not fits:
        what = Expected(f'padding "SAME", "SAME_LOWER", "VALID" or {n} pairs (low, high)', given=padding)
        raise LiftArgumentError(where, what, f'Pass `padding="SAME"` or `padding={[(1, 1)] * n}`.')
