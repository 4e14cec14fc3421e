"""Dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype

from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import Initializer, lecun_normal, zeros_init
from .lifecycle.calling import compact
from .module import Module

__all__ = ["Dense"]


class Dense(Module):
    """An affine map of the last dimension: `inputs @ kernel + bias`; see `liftcore.nn.dense`.

    Example:
        >>> import jax
        >>> y, variables = Dense(4).init_with_output(jax.random.key(0), jnp.ones((2, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((2, 4), {'params': {'bias': (4,), 'kernel': (3, 4)}})

    Attributes:
        features: the size of the last dimension of the result.
        use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype, dot_general: arguments of that
            function.
        dot_general_cls: a function that makes the `dot_general` to use; a Module class makes a submodule.
    """

    features: int
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: lax.PrecisionLike = None
    kernel_init: Initializer = lecun_normal()
    bias_init: Initializer = zeros_init()
    promote_dtype: PromoteDtypeFn = promote_dtype
    dot_general: Callable[..., Array] | None = None
    dot_general_cls: Callable[[], Any] | None = None

    @compact
    def __call__(self, inputs: ArrayLike) -> Array:
        """Maps `(..., in)` to `(..., features)`."""
        return nn.dense(
            self.scope,
            inputs,
            self.features,
            self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            promote_dtype=self.promote_dtype,
            dot_general=self.dot_general if self.dot_general_cls is None else self.dot_general_cls(),
        )
