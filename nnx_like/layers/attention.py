"""`MultiHeadAttention`: queries, keys and values of several heads, with a cache to decode with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer, Key, Shape

from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from ..variablelib.kinds import Cache
from .dot_product import dot_product_attention
from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import lecun_normal, zeros
from .linear import LinearGeneral
from .normalization import LayerNorm

__all__ = ["MultiHeadAttention"]

_LECUN_NORMAL = lecun_normal()


class MultiHeadAttention(Module):
    """Projects inputs to the queries, keys and values of several heads, attends in each, and projects what comes out.

    `out(attention_fn(query(inputs_q), key(inputs_k), value(inputs_v)))`, heads of `qkv_features / num_heads` features;
    see `dot_product_attention`. Source: Vaswani et al., https://arxiv.org/abs/1706.03762.

    Variables: `LinearGeneral` `query`, `key` and `value`, to `(heads, head_features)`, the last two perhaps with fewer
    heads, and `out` from there; with `normalize_qk`, the `LayerNorm` `query_ln` and `key_ln`, without biases. After
    `init_cache`, `Cache` `cached_key` and `cached_value`, `(*batch, length, kv_heads, head_features)`, and
    `cache_index`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.MultiHeadAttention(num_heads=2, in_features=4, decode=False, rngs=nnx.Rngs(0))
        >>> x = jnp.ones((1, 5, 4))
        >>> layer(x, is_causal=True).shape
        (1, 5, 4)
        >>> layer.init_cache(x.shape)
        >>> layer(x[:, :3], decode=True).shape, int(layer.cache_index[...])
        ((1, 3, 4), 3)

    Args:
        num_heads: the number of heads.
        in_features: the features of the inputs of queries.
        qkv_features: the features of all heads together; by default `in_features`, as `out_features` is.
        out_features: the features of the result.
        num_kv_heads: the number of heads of keys and values, of which each serves as many heads of queries; by default
            `num_heads`.
        in_kv_features: the features of the inputs of keys and values; by default `in_features`.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        broadcast_dropout: whether all heads and examples drop the same weights.
        dropout_rate: the probability to drop a weight; the others are divided by `1 - dropout_rate`.
        deterministic: whether to drop nothing; where there is a dropout rate it is given here or at the call, or set
            by `train()` and `eval()`.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernels.
        out_kernel_init: makes that of `out`; by default as the others.
        bias_init: makes the biases.
        out_bias_init: makes that of `out`; by default as the others.
        use_bias: whether the projections have biases.
        attention_fn: the attention function, called with query, key and value, and with the keyword arguments `mask`,
            `dropout_rng`, `dropout_rate`, `broadcast_dropout`, `deterministic`, `dtype`, `precision`, `module` (None,
            or what sows) and `is_causal`.
        decode: whether a call takes the next positions, one or many, of which each attends to itself and to those
            before it, which the cache holds; here or at the call.
        normalize_qk: whether queries and keys are normalised, https://arxiv.org/abs/2302.05442.
        qkv_promote_dtype: brings inputs and parameters of `query`, `key` and `value` to one dtype.
        out_promote_dtype: the same of `out`.
        ln_promote_dtype: the same of `query_ln` and `key_ln`.
        qkv_dot_general: what multiplies in `query`, `key` and `value`, called as `jax.lax.dot_general` is; deprecated.
        out_dot_general: the same of `out`.
        qkv_dot_general_cls: makes `qkv_dot_general`; deprecated.
        out_dot_general_cls: makes `out_dot_general`.
        rngs: each parameter draws a key from `params`; where a stream is kept, it is forked from `dropout`.
        keep_rngs: whether to keep a stream for dropout, if there is a rate; else each call is given one.
        kernel_metadata: the metadata of the kernels.
        out_kernel_metadata: that of `out`; where empty, as the others.
        bias_metadata: the metadata of the biases.
        out_bias_metadata: that of `out`; where empty, as the others.
        query_ln_scale_metadata: the metadata of the scale of `query_ln`.
        key_ln_scale_metadata: the metadata of the scale of `key_ln`.

    Raises:
        LiftArgumentError: if the number of features is not divisible by the number of heads.
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        broadcast_dropout: bool = True,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        precision: lax.PrecisionLike = None,
        kernel_init: Initializer = _LECUN_NORMAL,
        out_kernel_init: Initializer | None = None,
        bias_init: Initializer = zeros,
        out_bias_init: Initializer | None = None,
        use_bias: bool = True,
        attention_fn: Callable[..., Array] = dot_product_attention,
        decode: bool | None = None,
        normalize_qk: bool = False,
        qkv_promote_dtype: PromoteDtypeFn = promote_dtype,
        out_promote_dtype: PromoteDtypeFn = promote_dtype,
        ln_promote_dtype: PromoteDtypeFn = promote_dtype,
        qkv_dot_general: Callable[..., Array] | None = None,
        out_dot_general: Callable[..., Array] | None = None,
        qkv_dot_general_cls: Any = None,
        out_dot_general_cls: Any = None,
        rngs: Rngs,
        keep_rngs: bool = True,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        out_kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        out_bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        query_ln_scale_metadata: Mapping[str, Any] = MappingProxyType({}),
        key_ln_scale_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.num_heads = num_heads
        self.in_features = in_features
        self.qkv_features = in_features if qkv_features is None else qkv_features
        self.out_features = in_features if out_features is None else out_features
        self.in_kv_features = in_features if in_kv_features is None else in_kv_features
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = _head_dim(num_heads, self.num_kv_heads, self.qkv_features)
        self.dtype, self.param_dtype, self.precision, self.use_bias = dtype, param_dtype, precision, use_bias
        self.broadcast_dropout, self.dropout_rate, self.deterministic = broadcast_dropout, dropout_rate, deterministic
        self.attention_fn, self.decode, self.normalize_qk = attention_fn, decode, normalize_qk
        self.qkv_promote_dtype, self.out_promote_dtype = qkv_promote_dtype, out_promote_dtype
        self.ln_promote_dtype = ln_promote_dtype
        self.qkv_dot_general, self.out_dot_general = qkv_dot_general, out_dot_general
        self.qkv_dot_general_cls, self.out_dot_general_cls = qkv_dot_general_cls, out_dot_general_cls
        of_qkv = (kernel_init, bias_init, kernel_metadata, bias_metadata)
        of_out = (
            out_kernel_init or kernel_init,
            out_bias_init or bias_init,
            out_kernel_metadata or kernel_metadata,
            out_bias_metadata or bias_metadata,
        )
        self.query = self._projection(rngs, "qkv", in_features, num_heads, *of_qkv)
        self.key = self._projection(rngs, "qkv", self.in_kv_features, self.num_kv_heads, *of_qkv)
        self.value = self._projection(rngs, "qkv", self.in_kv_features, self.num_kv_heads, *of_qkv)
        self.query_ln = self._norm(rngs, query_ln_scale_metadata) if normalize_qk else None
        self.key_ln = self._norm(rngs, key_ln_scale_metadata) if normalize_qk else None
        self.out = self._projection(rngs, "out", self.out_features, num_heads, *of_out)
        self.rngs = rngs.dropout.fork() if keep_rngs and dropout_rate > 0 else None
        self.cached_key: Cache[Array] | None = None
        self.cached_value: Cache[Array] | None = None
        self.cache_index: Cache[Array] | None = None

    def _projection(
        self,
        rngs: Rngs,
        kind: str,
        features: int,
        heads: int,
        kernel_init: Initializer,
        bias_init: Initializer,
        kernel_metadata: Mapping[str, Any],
        bias_metadata: Mapping[str, Any],
    ) -> LinearGeneral:
        """A layer from features to heads, or from there, with the options of its kind, `qkv` or `out`."""
        split = (heads, self.head_dim)
        return LinearGeneral(
            *((split, features) if kind == "out" else (features, split)),
            axis=(-2, -1) if kind == "out" else -1,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            precision=self.precision,
            promote_dtype=getattr(self, f"{kind}_promote_dtype"),
            dot_general=getattr(self, f"{kind}_dot_general"),
            dot_general_cls=getattr(self, f"{kind}_dot_general_cls"),
            rngs=rngs,
            kernel_metadata=kernel_metadata,
            bias_metadata=bias_metadata,
        )

    def _norm(self, rngs: Rngs, scale_metadata: Mapping[str, Any]) -> LayerNorm:
        return LayerNorm(
            self.head_dim,
            use_bias=False,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            promote_dtype=self.ln_promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )

    def __call__(
        self,
        inputs_q: Array,
        inputs_k: Array | None = None,
        inputs_v: Array | None = None,
        *,
        mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
        out_sharding: Any = None,
        qkv_sharding: Any = None,
        lengths: ArrayLike | None = None,
    ) -> Array:
        """Maps `(*batch, queries, in_features)` to `(*batch, queries, out_features)`.

        Args:
            inputs_q: the inputs of the queries.
            inputs_k: `(*batch, keys, in_kv_features)`; by default `inputs_q`: self-attention.
            inputs_v: the inputs of the values; by default `inputs_k`.
            mask: `(*batch, heads, queries, keys)`, or broadcast to it: True, or a nonzero number, if a query may attend
                to a key.
            deterministic: used instead of the attribute, if given.
            rngs: a stream, or `Rngs` with a stream `dropout`; used instead of the stream of the layer.
            sow_weights: whether to sow the weights, as `Intermediate` `attention_weights`.
            decode: used instead of the attribute, if given.
            is_causal: whether query `i` sees no key after the `i`-th.
            out_sharding: the sharding of the result; see `LinearGeneral`.
            qkv_sharding: the sharding of queries, keys and values.
            lengths: `(*batch,)`: how many of the inputs count, those after them being padding that is not cached; for
                decoding with a cache that has a position for each example.

        Raises:
            LiftArgumentError: if the shapes of inputs, mask and cache do not match, or a required argument is missing.
        """
        inputs_k, inputs_v = self._inputs(inputs_q, inputs_k, inputs_v)
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        key = self.key(inputs_k, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        if self._chosen("decode", decode):
            query, key, value, mask = self._cache().append(query, key, value, mask, lengths=lengths)
            is_causal = False  # the mask of the cache hides what comes later
        elif lengths is not None:
            raise LiftArgumentError(
                "MultiHeadAttention",
                "lengths were given, and the layer does not decode.",
                "Pass `decode=True`, or hide padding by the mask.",
            )
        dropout_rng = self._dropout_rng(deterministic, rngs)
        y = self.attention_fn(
            query,
            key,
            value,
            mask=mask,
            dropout_rng=dropout_rng,
            dropout_rate=self.dropout_rate,
            broadcast_dropout=self.broadcast_dropout,
            deterministic=dropout_rng is None,
            dtype=self.dtype,
            precision=self.precision,
            module=self if sow_weights else None,
            is_causal=is_causal,
        )
        return self.out(y, out_sharding=out_sharding)

    def init_cache(self, input_shape: Shape, dtype: Dtype = jnp.float32, *, ragged: bool = False) -> None:
        """Makes an empty cache, for calls that decode.

        Args:
            input_shape: `(*batch, length, features)`: that of the longest inputs; the features do not count.
            dtype: that of the cached keys and values, whatever the computation has.
            ragged: whether each example has its own position, so that prompts of a batch may differ in length.
        """
        shape = (*input_shape[:-1], self.num_kv_heads, self.head_dim)
        self.cached_key = Cache(jnp.zeros(shape, dtype))
        self.cached_value = Cache(jnp.zeros(shape, dtype))
        self.cache_index = Cache(jnp.zeros(input_shape[:-2] if ragged else (), jnp.int32))

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | Shape | None = None,
        max_length: int | None = None,
    ) -> None:
        """What `nnx.view` calls.

        Args:
            deterministic: the attribute of that name; None leaves it as it is.
            decode: the same.
            batch_size: the sizes of the batch of a new cache, which the view has for itself.
            max_length: the number of positions of that cache.

        Raises:
            LiftArgumentError: if only one of the sizes of a cache is given.
        """
        if deterministic is not None:
            self.deterministic = deterministic
        if decode is not None:
            self.decode = decode
        if batch_size is None and max_length is None:
            return
        if batch_size is None or max_length is None:
            raise LiftArgumentError(
                "MultiHeadAttention.set_view",
                f"batch_size is {batch_size} and max_length is {max_length}, and a cache needs both.",
                "Pass both of them, or call `init_cache` of the layer.",
            )
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        self.init_cache((*batch, max_length, self.in_features), jnp.float32 if self.dtype is None else self.dtype)

    def _inputs(self, inputs_q: Array, inputs_k: Array | None, inputs_v: Array | None) -> tuple[Array, Array]:
        """What keys and values are made of, checked."""
        if inputs_k is None:
            if inputs_v is not None:
                raise LiftArgumentError(
                    "MultiHeadAttention",
                    "`inputs_v` was given without `inputs_k`, so its keys are missing.",
                    "Pass `inputs_k`; where one array is to be both, leave out `inputs_v`.",
                )
            inputs_k = inputs_q
        inputs_v = inputs_k if inputs_v is None else inputs_v
        q, k, v = (jnp.shape(x) for x in (inputs_q, inputs_k, inputs_v))
        if len(q) < 2 or q[:-2] != k[:-2] or k[:-1] != v[:-1]:
            raise LiftArgumentError(
                "MultiHeadAttention",
                "expected inputs_q, inputs_k and inputs_v of shapes (*batch, queries, features), (*batch, keys, "
                f"features) and (*batch, keys, features), given {q}, {k} and {v}.",
                "Pass inputs of one batch, with a value for each key; a mask is passed by keyword: `mask=…`.",
            )
        return inputs_k, inputs_v

    def _chosen(self, name: str, given: bool | None) -> bool:
        """An option that is given at the call or in the layer."""
        found = getattr(self, name) if given is None else given
        if found is None:
            raise LiftArgumentError(
                "MultiHeadAttention",
                f"`{name}` is None in the layer and in the call.",
                f"Pass `{name}=False` or `True` to the call or to the layer"
                + (", or call `train()` or `eval()` of the model." if name == "deterministic" else "."),
            )
        return bool(found)

    def _dropout_rng(self, deterministic: bool | None, rngs: Rngs | RngStream | None) -> Key | None:
        """The key for dropout, drawn if anything is to be dropped; else None."""
        if not self.dropout_rate > 0 or self._chosen("deterministic", deterministic):
            return None
        stream = self.rngs if rngs is None else rngs
        if stream is None:
            raise LiftArgumentError(
                "MultiHeadAttention",
                f"dropout_rate is {self.dropout_rate}, and the layer, made with keep_rngs=False, has no stream for it.",
                "Pass `rngs=nnx.Rngs(dropout=0)` to the call.",
            )
        return (stream.dropout if isinstance(stream, Rngs) else stream)()

    def _cache(self) -> nn.DecodeCache:
        key, value, index = self.cached_key, self.cached_value, self.cache_index
        if key is None or value is None or index is None:
            raise LiftArgumentError(
                "MultiHeadAttention",
                "`decode` is True, and there is no cache to decode with.",
                "Call `init_cache(input_shape)` first, with the shape of the longest inputs.",
            )
        return nn.DecodeCache(key, value, index, "MultiHeadAttention", "`init_cache` with a shape", casts=True)


def _head_dim(num_heads: int, num_kv_heads: int, features: int) -> int:
    """The features of each head."""
    if num_heads < 1 or features % num_heads:
        fitting = (features // max(num_heads, 1) + 1) * max(num_heads, 1)
        raise LiftArgumentError(
            "MultiHeadAttention",
            f"{features} features of queries, keys and values cannot be divided among num_heads={num_heads}.",
            f"Choose `qkv_features` as a multiple of it, such as {fitting}.",
        )
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise LiftArgumentError(
            "MultiHeadAttention",
            f"num_heads={num_heads} heads of queries cannot share num_kv_heads={num_kv_heads} heads of keys evenly.",
            "Choose a number that divides `num_heads`; 1 for one that all share.",
        )
    return features // num_heads
