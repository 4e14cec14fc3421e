"""Convolutional layers: a kernel that moves over the spatial axes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.nn import PaddingLike
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..rnglib.streams import Rngs
from .initializers import lecun_normal, zeros
from .parameters import Affine, PromoteDtypeFn, promote_dtype

__all__ = ["Conv", "ConvTranspose"]

_LECUN_NORMAL = lecun_normal()


class Conv(Affine):
    """A convolution: `y[p, o] = Σ_q,i x[stride * p + dilation * q, i] * kernel[q, i, o] + bias[o]`, with `x` padded.

    Shapes: `(*batch, *spatial, in_features)` to `(*batch, *other_spatial, out_features)`, with any number of batch
    axes.
    Variables: `Param` `kernel`, `(*kernel_size, in_features / feature_group_count, out_features)`, and `bias`,
    `(out_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.Conv(3, 4, (3, 3), strides=2, rngs=nnx.Rngs(0))
        >>> layer.kernel.shape, layer(jnp.ones((1, 8, 8, 3))).shape
        ((3, 3, 3, 4), (1, 4, 4, 4))

    Args:
        in_features: the size of the last axis of the inputs.
        out_features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one axis, only before), an int,
            or for each axis an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between them; gives a transposed convolution of that
            stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        feature_group_count: the number of groups; each maps its share of the inputs' features to its share of the
            result's.
        use_bias: whether to add a bias.
        mask: multiplied with the kernel; of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        conv_general_dilated: the convolution, called like `jax.lax.conv_general_dilated`.
        promote_dtype: converts `(inputs, kernel, bias)` to one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        rngs: each of kernel and bias draws a key from `params`.
        kernel_metadata: the metadata of the kernel.
        bias_metadata: the metadata of the bias.

    Raises:
        LiftArgumentError: if features cannot be divided into groups, the mask does not fit the kernel, or `rngs` has no
            streams.
    """

    @nn.checks_options
    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Iterable[int],
        strides: int | Iterable[int] | None = 1,
        *,
        padding: PaddingLike = "SAME",
        input_dilation: int | Iterable[int] | None = 1,
        kernel_dilation: int | Iterable[int] | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: Array | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: lax.PrecisionLike = None,
        kernel_init: Initializer = _LECUN_NORMAL,
        bias_init: Initializer = zeros,
        conv_general_dilated: Callable[..., Array] = lax.conv_general_dilated,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.kernel_size = nn.to_tuple(kernel_size)
        _check_groups(in_features, out_features, feature_group_count)
        self.kernel_shape = (*self.kernel_size, in_features // feature_group_count, out_features)
        nn.check_kernel_mask("Conv", mask, self.kernel_shape)
        bias = (bias_init, (out_features,), bias_metadata) if use_bias else None
        self._begin(rngs, param_dtype, (kernel_init, self.kernel_shape, kernel_metadata), bias)
        self.in_features = in_features
        self.out_features = out_features
        self.strides = strides
        self.padding = padding
        self.input_dilation = input_dilation
        self.kernel_dilation = kernel_dilation
        self.feature_group_count = feature_group_count
        self.use_bias = use_bias
        self.mask = mask
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision
        self.conv_general_dilated = conv_general_dilated
        self.promote_dtype, self.preferred_element_type = promote_dtype, preferred_element_type

    def __call__(self, inputs: ArrayLike, out_sharding: Any = None) -> Array:
        """Convolve the inputs with the kernel.

        Args:
            inputs: `(*batch, *spatial, in_features)`.
            out_sharding: the sharding of the product, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if the shapes of inputs and window do not match.
        """
        nn.check_kernel_mask(type(self).__name__, self.mask, self.kernel_shape)
        x, kernel, bias = self._promoted(inputs, self.mask)
        return nn.convolve(
            x,
            kernel,
            bias,
            self.strides,
            self.padding,
            input_dilation=self.input_dilation,
            kernel_dilation=self.kernel_dilation,
            feature_group_count=self.feature_group_count,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            conv_general_dilated=self.conv_general_dilated,
            out_sharding=out_sharding,
            where=type(self).__name__,
        )


class ConvTranspose(Affine):
    """A convolution in which strides enlarge the inputs: each input adds its multiple of the kernel to the result.

    `y[m, o] = Σ_q,i x[p, i] * kernel[q, i, o] + bias[o]`, where, up to a shift from padding,
    `m = stride * p - dilation * q`. With `transpose_kernel`, it is `kernel[q, o, i]` and
    `m = stride * p + dilation * q`: a transpose.
    Source: Zeiler et al., "Deconvolutional Networks", 2010; Dumoulin & Visin, https://arxiv.org/abs/1603.07285.

    Shapes: `(*batch, *spatial, in_features)` to `(*batch, *other_spatial, out_features)`, with any number of batch
    axes.
    Variables: `Param` `kernel`, `(*kernel_size, in_features, out_features)`, or `(*kernel_size, out_features,
    in_features)` with `transpose_kernel`, and `bias`, `(out_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.ConvTranspose(3, 4, (3, 3), strides=(2, 2), rngs=nnx.Rngs(0))
        >>> layer.kernel.shape, layer(jnp.ones((1, 8, 8, 3))).shape
        ((3, 3, 3, 4), (1, 16, 16, 4))

    Args:
        in_features: the size of the last axis of the inputs.
        out_features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        strides: the factor by which each spatial axis grows; None means 1.
        padding: `"SAME"` gives `stride * size`; so does `"CIRCULAR"`, which wraps around at the ends; `"VALID"` gives
            all places that an input reaches; numbers pad the inputs after zeros were put between them.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        use_bias: whether to add a bias.
        mask: multiplied with the kernel; of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        transpose_kernel: whether the kernel has the layout of the `Conv` that this layer is the transpose of.
        promote_dtype: converts `(inputs, kernel, bias)` to one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        rngs: each of kernel and bias draws a key from `params`.
        kernel_metadata: the metadata of the kernel.
        bias_metadata: the metadata of the bias.

    Raises:
        LiftArgumentError: if the mask does not fit the kernel, or `rngs` has no streams.
    """

    @nn.checks_options
    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Iterable[int],
        strides: int | Iterable[int] | None = None,
        *,
        padding: PaddingLike = "SAME",
        kernel_dilation: int | Iterable[int] | None = None,
        use_bias: bool = True,
        mask: Array | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: lax.PrecisionLike = None,
        kernel_init: Initializer = _LECUN_NORMAL,
        bias_init: Initializer = zeros,
        transpose_kernel: bool = False,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.kernel_size = nn.to_tuple(kernel_size)
        ends = (out_features, in_features) if transpose_kernel else (in_features, out_features)
        self.kernel_shape = (*self.kernel_size, *ends)
        nn.check_kernel_mask("ConvTranspose", mask, self.kernel_shape)
        bias = (bias_init, (out_features,), bias_metadata) if use_bias else None
        self._begin(rngs, param_dtype, (kernel_init, self.kernel_shape, kernel_metadata), bias)
        self.in_features = in_features
        self.out_features = out_features
        self.strides = strides
        self.padding = padding
        self.kernel_dilation = kernel_dilation
        self.use_bias = use_bias
        self.mask = mask
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision
        self.transpose_kernel = transpose_kernel
        self.promote_dtype, self.preferred_element_type = promote_dtype, preferred_element_type

    def __call__(self, inputs: ArrayLike) -> Array:
        """Convolve the inputs with the kernel, with strides that enlarge them.

        Args:
            inputs: `(*batch, *spatial, in_features)`.

        Raises:
            LiftArgumentError: if the shapes of inputs and window do not match.
        """
        nn.check_kernel_mask(type(self).__name__, self.mask, self.kernel_shape)
        x, kernel, bias = self._promoted(inputs, self.mask)
        return nn.convolve_transpose(
            x,
            kernel,
            bias,
            self.strides,
            self.padding,
            kernel_dilation=self.kernel_dilation,
            transpose_kernel=self.transpose_kernel,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            where=type(self).__name__,
        )


def _check_groups(in_features: int, out_features: int, groups: int) -> None:
    for name, size in (("in_features", in_features), ("out_features", out_features)):
        if groups < 1 or size % groups:
            what = f"{name} is {size}, which does not divide into feature_group_count={groups} groups."
            fix = "Pass a `feature_group_count` that divides `in_features` and `out_features`."
            raise LiftArgumentError("Conv", what, fix, option="feature_group_count", given=groups)
