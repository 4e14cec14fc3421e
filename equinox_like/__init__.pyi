from . import errors
from .adopting import adopt
from .applied import Applied, Partial, trainable
from .checking import branched_error_if, error_if
from .derivatives import (
    filter_grad,
    filter_hessian,
    filter_jacfwd,
    filter_jacrev,
    filter_jvp,
    filter_value_and_grad,
    filter_vjp,
)
from .formatting import tree_pformat, tree_pprint
from .jit import filter_checkpoint, filter_jit
from .module import AbstractClassVar, AbstractVar, Module, field
from .rules import filter_custom_jvp, filter_custom_vjp
from .serialisation import tree_deserialise_leaves, tree_serialise_leaves
from .shapes import filter_closure_convert, filter_eval_shape, filter_make_jaxpr
from .shard import filter_shard
from .tree import (
    apply_updates,
    combine,
    filter,
    inference_mode,
    is_array,
    is_array_like,
    is_inexact_array,
    is_inexact_array_like,
    partition,
    tree_at,
    tree_equal,
    tree_inference,
)
from .vmap import filter_pmap, filter_vmap, if_array

__all__ = [
    "AbstractClassVar",
    "AbstractVar",
    "Applied",
    "Module",
    "Partial",
    "adopt",
    "apply_updates",
    "branched_error_if",
    "combine",
    "error_if",
    "errors",
    "field",
    "filter",
    "filter_checkpoint",
    "filter_closure_convert",
    "filter_custom_jvp",
    "filter_custom_vjp",
    "filter_eval_shape",
    "filter_grad",
    "filter_hessian",
    "filter_jacfwd",
    "filter_jacrev",
    "filter_jit",
    "filter_jvp",
    "filter_make_jaxpr",
    "filter_pmap",
    "filter_shard",
    "filter_value_and_grad",
    "filter_vjp",
    "filter_vmap",
    "if_array",
    "inference_mode",
    "is_array",
    "is_array_like",
    "is_inexact_array",
    "is_inexact_array_like",
    "partition",
    "trainable",
    "tree_at",
    "tree_deserialise_leaves",
    "tree_equal",
    "tree_inference",
    "tree_pformat",
    "tree_pprint",
    "tree_serialise_leaves",
]
