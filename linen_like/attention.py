"""Attention layers, and the functions and masks that they use."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jax.lax import PrecisionLike

from liftcore import nn
from liftcore.errors import LiftArgumentError, shown
from liftcore.nn import (
    combine_masks,
    dot_product_attention,
    dot_product_attention_weights,
    make_attention_mask,
    make_causal_mask,
    rotary_embedding,
)
from liftcore.typing import Array, ArrayLike, Dtype, Key

from .dense import DenseGeneral, default_kernel_init
from .initializers import Initializer, zeros_init
from .lifecycle.calling import compact
from .lifecycle.fields import options
from .module import Module, merge_param
from .normalization import LayerNorm

__all__ = [
    "MultiHeadAttention",
    "MultiHeadDotProductAttention",
    "SelfAttention",
    "combine_masks",
    "dot_product_attention",
    "dot_product_attention_weights",
    "make_attention_mask",
    "make_causal_mask",
    "rotary_embedding",
]


class MultiHeadDotProductAttention(Module):
    """Projects inputs to the queries, keys and values of several heads, attends in each, and projects the result.

    `out(attention_fn(query(inputs_q), key(inputs_k), value(inputs_v)))`, heads of `qkv_features / num_heads` features;
    see `liftcore.nn.dot_product_attention`. Source: Vaswani et al., https://arxiv.org/abs/1706.03762.

    Parameters: `query`, `key` and `value`, each a `DenseGeneral` to `(heads, head_features)` (keys and values may have
    fewer heads), and `out`, which maps back; with `normalize_qk`, the `LayerNorm` `query_ln` and `key_ln`, without
    biases.
    Collections: with `decode`, the `cache` of `liftcore.nn.decode_cache`. RNG streams: one draw from `dropout`.

    Example:
        >>> import jax
        >>> layer = MultiHeadDotProductAttention(num_heads=2, num_kv_heads=1, is_causal=True, rotary=rotary_embedding)
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 5, 8)))
        >>> y.shape, jax.tree.map(jnp.shape, variables["params"]["key"])
        ((1, 5, 8), {'bias': (1, 4), 'kernel': (8, 1, 4)})

    Attributes:
        num_heads: the number of heads.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernels of the projections.
        bias_init: makes the biases.
        use_bias: whether the projections have biases.
        qkv_features: the features of all heads together; by default the features of the queries' inputs.
        out_features: the size of the last axis of the result; by default the features of the queries' inputs.
        dropout_rate: the probability to drop a weight; the others are divided by `1 - dropout_rate`.
        broadcast_dropout: whether all heads and examples drop the same weights.
        force_fp32_for_softmax: whether to compute the softmax in `float32`, whatever the dtype; the weights are
            `float32`, too.
        is_causal: whether query `i` ignores keys after the `i`-th; a mask or bias may hide more.
        implementation: `"xla"` or `"cudnn"` calls `jax.nn.dot_product_attention`, with the softmax in `float32`.
            Dropout, sown weights, a precision and other products are then not supported. `"auto"` uses the kernel of
            `"cudnn"` on NVIDIA GPUs, and is None wherever that kernel does not support the dtype, sizes or options.
        deterministic: whether to disable dropout. With a dropout rate it is required, here or at the call.
        out_kernel_init, out_bias_init: make the kernel and the bias of `out`; by default `kernel_init` and `bias_init`.
        attention_fn: the attention function, called like `nn.dot_product_attention`. It gets the options that it has
            parameters for.
        decode: whether a call takes the next positions: a whole prompt, a part of it, or one position. Each attends to
            itself and to the earlier positions, which the cache holds. `init` makes a cache of the length of its
            inputs. Beyond the end of the cache, a call raises an error, or returns NaN if the index is traced; see
            `liftcore.nn.DecodeCache`.
        normalize_qk: whether queries and keys are normalized, https://arxiv.org/abs/2302.05442.
        qkv_dot_general, out_dot_general, qkv_dot_general_cls, out_dot_general_cls: the multiplication in the
            projections, called like `jax.lax.dot_general`, or a function that makes it.
        qk_attn_weights_einsum_cls, attn_weights_value_einsum_cls: functions that make the `einsum` of each product of
            attention; a Module class makes a submodule.
        num_kv_heads: the number of heads of keys and values, each shared by as many heads of queries; by default
            `num_heads`.
        rotary: rotates queries and keys by their positions before they are compared and cached, called as `rotary(x,
            positions)`: `rotary_embedding`, or a `functools.partial` of it.
        ragged_cache: whether each example has its own position in the cache, so that prompts in a batch may differ in
            length; by default all share one, as in Linen.
        qkv_sharding: the sharding of queries, keys and values, on a mesh of Explicit axes: a `PartitionSpec` or
            `NamedSharding`. By default it follows from the inputs and, for new axes, from the kernel.
        out_sharding: the sharding of the result, in the same form.
        cache_dtype: the dtype of the cached keys and values, independent of `dtype`; by default the dtype of the
            computation.
    """

    num_heads: int
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    qkv_features: int | None = None
    out_features: int | None = None
    broadcast_dropout: bool = True
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    precision: PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    out_kernel_init: Initializer | None = None
    bias_init: Initializer = zeros_init()
    out_bias_init: Initializer | None = None
    use_bias: bool = True
    attention_fn: Callable[..., Array] = dot_product_attention
    decode: bool = False
    normalize_qk: bool = False
    force_fp32_for_softmax: bool = False
    qkv_dot_general: Callable[..., Array] | None = None
    out_dot_general: Callable[..., Array] | None = None
    qkv_dot_general_cls: Any = None
    out_dot_general_cls: Any = None
    qk_attn_weights_einsum_cls: Callable[..., Callable[..., Array]] | None = None
    attn_weights_value_einsum_cls: Callable[..., Callable[..., Array]] | None = None
    num_kv_heads: int | None = field(default=None, kw_only=True)
    is_causal: bool = field(default=False, kw_only=True)
    rotary: Callable[[Array, ArrayLike], Array] | None = field(default=None, kw_only=True)
    implementation: str | None = field(default=None, kw_only=True)
    qkv_sharding: Any = field(default=None, kw_only=True)
    out_sharding: Any = field(default=None, kw_only=True)
    ragged_cache: bool = field(default=False, kw_only=True)
    cache_dtype: Dtype | None = field(default=None, kw_only=True)

    @compact
    def __call__(
        self,
        inputs_q: Array,
        inputs_k: Array | None = None,
        inputs_v: Array | None = None,
        *,
        inputs_kv: Array | None = None,
        mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        dropout_rng: Key | None = None,
        sow_weights: bool = False,
        positions: ArrayLike | None = None,
        key_positions: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> Array:
        """Map `(*batch, queries, features)` to `(*batch, queries, out_features)`.

        Args:
            inputs_q: the inputs of the queries.
            inputs_k: `(*batch, keys, features)`; by default `inputs_q`: self-attention.
            inputs_v: the inputs of the values; by default `inputs_k`.
            inputs_kv: deprecated; means both `inputs_k` and `inputs_v`.
            mask: `(*batch, heads, queries, keys)`, or broadcast to it: True, or a nonzero number, if a query may attend
                to a key.
            deterministic: whether to disable dropout; used instead of the field, if given.
            dropout_rng: the key for dropout, instead of a draw.
            sow_weights: whether to sow the attention weights into `intermediates`.
            positions: the positions of the queries, for `rotary`, `(*batch, queries)`; by default counted from 0, or
                from the current position of the cache.
            key_positions: the positions of the keys; in self-attention, by default those of the queries.
            lengths: `(*batch,)`: the number of valid inputs of each example; the inputs after them are padding, which
                is not cached. Use it to decode with `ragged_cache`.

        Raises:
            LiftArgumentError: if inputs, heads, masks and options do not match.
            ScopeVariableNotFoundError: if `decode` finds no cache.
        """
        where = f"{type(self).__name__} at {self.scope.path_text}"
        inputs_k, inputs_v = _keys_and_values(where, inputs_q, inputs_k, inputs_v, inputs_kv)
        _check_given(self, where, lengths, positions, key_positions)
        chosen = {**_dropout(self, deterministic, dropout_rng), **_products(self)}
        query, key, value = _projections(self, where, inputs_q, inputs_k, inputs_v)
        cache = None
        if self.decode:
            cache = nn.decode_cache(self.scope, key, value, ragged=self.ragged_cache, dtype=self.cache_dtype)
        if self.rotary is not None:
            counted = jnp.arange if cache is None else cache.positions
            positions = counted(query.shape[-3]) if positions is None else positions
            if key_positions is None:
                key_positions = positions if inputs_k is inputs_q else counted(key.shape[-3])
            query = _called(where, self.rotary, query, positions)
            key = _called(where, self.rotary, key, key_positions)
        if cache is not None:
            query, key, value, mask = cache.append(query, key, value, mask, lengths=lengths)
        chosen["is_causal"] = self.is_causal and cache is None  # the mask of the cache hides later positions
        if sow_weights:
            chosen["module"] = self
        given = options(self, dot_product_attention, mask=mask, **chosen)
        if self.attention_fn is not dot_product_attention:
            given = _taken(where, self.attention_fn, given)
        y = _called(where, self.attention_fn, query, key, value, **given)
        kernel_init, bias_init = self.out_kernel_init or self.kernel_init, self.out_bias_init or self.bias_init
        return DenseGeneral(
            features=self.out_features or inputs_q.shape[-1],
            axis=(-2, -1),
            name="out",
            dot_general=self.out_dot_general,
            dot_general_cls=self.out_dot_general_cls,
            **options(self, DenseGeneral, kernel_init=kernel_init, bias_init=bias_init),
        )(y)


class MultiHeadAttention(MultiHeadDotProductAttention):
    """A shorter name of `MultiHeadDotProductAttention`, also in automatic names: `MultiHeadAttention_0`.

    Example:
        >>> import jax
        >>> layer, x = MultiHeadAttention(num_heads=2, decode=True), jnp.ones((1, 5, 8))
        >>> variables = layer.init(jax.random.key(0), x)
        >>> y, mutated = layer.apply(variables, x[:, :3], mutable=["cache"])
        >>> y.shape, mutated["cache"]["cached_key"].shape
        ((1, 3, 8), (1, 5, 2, 4))
    """


class SelfAttention(MultiHeadDotProductAttention):
    """Deprecated: `MultiHeadDotProductAttention` with one input, and the mask as the second argument.

    Example:
        >>> import jax
        >>> layer = MultiHeadDotProductAttention(num_heads=2)  # the same parameters and results
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((3, 4)), mask=jnp.eye(3))
    """

    @compact
    def __call__(  # type: ignore[override]
        self,
        inputs_q: Array,
        mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        dropout_rng: Key | None = None,
        sow_weights: bool = False,
        *,
        positions: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> Array:
        """Map `(*batch, length, features)` to `(*batch, length, out_features)`; see the base class."""
        warnings.warn(
            "SelfAttention is deprecated: call `MultiHeadDotProductAttention` with one input, and pass the mask by "
            "keyword. Automatic names of modules and parameters change with the class; `name=` keeps them.",
            DeprecationWarning,
            stacklevel=3,
        )
        return super().__call__(
            inputs_q,
            mask=mask,
            deterministic=deterministic,
            dropout_rng=dropout_rng,
            sow_weights=sow_weights,
            positions=positions,
            lengths=lengths,
        )


# -- parts of the layer ------------------------------------------------------------------------------------------------


def _projections(module: MultiHeadDotProductAttention, where: str, *inputs: Array) -> tuple[Array, Array, Array]:
    """Return queries, keys and values, `(*batch, length, heads, head_features)`."""
    heads = module.num_heads
    kv_heads = heads if module.num_kv_heads is None else module.num_kv_heads
    size = nn.head_features(where, module.qkv_features or inputs[0].shape[-1], heads, kv_heads)
    dense = functools.partial(
        DenseGeneral,
        dot_general=module.qkv_dot_general,
        dot_general_cls=module.qkv_dot_general_cls,
        **options(module, DenseGeneral, out_sharding=module.qkv_sharding),
    )
    query, key, value = (
        dense(features=(number, size), name=name)(x)
        for name, number, x in zip(("query", "key", "value"), (heads, kv_heads, kv_heads), inputs, strict=True)
    )
    if module.normalize_qk:
        norm = functools.partial(LayerNorm, use_bias=False, dtype=module.dtype, param_dtype=module.param_dtype)
        query, key = norm(name="query_ln")(query), norm(name="key_ln")(key)
    return query, key, value


def _dropout(module: MultiHeadDotProductAttention, deterministic: bool | None, rng: Key | None) -> dict[str, Any]:
    """Return the options of dropout; `deterministic` is required only if there is a rate."""
    drops = module.dropout_rate > 0 and not merge_param("deterministic", module.deterministic, deterministic)
    return {
        "dropout_rng": module.make_rng("dropout") if drops and rng is None else rng,
        "deterministic": not drops,
    }


def _products(module: MultiHeadDotProductAttention) -> dict[str, Any]:
    """Make the `einsum` of each of the two products, if there is a field for it."""
    names = ("qk_attn_weights_einsum", "attn_weights_value_einsum")
    return {name: None if (made := getattr(module, f"{name}_cls")) is None else made() for name in names}


def _called(where: str, fn: Callable[..., Array], *args: Any, **given: Any) -> Array:
    """Call a function so that its errors name the layer."""
    try:
        return fn(*args, **given)
    except LiftArgumentError as error:
        error.reword(where=f"{error.where} of {where}")
        raise


def _taken(where: str, attention_fn: Callable[..., Array], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a function has parameters for.

    Raises:
        LiftArgumentError: if it has no parameter for an option that is set and changes the result.
    """
    parameters = inspect.signature(attention_fn).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return given
    drops = not given["deterministic"]
    matters = {name: option for name, option in given.items() if name in _MATTERS} | {"dropout_rate": drops or None}
    if given["implementation"] == "auto":  # does not change what is computed
        del matters["implementation"]
    for name, option in matters.items():
        if name not in parameters and option is not None and option is not False:
            what = f"attention_fn, {shown(attention_fn)}, has no parameter `{name}`, so this option would be lost."
            fix = f"Give it a parameter `{name}`, or leave that option out."
            raise LiftArgumentError(where, what, fix, option=name)
    return {name: option for name, option in given.items() if name in parameters}


