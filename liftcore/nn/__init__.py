"""Functional layers: plain functions that keep their parameters in a scope.

    linear                           dense, dense_general, einsum; affine and affine_einsum, with given parameters
    convolution                      conv, conv_local, conv_transpose
    kernels                          convolve, convolve_transpose: convolutions with given parameters
    embedding                        embedding
    normalization                    batch_norm, layer_norm, rms_norm, group_norm, instance_norm
    stochastic                       dropout, and drop, which takes a key
    activation                       prelu
    attention                        dot_product_attention, dot_product_attention_weights; checks of inputs and heads
    cudnn_attention                  kernel_attention: a fused kernel where it can be used
    masks                            make_attention_mask and others for attention; check_mask, split_mask for statistics
    rotary, decoding                 for attention: positions, and the cache for decoding
    fp8                              fp8_dot_general, fp8_simulated_dot_general, fp8_einsum: products of 8-bit numbers
    low_rank                         lora, lora_einsum, lora_conv, lora_embedding: updates of low rank;
                                     merge_lora, unmerge_lora for trees of variables
    pooling                          max_pool, min_pool, avg_pool, pool, which need no scope
    layer                            what every layer does first: checks_options, check_option, option_kind, to_tuple,
                                     normalize_axes, canonicalize_dtype, promote_dtype
    statistics                       Normalization, and its parts: averager, moments, standardize, axes, groups
    reparametrization                unit_norm, spectral_normalize: weights that are rescaled before use
    recurrent                        lstm_step, gru_step, run_cell, Sequences, flip_sequences, and checks
    initializers                     those of JAX, with zeros_init and ones_init

Names of parameters, numbers and dtypes are those of `flax.linen`.

Example:
    >>> import jax, jax.numpy as jnp, liftcore
    >>> from liftcore.nn import dense
    >>> def mlp(scope, x):
    ...     x = jax.nn.relu(dense(scope.push("hidden"), x, 8))
    ...     return dense(scope.push("out"), x, 2)
    >>> y, variables = liftcore.init(mlp)(jax.random.key(0), jnp.ones((1, 3)))
    >>> jax.tree.map(jnp.shape, variables["params"]["out"])
    {'bias': (2,), 'kernel': (8, 2)}
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
