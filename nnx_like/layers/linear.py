"""Linear layers: affine maps of the last axis, of any axes, or by an equation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.frozen_dict import FrozenDict
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..rnglib.streams import Rngs
from .initializers import lecun_normal, zeros
from .parameters import Affine, PromoteDtypeFn, folded, promote_dtype

__all__ = ["Einsum", "Linear", "LinearGeneral"]

_LECUN_NORMAL = lecun_normal()


class Linear(Affine):
    """An affine map of the last axis: `inputs @ kernel + bias`.

    Shapes: `(..., in_features)` to `(..., out_features)`.
    Variables: `Param` `kernel`, `(in_features, out_features)`, and `bias`, `(out_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        >>> layer.kernel.shape, layer.bias.shape, layer(jnp.ones((2, 3))).shape
        ((3, 4), (4,), (2, 4))

    Args:
        in_features: the size of the last axis of the inputs.
        out_features: the size of the last axis of the result.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        dot_general: the multiplication, called like `jax.lax.dot_general`.
        promote_dtype: called as `promote_dtype((inputs, kernel, bias), dtype=dtype)`; returns the three in one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default that of the operands.
        rngs: each of kernel and bias draws a key from `params`.
        kernel_metadata: the metadata of the kernel.
        bias_metadata: the metadata of the bias.

    Raises:
        LiftArgumentError: if `rngs` has no streams.
    """

    @nn.checks_options
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: lax.PrecisionLike = None,
        kernel_init: Initializer = _LECUN_NORMAL,
        bias_init: Initializer = zeros,
        dot_general: Callable[..., Array] = lax.dot_general,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        bias = (bias_init, (out_features,), bias_metadata) if use_bias else None
        self._begin(rngs, param_dtype, (kernel_init, (in_features, out_features), kernel_metadata), bias)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision
        self.dot_general = dot_general
        self.promote_dtype, self.preferred_element_type = promote_dtype, preferred_element_type

    def __call__(self, inputs: ArrayLike, out_sharding: Any = None) -> Array:
        """Map the last axis.

        Args:
            inputs: `(..., in_features)`.
            out_sharding: the sharding of the result, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if the inputs have another size.
        """
        x, kernel, bias = self._promoted(inputs)
        return nn.affine(
            x,
            kernel,
            bias,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            dot_general=self.dot_general,
            out_sharding=out_sharding,
            where=type(self).__name__,
        )


class LinearGeneral(Affine):
    """An affine map of any axes to any number of new ones, which come last. Batch axes can have separate maps.

    Shapes: `(*batch, *rest and axis, in any order)` to `(*batch, *rest, *out_features)`.
    Variables: `Param` `kernel`, `(*batch, *in_features, *out_features)`, and `bias`, `(*batch, *out_features)`. Their
    initializers get a two-dimensional and a one-dimensional shape, so that they see fan-in and fan-out.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.LinearGeneral((2, 3), (4, 5), axis=(1, -1), rngs=nnx.Rngs(0))
        >>> layer.kernel.shape, layer.bias.shape, layer(jnp.ones((16, 2, 3))).shape
        ((2, 3, 4, 5), (4, 5), (16, 4, 5))

    Args:
        in_features: the sizes of the axes to sum over, in the order of `axis`.
        out_features: the sizes of the new axes.
        axis: the axes to sum over.
        batch_axis: the leading axes with separate parameters for each index, with their sizes: `{0: 8}`.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        promote_dtype: called as `promote_dtype((inputs, kernel, bias), dtype=dtype)`; returns the three in one dtype.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default.
        dot_general_cls: called in each call; returns the function to use in place of `dot_general`.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default that of the operands.
        rngs: each of kernel and bias draws a key from `params`.
        kernel_metadata: the metadata of the kernel.
        bias_metadata: the metadata of the bias.

    Raises:
        LiftArgumentError: if `in_features` and `axis` differ in length, an axis is given twice, the batch axes are not
            the leading ones, or `rngs` has no streams.
    """

    @nn.checks_options
    def __init__(
        self,
        in_features: int | Iterable[int],
        out_features: int | Iterable[int],
        *,
        axis: int | Iterable[int] = -1,
        batch_axis: Mapping[int, int] = FrozenDict({}),
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        kernel_init: Initializer = _LECUN_NORMAL,
        bias_init: Initializer = zeros,
        precision: lax.PrecisionLike = None,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        dot_general: Callable[..., Array] | None = None,
        dot_general_cls: Any = None,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.in_features = nn.to_tuple(in_features)
        self.out_features = nn.to_tuple(out_features)
        self.axis = nn.to_tuple(axis)
        self.batch_axis: FrozenDict[int, int] = FrozenDict(sorted(batch_axis.items()))
        _check(self.in_features, self.axis, tuple(self.batch_axis))
        self.use_bias = use_bias
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision
        self.dot_general = dot_general
        self.dot_general_cls = dot_general_cls
        self.promote_dtype, self.preferred_element_type = promote_dtype, preferred_element_type
        batch = tuple(self.batch_axis.values())
        shape, bias_shape = (*batch, *self.in_features), (*batch, *self.out_features)
        init = folded(kernel_init, (math.prod(shape), math.prod(self.out_features)))
        bias = (folded(bias_init, (math.prod(bias_shape),)), bias_shape, bias_metadata) if use_bias else None
        self._begin(rngs, param_dtype, (init, (*shape, *self.out_features), kernel_metadata), bias)

    def __call__(self, inputs: ArrayLike, out_sharding: Any = None) -> Array:
        """Map the axes.

        Args:
            inputs: an array with axes of these sizes.
            out_sharding: the sharding of the result, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if the inputs lack one of these axes, or its size differs.
        """
        x, kernel, bias = self._promoted(inputs)
        return nn.affine(
            x,
            kernel,
            bias,
            self.axis,
            tuple(self.batch_axis),
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            dot_general=self.dot_general if self.dot_general_cls is None else self.dot_general_cls(),
            out_sharding=out_sharding,
            where=type(self).__name__,
        )


def _check(in_features: tuple[int, ...], axis: tuple[int, ...], batch: tuple[int, ...]) -> None:
    if len(in_features) != len(axis):
        what = f"in_features and axis must have the same length, given {in_features} and {axis}."
        fix = "Give one size for each axis to sum over."
        raise LiftArgumentError("LinearGeneral", what, fix, option="axis", given=axis)
    if batch != tuple(range(len(batch))):
        raise LiftArgumentError(
            "LinearGeneral",
            f"batch_axis names axes {batch}; they must be consecutive leading dimensions, starting from 0.",
            f"Move them to the front of the inputs, and name them {tuple(range(len(batch)))}.",
            option="batch_axis",
            expected=tuple(range(len(batch))),
            given=batch,
        )
    if len({*axis, *batch}) < len(axis) + len(batch):
        raise LiftArgumentError(
            "LinearGeneral",
            f"axis is {axis}, and batch_axis names {batch}: one axis of the inputs is given twice.",
            "Give each axis of the inputs once.",
            option="axis",
            given=axis,
        )


class Einsum(Affine):
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
            expected = "two operands, the inputs and the kernel, and an output after `->`"
            what = f"`einsum_str` is {einsum_str!r}; it must have {expected}."
            fix = 'Write it like "...a,ab->...b".'
            raise LiftArgumentError("Einsum", what, fix, option="einsum_str", expected=expected, given=einsum_str)
        self.einsum_str = einsum_str
        self.kernel_shape = kernel_shape
        self.bias_shape = bias_shape
        bias = None if bias_shape is None else (bias_init, nn.to_tuple(bias_shape), bias_metadata)
        self._begin(rngs, param_dtype, (kernel_init, nn.to_tuple(kernel_shape), kernel_metadata), bias)
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision
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
            what = "`einsum_str` is None both in the layer and in the call."
            fix = 'Write `Einsum("...a,ab->...b", ...)`, or `layer(x, "...a,ab->...b")`.'
            raise LiftArgumentError("Einsum", what, fix, option="einsum_str")
        x, kernel, bias = self._promoted(inputs)
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
