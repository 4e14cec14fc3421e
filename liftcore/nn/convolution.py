"""Convolutional layers: one kernel of parameters, moved over the spatial dimensions of the inputs."""

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
from .dtypes import PromoteDtypeFn, promote_dtype
from .kernels import (
    check_groups,
    check_kernel_mask,
    convolve,
    convolve_transpose,
    sharded_convolution,
    to_spread_window,
    with_bias,
)
from .params import param_for
from .sharding import place, reshape
from .windows import (
    PaddingLike,
    Window,
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
        strides: how far the window moves; None means 1, and one int counts for each dimension, as it does below.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one dimension, only before),
            an int, or for each dimension an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between; makes a transposed convolution of that stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        feature_group_count: the number of groups; each maps its share of `in` to its share of `features`.
        mask: multiplied with the kernel, of the same shape.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: how exactly products are computed: a `jax.lax.Precision`, or two for the two operands, or names of
            them; by default as the backend does.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        conv_general_dilated: what convolves, called as `jax.lax.conv_general_dilated` is, which is the default.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs, and for the features from the kernel.

    Raises:
        LiftArgumentError: where inputs, window, groups and mask do not fit together.
    """
    where = f"conv at {scope.path_text}"
    window = to_window(where, kernel_size, strides, padding, input_dilation, kernel_dilation)
    check_padding(where, window, inputs.shape[batch_ndim(where, inputs, len(window.size)) : -1])
    check_groups(where, inputs.shape[-1], features, feature_group_count)
    shape = (*window.size, inputs.shape[-1] // feature_group_count, features)
    check_kernel_mask(where, mask, shape)
    param = functools.partial(param_for, inputs, "conv", scope)
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

    It is for inputs whose places mean different things, such as aligned faces: Taigman et al., "DeepFace", 2014.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Parameters: `kernel`, `(*other_spatial, in * prod(kernel_size), features)`; `bias`, `(*other_spatial, features)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(conv_local)(jax.random.key(0), jnp.ones((1, 8, 3)), 4, 3, padding="VALID")
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 6, 4), {'params': {'bias': (6, 4), 'kernel': (6, 9, 4)}})

    Args:
        scope: where the parameters live.
        inputs: channels last.
        features: the size of the last dimension of the result.
        kernel_size: the kernel's size in each spatial dimension; one int means one dimension.
        strides: how far the window moves; None means 1, and one int counts for each dimension.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one dimension, only before), an
            int, or for each dimension an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between; makes a transposed convolution of that stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        use_bias: whether there is a bias.
        mask: multiplied with the kernel, of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: how exactly products are computed: a `jax.lax.Precision`, or two for the two operands, or names of
            them; by default as the backend does.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs, and for the features from the kernel.

    Raises:
        LiftArgumentError: where inputs, window and mask do not fit together.
        ScopeParamShapeError: where the stored parameters are for inputs of another size, in space too.
    """
    where = f"conv_local at {scope.path_text}"
    window = to_window(where, kernel_size, strides, padding, input_dilation, kernel_dilation)
    x, batch = flatten_batch(where, inputs, len(window.size))
    x, window = pad(where, x, window)
    places = positions(where, x.shape[1:-1], window)
    shape = (*places, math.prod(window.size) * x.shape[-1], features)
    check_kernel_mask(where, mask, shape)
    param = functools.partial(param_for, inputs, "conv_local", scope)
    kernel = param("kernel", kernel_init, shape, param_dtype)
    bias = param("bias", bias_init, (*places, features), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(x, kernel if mask is None else kernel * mask, bias, dtype=dtype)
    run = functools.partial(_convolve_locally, window=window, precision=precision)
    y = sharded_convolution(run, x, kernel, bias, batch=1, out_sharding=None if len(batch) != 1 else out_sharding)
    if len(batch) == 1:
        return y
    y = reshape(y, (*batch, *y.shape[1:]))
    return y if out_sharding is None else place(y, (), out_sharding=out_sharding)


def _convolve_locally(
    x: Array,
    kernel: Array,
    bias: Array | None = None,
    *,
    window: Window,
    precision: lax.PrecisionLike,
) -> Array:
    """The convolution of padded inputs with one batch dimension."""
    y = lax.conv_general_dilated_local(
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
    return with_bias(y, bias, x.shape[:1])


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
    """A convolution in which strides widen the inputs: each of them adds its multiple of the kernel to the result.

    `y[m, o] = Σ_q,i x[p, i] * kernel[q, i, o] + bias[o]` where, up to the shift that padding makes, `m = stride * p -
    dilation * q`; with `transpose_kernel`, `kernel[q, o, i]` where `m = stride * p + dilation * q`, as transposes do.
    Source: Zeiler et al., "Deconvolutional Networks", 2010; Dumoulin & Visin, https://arxiv.org/abs/1603.07285.

    Shapes: `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`; `batch` may be of any length.
    Parameters: `kernel`, `(*kernel_size, in, features)` or transposed `(*kernel_size, features, in)`; `bias`,
    `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.ones((1, 8, 8, 3))
        >>> y, variables = liftcore.init(conv_transpose)(jax.random.key(0), x, 4, (3, 3), strides=(2, 2))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 16, 16, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Args:
        scope: where the parameters live.
        inputs: channels last.
        features: the size of the last dimension of the result.
        kernel_size: the kernel's size in each spatial dimension; one int means one dimension.
        strides: how many times as large the result is in each spatial dimension.
        padding: `"SAME"` gives `stride * size`; `"CIRCULAR"` as well, where what passes one end comes in at the other;
            `"VALID"` all places that an input reaches; numbers pad the inputs once zeros are between them.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        use_bias: whether there is a bias.
        mask: multiplied with the kernel, of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: how exactly products are computed: a `jax.lax.Precision`, or two for the two operands, or names of
            them; by default as the backend does.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        transpose_kernel: whether the kernel is that of the `conv` which this layer is the transpose of.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        preferred_element_type: the dtype that products are summed in and returned as, before the bias is added; by
            default that of the operands.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs, and for the features from the kernel.

    Raises:
        LiftArgumentError: where inputs, window and mask do not fit together, or the padding is another word.
    """
    where = f"conv_transpose at {scope.path_text}"
    window = to_spread_window(where, kernel_size, strides, padding, kernel_dilation)
    check_padding(where, window, inputs.shape[batch_ndim(where, inputs, len(window.size)) : -1])
    ends = (features, inputs.shape[-1]) if transpose_kernel else (inputs.shape[-1], features)
    shape = (*window.size, *ends)
    check_kernel_mask(where, mask, shape)
    param = functools.partial(param_for, inputs, "conv_transpose", scope)
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
