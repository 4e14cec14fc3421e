"""`PReLU`, an activation with a trainable slope; those without parameters are in `jax.nn`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp

from liftcore.errors import Expected, LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype

from ..objects.module import Module
from ..variablelib.kinds import Param
from .parameters import PromoteDtypeFn, promote_dtype, value_of

__all__ = ["PReLU"]


class PReLU(Module):
    """`x` if it is not negative, otherwise `negative_slope * x`, with a trainable slope.

    Source: He et al., "Delving Deep into Rectifiers", https://arxiv.org/abs/1502.01852; one slope for all features.

    Shapes: any, unchanged. Variables: `Param` `negative_slope`, `()`.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.PReLU(0.5)(jnp.array([-2.0, 3.0]))
        Array([-1.,  3.], dtype=float32)

    Args:
        negative_slope_init: the initial slope.
        dtype: the dtype of the computation; by default that of the inputs.
        param_dtype: the dtype of the slope.
        promote_dtype: converts `(inputs, negative_slope)` to `dtype`, if it is given.
        negative_slope_metadata: the metadata of the slope.
    """

    def __init__(
        self,
        negative_slope_init: float = 0.01,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        negative_slope_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.negative_slope = Param(jnp.asarray(negative_slope_init, param_dtype), **negative_slope_metadata)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    def __call__(self, inputs: ArrayLike) -> Array:
        """Map each element.

        Args:
            inputs: an array of any shape.

        Raises:
            LiftArgumentError: if the inputs are integers and no `dtype` is given.
        """
        x, slope = jnp.asarray(inputs), value_of(self.negative_slope)
        if self.dtype is not None:
            x, slope = self.promote_dtype((x, slope), dtype=self.dtype)
        elif not jnp.issubdtype(x.dtype, jnp.floating):
            fix = "Convert them, `inputs.astype(jnp.float32)`, or write `PReLU(dtype=jnp.float32)`."
            raise LiftArgumentError("PReLU", Expected("inputs of a floating dtype", given=x.dtype), fix)
        return jnp.where(x >= 0, x, jnp.asarray(slope, x.dtype) * x)
