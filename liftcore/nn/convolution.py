"""Convolutional layers: one kernel of parameters, moved over the spatial dimensions of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..errors import LiftArgumentError
from ..scope import Scope
from ..typing import Array, Dtype, Initializer
from .dtypes import PromoteDtypeFn, promote_dtype
from .windows import PaddingLike, dimension_numbers, flatten_batch, pad, to_window

__all__ = ["conv"]

_LECUN_NORMAL = initializers.lecun_normal()


def conv(
    scope: Scope,
    inputs: Array,
    features: int,
    kernel_size: int | Iterable[int],
    strides: int | Iterable[int] | None = 1,
    padding: PaddingLike = "SAME",
    *,
    input_dilation: int | Iterable[int] | None = 1,
    kernel_dilation: int | Iterable[int] | None = 1,
    feature_group_count: int = 1,
    use_bias: bool = True,
    mask: Array | None = None,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    conv_general_dilated: Callable[..., Array] | None = None,
) -> Array:
    """A convolution, `y[p, o] = Σ_q,i x[stride * p + dilation * q, i] * kernel[q, i, o] + bias[o]` once `x` is padded.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Parameters: `kernel`, `(*kernel_size, in / feature_group_count, features)`; `bias`, `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(conv)(jax.random.key(0), jnp.ones((1, 8, 8, 3)), 4, (3, 3), strides=2)
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 4, 4, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Args:
        scope: where the parameters live.
        inputs: channels last.
        features: the size of the last dimension of the result.
        kernel_size: the kernel's size in each spatial dimension; one int means one dimension.
        strides: how far it moves; None means 1, and one int counts for each dimension, as below.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one dimension, only before),
            an int, or for each dimension an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between; makes a transposed convolution of that stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        feature_group_count: the number of groups; each maps its share of `in` to its share of `features`.
        mask: multiplied with the kernel, of the same shape.
        use_bias: see `dense`, also for what follows.
        dtype: that of the computation.
        param_dtype: that of new parameters.
        precision: see `jax.lax.conv_general_dilated`.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: brings inputs, kernel and bias to one dtype.
        conv_general_dilated: what convolves; by default `jax.lax.conv_general_dilated`.

    Raises:
        LiftArgumentError: where inputs, window, groups and mask do not fit together.
    """
    where = f"conv at {scope.path_text}"
    window = to_window(where, kernel_size, strides, padding, input_dilation, kernel_dilation)
    x, batch = flatten_batch(where, inputs, len(window.size))
    _check_groups(where, x.shape[-1], features, feature_group_count)
    shape = (*window.size, x.shape[-1] // feature_group_count, features)
    _check_mask(where, mask, shape)
    x, window = pad(where, x, window)
    kernel = scope.param("kernel", kernel_init, shape, param_dtype)
    bias = scope.param("bias", bias_init, (features,), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(x, kernel if mask is None else kernel * mask, bias, dtype=dtype)
    y = (conv_general_dilated or lax.conv_general_dilated)(
        x,
        kernel,
        window.strides,
        window.padding,
        lhs_dilation=window.input_dilation,
        rhs_dilation=window.kernel_dilation,
        dimension_numbers=dimension_numbers(x.ndim),
        feature_group_count=feature_group_count,
        precision=precision,
    )
    y = y if bias is None else y + jnp.reshape(bias, (1,) * (y.ndim - 1) + (-1,))
    return y if len(batch) == 1 else jnp.reshape(y, (*batch, *y.shape[1:]))


def _check_groups(where: str, given: int, features: int, groups: int) -> None:
    for name, size in (("the inputs' features", given), ("features", features)):
        if groups < 1 or size % groups:
            raise LiftArgumentError(
                where,
                f"{name} are {size}, which do not divide into feature_group_count={groups} groups.",
                "Pass a `feature_group_count` that divides both the inputs' features and `features`.",
            )


def _check_mask(where: str, mask: Array | None, shape: tuple[int, ...]) -> None:
    if mask is not None and jnp.shape(mask) != shape:
        raise LiftArgumentError(
            where,
            f"the mask has shape {jnp.shape(mask)}, and the kernel that it is multiplied with {shape}.",
            f"Pass a mask of shape {shape}.",
        )
