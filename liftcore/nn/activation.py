"""Activations with parameters; those without are in `jax.nn`."""

from __future__ import annotations

import jax.numpy as jnp

from ..errors import Expected, LiftArgumentError
from ..scopes.scope import Scope
from ..typing import Array, Dtype

__all__ = ["prelu"]


def prelu(scope: Scope, inputs: Array, *, param_dtype: Dtype = jnp.float32, negative_slope_init: float = 0.01) -> Array:
    """`x` if it is not negative, otherwise `negative_slope * x`, with a trainable slope.

    Source: He et al., "Delving Deep into Rectifiers", https://arxiv.org/abs/1502.01852; one slope for all features.

    Shapes: any, unchanged, as is the dtype. Parameters: `negative_slope`, `()`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(prelu)(jax.random.key(0), jnp.array([-2.0, 3.0]), negative_slope_init=0.5)
        >>> y, variables
        (Array([-1.,  3.], dtype=float32), {'params': {'negative_slope': Array(0.5, dtype=float32)}})

    Args:
        scope: the scope of the slope.
        inputs: an array of a floating dtype.
        param_dtype: the dtype of the slope.
        negative_slope_init: the initial slope.

    Raises:
        LiftArgumentError: if the inputs are integers, or complex, which have no sign.
    """
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise LiftArgumentError(
            f"prelu at {scope.path_text}",
            Expected("inputs of a floating dtype", given=inputs.dtype),
            "Convert them: `inputs.astype(jnp.float32)`.",
        )
    slope = scope.param("negative_slope", lambda key: jnp.asarray(negative_slope_init, param_dtype))
    return jnp.where(inputs >= 0, inputs, jnp.asarray(slope, inputs.dtype) * inputs)
