"""Masks: of attention, which say which queries may attend to which keys; and of statistics, which select elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError
from ..typing import Array, ArrayLike, Dtype, Shape

__all__ = [
    "broadcasts",
    "check_attention_mask",
    "check_mask",
    "combine_masks",
    "make_attention_mask",
    "make_causal_mask",
    "split_mask",
]


def make_attention_mask(
    query_input: ArrayLike,
    key_input: ArrayLike,
    pairwise_fn: Callable[..., Any] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Dtype = jnp.float32,
) -> Array:
    """Return `mask[…, 0, q, k] = pairwise_fn(query_input[…, q], key_input[…, k])`, with an axis of size 1 for heads.

    Shapes: `(*batch, queries)` and `(*batch, keys)` to `(*extra, *batch, 1, queries, keys)`, `extra` all 1.

    Example:
        >>> words = jnp.array([7, 4, 0]) > 0  # 0 pads
        >>> make_attention_mask(words, words, dtype=bool)
        Array([[[ True,  True, False],
                [ True,  True, False],
                [False, False, False]]], dtype=bool)

    Args:
        query_input: a number for each query, such as its position, its segment, or whether it is not padding.
        key_input: a number for each key.
        pairwise_fn: compares the two, with broadcasting.
        extra_batch_dims: the number of axes of size 1 to put first.
        dtype: the dtype of the mask; a nonzero value means that the query may attend to the key.

    Raises:
        LiftArgumentError: if one of them is a scalar, or their batch dimensions differ.
    """
    queries, keys = jnp.shape(query_input), jnp.shape(key_input)
    if not queries or not keys or not _agree(queries[:-1], keys[:-1]):
        raise LiftArgumentError(
            "make_attention_mask",
            Expected(
                "inputs of shapes (*batch, queries) and (*batch, keys)", (queries, keys), words=f"{queries} and {keys}"
            ),
            "Pass one number for each position, such as `tokens > 0`, with the same batch dimensions.",
        )
    mask = pairwise_fn(jnp.expand_dims(query_input, -1), jnp.expand_dims(key_input, -2))
    mask = jnp.expand_dims(mask, (*range(extra_batch_dims), mask.ndim + extra_batch_dims - 2))
    return jnp.asarray(mask, dtype)


def make_causal_mask(x: ArrayLike, extra_batch_dims: int = 0, dtype: Dtype = jnp.float32) -> Array:
    """Return the mask with which each position attends to itself and to the earlier positions.

    Shapes: `(*batch, length)` to `(*extra, *batch, 1, length, length)`, `extra` all 1.

    Example:
        >>> make_causal_mask(jnp.ones(3))
        Array([[[1., 0., 0.],
                [1., 1., 0.],
                [1., 1., 1.]]], dtype=float32)

    Args:
        x: any array of that shape; its values do not matter.
        extra_batch_dims: the number of axes of size 1 to put first.
        dtype: the dtype of the mask.

    Raises:
        LiftArgumentError: if `x` is a scalar.
    """
    shape = jnp.shape(x)
    if not shape:
        raise LiftArgumentError(
            "make_causal_mask",
            Expected("an array of shape (*batch, length)", given=x),
            "Pass the tokens, or any array of their shape.",
        )
    positions = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
    return make_attention_mask(positions, positions, jnp.greater_equal, extra_batch_dims, dtype)


def combine_masks(*masks: ArrayLike | None, dtype: Dtype = jnp.float32) -> Array | None:
    """Return the mask that allows what all of them allow; None without any mask.

    Example:
        >>> combine_masks(jnp.array([[1, 0, 1]]), None, jnp.array([[1, 1, 0]]), dtype=bool)
        Array([[ True, False, False]], dtype=bool)

    Args:
        *masks: masks with the same number of dimensions, broadcast to each other; None is ignored.
        dtype: the dtype of the result.

    Raises:
        LiftArgumentError: if their numbers of dimensions differ, or their shapes do not broadcast.
    """
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    shapes = [jnp.shape(mask) for mask in given]
    if len({len(shape) for shape in shapes}) > 1 or not _agree(*shapes):
        raise LiftArgumentError(
            "combine_masks",
            f"masks of shapes {', '.join(map(str, shapes))} cannot be combined.",
            "Give all masks the same number of dimensions; use size 1 where a mask is constant: `mask[:, None]`.",
            given=shapes,
        )
    return jnp.asarray(functools.reduce(jnp.logical_and, given), dtype)


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
    if not broadcasts(given, shape):
        raise LiftArgumentError(
            where,
            f"the mask has shape {given}, which does not broadcast to the shape of the inputs, {tuple(shape)}.",
            f"Pass a mask of shape {tuple(shape)}, or with size 1 in dimensions along which it is constant.",
            option="mask",
            given=given,
            expected=tuple(shape),
        )


def check_attention_mask(where: str, name: str, mask: ArrayLike | None, shape: Shape) -> None:
    """Check that a mask, or another array over the weights of attention, broadcasts to them.

    Args:
        where: the layer, for the error.
        name: the argument, for the error.
        mask: the array.
        shape: the shape of the weights, `(*batch, heads, queries, keys)`.

    Raises:
        LiftArgumentError: if it does not.
    """
    if mask is None:
        return
    given = jnp.shape(mask)
    if not broadcasts(given, shape):
        raise LiftArgumentError(
            where,
            f"the {name} has shape {given}, which does not broadcast to the shape of the weights, "
            f"(*batch, heads, queries, keys) = {tuple(shape)}.",
            _mask_that_broadcasts(name, tuple(given), shape),
            option=name,
            given=given,
            expected=tuple(shape),
        )


def _mask_that_broadcasts(name: str, given: Shape, shape: Shape) -> str:
    """Return the fix for a mask of a shape that does not broadcast to the shape of the weights."""
    if broadcasts((*given[:-2], 1, *given[-2:]), shape):
        return f"Give the {name} an axis for the heads: `{name}[..., None, :, :]`."
    if broadcasts((*given[:-1], 1, 1, *given[-1:]), shape):
        return f"Give the {name} axes for the heads and the queries: `{name}[..., None, None, :]`."
    if len(given) > len(shape) and name == "mask":
        return (
            "Make the mask from one number for each position; if `x` holds embeddings, write "
            "`make_causal_mask(x[..., 0])`."
        )
    return f"Give the {name} these sizes, or size 1 in each dimension along which it is constant."


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


def broadcasts(given: Shape, shape: Shape) -> bool:
    """Return whether an array of one shape broadcasts to another shape.

    Example:
        >>> broadcasts((1, 3), (2, 4, 3)), broadcasts((2, 4, 3), (1, 3))
        (True, False)
    """
    sizes = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(size in (1, full) for size, full in sizes)


def _agree(*shapes: Shape) -> bool:
    try:
        np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        return False
    return True
