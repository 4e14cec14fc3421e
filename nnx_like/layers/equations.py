"""`Einsum`: the product of inputs and a kernel given by an equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..objects.module import Module
from ..rnglib.streams import Rngs
from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import lecun_normal, zeros
from .parameters import new_param, to_tuple, value_of

__all__ = ["Einsum"]

_LECUN_NORMAL = lecun_normal()


class Einsum(Module):
    """Computes `einsum(einsum_str, inputs, kernel) + bias`; see `jax.numpy.einsum`.

    Shapes: as in the equation; `inputs` are the first operand and the kernel is the second.
    Variables: `Param` `kernel`, `kernel_shape`, and `bias`, `bias_shape`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), rngs=nnx.Rngs(0))
        >>> layer.kernel.shape, layer.bias.shape, layer(jnp.ones((16, 11, 2))).shape
        ((8, 2, 4), (8, 4), (16, 11, 8, 4))

    Args:
        einsum_str: an explicit equation with two operands, such as `"...a,ab->...b"`; None if each call gives it.
        kernel_shape: the shape of the kernel.
        bias_shape: the sizes of the result's axes that the kernel also has; by default there is no bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype((inputs, kernel, bias), dtype=dtype)`; returns the three in one dtype.
        einsum_op: the multiplication, called like `jax.numpy.einsum`.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default that of the operands.
        rngs: each of kernel and bias draws a key from `params`.
        kernel_metadata: the metadata of the kernel.
        bias_metadata: the metadata of the bias.

    Raises:
        LiftArgumentError: if the equation does not have this form, or `rngs` has no streams.
    """

    def __init__(
        self,
        einsum_str: str | None,
        kernel_shape: int | Iterable[int],
        bias_shape: int | Iterable[int] | None = None,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: lax.PrecisionLike = None,
        kernel_init: Initializer = _LECUN_NORMAL,
        bias_init: Initializer = zeros,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        einsum_op: Callable[..., Array] = jnp.einsum,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if einsum_str is not None and (einsum_str.count(",") != 1 or "->" not in einsum_str):
            raise LiftArgumentError(
                "Einsum",
                f"the equation is {einsum_str!r}; it must have exactly two operands, the inputs and the kernel, and "
                "be explicit, with an output after `->`.",
                'Write it like "...a,ab->...b".',
            )
        self.einsum_str = einsum_str
        self.kernel_shape = kernel_shape
        self.bias_shape = bias_shape
        self.kernel = new_param("Einsum", rngs, kernel_init, to_tuple(kernel_shape), param_dtype, kernel_metadata)
        self.bias = None
        if bias_shape is not None:
            self.bias = new_param("Einsum", rngs, bias_init, to_tuple(bias_shape), param_dtype, bias_metadata)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.promote_dtype = promote_dtype
        self.einsum_op = einsum_op
        self.preferred_element_type = preferred_element_type

    def __call__(self, inputs: ArrayLike, einsum_str: str | None = None, out_sharding: Any = None) -> Array:
        """Multiply by the kernel and add the bias.

        Args:
            inputs: the first operand.
            einsum_str: used instead of the equation of the layer, if given.
            out_sharding: the sharding of the product, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if there is no equation, or inputs and parameters do not match it.
        """
        equation = self.einsum_str if einsum_str is None else einsum_str
        if equation is None:
            raise LiftArgumentError(
                "Einsum",
                "neither the layer nor the call gives the equation.",
                'Write `Einsum("...a,ab->...b", ...)`, or `layer(x, "...a,ab->...b")`.',
            )
        arrays = (inputs, value_of(self.kernel), value_of(self.bias))
        x, kernel, bias = self.promote_dtype(arrays, dtype=self.dtype)
        return nn.affine_einsum(
            equation,
            x,
            kernel,
            bias,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            einsum_op=self.einsum_op,
            out_sharding=out_sharding,
            where=type(self).__name__,
        )
