from . import initializers
from .activation import prelu
from .attention import attention_inputs, dot_product_attention, dot_product_attention_weights, head_features
from .convolution import conv, conv_local, conv_transpose
from .cudnn_attention import kernel_attention
from .decoding import DecodeCache, decode_cache
from .fp8 import Fp8Meta, fp8_dot_general, fp8_einsum, fp8_simulated_dot_general
from .kernels import check_kernel_mask, convolve, convolve_transpose
from .layer import (
    OptionKind,
    PromoteDtypeFn,
    canonicalize_dtype,
    check_option,
    checks_options,
    normalize_axes,
    option_kind,
    promote_dtype,
    to_tuple,
)
from .linear import affine, affine_einsum, dense, dense_general, einsum
from .lookup import Embedding, embedding
from .low_rank import LowRankEmbedding, lora, lora_conv, lora_einsum, lora_embedding
from .low_rank_merging import merge_lora, unmerge_lora
from .masks import check_mask, combine_masks, make_attention_mask, make_causal_mask, split_mask
from .normalization import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from .pooling import avg_pool, max_pool, min_pool, pool
from .recurrent import (
    Sequences,
    check_carry,
    check_cell,
    check_layer,
    concatenate_features,
    flip_sequences,
    gru_step,
    lstm_step,
    run_cell,
)
from .reparametrization import spectral_normalize, unit_norm
from .rotary import rotary_embedding, rotate_pairs, rotation_table
from .sharding import align, gather, is_sharded, on_auto_axes, product_sharding, reshape, shard_like, sharding_entries
from .statistics import (
    Normalization,
    abs_square,
    averager,
    group_axes,
    group_sizes,
    instance_axes,
    moments,
    standardize,
    to_reduction_dtype,
)
from .stochastic import drop, dropout
from .windows import PaddingLike

__all__ = [
    "DecodeCache",
    "Embedding",
    "Fp8Meta",
    "LowRankEmbedding",
    "Normalization",
    "OptionKind",
    "PaddingLike",
    "PromoteDtypeFn",
    "Sequences",
    "abs_square",
    "affine",
    "affine_einsum",
    "align",
    "attention_inputs",
    "averager",
    "avg_pool",
    "batch_norm",
    "canonicalize_dtype",
    "check_carry",
    "check_cell",
    "check_kernel_mask",
    "check_layer",
    "check_mask",
    "check_option",
    "checks_options",
    "combine_masks",
    "concatenate_features",
    "conv",
    "conv_local",
    "conv_transpose",
    "convolve",
    "convolve_transpose",
    "decode_cache",
    "dense",
    "dense_general",
    "dot_product_attention",
    "dot_product_attention_weights",
    "drop",
    "dropout",
    "einsum",
    "embedding",
    "flip_sequences",
    "fp8_dot_general",
    "fp8_einsum",
    "fp8_simulated_dot_general",
    "gather",
    "group_axes",
    "group_norm",
    "group_sizes",
    "gru_step",
    "head_features",
    "initializers",
    "instance_axes",
    "instance_norm",
    "is_sharded",
    "kernel_attention",
    "layer_norm",
    "lora",
    "lora_conv",
    "lora_einsum",
    "lora_embedding",
    "lstm_step",
    "make_attention_mask",
    "make_causal_mask",
    "max_pool",
    "merge_lora",
    "min_pool",
    "moments",
    "normalize_axes",
    "on_auto_axes",
    "option_kind",
    "pool",
    "prelu",
    "product_sharding",
    "promote_dtype",
    "reshape",
    "rms_norm",
    "rotary_embedding",
    "rotate_pairs",
    "rotation_table",
    "run_cell",
    "shard_like",
    "sharding_entries",
    "spectral_normalize",
    "split_mask",
    "standardize",
    "to_reduction_dtype",
    "to_tuple",
    "unit_norm",
    "unmerge_lora",
]
