from .crossing.metadata import PARTITION_NAME
from .filters import All, Any, Everything, Not, Nothing, OfType, PathContains, PathIn, WithTag
from .graph.definition import static
from .graph.functions import GraphDef, clone, flatten, graphdef, merge, pop, split, state, unflatten, update, variables
from .layers.group_normalization import GroupNorm, InstanceNorm
from .layers.initializers import Initializer
from .layers.masks import combine_masks, make_attention_mask, make_causal_mask
from .layers.normalization import BatchNorm, LayerNorm, RMSNorm
from .layers.pooling import avg_pool, max_pool, min_pool, pool
from .objects.containers import Dict, List, Sequential
from .objects.markers import data, dataclass, has_data, is_data, register_data_type
from .objects.module import Module, iter_module_children, iter_modules
from .objects.pytree import Object, Pytree
from .objects.traversal import find_duplicates, iter_children, iter_graph, recursive_map
from .rngs.streams import Rngs, RngStream
from .states.functions import (
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
from .states.graph_state import GraphState, PureState
from .states.pure import as_pure
from .states.state import FlatState, State
from .variables.kinds import (
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
from .variables.metadata import VariableMetadata, with_metadata, with_partitioning
from .variables.registry import register_variable_name, variable_name_from_type, variable_type_from_name
from .variables.variable import Variable

__all__ = [
    "PARTITION_NAME",
    "All",
    "Any",
    "BatchNorm",
    "BatchStat",
    "Cache",
    "Dict",
    "Everything",
    "FlatState",
    "GraphDef",
    "GraphState",
    "GroupNorm",
    "Initializer",
    "InstanceNorm",
    "Intermediate",
    "LayerNorm",
    "List",
    "LoRAParam",
    "Module",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "Param",
    "PathContains",
    "PathIn",
    "Perturbation",
    "PureState",
    "Pytree",
    "RMSNorm",
    "RngCount",
    "RngKey",
    "RngState",
    "RngStream",
    "Rngs",
    "Sequential",
    "State",
    "Variable",
    "VariableMetadata",
    "VariableState",
    "WithTag",
    "as_pure",
    "avg_pool",
    "clone",
    "combine_masks",
    "data",
    "dataclass",
    "filter_state",
    "find_duplicates",
    "flatten",
    "from_flat_state",
    "graphdef",
    "has_data",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "make_attention_mask",
    "make_causal_mask",
    "map_state",
    "max_pool",
    "merge",
    "merge_state",
    "min_pool",
    "pool",
    "pop",
    "recursive_map",
    "register_data_type",
    "register_variable_name",
    "replace_by_pure_dict",
    "restore_int_paths",
    "split",
    "split_state",
    "state",
    "static",
    "to_flat_state",
    "to_pure_dict",
    "unflatten",
    "update",
    "variable_name_from_type",
    "variable_type_from_name",
    "variables",
    "with_metadata",
    "with_partitioning",
]
