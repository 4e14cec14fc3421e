"""liftcore: JAX transformations inside stateful models.

A model is a function of a `Scope`, which owns its variables and its PRNG sequences. `init` and `apply` make pure
functions out of it. `vmap`, `scan`, `remat` and `jit` are those of JAX for such functions, and `pack` makes more.

    entry          apply, bind, init, lazy_init
    scopes         Scope, Variable
    lifts          vmap, scan, remat (checkpoint), jit; and what happens to variables there: In, Out, InOut, broadcast
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
from .lift import NO_AXES, In, InOut, Out, broadcast, checkpoint, jit, remat, scan, vmap
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
    "errors",
    "filters",
    "freeze",
    "frozen_dict",
    "init",
    "jit",
    "lazy_init",
    "nn",
    "pack",
    "remat",
    "rng",
    "scan",
    "serialization",
    "struct",
    "traverse_util",
    "typing",
    "unfreeze",
    "vmap",
]
