"""The computations that normalization layers share: moments over some axes, and their use.

Nothing here depends on scopes. A layer chooses what to average over with `averager`, computes `moments`, and applies
them with `standardize`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

from ..typing import Array, ArrayLike, Dtype
from .dtypes import canonicalize_dtype
from .sharding import align

__all__ = ["Average", "abs_square", "averager", "moments", "standardize", "to_reduction_dtype"]

Average: TypeAlias = Callable[..., list[Array]]
"""Type: takes arrays of one shape and returns the mean of each."""


def abs_square(x: Array) -> Array:
    """Compute `|x|²`, which is real for complex `x`, too.

    Example:
        >>> abs_square(jnp.array([-2.0, 3.0]))
        Array([4., 9.], dtype=float32)

    Args:
        x: the array.
    """
    return lax.square(x.real) + lax.square(x.imag) if jnp.iscomplexobj(x) else lax.square(x)


def to_reduction_dtype(x: ArrayLike, dtype: Dtype | None = None, force_float32: bool = True) -> Array:
    """Convert an array to the dtype that its statistics are computed in.

    Example:
        >>> to_reduction_dtype(jnp.ones(3, jnp.bfloat16)).dtype
        dtype('float32')

    Args:
        x: the array.
        dtype: the least precise dtype that is allowed; by default the dtype of `x`.
        force_float32: whether it must be at least `float32`; in half precision, the variance is lost.
    """
    dtype = jnp.result_type(x) if dtype is None else dtype
    return jnp.asarray(x, jnp.promote_types(dtype, jnp.float32) if force_float32 else dtype)


def averager(
    axes: Sequence[int],
    mask: ArrayLike | None = None,
    axis_name: Any = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
) -> Average:
    """Return a function that averages arrays over axes, and over the elements of a mapped axis.

    Example:
        >>> average = averager((1,), mask=jnp.array([True, True, False]))
        >>> average(jnp.array([[1.0, 3.0, 99.0]]))
        [Array([2.], dtype=float32)]

    Args:
        axes: the axes of the arrays.
        mask: the elements to use, broadcast to the arrays; by default all.
        axis_name: a mapped axis, or several, to average over as well, such as the axis of devices that share a batch.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately.
    """

    def average(*arrays: Array) -> list[Array]:
        where = None if mask is None else jnp.asarray(mask, bool)
        means = [jnp.mean(x, tuple(axes), where=where) for x in arrays]
        if axis_name is None:
            return means
        across = functools.partial(lax.pmean, axis_name=axis_name, axis_index_groups=axis_index_groups)
        if len(means) == 1:
            return [across(means[0])]
        return list(across(jnp.stack(means)))  # stacked, so that devices send one message instead of two

    return average


def moments(x: Array, axes: Sequence[int], average: Average, use_fast_variance: bool = True) -> tuple[Array, Array]:
    """Compute mean and variance over axes.

    Example:
        >>> moments(jnp.array([[1.0, 3.0]]), (1,), averager((1,)))
        (Array([2.], dtype=float32), Array([1.], dtype=float32))

    Args:
        x: the array.
        axes: the axes that `average` reduces.
        average: made by `averager`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads `x` once, instead of `E|x - E x|²`, which is
            slower and more accurate.
    """
    if use_fast_variance:
        mean, square = average(x, abs_square(x))
        return mean, jnp.maximum(0.0, square - abs_square(mean))  # rounding may take it below zero
    (mean,) = average(x)
    (variance,) = average(abs_square(x - jnp.expand_dims(mean, axes)))
    return mean, variance


def standardize(
    x: ArrayLike,
    mean: Array | None,
    variance: Array,
    *,
    axes: Sequence[int] = (),
    scale: Array | None = None,
    bias: Array | None = None,
    epsilon: float,
    dtype: Dtype | None = None,
) -> Array:
    """Compute `(x - mean) / sqrt(variance + epsilon) * scale + bias`.

    Example:
        >>> standardize(jnp.array([[1.0, 3.0]]), jnp.array([2.0]), jnp.array([1.0]), axes=(1,), epsilon=0.0)
        Array([[-1.,  1.]], dtype=float32)

    Args:
        x: the array.
        mean: broadcast to `x`, like the others; None means 0.
        variance: the variance of `x`, about the mean.
        axes: the axes of `x` that mean and variance lack.
        scale: multiplied with the quotient.
        bias: added to the result.
        epsilon: added to the variance, so that a constant `x` gives zeros.
        dtype: the dtype of the result; by default what `x`, `scale` and `bias` promote to, without the statistics.
    """
    factor = lax.rsqrt(align(jnp.expand_dims(variance, axes), x) + epsilon)
    centered = x if mean is None else x - align(jnp.expand_dims(mean, axes), x)
    y = centered * (factor if scale is None else factor * align(scale, x))
    y = y if bias is None else y + align(bias, x)
    return jnp.asarray(y, canonicalize_dtype(x, scale, bias, dtype=dtype))
