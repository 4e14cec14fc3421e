"""linen_like: a Module layer with the API of `flax.linen`, on top of liftcore.

Example:
    >>> import jax, linen_like as nn
    >>> class MLP(nn.Module):
    ...     features: tuple[int, ...]
    ...     @nn.compact
    ...     def __call__(self, x):
    ...         for size in self.features[:-1]:
    ...             x = nn.relu(nn.Dense(size)(x))
    ...         return nn.Dense(self.features[-1])(x)
    >>> model, x = MLP((8, 2)), jax.numpy.ones((5, 3))
    >>> variables = model.init(jax.random.key(0), x)
    >>> list(variables["params"])
    ['Dense_0', 'Dense_1']
    >>> model.apply(variables, x).shape
    (5, 2)
"""

from __future__ import annotations

from liftcore import FrozenDict, In, InOut, Out, Scope, Variable, broadcast
from liftcore.filters import DenyList

from . import errors, initializers
from .activation import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    normalize,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
    tanh,
)
from .calling import compact, nowrap
from .combinators import Sequential
from .convolution import Conv
from .embedding import Embed
from .entry import apply, init, init_with_output
from .initializers import ones_init, zeros_init
from .linear import Dense
from .module import Module, merge_param
from .normalization import BatchNorm, LayerNorm
from .pooling import avg_pool, max_pool, min_pool, pool
from .stochastic import Dropout
from .transforms import checkpoint, jit, remat, scan, vmap

__all__ = [
    "BatchNorm",
    "Conv",
    "Dense",
    "DenyList",
    "Dropout",
    "Embed",
    "FrozenDict",
    "In",
    "InOut",
    "LayerNorm",
    "Module",
    "Out",
    "Scope",
    "Sequential",
    "Variable",
    "apply",
    "avg_pool",
    "broadcast",
    "celu",
    "checkpoint",
    "compact",
    "elu",
    "errors",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "init",
    "init_with_output",
    "initializers",
    "jit",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "max_pool",
    "merge_param",
    "min_pool",
    "normalize",
    "nowrap",
    "one_hot",
    "ones_init",
    "pool",
    "relu",
    "relu6",
    "remat",
    "scan",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "tanh",
    "vmap",
    "zeros_init",
]
