"""Convolutional layers: a kernel that moves over the spatial axes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, Dtype

from .dense import default_kernel_init
from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import Initializer, zeros_init
from .lifecycle.calling import compact
from .lifecycle.fields import options
from .module import Module

__all__ = ["Conv", "ConvLocal", "ConvTranspose"]


class _Conv(Module):
    """The fields of `Conv` and `ConvLocal`."""

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = 1
    padding: nn.PaddingLike = "SAME"
    input_dilation: int | Sequence[int] | None = 1
    kernel_dilation: int | Sequence[int] | None = 1
    feature_group_count: int = 1
    use_bias: bool = True
    mask: Array | None = None
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: lax.PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()
    promote_dtype: PromoteDtypeFn = promote_dtype
    conv_general_dilated: Callable[..., Array] | None = None
    conv_general_dilated_cls: Callable[[], Any] | None = None
    out_sharding: Any = field(default=None, kw_only=True)


class Conv(_Conv):
    """A convolution over `(*batch, *spatial, features)`; see `liftcore.nn.conv`.

    Example:
        >>> import jax
        >>> y, variables = Conv(4, (3, 3), strides=2).init_with_output(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 4, 4, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Attributes:
        features: the size of the last axis of the result.
        kernel_size: the kernel's size along each spatial axis; one int means one axis.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one axis, only before), an int,
            or for each axis an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between them; gives a transposed convolution of that
            stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        feature_group_count: the number of groups; each maps its share of `in` to its share of `features`.
        use_bias: whether there is a bias.
        mask: multiplied with the kernel; of the same shape.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        conv_general_dilated: the convolution, called like `jax.lax.conv_general_dilated`, which is the default.
        conv_general_dilated_cls: a function that makes the `conv_general_dilated` to use; a Module class makes a
            submodule.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.
    """

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Map `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`."""
        made = self.conv_general_dilated_cls
        dilated = self.conv_general_dilated if made is None else made()
        return nn.conv(self.scope, inputs, **options(self, nn.conv, conv_general_dilated=dilated))


class ConvLocal(_Conv):
    """A convolution with a separate kernel at each place; see `liftcore.nn.conv_local`.

    Example:
        >>> import jax
        >>> layer = ConvLocal(4, 3, padding="VALID")
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 8, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 6, 4), {'params': {'bias': (6, 4), 'kernel': (6, 9, 4)}})

    Attributes:
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
        feature_group_count, conv_general_dilated, conv_general_dilated_cls: must keep their defaults; only `Conv` uses
            them.

    Raises:
        LiftArgumentError: when called, if one of these has another value.
    """

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Map `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`."""
        hooks = (self.conv_general_dilated, self.conv_general_dilated_cls)
        if self.feature_group_count != 1 or hooks != (None, None):
            raise LiftArgumentError(
                f"ConvLocal at {self.scope.path_text}",
                "`feature_group_count` and `conv_general_dilated` cannot be used if each place has its own kernel, "
                "since `lax.conv_general_dilated_local` supports neither.",
                "Leave them out, or use `Conv`.",
                option="conv_general_dilated" if self.feature_group_count == 1 else "feature_group_count",
            )
        return nn.conv_local(self.scope, inputs, **options(self, nn.conv_local))


class ConvTranspose(Module):
    """A convolution in which strides enlarge the inputs; see `liftcore.nn.conv_transpose`.

    Example:
        >>> import jax
        >>> layer = ConvTranspose(4, (3, 3), strides=(2, 2))
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 16, 16, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Attributes:
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
        transpose_kernel: whether the kernel has the layout of the `Conv` that this layer is the transpose of.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = None
    padding: nn.PaddingLike = "SAME"
    kernel_dilation: int | Sequence[int] | None = None
    use_bias: bool = True
    mask: Array | None = None
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: lax.PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()
    transpose_kernel: bool = False
    promote_dtype: PromoteDtypeFn = promote_dtype
    preferred_element_type: Dtype | None = None
    out_sharding: Any = field(default=None, kw_only=True)

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Map `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`."""
        return nn.conv_transpose(self.scope, inputs, **options(self, nn.conv_transpose))
