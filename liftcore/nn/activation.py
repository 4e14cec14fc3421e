"""Activations that learn something; those that do not are in `jax.nn`."""

from __future__ import annotations

import jax.numpy as jnp

from ..errors import LiftArgumentError
from ..scopes.scope import Scope
from ..typing import Array, Dtype

__all__ = ["prelu"]


def prelu(scope: Scope, inputs: Array, *, param_dtype: Dtype = jnp.float32, negative_slope_init: float = 0.01) -> Array:
    """`x` where it is not negative, and `negative_slope * x` where it is, with a slope that is learned.

    Source: He et al., "Delving Deep into Rectifiers", https://arxiv.org/abs/1502.01852; one slope for all features.

    Shapes: any, unchanged, as is the dtype. Parameters: `negative_slope`, `()`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(prelu)(jax.random.key(0), jnp.array([-2.0, 3.0]), negative_slope_init=0.5)
        >>> y, variables
        (Array([-1.,  3.], dtype=float32), {'params': {'negative_slope': Array(0.5, dtype=float32)}})

    Args:
        scope: where the slope lives.
        inputs: an array of a floating dtype.
        param_dtype: the dtype of a new slope.
        negative_slope_init: its first value.

    Raises:
        LiftArgumentError: where the inputs are integers, in which a slope has no place, or complex, which have no sign.
    """
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise LiftArgumentError(
            f"prelu at {scope.path_text}",
            f"expected inputs of a floating dtype, given {inputs.dtype}.",
            "Convert them: `inputs.astype(jnp.float32)`.",
        )
    slope = scope.param("negative_slope", lambda key: jnp.asarray(negative_slope_init, param_dtype))
    return jnp.where(inputs >= 0, inputs, jnp.asarray(slope, inputs.dtype) * inputs)
