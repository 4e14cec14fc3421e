"""Lifted transformations of Module classes, of methods and of functions of a module, by family.

Names, order and defaults of the arguments are those of `flax.linen`; what is added is keyword-only. Those that Linen
has for classes are given a class or a function and return one; those that it runs at once are called as
`nn.grad(fn, mdl, *args)`. The ones that Linen does not have keep to these two forms.
"""

from __future__ import annotations

from .branches import cond, switch
from .compilation import checkify, checkpoint, eval_shape, jit, named_call, purify, remat
from .derivatives import grad, jvp, linearize, value_and_grad, vjp
from .jacobians import hessian, jacfwd, jacrev
from .loops import associative_scan, fori_loop, remat_scan, scan, while_loop
from .mapping import map, pmap, shard_map, vmap
from .rules import custom_jvp, custom_vjp, custom_vmap
from .variables import fold_rngs, map_variables, swap_collection, with_rngs

__all__ = [
    "associative_scan",
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
