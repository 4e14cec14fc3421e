"""Axes and masks of layers: checks them against the shape of the inputs, and counts axes from the front."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp

from ..errors import LiftArgumentError
from ..typing import ArrayLike, Shape

__all__ = ["check_mask", "normalize_axes", "split_mask", "to_tuple"]


def to_tuple(value: int | Iterable[int]) -> tuple[int, ...]:
    """Return one int, or several, as a tuple.

    Example:
        >>> to_tuple(3), to_tuple([3, 4])
        ((3,), (3, 4))

    Args:
        value: the int, or the ints.
    """
    return tuple(value) if isinstance(value, Iterable) else (value,)


def normalize_axes(where: str, name: str, axes: int | Iterable[int], ndim: int) -> tuple[int, ...]:
    """Return distinct axes in ascending order, counted from the front.

    Example:
        >>> normalize_axes("layer_norm at /", "reduction_axes", (-1, 1, 2), ndim=3)
        (1, 2)

    Args:
        where: the layer, for the error.
        name: the argument, for the error.
        axes: one or more axes; negative ones count from the back.
        ndim: the number of dimensions of the array.

    Raises:
        LiftArgumentError: if the array has no such axis.
    """
    axes = to_tuple(axes)
    if any(not -ndim <= axis < ndim for axis in axes):
        legal = f"from {-ndim} to {ndim - 1}" if ndim else "none, since it is a scalar"
        raise LiftArgumentError(
            where,
            f"{name} is {axes}, but the inputs have {ndim} dimensions (valid axes: {legal}).",
            f"Check the shape of the inputs, or pass other `{name}`.",
            option=name,
            given=axes,
        )
    return tuple(sorted({axis % ndim for axis in axes}))


def check_mask(where: str, mask: ArrayLike | None, shape: Shape) -> None:
    """Check that a mask broadcasts to an array of a shape.

    Example:
        >>> check_mask("layer_norm at /", jnp.ones((1, 3)), (2, 3))

    Args:
        where: the layer, for the error.
        mask: the mask, or None.
        shape: the shape of the inputs.

    Raises:
        LiftArgumentError: if it does not.
    """
    if mask is None:
        return
    given = jnp.shape(mask)
    sizes = zip(reversed(given), reversed(shape), strict=False)
    if len(given) > len(shape) or any(size not in (1, full) for size, full in sizes):
        raise LiftArgumentError(
            where,
            f"the mask has shape {given}, which does not broadcast to the shape of the inputs, {tuple(shape)}.",
            f"Pass a mask of shape {tuple(shape)}, or with size 1 in dimensions along which it is constant.",
            option="mask",
            given=given,
            expected=tuple(shape),
        )


def split_mask(mask: ArrayLike | None, groups: int, size: int) -> ArrayLike | None:
    """Split a mask for features, `(..., features)`, into groups of features, `(..., groups, size)`.

    Example:
        >>> split_mask(jnp.array([True, True, False, True]), groups=2, size=2).shape
        (2, 2)

    Args:
        mask: the mask, or None; it may also be a scalar, or have one element for all features.
        groups: the number of groups.
        size: the number of features in each group.
    """
    shape = jnp.shape(mask) if mask is not None else ()
    if mask is None or not shape:
        return mask
    return jnp.reshape(mask, (*shape[:-1], 1, 1) if shape[-1] == 1 else (*shape[:-1], groups, size))
