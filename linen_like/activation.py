"""Activations: the functions of JAX, and `PReLU`, which has a trainable slope."""

from __future__ import annotations

import jax.numpy as jnp
from jax.nn import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
)
from jax.numpy import tanh

from liftcore import nn
from liftcore.typing import Array, Dtype

from .lifecycle.calling import compact
from .lifecycle.fields import options
from .module import Module

__all__ = [
    "PReLU",
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "normalize",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "tanh",
]

normalize = standardize  # an older name


class PReLU(Module):
    """`x` if it is not negative, otherwise `negative_slope * x`, with a trainable slope.

    See `liftcore.nn.prelu`.

    Example:
        >>> import jax
        >>> y, variables = PReLU(negative_slope_init=0.5).init_with_output(jax.random.key(0), jnp.array([-2.0, 3.0]))
        >>> y, variables
        (Array([-1.,  3.], dtype=float32), {'params': {'negative_slope': Array(0.5, dtype=float32)}})

    Attributes:
        param_dtype: the dtype of the slope.
        negative_slope_init: the initial slope.
    """

    param_dtype: Dtype = jnp.float32
    negative_slope_init: float = 0.01

    @compact
    def __call__(self, inputs: Array) -> Array:
        """Map each element; the dtype stays the same."""
        return nn.prelu(self.scope, inputs, **options(self, nn.prelu))
