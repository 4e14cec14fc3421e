from .crossing.metadata import PARTITION_NAME
from .filters import All, Any, Everything, Not, Nothing, OfType, PathContains, PathIn, WithTag
from .graph.definition import static
from .graph.functions import GraphDef, clone, flatten, graphdef, merge, pop, split, state, unflatten, update, variables
from .layers.activations import PReLU, celu, elu, gelu, glu, hard_sigmoid, hard_silu, hard_swish, hard_tanh, identity, leaky_relu, log_sigmoid, log_softmax, logsumexp, one_hot, relu, relu6, selu, sigmoid, silu, soft_sign, softmax, softplus, standardize, swish, tanh
from .layers.cells import GRUCell, RNNCellBase, SimpleCell
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
from .layers.reparametrized import SpectralNorm, WeightNorm
from .layers.stochastic import Dropout
from .objects.containers import Dict, List, Sequential
from .objects.displaying import display
from .objects.markers import data, dataclass, has_data, is_data, register_data_type
from .objects.module import Module, iter_module_children, iter_modules
from .objects.pytree import Object, Pytree
from .objects.traversal import find_duplicates, iter_children, iter_graph, recursive_map
from .objects.viewing import view, view_info, with_attributes
from .rngs.copies import with_rngs
from .rngs.reseeding import reseed
from .rngs.splitting import fork_rngs, restore_rngs, split_rngs
from .rngs.streams import RngStream, Rngs
from .states.functions import filter_state, from_flat_state, map_state, merge_state, replace_by_pure_dict, restore_int_paths, split_state, to_flat_state, to_pure_dict
from .states.graph_state import GraphState, PureState
from .states.pure import as_pure
from .states.state import FlatState, State
from .transforms.jit import StateSharding, jit
from .transforms.vmap import StateAxes, vmap
from .variables.kinds import BatchStat, Cache, Intermediate, LoRAParam, Param, Perturbation, RngCount, RngKey, RngState, VariableState
from .variables.metadata import VariableMetadata, with_metadata, with_partitioning
from .variables.registry import register_variable_name, variable_name_from_type, variable_type_from_name
from .variables.variable import Variable

__all__ = [
    "All",
    "Any",
    "BatchNorm",
    "BatchStat",
    "Cache",
    "Conv",
    "ConvTranspose",
    "Dict",
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
    "Module",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "OptimizedLSTMCell",
    "PARTITION_NAME",
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
    "Variable",
    "VariableMetadata",
    "VariableState",
    "WeightNorm",
    "WithTag",
    "as_pure",
    "avg_pool",
    "celu",
    "clone",
    "combine_masks",
    "data",
    "dataclass",
    "display",
    "dot_product_attention",
    "elu",
    "filter_state",
    "find_duplicates",
    "flatten",
    "fork_rngs",
    "from_flat_state",
    "gelu",
    "glu",
    "graphdef",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "has_data",
    "identity",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "jit",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "make_attention_mask",
    "make_causal_mask",
    "map_state",
    "max_pool",
    "merge",
    "merge_state",
    "min_pool",
    "one_hot",
    "pool",
    "pop",
    "recursive_map",
    "register_data_type",
    "register_variable_name",
    "relu",
    "relu6",
    "replace_by_pure_dict",
    "reseed",
    "restore_int_paths",
    "restore_rngs",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "split",
    "split_rngs",
    "split_state",
    "standardize",
    "state",
    "static",
    "swish",
    "tanh",
    "to_flat_state",
    "to_pure_dict",
    "unflatten",
    "update",
    "variable_name_from_type",
    "variable_type_from_name",
    "variables",
    "view",
    "view_info",
    "vmap",
    "with_attributes",
    "with_metadata",
    "with_partitioning",
    "with_rngs",
]
