"""Convolutional layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.typing import Array, Dtype

from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import Initializer, lecun_normal, zeros_init
from .lifecycle.calling import compact
from .module import Module

__all__ = ["Conv"]


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
    kernel_init: Initializer = lecun_normal()
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
