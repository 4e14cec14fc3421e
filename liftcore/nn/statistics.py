"""The computations that normalization layers share: moments over some axes, and their use.

Nothing here depends on scopes. A layer chooses what to average over with `averager`, computes `moments`, and applies
them with `standardize`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..typing import Array, ArrayLike, Dtype, Shape
from .layer import canonicalize_dtype, normalize_axes
from .masks import check_mask, split_mask
from .sharding import align, on_auto_axes, reshape, sharding_entries, to_spec

__all__ = [
    "Average",
    "Normalization",
    "abs_square",
    "averager",
    "group_axes",
    "group_sizes",
    "instance_axes",
    "moments",
    "standardize",
    "to_reduction_dtype",
]

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


class Normalization(NamedTuple):
    """How a layer normalizes: with which statistics, and in which dtype.

    Example:
        >>> norm = Normalization("layer_norm", epsilon=0.0)
        >>> x, axes = jnp.array([[1.0, 3.0]]), (1,)
        >>> norm.standardize(x, *norm.moments(x, axes), axes, axes, scale=jnp.array([1.0, 2.0]))
        Array([[-1.,  2.]], dtype=float32)

    Attributes:
        where: the layer, for errors.
        epsilon: added to the variance.
        dtype: the dtype of the result; by default what the arrays promote to.
        axis_name: a mapped axis, or several, to average over as well.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately.
        use_fast_variance: whether to compute `E|x|² - |E x|²`; see `moments`.
        force_float32: whether statistics are computed in at least `float32`.
        may_be_empty: whether there may be nothing to average over, as while parameters are made.
    """

    where: str
    epsilon: float
    dtype: Dtype | None = None
    axis_name: Any = None
    axis_index_groups: Sequence[Sequence[int]] | None = None
    use_fast_variance: bool = True
    force_float32: bool = True
    may_be_empty: bool = False

    def moments(
        self, x: Array, axes: Sequence[int], mask: ArrayLike | None = None, centered: bool = True
    ) -> tuple[Any, Array]:
        """Return mean and variance over axes.

        Args:
            x: the array.
            axes: the axes to average over.
            mask: the elements to use, broadcast to `x`; by default all.
            centered: whether to compute the mean; if not, it is None, and the variance is about 0.

        Raises:
            LiftArgumentError: if the mask does not fit, or there is nothing to average over.
        """
        check_mask(self.where, mask, x.shape)
        if not self.may_be_empty and any(x.shape[axis] == 0 for axis in axes):
            raise LiftArgumentError(
                self.where,
                f"there is nothing to average over: the inputs have shape {x.shape}, the reduced axes are {(*axes,)}.",
                "Skip empty batches: their mean would be NaN, and so would everything computed from it.",
                given=x.shape,
            )
        average = averager(axes, mask, self.axis_name, self.axis_index_groups)
        x = to_reduction_dtype(x, self.dtype, self.force_float32)
        return moments(x, axes, average, self.use_fast_variance) if centered else (None, average(abs_square(x))[0])

    def group_moments(
        self, x: Array, axes: Sequence[int], groups: int, size: int, mask: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return mean and variance of groups of features, over all axes but the last; each feature gets its group's.

        Args:
            x: the array.
            axes: the axes to average over, with the last one, of the features.
            groups: the number of groups.
            size: the number of features in each group.
            mask: the elements to use, broadcast to `x`; by default all.

        Raises:
            LiftArgumentError: if the mask does not fit, or there is nothing to average over.
        """
        check_mask(self.where, mask, x.shape)

        def moments_of(x: Array, mask: ArrayLike | None) -> tuple[Array, Array]:
            grouped = jnp.reshape(x, (*x.shape[:-1], groups, size))
            mean, variance = self.moments(grouped, (*axes[:-1], x.ndim), split_mask(mask, groups, size))
            return jnp.repeat(mean, size, axis=-1), jnp.repeat(variance, size, axis=-1)

        spec = to_spec(*(entry for axis, entry in enumerate(sharding_entries(x)) if axis not in axes[:-1]))
        return on_auto_axes(moments_of, (spec, spec), x, mask)

    def standardize(
        self,
        x: Array,
        mean: Array | None,
        variance: Array,
        axes: Sequence[int],
        feature_axes: tuple[int, ...],
        scale: Array | None = None,
        bias: Array | None = None,
    ) -> Array:
        """Normalize an array with moments that lack some axes; see `standardize`.

        Args:
            x: the array.
            mean: its mean; None means 0.
            variance: its variance.
            axes: the axes of `x` that mean and variance lack.
            feature_axes: the axes along which scale and bias vary.
            scale: multiplied with the quotient; it has an element for each feature.
            bias: added to the result; likewise.
        """
        shape = tuple(size if axis in feature_axes else 1 for axis, size in enumerate(x.shape))
        scale, bias = (None if one is None else reshape(one, shape) for one in (scale, bias))
        how: Any = {"epsilon": self.epsilon, "dtype": self.dtype}
        return standardize(x, mean, variance, axes=axes, scale=scale, bias=bias, **how)


