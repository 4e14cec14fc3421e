"""Functional layers: plain functions of a scope, which keep their parameters there.

    linear                           dense, dense_general, einsum
    convolution                      conv, conv_local, conv_transpose
    embedding                        embedding
    normalization                    batch_norm, layer_norm, rms_norm, group_norm, instance_norm
    stochastic                       dropout
    activation                       prelu
    attention                        dot_product_attention, dot_product_attention_weights
    masks, rotary, decoding          of attention: masks, positions, and the cache to decode with
    fp8                              fp8_dot_general, fp8_simulated_dot_general, fp8_einsum: products of 8-bit numbers
    lora                             lora, and merge_lora, unmerge_lora for trees of variables
    pooling                          max_pool, min_pool, avg_pool, pool, which need no scope
    dtypes                           canonicalize_dtype, promote_dtype: the dtype that a layer computes in

Names of parameters, numbers and dtypes are those of `flax.linen`.

Example:
    >>> import jax, jax.numpy as jnp, liftcore
    >>> def mlp(scope, x):
    ...     x = jax.nn.relu(dense(scope.push("hidden"), x, 8))
    ...     return dense(scope.push("out"), x, 2)
    >>> y, variables = liftcore.init(mlp)(jax.random.key(0), jnp.ones((1, 3)))
    >>> jax.tree.map(jnp.shape, variables["params"]["out"])
    {'bias': (2,), 'kernel': (8, 2)}
"""

from .activation import prelu
from .attention import dot_product_attention, dot_product_attention_weights
from .convolution import conv, conv_local, conv_transpose
from .decoding import DecodeCache, decode_cache
from .dtypes import PromoteDtypeFn, canonicalize_dtype, promote_dtype
from .embedding import Embedding, embedding
from .fp8 import Fp8Meta, fp8_dot_general, fp8_einsum, fp8_simulated_dot_general
from .linear import dense, dense_general, einsum
from .lora import lora, merge_lora, unmerge_lora
from .masks import combine_masks, make_attention_mask, make_causal_mask
from .normalization import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from .pooling import avg_pool, max_pool, min_pool, pool
from .rotary import rotary_embedding
from .stochastic import dropout
from .windows import PaddingLike

__all__ = [
    "DecodeCache",
    "Embedding",
    "Fp8Meta",
    "PaddingLike",
    "PromoteDtypeFn",
    "avg_pool",
    "batch_norm",
    "canonicalize_dtype",
    "combine_masks",
    "conv",
    "conv_local",
    "conv_transpose",
    "decode_cache",
    "dense",
    "dense_general",
    "dot_product_attention",
    "dot_product_attention_weights",
    "dropout",
    "einsum",
    "embedding",
    "fp8_dot_general",
    "fp8_einsum",
    "fp8_simulated_dot_general",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "lora",
    "make_attention_mask",
    "make_causal_mask",
    "max_pool",
    "merge_lora",
    "min_pool",
    "pool",
    "prelu",
    "promote_dtype",
    "rms_norm",
    "rotary_embedding",
    "unmerge_lora",
]
