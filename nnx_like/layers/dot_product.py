"""Dot-product attention: `dot_product_attention`, `dot_product_attention_weights`."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax import lax

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype, Key

from ..objects.module import Module
from ..variablelib.kinds import Intermediate
from .dtypes import PromoteDtypeFn, promote_dtype

__all__ = ["dot_product_attention", "dot_product_attention_weights"]


@nn.checks_options
def dot_product_attention_weights(
    query: Array,
    key: Array,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Key | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: lax.PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    is_causal: bool = False,
) -> Array:
    """Compute `softmax(query · key / √depth + bias)` over the keys, for the pairs that the mask allows.

    Shapes: `(*batch, queries, heads, depth)` and `(*batch, keys, kv_heads, depth)` to `(*batch, heads, queries, keys)`;
    see `dot_product_attention`.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)[:, None]  # two positions, one head
        >>> dot_product_attention_weights(x, x, is_causal=True).round(3)
        Array([[[1.  , 0.  ],
                [0.33, 0.67]]], dtype=float32)

    Args:
        query: the queries.
        key: the keys.
        bias: added to the products, broadcast to the weights.
        mask: the weights that may be nonzero, broadcast to the weights: True, or a nonzero number.
        broadcast_dropout: whether all heads and examples drop the same weights.
        dropout_rng: the key for dropout.
        dropout_rate: the probability to drop a weight; the others are divided by `1 - dropout_rate`.
        deterministic: whether to drop nothing.
        dtype: the dtype of the computation; by default what query and key promote to.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        module: a module to sow the weights into, before dropout, as `Intermediate` `attention_weights`.
        promote_dtype: converts `(query, key)` to one dtype.
        is_causal: whether query `i` ignores keys after the `i`-th; a mask or bias may hide more.

    Raises:
        LiftArgumentError: if shapes do not match, or a dropout key is missing.
    """
    query, key = promote_dtype((query, key), dtype=dtype)
    return nn.dot_product_attention_weights(
        query,
        key,
        bias,
        mask,
        broadcast_dropout,
        dropout_rng,
        dropout_rate,
        deterministic,
        query.dtype,
        precision,
        _sower(module),
        is_causal=is_causal,
    )


@nn.checks_options
def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Key | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: lax.PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: PromoteDtypeFn = promote_dtype,
    is_causal: bool = False,
) -> Array:
    """Average the values with the weights of `dot_product_attention_weights`.

    Without a dropout rate and a module, this is `jax.nn.dot_product_attention`, with the softmax in `float32`. Source:
    Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762. If there are fewer heads of keys and
    values than of queries, neighboring heads of queries share one (grouped queries, https://arxiv.org/abs/2305.13245).

    Shapes: `(*batch, queries, heads, depth)`, `(*batch, keys, kv_heads, depth)` and `(*batch, keys, kv_heads, out)` to
    `(*batch, queries, heads, out)`; `kv_heads` divides `heads`.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)[:, None]  # two positions, one head
        >>> dot_product_attention(x, x, 100 * x, is_causal=True)[:, 0].round()
        Array([[100.,   0.],
               [ 33.,  67.]], dtype=float32)

    Args:
        query: the queries.
        key: the keys.
        value: the values to average.
        bias: added to the products, broadcast to the weights.
        mask: the weights that may be nonzero, broadcast to the weights: True, or a nonzero number.
        broadcast_dropout: whether all heads and examples drop the same weights.
        dropout_rng: the key for dropout.
        dropout_rate: the probability to drop a weight; the others are divided by `1 - dropout_rate`.
        deterministic: whether to drop nothing.
        dtype: the dtype of the computation; by default what query, key and value promote to.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        module: a module to sow the weights into, before dropout, as `Intermediate` `attention_weights`.
        promote_dtype: converts `(query, key, value)` to one dtype.
        is_causal: whether query `i` ignores keys after the `i`-th; a mask or bias may hide more.

    Raises:
        LiftArgumentError: if shapes do not match, or a dropout key is missing.
    """
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    fused = dropout_rate == 0.0 and module is None and value.shape[-1] == key.shape[-1]
    exactly = _precisely(precision) if fused else None
    if exactly is not None:
        with exactly:
            return nn.dot_product_attention(query, key, value, bias, mask, is_causal=is_causal, implementation="xla")
    return nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        mask,
        broadcast_dropout,
        dropout_rng,
        dropout_rate,
        deterministic,
        query.dtype,
        precision,
        _sower(module),
        is_causal=is_causal,
    )


def _precisely(precision: Any) -> contextlib.AbstractContextManager[Any] | None:
    """Return a context that sets the precision of fused attention; None if a single setting is not enough."""
    if precision is None:
        return contextlib.nullcontext()
    if isinstance(precision, tuple) and len(precision) == 2 and precision[0] == precision[1]:
        precision = precision[0]
    if isinstance(precision, lax.DotAlgorithmPreset):
        name = precision.name
    elif isinstance(precision, lax.Precision | str):
        name = str(getattr(precision, "name", precision)).lower()
    else:  # a pair, or a `DotAlgorithm`
        return None
    exactly: contextlib.AbstractContextManager[Any] = jax.default_matmul_precision(_ALSO_CALLED.get(name, name))
    return exactly


_ALSO_CALLED = {"fastest": "default", "bfloat16_3x": "high"}


class _Sower:
    """Adapts a module to the `sow(collection, name, value)` that `liftcore.nn` calls."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def sow(self, col: str, name: str, value: Any) -> bool:
        return self._module.sow(Intermediate, name, value)


def _sower(module: Module | None) -> _Sower | None:
    return None if module is None else _Sower(module)
