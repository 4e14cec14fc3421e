"""Functional layers: plain functions of a scope, which keep their parameters there.

    linear, convolution, embedding   dense, conv, embedding
    normalization                    batch_norm, layer_norm
    stochastic                       dropout
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

from .convolution import conv
from .dtypes import PromoteDtypeFn, canonicalize_dtype, promote_dtype
from .embedding import Embedding, embedding
from .linear import dense
from .normalization import batch_norm, layer_norm
from .pooling import avg_pool, max_pool, min_pool, pool
from .stochastic import dropout
from .windows import PaddingLike

__all__ = [
    "Embedding",
    "PaddingLike",
    "PromoteDtypeFn",
    "avg_pool",
    "batch_norm",
    "canonicalize_dtype",
    "conv",
    "dense",
    "dropout",
    "embedding",
    "layer_norm",
    "max_pool",
    "min_pool",
    "pool",
    "promote_dtype",
]
