"""Lifted transformations, one a file, each written with `pack`.

mappings       vmap
loops          scan, while_loop, fori_loop
branches       cond, switch
derivatives    grad, value_and_grad, vjp, jvp, linearize, jacfwd, jacrev, hessian, custom_vjp, custom_jvp
compilation    jit, remat (checkpoint)
"""

from __future__ import annotations

from .axes import NO_AXES, In, InOut, Out, broadcast
from .cond import cond, switch
from .custom_jvp import custom_jvp
from .custom_vjp import custom_vjp
from .fori_loop import fori_loop
from .grad import grad, value_and_grad
from .jacobian import hessian, jacfwd, jacrev
from .jit import jit
from .jvp import jvp, linearize
from .remat import checkpoint, remat
from .scan import scan
from .vjp import vjp
from .vmap import vmap
from .while_loop import while_loop

__all__ = [
    "NO_AXES",
    "In",
    "InOut",
    "Out",
    "broadcast",
    "checkpoint",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "fori_loop",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "remat",
    "scan",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
