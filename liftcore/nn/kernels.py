"""Convolutions as functions of arrays: what convolutional layers compute from their inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..typing import Array, Dtype
from .sharding import (
    Entry,
    align,
    check_out_sharding,
    distinct,
    is_sharded,
    is_sharding_error,
    on_auto_axes,
    on_each_device,
    on_rest_axes,
    place,
    reshard,
    sharding_entries,
    to_spec,
)
from .windows import SPREAD_PADDINGS, PaddingLike, check_padding, dimension_numbers, flatten_batch, pad, to_window

__all__ = [
    "check_groups",
    "check_kernel_mask",
    "convolve",
    "convolve_transpose",
    "sharded_convolution",
]


def convolve(
    inputs: Array,
    kernel: Array,
    bias: Array | None = None,
    strides: int | Iterable[int] | None = 1,
    padding: PaddingLike = "SAME",
    *,
    input_dilation: int | Iterable[int] | None = 1,
    kernel_dilation: int | Iterable[int] | None = 1,
    feature_group_count: int = 1,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    conv_general_dilated: Callable[..., Array] | None = None,
    out_sharding: Any = None,
    where: str = "convolve",
) -> Array:
    """Compute `y[p, o] = Σ_q,i x[stride * p + dilation * q, i] * kernel[q, i, o] + bias[o]`, with `x` padded.

    Shapes: `inputs`, `(*batch, *spatial, in)`; `kernel`, `(*kernel_size, in / feature_group_count, features)`; `bias`,
    `(features,)`; the result, `(*batch, *other_spatial, features)`.

    Example:
        >>> x = jnp.arange(4.0).reshape(1, 4, 1)
        >>> convolve(x, jnp.ones((2, 1, 1)), jnp.array([10.0]), padding="VALID")[0, :, 0]
        Array([11., 13., 15.], dtype=float32)

    Args:
        inputs: an array, channels last, with any number of batch dimensions.
        kernel: the kernel, which moves over the spatial dimensions.
        bias: added to the result.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: `"SAME"`, `"SAME_LOWER"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one axis, only
            before), an int, or for each axis an int or a pair `(low, high)`.
        input_dilation: the spacing of the inputs, with zeros between them; gives a transposed convolution of that
            stride.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        feature_group_count: the number of groups; each maps its share of `in` to its share of `features`.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        conv_general_dilated: the convolution, called like `jax.lax.conv_general_dilated`, which is the default.
            `preferred_element_type` is passed on only if it is given.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.
        where: the layer, for errors.

    Raises:
        LiftArgumentError: if inputs, kernel, window and groups do not match, or `out_sharding` does not match the mesh.
    """
    check_out_sharding(where, out_sharding)

    def run(inputs: Array, kernel: Array) -> Array:
        window = to_window(where, kernel.shape[:-2], strides, padding, input_dilation, kernel_dilation)
        x, batch = flatten_batch(where, inputs, len(window.size))
        check_groups(where, x.shape[-1], kernel.shape[-1], feature_group_count)
        _check_features(where, x.shape[-1], kernel.shape[-2] * feature_group_count)
        x, window = pad(where, x, window)
        options: Any = {} if preferred_element_type is None else {"preferred_element_type": preferred_element_type}
        y = (conv_general_dilated or lax.conv_general_dilated)(
            x,
            kernel,
            window.strides,
            window.padding,
            lhs_dilation=window.input_dilation,
            rhs_dilation=window.kernel_dilation,
            dimension_numbers=dimension_numbers(x.ndim),
            feature_group_count=feature_group_count,
            precision=precision,
            **options,  # which a user's function may not accept
        )
        return y if len(batch) == 1 else jnp.reshape(y, (*batch, *y.shape[1:]))

    groups = feature_group_count > 1
    return sharded_convolution(run, inputs, kernel, bias, groups=groups, out_sharding=out_sharding)


def sharded_convolution(
    run: Callable[..., Array],
    inputs: Array,
    kernel: Array,
    bias: Array | None,
    *,
    axes: tuple[int, int] = (-2, -1),
    groups: bool = False,
    out_sharding: Any = None,
) -> Array:
    """Run a convolution `run(inputs, kernel)`, and add a bias; what is sharded by its type gives a sharded result.

    The result has the sharding of the inputs, and its features that of the kernel. JAX has a rule for this only if a
    single batch dimension is sharded and nothing else. XLA computes wrong gradients of feature groups on a mesh with
    more than one axis, which `jax.vmap` makes, too. So each device convolves its examples with its part of the kernel;
    only if spatial dimensions are sharded, the compiler exchanges the borders.

    Args:
        run: the convolution.
        inputs: an array, channels last.
        kernel: the kernel.
        bias: added to the result.
        axes: the axes of the kernel for the features of inputs and result.
        groups: whether features are mapped in groups.
        out_sharding: the sharding of the result, used instead of this one.
    """
    is_plain = not is_sharded(inputs, kernel)
    y = on_rest_axes(run, inputs, kernel) if is_plain else _sharded(run, inputs, kernel, axes, groups)
    y = y if out_sharding is None else reshard(y, out_sharding)
    return y if bias is None else y + align(bias, y, (*(1,) * (y.ndim - bias.ndim), *bias.shape))


def _sharded(run: Callable[..., Array], inputs: Array, kernel: Array, axes: tuple[int, int], groups: bool) -> Array:
    batch = inputs.ndim - kernel.ndim + 1
    lead, space = sharding_entries(inputs)[:batch], sharding_entries(inputs)[batch:-1]
    given, new = (sharding_entries(kernel)[axis] for axis in axes)
    if any(space):
        return on_auto_axes(run, to_spec(*lead, *space, new), inputs, kernel)
    both = given if given == sharding_entries(inputs)[-1] else None  # otherwise the inputs' features are gathered
    *rows, new, both = distinct([*lead, None if groups else new, None if groups else both])
    parts: list[Entry] = [None] * kernel.ndim
    parts[axes[0]], parts[axes[1]] = both, new
    whole = [None] * len(space)

    def convolve(x: Array, kernel: Array) -> Array:
        y = run(x, kernel)
        return y if both is None else lax.psum(y, both)  # type: ignore[no-untyped-call]

    out = [*rows, *whole, sharding_entries(kernel)[axes[1]]]
    try:
        y = on_each_device(convolve, ([*rows, *whole, both], parts), [*rows, *whole, new], inputs, kernel)
    except Exception as error:
        if not is_sharding_error(error):
            raise
        return on_auto_axes(run, to_spec(*out), inputs, kernel)  # in a `jax.vmap` of sharded arrays
    return place(y, out, inputs, kernel)


def convolve_transpose(
    inputs: Array,
    kernel: Array,
    bias: Array | None = None,
    strides: int | Iterable[int] | None = None,
    padding: PaddingLike = "SAME",
    *,
    kernel_dilation: int | Iterable[int] | None = None,
    transpose_kernel: bool = False,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    out_sharding: Any = None,
    where: str = "convolve_transpose",
) -> Array:
    """Compute `conv_transpose` with given parameters: each input adds its multiple of the kernel to the result.

    Source: Zeiler et al., "Deconvolutional Networks", 2010; Dumoulin & Visin, https://arxiv.org/abs/1603.07285.

    Shapes: `inputs`, `(*batch, *spatial, in)`; `kernel`, `(*kernel_size, in, features)`, or `(*kernel_size, features,
    in)` with `transpose_kernel`; `bias`, `(features,)`; the result, `(*batch, *other_spatial, features)`.

    Example:
        >>> x = jnp.array([1.0, 2.0]).reshape(1, 2, 1)
        >>> convolve_transpose(x, jnp.ones((2, 1, 1)), strides=2)[0, :, 0]
        Array([1., 1., 2., 2.], dtype=float32)

    Args:
        inputs: an array, channels last, with any number of batch dimensions.
        kernel: the kernel that each input is multiplied with.
        bias: added to the result.
        strides: the factor by which each spatial axis grows; None means 1.
        padding: `"SAME"` gives `stride * size`; so does `"CIRCULAR"`, which wraps around at the ends; `"VALID"` gives
            all places that an input reaches; numbers pad the inputs after zeros were put between them.
        kernel_dilation: the spacing of the kernel's elements, as in atrous convolution.
        transpose_kernel: whether the kernel has the layout of the convolution that this is the transpose of.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for the features, from the kernel.
        where: the layer, for errors.

    Raises:
        LiftArgumentError: if inputs, kernel and window do not match, the padding is an unknown word, or `out_sharding`
            does not match the mesh.
    """
    check_out_sharding(where, out_sharding)

    def run(inputs: Array, kernel: Array) -> Array:
        window = to_window(where, kernel.shape[:-2], strides, padding, 1, kernel_dilation, SPREAD_PADDINGS)
        x, batch = flatten_batch(where, inputs, len(window.size))
        circular = window.padding == "CIRCULAR"
        check_padding(where, window, x.shape[1:-1])
        _check_features(where, x.shape[-1], kernel.shape[-1 if transpose_kernel else -2])
        y = lax.conv_transpose(
            x,
            kernel,
            window.strides,
            "VALID" if circular else window.padding,
            rhs_dilation=window.kernel_dilation,
            transpose_kernel=transpose_kernel,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
        if circular:
            periods = [size * step for size, step in zip(x.shape[1:-1], window.strides, strict=True)]
            y = _wound(y, periods, transpose_kernel)
        return y if len(batch) == 1 else jnp.reshape(y, (*batch, *y.shape[1:]))

    axes = (-1, -2) if transpose_kernel else (-2, -1)
    return sharded_convolution(run, inputs, kernel, bias, axes=axes, out_sharding=out_sharding)


def _wound(y: Array, periods: list[int], more_after: bool) -> Array:
    """Sum values that are whole periods apart in `(batch, *spatial, features)`; the middle keeps its place."""
    pads = [(0, 0)]
    for size, period in zip(y.shape[1:-1], periods, strict=True):
        lacking = -(size - period) % (2 * period)  # a whole number of periods on either side of the inputs
        less, more = lacking // 2, (lacking + 1) // 2
        pads.append((less, more) if more_after else (more, less))
    y = jnp.pad(y, [*pads, (0, 0)])
    for axis, period in enumerate(periods, start=1):
        number = y.shape[axis] // period
        y = jnp.reshape(y, (*y.shape[:axis], number, period, *y.shape[axis + 1 :])).sum(axis=axis)
    return y


def check_groups(where: str, given: int, features: int, groups: int) -> None:
    """Check that features divide into groups.

    Raises:
        LiftArgumentError: if the features of the inputs, or of the result, do not.
    """
    for name, size in (("the inputs' features", given), ("features", features)):
        if groups < 1 or size % groups:
            raise LiftArgumentError(
                where,
                f"{name} are {size}, which cannot be divided into feature_group_count={groups} groups.",
                "Pass a `feature_group_count` that divides both the inputs' features and `features`.",
                option="feature_group_count",
                given=groups,
            )


def check_kernel_mask(where: str, mask: Array | None, shape: tuple[int, ...]) -> None:
    """Check that a mask has the shape of the kernel.

    Args:
        where: the layer, for errors.
        mask: the mask, or None.
        shape: the shape of the kernel.

    Raises:
        LiftArgumentError: if it has another shape.
    """
    if mask is not None and jnp.shape(mask) != shape:
        raise LiftArgumentError(
            where,
            Expected(f"an array of the kernel's shape {shape}", given=jnp.shape(mask)),
            f"Pass a mask of shape {shape}.",
            option="mask",
        )


def _check_features(where: str, given: int, expected: int) -> None:
    if given != expected:
        raise LiftArgumentError(
            where,
            f"the inputs have {given} features, but the kernel is for {expected}.",
            "Pass inputs with features last, `(*batch, *spatial, features)`, or make the layer for that number.",
            given=given,
            expected=expected,
        )
