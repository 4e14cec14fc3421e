"""liftcore: JAX transformations inside stateful models.

A model is a function of a `Scope`, which owns its variables and its PRNG sequences. `init` and `apply` make pure
functions out of it. JAX's transformations are here for such functions, lifted, and `pack` makes more.

    entry          apply, bind, init, lazy_init
    scopes         Scope, Variable
    lifts          see liftcore.lift; and what happens to variables there: In, Out, InOut, broadcast
    your own       pack, Captured, Changes
    what happens   explain, retraces, assert_max_traces
    layers         liftcore.nn
    filters        liftcore.filters
    the rest       liftcore.errors, meta, rng, serialization, struct, frozen_dict, traverse_util, typing
"""

from __future__ import annotations

from . import errors, filters, frozen_dict, meta, nn, rng, serialization, struct, traverse_util, typing
from .entry import apply, bind, init, lazy_init
from .explanation import ExplainedLift, ExplainedSequence, ExplainedVariable, Explanation, explain
from .frozen_dict import FrozenDict, freeze, unfreeze
from .layout import Captured, Changes
from .lift import (
    NO_AXES,
    In,
    InOut,
    Out,
    add_metadata_axis,
    associative_scan,
    broadcast,
    checkify,
    checkpoint,
    cond,
    custom_jvp,
    custom_vjp,
    custom_vmap,
    eval_shape,
    fold_rngs,
    fori_loop,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jit,
    jvp,
    linearize,
    map,
    map_variables,
    named_call,
    pmap,
    purify,
    remat,
    remat_scan,
    scan,
    shard_map,
    swap_collection,
    switch,
    value_and_grad,
    vjp,
    vmap,
    while_loop,
    with_rngs,
)
from .pack import pack
from .retrace import Difference, Retrace, Retraces, assert_max_traces, retraces
from .scope import Scope
from .variable import Variable

__all__ = [
    "NO_AXES",
    "Captured",
    "Changes",
    "Difference",
    "ExplainedLift",
    "ExplainedSequence",
    "ExplainedVariable",
    "Explanation",
    "FrozenDict",
    "In",
    "InOut",
    "Out",
    "Retrace",
    "Retraces",
    "Scope",
    "Variable",
    "add_metadata_axis",
    "apply",
    "assert_max_traces",
    "associative_scan",
    "bind",
    "broadcast",
    "checkify",
    "checkpoint",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "errors",
    "eval_shape",
    "explain",
    "filters",
    "fold_rngs",
    "fori_loop",
    "freeze",
    "frozen_dict",
    "grad",
    "hessian",
    "init",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "lazy_init",
    "linearize",
    "map",
    "map_variables",
    "meta",
    "named_call",
    "nn",
    "pack",
    "pmap",
    "purify",
    "remat",
    "remat_scan",
    "retraces",
    "rng",
    "scan",
    "serialization",
    "shard_map",
    "struct",
    "swap_collection",
    "switch",
    "traverse_util",
    "typing",
    "unfreeze",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_rngs",
]
