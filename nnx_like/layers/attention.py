"""Attention of objects: dot-product attention, and `MultiHeadAttention`, with a cache for decoding."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer, Key, Shape

from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from ..variablelib.kinds import Cache
from .initializers import lecun_normal, zeros
from .linear import LinearGeneral
from .normalization import LayerNorm
from .parameters import PromoteDtypeFn, chosen, promote_dtype, stream_of

__all__ = ["MultiHeadAttention", "dot_product_attention", "dot_product_attention_weights"]

_LECUN_NORMAL = lecun_normal()


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
        dropout_rate: the probability of dropping a weight; the others are divided by `1 - dropout_rate`.
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
    dropout = (broadcast_dropout, dropout_rng, dropout_rate, deterministic)
    given = (query.dtype, precision, module)
    return nn.dot_product_attention_weights(query, key, bias, mask, *dropout, *given, is_causal=is_causal)


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
    *,
    implementation: str | None = None,
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
        dropout_rate: the probability of dropping a weight; the others are divided by `1 - dropout_rate`.
        deterministic: whether to drop nothing.
        dtype: the dtype of the computation; by default what query, key and value promote to.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        module: a module to sow the weights into, before dropout, as `Intermediate` `attention_weights`.
        promote_dtype: converts `(query, key, value)` to one dtype.
        is_causal: whether query `i` ignores keys after the `i`-th; a mask or bias may hide more.
        implementation: `"auto"` uses the kernel of cuDNN on NVIDIA GPUs, and is None wherever that kernel does not
            support the dtype, sizes or options. Others are those of `liftcore.nn.dot_product_attention`.

    Raises:
        LiftArgumentError: if shapes do not match, or a dropout key is missing.
    """
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    if implementation == "auto":
        if dropout_rate == 0.0 and all(option is None for option in (bias, precision, module)):
            y = nn.kernel_attention(_by_xla, query, key, value, mask, is_causal=is_causal)
            if y is not None:
                return y
        implementation = None
    fused = implementation is None and dropout_rate == 0.0 and module is None and value.shape[-1] == key.shape[-1]
    exactly = _precisely(precision) if fused else None
    if exactly is not None:
        with exactly:
            return nn.dot_product_attention(query, key, value, bias, mask, is_causal=is_causal, implementation="xla")
    dropout = (broadcast_dropout, dropout_rng, dropout_rate, deterministic)
    given = (query.dtype, precision, module)
    options: Any = {"is_causal": is_causal, "implementation": implementation}
    return nn.dot_product_attention(query, key, value, bias, mask, *dropout, *given, **options)


def _by_xla(query: Array, key: Array, value: Array, mask: ArrayLike | None, is_causal: bool) -> Array:
    return nn.dot_product_attention(query, key, value, None, mask, is_causal=is_causal, implementation="xla")


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


