"""Convolutional layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, Dtype

from .dense import default_kernel_init
from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import Initializer, zeros_init
from .lifecycle.calling import compact, nowrap
from .module import Module

__all__ = ["Conv", "ConvLocal", "ConvTranspose"]


class Conv(Module):
    """A convolution over `(*batch, *spatial, features)`; see `liftcore.nn.conv`.

    Example:
        >>> import jax
        >>> y, variables = Conv(4, (3, 3), strides=2).init_with_output(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 4, 4, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Attributes:
        features: the size of the last dimension of the result.
        kernel_size: the kernel's size in each spatial dimension; one int means one dimension.
        strides, padding, input_dilation, kernel_dilation, feature_group_count, use_bias, mask, dtype, param_dtype,
            precision, kernel_init, bias_init, promote_dtype, conv_general_dilated: arguments of that function.
        conv_general_dilated_cls: a function that makes the `conv_general_dilated` to use; a Module class makes a
            submodule.
    """

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

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Maps `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`."""
        made = self.conv_general_dilated_cls
        return nn.conv(
            self.scope,
            inputs,
            self.features,
            self.kernel_size,
            self.strides,
            self.padding,
            input_dilation=self.input_dilation,
            kernel_dilation=self.kernel_dilation,
            feature_group_count=self.feature_group_count,
            use_bias=self.use_bias,
            mask=self.mask,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            promote_dtype=self.promote_dtype,
            conv_general_dilated=self.conv_general_dilated if made is None else made(),
        )


class ConvLocal(Module):
    """A convolution with a kernel of its own at each place; see `liftcore.nn.conv_local`.

    Example:
        >>> import jax
        >>> layer = ConvLocal(4, 3, padding="VALID")
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 8, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 6, 4), {'params': {'bias': (6, 4), 'kernel': (6, 9, 4)}})

    Attributes:
        features, kernel_size: see `Conv`.
        strides, padding, input_dilation, kernel_dilation, use_bias, mask, dtype, param_dtype, precision, kernel_init,
            bias_init, promote_dtype: arguments of that function.
        feature_group_count, conv_general_dilated, conv_general_dilated_cls: of `Conv` only; here as they are.

    Raises:
        LiftArgumentError: where one of those has another value, when it is called.
    """

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

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Maps `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`."""
        self._check_options()
        return nn.conv_local(
            self.scope,
            inputs,
            self.features,
            self.kernel_size,
            self.strides,
            self.padding,
            input_dilation=self.input_dilation,
            kernel_dilation=self.kernel_dilation,
            use_bias=self.use_bias,
            mask=self.mask,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            promote_dtype=self.promote_dtype,
        )

    @nowrap
    def _check_options(self) -> None:
        hooks = (self.conv_general_dilated, self.conv_general_dilated_cls)
        if self.feature_group_count != 1 or hooks != (None, None):
            raise LiftArgumentError(
                f"ConvLocal at {self.scope.path_text}",
                "`feature_group_count` and `conv_general_dilated` have no meaning where each place has its own kernel, "
                "since `lax.conv_general_dilated_local` knows neither.",
                "Leave them out, or use `Conv`.",
            )


class ConvTranspose(Module):
    """A convolution in which strides widen the inputs; see `liftcore.nn.conv_transpose`.

    Example:
        >>> import jax
        >>> layer = ConvTranspose(4, (3, 3), strides=(2, 2))
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 16, 16, 4), {'params': {'bias': (4,), 'kernel': (3, 3, 3, 4)}})

    Attributes:
        features, kernel_size: see `Conv`.
        strides, padding, kernel_dilation, use_bias, mask, dtype, param_dtype, precision, kernel_init, bias_init,
            transpose_kernel, promote_dtype, preferred_element_type: arguments of that function.
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

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Maps `(*batch, *spatial, in)` to `(*batch, *other_spatial, features)`."""
        return nn.conv_transpose(
            self.scope,
            inputs,
            self.features,
            self.kernel_size,
            self.strides,
            self.padding,
            kernel_dilation=self.kernel_dilation,
            use_bias=self.use_bias,
            mask=self.mask,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            transpose_kernel=self.transpose_kernel,
            promote_dtype=self.promote_dtype,
            preferred_element_type=self.preferred_element_type,
        )
