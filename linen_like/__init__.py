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

from liftcore import FrozenDict, In, InOut, Out, Scope, Variable, broadcast, meta
from liftcore.filters import DenyList

from . import convert, errors, initializers
from .activation import (
    PReLU,
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
from .attention import (
    MultiHeadAttention,
    MultiHeadDotProductAttention,
    SelfAttention,
    combine_masks,
    dot_product_attention,
    dot_product_attention_weights,
    make_attention_mask,
    make_causal_mask,
    rotary_embedding,
)
from .batch_apply import BatchApply
from .combinators import Sequential
from .convolution import Conv, ConvLocal, ConvTranspose
from .embedding import Embed
from .fp8_ops import (
    Fp8DirectDotGeneralOp,
    Fp8DotGeneral,
    Fp8DotGeneralOp,
    Fp8Einsum,
    NANOOFp8DotGeneralOp,
)
from .initializers import ones, ones_init, zeros, zeros_init
from .lifecycle.calling import compact, compact_name_scope, nowrap
from .lifecycle.entry import apply, init, init_with_output
from .lifecycle.interception import (
    InterceptorContext,
    disable_named_call,
    enable_named_call,
    intercept_methods,
    override_named_call,
)
from .lifecycle.places import share_scope
from .linear import Dense, DenseGeneral, Einsum
from .lora import LoRA, LoRADense, merge_lora, unmerge_lora
from .module import Module, merge_param
from .normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm, SpectralNorm, WeightNorm
from .pooling import avg_pool, max_pool, min_pool, pool
from .recurrent import (
    RNN,
    Bidirectional,
    ConvLSTMCell,
    GRUCell,
    LSTMCell,
    MGUCell,
    OptimizedLSTMCell,
    RNNCellBase,
    SimpleCell,
)
from .spmd import (
    PARTITION_NAME,
    LogicallyPartitioned,
    Partitioned,
    add_metadata_axis,
    get_logical_axis_rules,
    get_partition_spec,
    get_sharding,
    logical_axis_rules,
    logical_to_mesh,
    logical_to_mesh_axes,
    logical_to_mesh_sharding,
    unbox,
    with_logical_constraint,
    with_logical_partitioning,
    with_partitioning,
)
from .stacks.stack import Stack
from .stacks.stacking import stack_layers, unstack_layers
from .stochastic import Dropout
from .summary import module_paths, summarize, tabulate
from .summary.explanation import explain
from .transforms.branches import cond, switch
from .transforms.compilation import checkify, checkpoint, eval_shape, jit, named_call, purify, remat
from .transforms.derivatives import grad, jvp, linearize, value_and_grad, vjp
from .transforms.jacobians import hessian, jacfwd, jacrev
from .transforms.loops import associative_scan, fori_loop, remat_scan, scan, while_loop
from .transforms.mapping import map, pmap, shard_map, vmap
from .transforms.rules import custom_jvp, custom_vjp, custom_vmap
from .transforms.variables import fold_rngs, map_variables, swap_collection, with_rngs

__all__ = [
    "PARTITION_NAME",
    "RNN",
    "BatchApply",
    "BatchNorm",
    "Bidirectional",
    "Conv",
    "ConvLSTMCell",
    "ConvLocal",
    "ConvTranspose",
    "Dense",
    "DenseGeneral",
    "DenyList",
    "Dropout",
    "Einsum",
    "Embed",
    "Fp8DirectDotGeneralOp",
    "Fp8DotGeneral",
    "Fp8DotGeneralOp",
    "Fp8Einsum",
    "FrozenDict",
    "GRUCell",
    "GroupNorm",
    "In",
    "InOut",
    "InstanceNorm",
    "InterceptorContext",
    "LSTMCell",
    "LayerNorm",
    "LoRA",
    "LoRADense",
    "LogicallyPartitioned",
    "MGUCell",
    "Module",
    "MultiHeadAttention",
    "MultiHeadDotProductAttention",
    "NANOOFp8DotGeneralOp",
    "OptimizedLSTMCell",
    "Out",
    "PReLU",
    "Partitioned",
    "RMSNorm",
    "RNNCellBase",
    "Scope",
    "SelfAttention",
    "Sequential",
    "SimpleCell",
    "SpectralNorm",
    "Stack",
    "Variable",
    "WeightNorm",
    "add_metadata_axis",
    "apply",
    "associative_scan",
    "avg_pool",
    "broadcast",
    "celu",
    "checkify",
    "checkpoint",
    "combine_masks",
    "compact",
    "compact_name_scope",
    "cond",
    "convert",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "disable_named_call",
    "dot_product_attention",
    "dot_product_attention_weights",
    "elu",
    "enable_named_call",
    "errors",
    "eval_shape",
    "explain",
    "fold_rngs",
    "fori_loop",
    "gelu",
    "get_logical_axis_rules",
    "get_partition_spec",
    "get_sharding",
    "glu",
    "grad",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "hessian",
    "init",
    "init_with_output",
    "initializers",
    "intercept_methods",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "leaky_relu",
    "linearize",
    "log_sigmoid",
    "log_softmax",
    "logical_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "logsumexp",
    "make_attention_mask",
    "make_causal_mask",
    "map",
    "map_variables",
    "max_pool",
    "merge_lora",
    "merge_param",
    "meta",
    "min_pool",
    "module_paths",
    "named_call",
    "normalize",
    "nowrap",
    "one_hot",
    "ones",
    "ones_init",
    "override_named_call",
    "pmap",
    "pool",
    "purify",
    "relu",
    "relu6",
    "remat",
    "remat_scan",
    "rotary_embedding",
    "scan",
    "selu",
    "shard_map",
    "share_scope",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "stack_layers",
    "standardize",
    "summarize",
    "swap_collection",
    "swish",
    "switch",
    "tabulate",
    "tanh",
    "unbox",
    "unmerge_lora",
    "unstack_layers",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_logical_constraint",
    "with_logical_partitioning",
    "with_partitioning",
    "with_rngs",
    "zeros",
    "zeros_init",
]
