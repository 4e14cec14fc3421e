from .activation import prelu
from .attention import dot_product_attention, dot_product_attention_weights
from .convolution import conv, conv_local, conv_transpose
from .decoding import DecodeCache, decode_cache
from .dtypes import PromoteDtypeFn, canonicalize_dtype, promote_dtype
from .fp8 import Fp8Meta, fp8_dot_general, fp8_einsum, fp8_simulated_dot_general
from .linear import dense, dense_general, einsum
from .lookup import Embedding, embedding
from .low_rank import lora, merge_lora, unmerge_lora
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
