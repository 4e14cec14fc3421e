"""Dot-product attention: each query averages the values, weighted by how well their keys match it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..typing import Array, ArrayLike, Dtype, Key
from .cudnn_attention import kernel_attention
from .fused_attention import check_unfused_options, fused_attention
from .layer import checks_options, promote_dtype
from .linear import affine_einsum
from .masks import check_attention_mask
from .sharding import is_sharded, reshape
from .stochastic import check_rate, draw_kept

__all__ = ["attention_inputs", "dot_product_attention", "dot_product_attention_weights", "head_features"]


class _Sows(Protocol):
    def sow(self, col: str, name: str, value: Any, /) -> bool: ...


@checks_options
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
    module: _Sows | None = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Array] | None = None,
    einsum: Callable[..., Array] | None = None,
    *,
    is_causal: bool = False,
) -> Array:
    """Compute `softmax(query · key / √depth + bias)` over the keys, for the pairs that the mask allows.

    A query that may attend to no key weighs all keys equally. Shapes: `(*batch, queries, heads, depth)` and `(*batch,
    keys, kv_heads, depth)` to `(*batch, heads, queries, keys)`; see `dot_product_attention`.

    Example:
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
        module: a scope or a module to sow the weights into, before dropout, as `intermediates/attention_weights`.
        force_fp32_for_softmax: whether to compute the softmax in `float32`, whatever the dtype; the weights are
            `float32`, too.
        einsum_dot_general: the multiplication, used instead of `jax.lax.dot_general`.
        einsum: used instead of `jax.numpy.einsum`; excludes `precision` and `einsum_dot_general`.
        is_causal: whether query `i` ignores keys after the `i`-th; a mask or bias may hide more.

    Raises:
        LiftArgumentError: if shapes do not match, a dropout key is missing, or options exclude each other.
    """
    where = "dot_product_attention_weights"
    _check_exclusive(where, precision, einsum_dot_general, einsum=einsum)
    query, key = promote_dtype(query, key, dtype=dtype)
    _check_shapes(where, query, key)
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    check_attention_mask(where, "mask", mask, shape)
    check_attention_mask(where, "bias", bias, shape)
    drops = _drops(where, dropout_rate, deterministic, dropout_rng)
    weights = _products(query, key, einsum or _einsum(precision, einsum_dot_general))
    weights = weights if bias is None else weights + bias
    weights = _softmax(weights, mask, is_causal, query.dtype, force_fp32_for_softmax)
    if module is not None:
        module.sow("intermediates", "attention_weights", weights)
    return _dropped(weights, dropout_rng, dropout_rate, broadcast_dropout, query.dtype) if drops else weights


@checks_options
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
    module: _Sows | None = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Array] | None = None,
    qk_attn_weights_einsum: Callable[..., Array] | None = None,
    attn_weights_value_einsum: Callable[..., Array] | None = None,
    *,
    is_causal: bool = False,
    implementation: str | None = None,
) -> Array:
    """Average the values with the weights of `dot_product_attention_weights`.

    Source: Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762. If there are fewer heads of
    keys and values than of queries, neighboring heads of queries share one (grouped queries,
    https://arxiv.org/abs/2305.13245).

    Shapes: `(*batch, queries, heads, depth)`, `(*batch, keys, kv_heads, depth)` and `(*batch, keys, kv_heads, out)` to
    `(*batch, queries, heads, out)`; `kv_heads` divides `heads`.

    Example:
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
        module: a scope or a module to sow the weights into, before dropout, as `intermediates/attention_weights`.
        force_fp32_for_softmax: whether to compute the softmax in `float32`, whatever the dtype; the weights are
            `float32`, too.
        einsum_dot_general: the multiplication, used instead of `jax.lax.dot_general`.
        qk_attn_weights_einsum: the `einsum` of query and key; pass both, or neither.
        attn_weights_value_einsum: the `einsum` of weights and values.
        is_causal: whether query `i` ignores keys after the `i`-th; a mask or bias may hide more.
        implementation: `"xla"` or `"cudnn"` calls `jax.nn.dot_product_attention`, with the softmax in `float32`.
            Dropout, sown weights, a precision and other products are then not supported. `"auto"` uses the kernel of
            `"cudnn"` on NVIDIA GPUs, and is None wherever that kernel does not support the dtype, sizes or options.

    Raises:
        LiftArgumentError: if shapes do not match, a dropout key is missing, or options exclude each other.
    """
    where = "dot_product_attention"
    einsums = {
        "qk_attn_weights_einsum": qk_attn_weights_einsum,
        "attn_weights_value_einsum": attn_weights_value_einsum,
    }
    _check_exclusive(where, precision, einsum_dot_general, **einsums)
    query, key, value = promote_dtype(query, key, value, dtype=dtype)
    _check_shapes(where, query, key, value)
    needed = {
        "module": module,
        "dropout_rate": None if deterministic else dropout_rate or None,
        "precision": precision,
        "einsum_dot_general": einsum_dot_general,
        **einsums,
    }
    if implementation == "auto":
        if not force_fp32_for_softmax and all(option is None for option in (bias, *needed.values())):
            y = kernel_attention(_separately, query, key, value, mask, is_causal=is_causal)
            if y is not None:
                return y
    elif implementation is not None:
        check_unfused_options(where, implementation, needed)
        return fused_attention(where, implementation, query, key, value, bias, mask, is_causal)
    dropout = (broadcast_dropout, dropout_rng, dropout_rate, deterministic)
    given: Any = (query.dtype, precision, module, force_fp32_for_softmax, einsum_dot_general, qk_attn_weights_einsum)
    weights = dot_product_attention_weights(query, key, bias, mask, *dropout, *given, is_causal=is_causal)
    return _averages(weights, value, attn_weights_value_einsum or _einsum(precision, einsum_dot_general))


def _separately(query: Array, key: Array, value: Array, mask: ArrayLike | None, is_causal: bool) -> Array:
    return dot_product_attention(query, key, value, None, mask, is_causal=is_causal)


# -- computing ---------------------------------------------------------------------------------------------------------


def _einsum(precision: lax.PrecisionLike, dot_general: Callable[..., Array] | None) -> Callable[..., Array]:
    multiply = jnp.einsum if dot_general is None else functools.partial(jnp.einsum, _dot_general=dot_general)

    def einsum(text: str, left: Array, right: Array) -> Array:
        if is_sharded(left, right):
            return affine_einsum(text, left, right, precision=precision, einsum_op=multiply, where="attention")
        return multiply(text, left, right, precision=precision)

    return einsum


def _products(query: Array, key: Array, einsum: Callable[..., Array]) -> Array:
    """Return the weights before the softmax. Inside, the query heads that share a key head have their own axis."""
    query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    heads, kv_heads = query.shape[-2], key.shape[-2]
    if heads == kv_heads:
        return einsum("...qhd,...khd->...hqk", query, key)
    query = reshape(query, (*query.shape[:-2], kv_heads, heads // kv_heads, query.shape[-1]))
    weights = einsum("...qhgd,...khd->...hgqk", query, key)
    return reshape(weights, (*weights.shape[:-4], heads, *weights.shape[-2:]))


def _averages(weights: Array, value: Array, einsum: Callable[..., Array]) -> Array:
    heads, kv_heads = weights.shape[-3], value.shape[-2]
    if heads == kv_heads:
        return einsum("...hqk,...khd->...qhd", weights, value)
    weights = reshape(weights, (*weights.shape[:-3], kv_heads, heads // kv_heads, *weights.shape[-2:]))
    y = einsum("...hgqk,...khd->...qhgd", weights, value)
    return reshape(y, (*y.shape[:-3], heads, y.shape[-1]))


def _softmax(weights: Array, mask: ArrayLike | None, is_causal: bool, dtype: Dtype, force_fp32: bool) -> Array:
    if is_causal:
        queries, keys = (jnp.arange(size) for size in weights.shape[-2:])
        causal = queries[:, None] >= keys
        mask = causal if mask is None else jnp.logical_and(mask, causal)
    if mask is not None:
        lowest = jnp.finfo(dtype).min  # type: ignore[no-untyped-call]  # not -inf, for which the softmax may be NaN
        weights = jnp.where(mask, weights, lowest)
    if force_fp32 and dtype != jnp.float32:
        return jax.nn.softmax(weights.astype(jnp.float32))
    return jax.nn.softmax(weights).astype(dtype)


def _dropped(weights: Array, rng: Key | None, rate: float, broadcast: bool, dtype: Dtype) -> Array:
    if rate == 1:  # the code below would divide by zero
        return jnp.zeros_like(weights)
    shape = (1,) * (weights.ndim - 2) + weights.shape[-2:] if broadcast else weights.shape
    keep = 1.0 - rate
    kept = draw_kept(rng, keep, shape, weights)  # type: ignore[arg-type]  # checked before
    return weights * (kept.astype(dtype) / jnp.asarray(keep, dtype))


# -- checks ------------------------------------------------------------------------------------------------------------


def _check_exclusive(where: str, precision: Any, dot_general: Any, **einsums: Any) -> None:
    given = [name for name, einsum in einsums.items() if einsum is not None]
    if given and len(given) < len(einsums):
        raise LiftArgumentError(
            where,
            f"`{given[0]}` was given alone.",
            f"Pass both: {', '.join(f'`{name}=…`' for name in einsums)}.",
            option=given[0],
        )
    refused = {"precision": precision, "einsum_dot_general": dot_general}
    also = [name for name, option in refused.items() if option is not None]
    if given and also:
        raise LiftArgumentError(
            where,
            f"`{given[0]}` and `{also[0]}` were both given, but your own einsum decides how it multiplies.",
            f"Leave out `{also[0]}`, or set it in the einsum: `functools.partial(jnp.einsum, precision=…)`.",
            option=also[0],
        )


def _check_shapes(where: str, query: Array, key: Array, value: Array | None = None) -> None:
    arrays = {"query": query, "key": key} | ({} if value is None else {"value": value})
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    if query.ndim < 3 or any(array.ndim != query.ndim for array in arrays.values()):
        what, fix = "each needs the shape (*batch, length, heads, depth)", "Give all the same number of dimensions."
    elif any(array.shape[:-3] != query.shape[:-3] for array in arrays.values()):
        what, fix = "the batch dimensions differ", "Pass the same number of examples of each."
    elif key.shape[-1] != query.shape[-1]:
        what, fix = "queries and keys differ in depth", "Project them to the same number of features."
    elif value is not None and value.shape[-3:-1] != key.shape[-3:-1]:
        what, fix = "keys and values differ in length or heads", "Pass one value for each key."
    elif key.shape[-2] != query.shape[-2] and (key.shape[-2] == 0 or query.shape[-2] % key.shape[-2]):
        what = f"{query.shape[-2]} heads of queries cannot share {key.shape[-2]} heads of keys evenly"
        fix = "Use as many heads of keys and values as of queries, or a divisor of that number."
    else:
        return
    raise LiftArgumentError(where, f"{what}; given {shapes}.", fix, given=shapes)


def _drops(where: str, rate: float, deterministic: bool, rng: Key | None) -> bool:
    """Return whether to drop anything."""
    if deterministic or rate == 0:
        return False
    check_rate(where, "dropout_rate", rate)
    if rng is None:
        raise LiftArgumentError(
            where,
            f"dropout_rate is {rate}, but there is no key to draw with.",
            "Pass `dropout_rng=key`, or `deterministic=True` to drop nothing.",
            option="dropout_rng",
        )
    return True


def attention_inputs(
    where: str, inputs_q: Array, inputs_k: Array | None, inputs_v: Array | None
) -> tuple[Array, Array]:
    """Return the inputs of keys and values: by default those of queries for both, and those of keys for values.

    Args:
        where: the layer, for errors.
        inputs_q: the inputs of queries, `(*batch, queries, features)`.
        inputs_k: the inputs of keys, `(*batch, keys, features)`.
        inputs_v: the inputs of values, `(*batch, keys, features)`.

    Raises:
        LiftArgumentError: if there are values without keys, or shapes do not match.
    """
    if inputs_k is None:
        if inputs_v is not None:
            raise LiftArgumentError(
                where,
                "`inputs_v` was given without `inputs_k`, so its keys are missing.",
                "Pass `inputs_k`. To use one array for both, leave out `inputs_v`.",
                option="inputs_k",
            )
        inputs_k = inputs_q
    inputs_v = inputs_k if inputs_v is None else inputs_v
    q, k, v = (jnp.shape(x) for x in (inputs_q, inputs_k, inputs_v))
    if len(q) < 2 or q[:-2] != k[:-2] or k[:-1] != v[:-1]:
        raise LiftArgumentError(
            where,
            Expected(
                "inputs_q, inputs_k and inputs_v of shapes (*batch, queries, features), (*batch, keys, features) and "
                "(*batch, keys, features)",
                given=(q, k, v),
                words=f"{q}, {k} and {v}",
            ),
            "Pass inputs of one batch, with a value for each key. Pass a mask by its name, `mask`.",
        )
    return inputs_k, inputs_v


def head_features(where: str, features: int, num_heads: int, num_kv_heads: int) -> int:
    """Return the number of features of each head.

    Args:
        where: the layer, for errors.
        features: the features of all heads of queries together.
        num_heads: the number of heads of queries.
        num_kv_heads: the number of heads of keys and values.

    Raises:
        LiftArgumentError: if the heads cannot divide the features, or share keys, evenly.
    """
    if num_heads < 1 or features % num_heads:
        fitting = (features // max(num_heads, 1) + 1) * max(num_heads, 1)
        raise LiftArgumentError(
            where,
            f"{features} features of queries, keys and values cannot be divided among num_heads={num_heads}.",
            f"Choose `qkv_features` as a multiple of it, such as {fitting}.",
            option="num_heads",
            given=num_heads,
        )
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise LiftArgumentError(
            where,
            f"num_heads={num_heads} heads of queries cannot share num_kv_heads={num_kv_heads} heads of keys evenly.",
            "Choose a divisor of `num_heads`; 1 means that all heads share one.",
            option="num_kv_heads",
            given=num_kv_heads,
        )
    return features // num_heads
