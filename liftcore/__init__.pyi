from . import (
    caches,
    calls,
    checkpoints,
    cursor,
    diagnostics,
    errors,
    filters,
    foreign,
    frozen_dict,
    generation,
    lazy,
    mesh_specs,
    meta,
    nn,
    owners,
    pickling,
    pipeline,
    problems,
    pytrees,
    rng,
    scope,
    serialization,
    statics,
    struct,
    training,
    traverse_util,
    typing,
)
from .caches import clear_caches
from .configurations import config
from .diagnostics.explanation import ExplainedLift, ExplainedStream, ExplainedVariable, Explanation, explain
from .diagnostics.operations import OperationCount, count_operations
from .diagnostics.retrace import Difference, Retrace, Retraces, assert_max_traces, retraces
from .entry import apply, bind, init, lazy_init
from .filters import DenyList
from .frozen_dict import FrozenDict, copy, freeze, pop, pretty_repr, unfreeze
from .lift.associative_scan import associative_scan
from .lift.checkify import checkify
from .lift.cond import cond, switch
from .lift.custom_jvp import custom_jvp
from .lift.custom_vjp import custom_vjp
from .lift.custom_vmap import custom_vmap
from .lift.eval_shape import eval_shape
from .lift.filtered import filtered
from .lift.fold_rngs import fold_rngs
from .lift.fori_loop import fori_loop
from .lift.grad import grad, value_and_grad
from .lift.jacobian import hessian, jacfwd, jacrev
from .lift.jit import jit
from .lift.jvp import jvp, linearize
from .lift.map import map
from .lift.map_variables import map_variables
from .lift.metadata import add_metadata_axis
from .lift.named_call import named_call
from .lift.pmap import pmap
from .lift.purify import purify
from .lift.remat import checkpoint, remat
from .lift.remat_scan import remat_scan
from .lift.scan import scan
from .lift.shard_map import shard_map
from .lift.swap_collection import swap_collection
from .lift.vjp import vjp
from .lift.vmap import vmap
from .lift.while_loop import while_loop
from .lift.with_rngs import with_rngs
from .meta import AxisMetadata, unbox
from .pipeline.body import Body
from .pipeline.packing import lifter_of, outline, pack, transformation
from .pipeline.splitting import Prologue, Split
from .pipeline.stages import Changes
from .pytrees import is_array, is_traceable
from .rest import Rest, flatten_static, join_static, split_static
from .runners.axes import NO_AXES, In, InOut, InPlace, Out, broadcast
from .runners.jitted import CompiledJit, Jitted, LoweredJit
from .runners.looping import Loop
from .scopes.blueprint import Blueprint
from .scopes.lifts import Advice, Captured
from .scopes.scope import Scope
from .scopes.scoped import Scoped, Variable, is_scoped, split_scoped
from .sharded_init import ShardedInit, init_sharded
from .statics import static_key
from .tracing import SharedTraces, jaxpr_of, trace_state

Use = Body  # its former name

__all__ = [
    "NO_AXES",
    "Advice",
    "AxisMetadata",
    "Blueprint",
    "Body",
    "Captured",
    "Changes",
    "CompiledJit",
    "DenyList",
    "Difference",
    "ExplainedLift",
    "ExplainedStream",
    "ExplainedVariable",
    "Explanation",
    "FrozenDict",
    "In",
    "InOut",
    "InPlace",
    "Jitted",
    "Loop",
    "LoweredJit",
    "OperationCount",
    "Out",
    "Prologue",
    "Rest",
    "Retrace",
    "Retraces",
    "Scope",
    "Scoped",
    "ShardedInit",
    "SharedTraces",
    "Split",
    "Variable",
    "add_metadata_axis",
    "apply",
    "assert_max_traces",
    "associative_scan",
    "bind",
    "broadcast",
    "caches",
    "calls",
    "checkify",
    "checkpoint",
    "checkpoints",
    "clear_caches",
    "cond",
    "config",
    "copy",
    "count_operations",
    "cursor",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "diagnostics",
    "errors",
    "eval_shape",
    "explain",
    "filtered",
    "filters",
    "flatten_static",
    "fold_rngs",
    "foreign",
    "fori_loop",
    "freeze",
    "frozen_dict",
    "generation",
    "grad",
    "hessian",
    "init",
    "init_sharded",
    "is_array",
    "is_scoped",
    "is_traceable",
    "jacfwd",
    "jacrev",
    "jaxpr_of",
    "jit",
    "join_static",
    "jvp",
    "lazy",
    "lazy_init",
    "lifter_of",
    "linearize",
    "map",
    "map_variables",
    "mesh_specs",
    "meta",
    "named_call",
    "nn",
    "outline",
    "owners",
    "pack",
    "pickling",
    "pipeline",
    "pmap",
    "pop",
    "pretty_repr",
    "problems",
    "purify",
    "pytrees",
    "remat",
    "remat_scan",
    "retraces",
    "rng",
    "scan",
    "scope",
    "serialization",
    "shard_map",
    "split_scoped",
    "split_static",
    "static_key",
    "statics",
    "struct",
    "swap_collection",
    "switch",
    "trace_state",
    "training",
    "transformation",
    "traverse_util",
    "typing",
    "unbox",
    "unfreeze",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_rngs",
]
