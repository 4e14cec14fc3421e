from .flat import empty_node, flatten_dict, path_aware_map, unflatten_dict
from .traversals import (
    ModelParamTraversal,
    Traversal,
    TraverseAttr,
    TraverseCompose,
    TraverseEach,
    TraverseFilter,
    TraverseId,
    TraverseItem,
    TraverseMerge,
    TraverseTree,
    t_identity,
)

__all__ = [
    "ModelParamTraversal",
    "Traversal",
    "TraverseAttr",
    "TraverseCompose",
    "TraverseEach",
    "TraverseFilter",
    "TraverseId",
    "TraverseItem",
    "TraverseMerge",
    "TraverseTree",
    "empty_node",
    "flatten_dict",
    "path_aware_map",
    "t_identity",
    "unflatten_dict",
]
