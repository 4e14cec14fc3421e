"""Lifted transformations, one a file, each written with `pack`.

    mappings       vmap, map, pmap, shard_map, custom_vmap
    loops          scan, remat_scan, while_loop, fori_loop, associative_scan
    branches       cond, switch
    derivatives    grad, value_and_grad, vjp, jvp, linearize, jacfwd, jacrev, hessian, custom_vjp, custom_jvp
    compilation    jit, remat (checkpoint), named_call, eval_shape, purify, checkify
    variables      map_variables, swap_collection, add_metadata_axis, fold_rngs, with_rngs

How a body is run is told in `liftcore.bodies`.
"""

from __future__ import annotations

from ..bodies.axes import NO_AXES, In, InOut, Out, broadcast
from .associative_scan import associative_scan
from .checkify import checkify
from .cond import cond, switch
from .custom_jvp import custom_jvp
from .custom_vjp import custom_vjp
from .custom_vmap import custom_vmap
from .eval_shape import eval_shape
from .fold_rngs import fold_rngs
from .fori_loop import fori_loop
from .grad import grad, value_and_grad
from .jacobian import hessian, jacfwd, jacrev
from .jit import jit
from .jvp import jvp, linearize
from .map import map
from .map_variables import map_variables
from .metadata import add_metadata_axis
from .named_call import named_call
from .pmap import pmap
from .purify import purify
from .remat import checkpoint, remat
from .remat_scan import remat_scan
from .scan import scan
from .shard_map import shard_map
from .swap_collection import swap_collection
from .vjp import vjp
from .vmap import vmap
from .while_loop import while_loop
from .with_rngs import with_rngs

__all__ = [
    "NO_AXES",
    "In",
    "InOut",
    "Out",
    "add_metadata_axis",
    "associative_scan",
    "broadcast",
    "checkify",
    "checkpoint",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "eval_shape",
    "fold_rngs",
    "fori_loop",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "map",
    "map_variables",
    "named_call",
    "pmap",
    "purify",
    "remat",
    "remat_scan",
    "scan",
    "shard_map",
    "swap_collection",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_rngs",
]