_MATTERS = ("mask", "is_causal", "module", "implementation", "qk_attn_weights_einsum", "attn_weights_value_einsum")


# -- checks ------------------------------------------------------------------------------------------------------------


def _keys_and_values(
    where: str, inputs_q: Array, inputs_k: Array | None, inputs_v: Array | None, inputs_kv: Array | None
) -> tuple[Array, Array]:
    """Return the inputs of keys and values; fills in those that were left out."""
    if inputs_kv is not None:
        if inputs_k is not None or inputs_v is not None:
            what = "`inputs_kv` was given together with `inputs_k` or `inputs_v`, but it means both of them."
            raise LiftArgumentError(where, what, "Leave out `inputs_kv`, which is deprecated.", option="inputs_kv")
        warnings.warn("inputs_kv is deprecated: pass it as `inputs_k`.", DeprecationWarning, stacklevel=4)
        inputs_k = inputs_v = inputs_kv
    return nn.attention_inputs(where, inputs_q, inputs_k, inputs_v)


def _check_given(
    module: MultiHeadDotProductAttention, where: str, lengths: ArrayLike | None, *positions: ArrayLike | None
) -> None:
    """Check that the layer uses the positions and lengths that were given."""
    if module.rotary is None and any(one is not None for one in positions):
        what = "positions were given, but the layer does not use them."
        fix = "To rotate queries and keys by their positions, make it with `rotary=nn.rotary_embedding`."
        raise LiftArgumentError(where, what, fix, option="rotary")
    if lengths is not None and not (module.decode and module.ragged_cache):
        what = "lengths were given, but the layer has no cache with a position for each example."
        fix = "Make it with `decode=True, ragged_cache=True`. If it does not decode, hide padding with a mask."
        raise LiftArgumentError(where, what, fix, option="lengths")
