from ..lifting import transformation
from .compilation import checkify, checkpoint, eval_shape, jit, named_call, purify, remat
from .control_flow import associative_scan, cond, fori_loop, remat_scan, scan, switch, while_loop
from .derivatives import grad, hessian, jacfwd, jacrev, jvp, linearize, value_and_grad, vjp
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
    "transformation",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_rngs",
]