class MultiHeadAttention(Module):
    """Projects inputs to the queries, keys and values of several heads, attends in each, and projects the result.

    `out(attention_fn(query(inputs_q), key(inputs_k), value(inputs_v)))`, heads of `qkv_features / num_heads` features;
    see `dot_product_attention`. Source: Vaswani et al., https://arxiv.org/abs/1706.03762.

    Variables: the `LinearGeneral` `query`, `key` and `value`, which map to `(heads, head_features)` (keys and values
    may have fewer heads), and `out`, which maps back; with `normalize_qk`, the `LayerNorm` `query_ln` and `key_ln`,
    without biases. After `init_cache`, the `Cache` `cached_key` and `cached_value`,
    `(*batch, length, kv_heads, head_features)`, and `cache_index`.

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
        qkv_features: the features of all heads together; by default `in_features`.
        out_features: the features of the result; by default `in_features`.
        num_kv_heads: the number of heads of keys and values, each shared by as many heads of queries; by default
            `num_heads`.
        in_kv_features: the features of the inputs of keys and values; by default `in_features`.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        broadcast_dropout: whether all heads and examples drop the same weights.
        dropout_rate: the probability of dropping a weight; the others are divided by `1 - dropout_rate`.
        deterministic: whether to disable dropout. With a dropout rate it is required, here or at the call, or set by
            `train()` and `eval()`.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernels.
        out_kernel_init: makes the kernel of `out`; by default `kernel_init`.
        bias_init: makes the biases.
        out_bias_init: makes the bias of `out`; by default `bias_init`.
        use_bias: whether the projections have biases.
        attention_fn: the attention function, called with query, key and value, and with the keyword arguments `mask`,
            `dropout_rng`, `dropout_rate`, `broadcast_dropout`, `deterministic`, `dtype`, `precision`, `module` (an
            object with a method `sow`, or None) and `is_causal`.
        decode: whether a call takes the next positions, one or many. Each attends to itself and to the earlier
            positions, which the cache holds. It can also be given at the call.
        normalize_qk: whether queries and keys are normalized, https://arxiv.org/abs/2302.05442.
        qkv_promote_dtype: converts inputs and parameters of `query`, `key` and `value` to one dtype.
        out_promote_dtype: the same for `out`.
        ln_promote_dtype: the same for `query_ln` and `key_ln`.
        qkv_dot_general: the multiplication in `query`, `key` and `value`, called like `jax.lax.dot_general`;
            deprecated.
        out_dot_general: the same for `out`.
        qkv_dot_general_cls: makes `qkv_dot_general`; deprecated.
        out_dot_general_cls: makes `out_dot_general`.
        rngs: each parameter draws a key from `params`; the stream for dropout is forked from `dropout`.
        keep_rngs: whether to keep a stream for dropout, if there is a rate; if False, pass `rngs` to each call.
        kernel_metadata: the metadata of the kernels.
        out_kernel_metadata: the metadata of the kernel of `out`; if empty, `kernel_metadata`.
        bias_metadata: the metadata of the biases.
        out_bias_metadata: the metadata of the bias of `out`; if empty, `bias_metadata`.
        query_ln_scale_metadata: the metadata of the scale of `query_ln`.
        key_ln_scale_metadata: the metadata of the scale of `key_ln`.

    Raises:
        LiftArgumentError: if the number of features is not divisible by the number of heads.
    """

    @nn.checks_options
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
        self.head_dim = nn.head_features("MultiHeadAttention", self.qkv_features, num_heads, self.num_kv_heads)
        self.dtype, self.param_dtype, self.precision, self.use_bias = dtype, param_dtype, precision, use_bias
        self.broadcast_dropout, self.dropout_rate, self.deterministic = broadcast_dropout, dropout_rate, deterministic
        self.attention_fn, self.decode, self.normalize_qk = attention_fn, decode, normalize_qk
        self.qkv_promote_dtype, self.out_promote_dtype = qkv_promote_dtype, out_promote_dtype
        self.ln_promote_dtype = ln_promote_dtype
        self.qkv_dot_general, self.out_dot_general = qkv_dot_general, out_dot_general
        self.qkv_dot_general_cls, self.out_dot_general_cls = qkv_dot_general_cls, out_dot_general_cls
        layer = functools.partial(
            LinearGeneral, use_bias=use_bias, dtype=dtype, param_dtype=param_dtype, precision=precision, rngs=rngs
        )
        of_qkv = functools.partial(
            layer,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=qkv_promote_dtype,
            dot_general=qkv_dot_general,
            dot_general_cls=qkv_dot_general_cls,
            kernel_metadata=kernel_metadata,
            bias_metadata=bias_metadata,
        )
        self.query = of_qkv(in_features, (num_heads, self.head_dim))
        self.key = of_qkv(self.in_kv_features, (self.num_kv_heads, self.head_dim))
        self.value = of_qkv(self.in_kv_features, (self.num_kv_heads, self.head_dim))
        norm = functools.partial(LayerNorm, self.head_dim, use_bias=False, dtype=dtype, param_dtype=param_dtype)
        norm = functools.partial(norm, promote_dtype=ln_promote_dtype, rngs=rngs)
        self.query_ln = norm(scale_metadata=query_ln_scale_metadata) if normalize_qk else None
        self.key_ln = norm(scale_metadata=key_ln_scale_metadata) if normalize_qk else None
        self.out = layer(
            (num_heads, self.head_dim),
            self.out_features,
            axis=(-2, -1),
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
            promote_dtype=out_promote_dtype,
            dot_general=out_dot_general,
            dot_general_cls=out_dot_general_cls,
            kernel_metadata=out_kernel_metadata or kernel_metadata,
            bias_metadata=out_bias_metadata or bias_metadata,
        )
        self.rngs = rngs.dropout.fork() if keep_rngs and dropout_rate > 0 else None
        self.cached_key: Cache[Array] | None = None
        self.cached_value: Cache[Array] | None = None
        self.cache_index: Cache[Array] | None = None

    @nn.checks_options
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
        input_positions: Array | None = None,
        lengths: ArrayLike | None = None,
    ) -> Array:
        """Map `(*batch, queries, in_features)` to `(*batch, queries, out_features)`.

        Args:
            inputs_q: the inputs of the queries.
            inputs_k: `(*batch, keys, in_kv_features)`; by default `inputs_q`: self-attention.
            inputs_v: the inputs of the values; by default `inputs_k`.
            mask: `(*batch, heads, queries, keys)`, or broadcast to it: True, or a nonzero number, if a query may attend
                to a key.
            deterministic: used instead of the attribute, if given.
            rngs: a stream, or `Rngs` with a stream `dropout`; used instead of the stream of the layer.
            sow_weights: whether to sow the attention weights, as `Intermediate` `attention_weights`.
            decode: used instead of the attribute, if given.
            is_causal: whether query `i` ignores keys after the `i`-th.
            out_sharding: the sharding of the result; see `LinearGeneral`.
            qkv_sharding: the sharding of queries, keys and values.
            input_positions: passed to `attention_fn`, if given: the positions of the queries, `(*batch, queries)`, for
                `dot_product_attention_with_rope`.
            lengths: `(*batch,)`: the number of valid inputs of each example; the inputs after them are padding, which
                is not cached. Use it to decode with a ragged cache; see `init_cache`.

        Raises:
            LiftArgumentError: if the shapes of inputs, mask and cache do not match, or a required argument is missing.
        """
        inputs_k, inputs_v = nn.attention_inputs("MultiHeadAttention", inputs_q, inputs_k, inputs_v)
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        key = self.key(inputs_k, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        if chosen(self, "decode", decode):
            query, key, value, mask = self._cache().append(query, key, value, mask, lengths=lengths)
            is_causal = False  # the mask of the cache hides later positions
        elif lengths is not None:
            what = "`lengths` was given, but the layer does not decode."
            fix = "Pass `decode=True`, or hide padding with a mask."
            raise LiftArgumentError("MultiHeadAttention", what, fix, option="lengths")
        if input_positions is not None and self.attention_fn is dot_product_attention:
            what = "`input_positions` was given, but `attention_fn` takes no positions."
            fix = "Make it with `attention_fn=functools.partial(nnx.dot_product_attention_with_rope, rope=nnx.RoPE())`."
            raise LiftArgumentError("MultiHeadAttention", what, fix, option="input_positions")
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
            **({} if input_positions is None else {"input_positions": input_positions}),
        )
        return self.out(y, out_sharding=out_sharding)

    @nn.checks_options
    def init_cache(self, input_shape: Shape, dtype: Dtype = jnp.float32, *, ragged: bool = False) -> None:
        """Make an empty cache for decoding.

        Args:
            input_shape: `(*batch, length, features)`, the shape of the longest inputs; the features are ignored.
            dtype: the dtype of the cached keys and values, independent of the dtype of the computation.
            ragged: whether each example has its own position, so that prompts in a batch may differ in length.
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
        """Change the mode of the layer; `nnx.view` calls this.

        Args:
            deterministic: the new value of the attribute; None leaves it unchanged.
            decode: the new value of the attribute; None leaves it unchanged.
            batch_size: the batch sizes of a new cache, which belongs to the view only.
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
            where = "MultiHeadAttention.set_view"
            what = f"batch_size is {batch_size} and max_length is {max_length}; a cache needs both."
            fix = "Pass both of them, or call `init_cache` of the layer."
            raise LiftArgumentError(
                where, what, fix, option="batch_size" if batch_size is None else "max_length", given="None"
            )
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        self.init_cache((*batch, max_length, self.in_features), jnp.float32 if self.dtype is None else self.dtype)

    def _dropout_rng(self, deterministic: bool | None, rngs: Rngs | RngStream | None) -> Key | None:
        """Draw the key for dropout; return None if nothing is dropped."""
        if not self.dropout_rate > 0 or chosen(self, "deterministic", deterministic):
            return None
        stream = stream_of("MultiHeadAttention", self.rngs if rngs is None else rngs, "dropout")
        if stream is None:
            what = f"dropout_rate is {self.dropout_rate}, but the layer has no dropout stream (it has keep_rngs=False)."
            fix = "Pass `rngs=nnx.Rngs(dropout=0)` to the call."
            raise LiftArgumentError("MultiHeadAttention", what, fix, option="rngs")
        return stream()

    def _cache(self) -> nn.DecodeCache:
        key, value, index = self.cached_key, self.cached_value, self.cache_index
        if key is None or value is None or index is None:
            what = "`decode` is True, but the layer has no cache."
            fix = "Call `init_cache(input_shape)` first, with the shape of the longest inputs."
            raise LiftArgumentError("MultiHeadAttention", what, fix, option="decode")
        return nn.DecodeCache(key, value, index, "MultiHeadAttention", "`init_cache` with a shape", casts=True)
