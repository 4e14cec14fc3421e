from . import bridge, errors, filterlib, graph, rnglib, spmd, statelib, traversals, variablelib
from .bridge.adopting import object_in_scope
from .crossing.metadata import PARTITION_NAME
from .filterlib import All, Any, Everything, Not, Nothing, OfType, PathContains, PathIn, WithTag
from .graph.capturing import capture
from .graph.changing import pop, set_metadata, update
from .graph.flattening import flatten, unflatten, unpack
from .graph.functions import GraphDef, PureState, call, clone, graphdef, map, merge, split, state, variables
from .layers import initializers
from .layers.activations import (
    PReLU,
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
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
from .layers.attention import MultiHeadAttention
from .layers.cell_base import RNNCellBase
from .layers.cells import GRUCell, SimpleCell
from .layers.convolution import Conv, ConvTranspose
from .layers.dot_product import dot_product_attention
from .layers.embedding import Embed
from .layers.equations import Einsum
from .layers.group_normalization import GroupNorm, InstanceNorm
from .layers.initializers import Initializer
from .layers.linear import Linear, LinearGeneral
from .layers.lora import LoRA, LoRALinear
from .layers.lstm_cells import LSTMCell, OptimizedLSTMCell
from .layers.masks import combine_masks, make_attention_mask, make_causal_mask
from .layers.normalization import BatchNorm, LayerNorm, RMSNorm
from .layers.pooling import avg_pool, max_pool, min_pool, pool
from .layers.recurrent import RNN, Bidirectional
from .layers.reparametrized import SpectralNorm, WeightNorm
from .layers.stochastic import Dropout
from .objects.containers import Dict, List, Sequential
from .objects.displaying import display
from .objects.markers import Data, Static, data, dataclass, has_data, is_data, register_data_type, static
from .objects.module import Module, iter_module_children, iter_modules
from .objects.pytree import Object, Pytree, check_pytree
from .objects.traversal import find_duplicates, iter_children, iter_graph, recursive_map
from .objects.viewing import view, view_info, with_attributes
from .rnglib.copies import with_rngs
from .rnglib.reseeding import reseed
from .rnglib.splitting import fork_rngs, restore_rngs, split_rngs
from .rnglib.streams import Rngs, RngStream
from .spmd import as_abstract, get_abstract_model, get_named_sharding, get_partition_spec, logical_axis_rules
from .statelib.functions import (
    filter_state,
    from_flat_state,
    map_state,
    merge_state,
    replace_by_pure_dict,
    restore_int_paths,
    split_state,
    to_flat_state,
    to_pure_dict,
)
from .statelib.graph_state import GraphState
from .statelib.pure import as_pure, pure
from .statelib.state import FlatState, State
from .summary.tabulation import tabulate
from .training import metrics, optimizer
from .training.ema import EMA
from .training.metrics import Metric, MultiMetric
from .training.optimizer import ModelAndOptimizer, OptArray, Optimizer, OptState, OptVariable
from .training.state import TrainState
from .transforms.associative_scan import associative_scan
from .transforms.batched_map import batched_map
from .transforms.branches import cond, switch
from .transforms.custom_jvp import custom_jvp
from .transforms.custom_vjp import custom_vjp
from .transforms.custom_vmap import custom_vmap
from .transforms.differentiation import DiffState
from .transforms.grad import grad, value_and_grad
from .transforms.jacobian import hessian, jacfwd, jacrev
from .transforms.jit import StateSharding, jit
from .transforms.jvp import jvp, linearize
from .transforms.lift import lift
from .transforms.loops import fori_loop, while_loop
from .transforms.pmap import pmap
from .transforms.remat_scan import remat_scan
from .transforms.scan import Carry, scan
from .transforms.shard_map import shard_map
from .transforms.uniform import checkify, checkpoint, eval_shape, make_jaxpr, named_call, remat
from .transforms.vjp import vjp
from .transforms.vmap import StateAxes, vmap
from .variablelib.kinds import (
    BatchStat,
    Cache,
    Intermediate,
    LoRAParam,
    Param,
    Perturbation,
    RngCount,
    RngKey,
    RngState,
    VariableState,
)
from .variablelib.metadata import VariableMetadata, with_metadata, with_partitioning
from .variablelib.registry import register_variable_name, variable_name_from_type, variable_type_from_name
from .variablelib.variable import Variable

__all__ = [
    "EMA",
    "PARTITION_NAME",
    "RNN",
    "All",
    "Any",
    "BatchNorm",
    "BatchStat",
    "Bidirectional",
    "Cache",
    "Carry",
    "Conv",
    "ConvTranspose",
    "Data",
    "Dict",
    "DiffState",
    "Dropout",
    "Einsum",
    "Embed",
    "Everything",
    "FlatState",
    "GRUCell",
    "GraphDef",
    "GraphState",
    "GroupNorm",
    "Initializer",
    "InstanceNorm",
    "Intermediate",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LinearGeneral",
    "List",
    "LoRA",
    "LoRALinear",
    "LoRAParam",
    "Metric",
    "ModelAndOptimizer",
    "Module",
    "MultiHeadAttention",
    "MultiMetric",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "OptArray",
    "OptState",
    "OptVariable",
    "OptimizedLSTMCell",
    "Optimizer",
    "PReLU",
    "Param",
    "PathContains",
    "PathIn",
    "Perturbation",
    "PureState",
    "Pytree",
    "RMSNorm",
    "RNNCellBase",
    "RngCount",
    "RngKey",
    "RngState",
    "RngStream",
    "Rngs",
    "Sequential",
    "SimpleCell",
    "SpectralNorm",
    "State",
    "StateAxes",
    "StateSharding",
    "Static",
    "TrainState",
    "Variable",
    "VariableMetadata",
    "VariableState",
    "WeightNorm",
    "WithTag",
    "as_abstract",
    "as_pure",
    "associative_scan",
    "avg_pool",
    "batched_map",
    "bridge",
    "call",
    "capture",
    "celu",
    "check_pytree",
    "checkify",
    "checkpoint",
    "clone",
    "combine_masks",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "data",
    "dataclass",
    "display",
    "dot_product_attention",
    "elu",
    "errors",
    "eval_shape",
    "filter_state",
    "filterlib",
    "find_duplicates",
    "flatten",
    "fori_loop",
    "fork_rngs",
    "from_flat_state",
    "gelu",
    "get_abstract_model",
    "get_named_sharding",
    "get_partition_spec",
    "glu",
    "grad",
    "graph",
    "graphdef",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "has_data",
    "hessian",
    "identity",
    "initializers",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "leaky_relu",
    "lift",
    "linearize",
    "log_sigmoid",
    "log_softmax",
    "logical_axis_rules",
    "logsumexp",
    "make_attention_mask",
    "make_causal_mask",
    "make_jaxpr",
    "map",
    "map_state",
    "max_pool",
    "merge",
    "merge_state",
    "metrics",
    "min_pool",
    "named_call",
    "object_in_scope",
    "one_hot",
    "optimizer",
    "pmap",
    "pool",
    "pop",
    "pure",
    "recursive_map",
    "register_data_type",
    "register_variable_name",
    "relu",
    "relu6",
    "remat",
    "remat_scan",
    "replace_by_pure_dict",
    "reseed",
    "restore_int_paths",
    "restore_rngs",
    "rnglib",
    "scan",
    "selu",
    "set_metadata",
    "shard_map",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "split",
    "split_rngs",
    "split_state",
    "spmd",
    "standardize",
    "state",
    "statelib",
    "static",
    "swish",
    "switch",
    "tabulate",
    "tanh",
    "to_flat_state",
    "to_pure_dict",
    "traversals",
    "unflatten",
    "unpack",
    "update",
    "value_and_grad",
    "variable_name_from_type",
    "variable_type_from_name",
    "variablelib",
    "variables",
    "view",
    "view_info",
    "vjp",
    "vmap",
    "while_loop",
    "with_attributes",
    "with_metadata",
    "with_partitioning",
    "with_rngs",
]
