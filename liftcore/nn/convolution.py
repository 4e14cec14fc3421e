"""Convolutional layers: one kernel of parameters that moves over the spatial dimensions of the inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..scopes.scope import Scope
from ..typing import Array, Dtype, Initializer
from .kernels import (
    check_groups,
    check_kernel_mask,
    convolve,
    convolve_transpose,
    sharded_convolution,
)
from .layer import PromoteDtypeFn, checks_options, param_for, promote_dtype
from .sharding import check_out_sharding, reshape, reshard
from .windows import (
    SPREAD_PADDINGS,
    PaddingLike,
    batch_ndim,
    check_padding,
    dimension_numbers,
    flatten_batch,
    pad,
    positions,
    to_window,
)

__all__ = ["conv", "conv_local", "conv_transpose"]

_LECUN_NORMAL = initializers.lecun_normal()


@checks_options
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
    out_sharding: Any = None,
) -> Array:
    """A convolution: `y[p, o] = Σ_q,i x[stride * p + dilation * q, i] * kernel[q, i, o] + bias[o]`, with `x` padded.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Parameters: `kernel`, `(*kernel_size, in / feature_group_count, features)`; `bias`, `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(conv)(jax.random.key(0), jnp.ones((1, 8, 8, 3)), 4, (3, 3), strides=2)
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 4, 4, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Args:
        scope: the scope of the parameters.
        inputs: an array, channels last.
        features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one axis, only before), an int,
            or for each axis an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between them; gives a transposed convolution of that
            stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        feature_group_count: the number of groups; each maps its share of `in` to its share of `features`.
        mask: multiplied with the kernel; of the same shape.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        conv_general_dilated: the convolution, called like `jax.lax.conv_general_dilated`, which is the default.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.

    Raises:
        LiftArgumentError: if inputs, window, groups and mask do not match.
    """
    where = f"conv at {scope.path_text}"
    window = to_window(where, kernel_size, strides, padding, input_dilation, kernel_dilation)
    check_padding(where, window, inputs.shape[batch_ndim(where, inputs, len(window.size)) : -1])
    check_groups(where, inputs.shape[-1], features, feature_group_count)
    shape = (*window.size, inputs.shape[-1] // feature_group_count, features)
    check_kernel_mask(where, mask, shape)
    param = functools.partial(param_for, inputs, where, scope)
    kernel = param("kernel", kernel_init, shape, param_dtype)
    bias = param("bias", bias_init, (features,), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(inputs, kernel if mask is None else kernel * mask, bias, dtype=dtype)
    return convolve(
        x,
        kernel,
        bias,
        strides,
        padding,
        input_dilation=input_dilation,
        kernel_dilation=kernel_dilation,
        feature_group_count=feature_group_count,
        precision=precision,
        conv_general_dilated=conv_general_dilated,
        out_sharding=out_sharding,
        where=where,
    )


@checks_options
def conv_local(
    scope: Scope,
    inputs: Array,
    features: int,
    kernel_size: int | Iterable[int],
    strides: int | Iterable[int] | None = 1,
    padding: PaddingLike = "SAME",
    *,
    input_dilation: int | Iterable[int] | None = 1,
    kernel_dilation: int | Iterable[int] | None = 1,
    use_bias: bool = True,
    mask: Array | None = None,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    out_sharding: Any = None,
) -> Array:
    """A convolution with other weights at each place: `y[p, o] = Σ_q,i x[p + q, i] * kernel[p, i, q, o] + bias[p, o]`.

    Use it for inputs whose places mean different things, such as aligned faces: Taigman et al., "DeepFace", 2014.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Parameters: `kernel`, `(*other_spatial, in * prod(kernel_size), features)`; `bias`, `(*other_spatial, features)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(conv_local)(jax.random.key(0), jnp.ones((1, 8, 3)), 4, 3, padding="VALID")
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 6, 4), {'params': {'bias': (6, 4), 'kernel': (6, 9, 4)}})

    Args:
        scope: the scope of the parameters.
        inputs: an array, channels last.
        features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one axis, only before), an int,
            or for each axis an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between them; gives a transposed convolution of that
            stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        use_bias: whether there is a bias.
        mask: multiplied with the kernel; of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.

    Raises:
        LiftArgumentError: if inputs, window and mask do not match.
        ScopeParamShapeError: if the stored parameters are for inputs of another size, which includes spatial sizes.
    """
    where = f"conv_local at {scope.path_text}"
    check_out_sharding(where, out_sharding)
    window = to_window(where, kernel_size, strides, padding, input_dilation, kernel_dilation)
    x, batch = flatten_batch(where, inputs, len(window.size))
    x, window = pad(where, x, window)
    places = positions(where, x.shape[1:-1], window)
    shape = (*places, math.prod(window.size) * x.shape[-1], features)
    check_kernel_mask(where, mask, shape)
    param = functools.partial(param_for, inputs, where, scope)
    kernel = param("kernel", kernel_init, shape, param_dtype)
    bias = param("bias", bias_init, (*places, features), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(x, kernel if mask is None else kernel * mask, bias, dtype=dtype)

    def run(x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated_local(
            x,
            kernel,
            window.strides,
            window.padding,
            filter_shape=window.size,
            lhs_dilation=window.input_dilation,
            rhs_dilation=window.kernel_dilation,
            dimension_numbers=dimension_numbers(x.ndim),
            precision=precision,
        )

    y = sharded_convolution(run, x, kernel, bias)
    y = reshape(y, (*batch, *y.shape[1:]))
    return y if out_sharding is None else reshard(y, out_sharding)


@checks_options
def conv_transpose(
    scope: Scope,
    inputs: Array,
    features: int,
    kernel_size: int | Iterable[int],
    strides: int | Iterable[int] | None = None,
    padding: PaddingLike = "SAME",
    *,
    kernel_dilation: int | Iterable[int] | None = None,
    use_bias: bool = True,
    mask: Array | None = None,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    transpose_kernel: bool = False,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    preferred_element_type: Dtype | None = None,
    out_sharding: Any = None,
) -> Array:
    """A convolution in which strides enlarge the inputs: each input adds its multiple of the kernel to the result.

    `y[m, o] = Σ_q,i x[p, i] * kernel[q, i, o] + bias[o]`, where, up to a shift from padding, `m = stride * p - dilation
    * q`. With `transpose_kernel`, it is `kernel[q, o, i]` and `m = stride * p + dilation * q`: a transpose.
    Source: Zeiler et al., "Deconvolutional Networks", 2010; Dumoulin & Visin, https://arxiv.org/abs/1603.07285.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Parameters: `kernel`, `(*kernel_size, in, features)`, or `(*kernel_size, features, in)` with `transpose_kernel`;
    `bias`, `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.ones((1, 8, 8, 3))
        >>> y, variables = liftcore.init(conv_transpose)(jax.random.key(0), x, 4, (3, 3), strides=(2, 2))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 16, 16, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Args:
        scope: the scope of the parameters.
        inputs: an array, channels last.
        features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        strides: the factor by which each spatial axis grows; None means 1.
        padding: `"SAME"` gives `stride * size`; so does `"CIRCULAR"`, which wraps around at the ends; `"VALID"` gives
            all places that an input reaches; numbers pad the inputs after zeros were put between them.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        use_bias: whether there is a bias.
        mask: multiplied with the kernel; of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        transpose_kernel: whether the kernel has the layout of the `conv` that this layer is the transpose of.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.

    Raises:
        LiftArgumentError: if inputs, window and mask do not match, or the padding is an unknown word.
    """
    where = f"conv_transpose at {scope.path_text}"
    window = to_window(where, kernel_size, strides, padding, 1, kernel_dilation, SPREAD_PADDINGS)
    check_padding(where, window, inputs.shape[batch_ndim(where, inputs, len(window.size)) : -1])
    ends = (features, inputs.shape[-1]) if transpose_kernel else (inputs.shape[-1], features)
    shape = (*window.size, *ends)
    check_kernel_mask(where, mask, shape)
    param = functools.partial(param_for, inputs, where, scope)
    kernel = param("kernel", kernel_init, shape, param_dtype)
    bias = param("bias", bias_init, (features,), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(inputs, kernel if mask is None else kernel * mask, bias, dtype=dtype)
    return convolve_transpose(
        x,
        kernel,
        bias,
        strides,
        padding,
        kernel_dilation=kernel_dilation,
        transpose_kernel=transpose_kernel,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        where=where,
    )
