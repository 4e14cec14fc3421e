"""Dense layers: products of inputs with a matrix of parameters."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..errors import LiftArgumentError
from ..scope import Scope
from ..typing import Array, ArrayLike, Dtype, Initializer
from .dtypes import PromoteDtypeFn, promote_dtype

__all__ = ["dense"]

_LECUN_NORMAL = initializers.lecun_normal()


def dense(
    scope: Scope,
    inputs: ArrayLike,
    features: int,
    use_bias: bool = True,
    *,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    kernel_init: Initializer = _LECUN_NORMAL,
    bias_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    dot_general: Callable[..., Array] | None = None,
) -> Array:
    """An affine map of the last dimension: `inputs @ kernel + bias`.

    Shapes: `(..., in)` to `(..., features)`.
    Parameters: `kernel`, `(in, features)`; `bias`, `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(dense)(jax.random.key(0), jnp.ones((2, 3)), 4)
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((2, 4), {'params': {'bias': (4,), 'kernel': (3, 4)}})

    Args:
        scope: where the parameters live.
        inputs: an array of one or more dimensions.
        features: the size of the last dimension of the result.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default, what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: see `jax.lax.dot_general`.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: what multiplies; by default `jax.lax.dot_general`.

    Raises:
        LiftArgumentError: where the inputs are a scalar.
        ScopeParamShapeError: where the stored parameters are for other sizes.
    """
    if jnp.ndim(inputs) == 0:
        raise LiftArgumentError(
            f"dense at {scope.path_text}",
            "expected inputs of shape (..., in), given a scalar.",
            "Give it a dimension: `inputs[None]`.",
        )
    kernel = scope.param("kernel", kernel_init, (jnp.shape(inputs)[-1], features), param_dtype)
    bias = scope.param("bias", bias_init, (features,), param_dtype) if use_bias else None
    x, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=dtype)
    y = (dot_general or lax.dot_general)(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision=precision)
    return y if bias is None else y + jnp.reshape(bias, (1,) * (y.ndim - 1) + (-1,))
