"""Attention that JAX computes as a whole, with a kernel of the device if there is one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError
from ..typing import Array, ArrayLike
from .masks import check_attention_mask
from .sharding import on_auto_axes, sharding_entries, to_spec

__all__ = ["check_unfused_options", "fused_attention"]


def check_unfused_options(where: str, implementation: str, options: Mapping[str, Any]) -> None:
    """Check that no option requires us to compute the weights, or the products of attention.

    Args:
        where: the function, for the error.
        implementation: the requested implementation.
        options: such options by name; None if not requested.

    Raises:
        LiftArgumentError: if one of them is not None, or the implementation is unknown.
    """
    if implementation not in ("xla", "cudnn"):
        raise LiftArgumentError(
            where,
            f"there is no implementation {implementation!r}.",
            'Pass `implementation="auto"`, `"xla"` or `"cudnn"`, or None for separate products and a softmax.',
            option="implementation",
            given=implementation,
            available=("auto", "xla", "cudnn"),
        )
    in_the_way = [f"`{name}`" for name, option in options.items() if option is not None]
    if in_the_way:
        raise LiftArgumentError(
            where,
            f"implementation={implementation!r} computes attention as a whole, which does not support "
            f"{', '.join(in_the_way)}.",
            f"Leave out {', '.join(in_the_way)}, or pass `implementation=None`.",
            option="implementation",
            given=implementation,
        )


def fused_attention(
    where: str,
    implementation: str,
    query: Array,
    key: Array,
    value: Array,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    is_causal: bool = False,
) -> Array:
    """Compute `jax.nn.dot_product_attention` over any number of batch dimensions; see `dot_product_attention`.

    Args:
        where: the function, for the error.
        implementation: `"xla"` or `"cudnn"`.
        query: `(*batch, queries, heads, depth)`.
        key: `(*batch, keys, kv_heads, depth)`.
        value: `(*batch, keys, kv_heads, depth)`.
        bias: broadcast to `(*batch, heads, queries, keys)`.
        mask: of any dtype, broadcast like `bias`.
        is_causal: whether query `i` ignores keys after the `i`-th.

    Raises:
        LiftArgumentError: if values have another depth than keys, or mask or bias do not match.
    """
    batch = query.shape[:-3]
    weights = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])
    check_attention_mask(where, "mask", mask, weights)
    check_attention_mask(where, "bias", bias, weights)
    if value.shape[-1] != key.shape[-1]:
        raise LiftArgumentError(
            where,
            f"implementation={implementation!r} needs values with the depth of the keys, {key.shape[-1]}, given "
            f"{value.shape[-1]}.",
            "Pass `implementation=None`, or project values to as many features as keys.",
            option="implementation",
            given=value.shape[-1],
            expected=key.shape[-1],
        )

    def attend(query: Array, key: Array, value: Array, bias: ArrayLike | None, mask: ArrayLike | None) -> Array:
        y = jax.nn.dot_product_attention(
            _one_batch_axis(query, batch),
            _one_batch_axis(key, batch),
            _one_batch_axis(value, batch),
            bias=None if bias is None else _one_batch_axis(jnp.asarray(bias), batch),
            mask=None if mask is None else _one_batch_axis(jnp.asarray(mask, bool), batch),
            is_causal=is_causal,
            implementation=cast(Literal["xla", "cudnn"], implementation),
        )
        return y.reshape(*batch, *y.shape[1:])

    spec = to_spec(*sharding_entries(query)[:-1], sharding_entries(value)[-1])
    return on_auto_axes(attend, spec, query, key, value, bias, mask)


def _one_batch_axis(x: Array, batch: tuple[int, ...]) -> Array:
    """Reshape an array to four dimensions: one for the whole batch, of size 1 if it is the same for all of it."""
    x = x.reshape((1,) * (len(batch) + 3 - x.ndim) + x.shape)
    given, rest = x.shape[:-3], x.shape[-3:]
    if math.prod(given) != 1:
        given, x = batch, jnp.broadcast_to(x, (*batch, *rest))
    return x.reshape(math.prod(given), *rest)
