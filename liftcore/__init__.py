"""liftcore: JAX transformations inside stateful models.

A model is a function of a `Scope`, which owns its variables and its PRNG sequences. `init` and `apply` make pure
functions out of it. `vmap`, `scan`, `remat` and `jit` are those of JAX for such functions, and `pack` makes more.

    entry          apply, bind, init, lazy_init
    scopes         Scope, Variable
    lifts          see liftcore.lift; and what happens to variables there: In, Out, InOut, broadcast
    your own       pack, Captured, Changes
    layers         liftcore.nn
    filters        liftcore.filters
    the rest       liftcore.errors, rng, serialization, struct, frozen_dict, traverse_util, typing
"""

from __future__ import annotations

from . import errors, filters, frozen_dict, nn, rng, serialization, struct, traverse_util, typing
from .entry import apply, bind, init, lazy_init
from .frozen_dict import FrozenDict, freeze, unfreeze
from .layout import Captured, Changes
from .lift import (
    NO_AXES,
    In,
    InOut,
    Out,
    broadcast,
    checkpoint,
    cond,
    custom_jvp,
    custom_vjp,
    fori_loop,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jit,
    jvp,
    linearize,
    remat,
    scan,
    switch,
    value_and_grad,
    vjp,
    vmap,
    while_loop,
)
from .pack import pack
from .scope import Scope, Variable

__all__ = [
    "NO_AXES",
    "Captured",
    "Changes",
    "FrozenDict",
    "In",
    "InOut",
    "Out",
    "Scope",
    "Variable",
    "apply",
    "bind",
    "broadcast",
    "checkpoint",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "errors",
    "filters",
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
    "nn",
    "pack",
    "remat",
    "rng",
    "scan",
    "serialization",
    "struct",
    "switch",
    "traverse_util",
    "typing",
    "unfreeze",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