def group_axes(where: str, reduction_axes: int | Iterable[int] | None, shape: Shape) -> tuple[int, ...]:
    """Return the axes that a norm of groups averages over: by default all but the first.

    Args:
        where: the layer, for errors.
        reduction_axes: the axes; None means the default.
        shape: the shape of the inputs.

    Raises:
        LiftArgumentError: if the last axis, of the features, is not among them.
    """
    given = (*range(1, len(shape) - 1), -1) if reduction_axes is None else reduction_axes
    axes = normalize_axes(where, "reduction_axes", given, len(shape))
    if len(shape) - 1 not in axes:
        raise LiftArgumentError(
            where,
            f"reduction_axes are {axes} for inputs of shape {shape}; the last axis, the features, is missing.",
            f"Add it: `reduction_axes={(*axes, -1)}`.",
            option="reduction_axes",
            given=axes,
        )
    return axes


def instance_axes(where: str, feature_axes: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """Return the axes that a norm of instances averages over: all but the first and those of features.

    Args:
        where: the layer, for errors.
        feature_axes: the axes of features, counted from the front.
        shape: the shape of the inputs.

    Raises:
        LiftArgumentError: if the first axis, of the batch, is one of features.
    """
    if 0 in feature_axes:
        raise LiftArgumentError(
            where,
            f"feature_axes are {feature_axes} for inputs of shape {shape}; the first axis is the batch.",
            "Leave the first axis out, or add an axis before it: `inputs[None]`.",
            option="feature_axes",
            given=feature_axes,
        )
    return tuple(axis for axis in range(1, len(shape)) if axis not in feature_axes)


def group_sizes(
    where: str, features: int, num_groups: int | None, group_size: int | None, what: str
) -> tuple[int, int]:
    """Return the number of groups of features, and their size.

    Args:
        where: the layer, for errors.
        features: the number of features.
        num_groups: the number of groups; None if their size is given.
        group_size: their size; None if the number is given.
        what: what has these features, for errors.

    Raises:
        LiftArgumentError: if both are given, or none, or the features cannot be divided evenly.
    """
    if (num_groups is None) == (group_size is None):
        both = f"num_groups={num_groups} and group_size={group_size}"
        raise LiftArgumentError(
            where,
            Expected("`num_groups` or `group_size`", both, words=both),
            "Pass one of them: `num_groups=8`, or `num_groups=None, group_size=16`.",
            option="num_groups",
        )
    name, given = ("group_size", group_size) if num_groups is None else ("num_groups", num_groups)
    if given is None or given < 1 or features % given:
        raise LiftArgumentError(
            where,
            f"{what}, which cannot be divided by {name}={given}.",
            f"Pass a `{name}` that divides {features}.",
            option=name,
            given=given,
        )
    other = features // given
    return (other, given) if num_groups is None else (given, other)
