"""Lifted transformations, one a file, each written with `pack`."""

from __future__ import annotations

from .axes import NO_AXES, In, InOut, Out, broadcast
from .jit import jit
from .remat import checkpoint, remat
from .scan import scan
from .vmap import vmap

__all__ = ["NO_AXES", "In", "InOut", "Out", "broadcast", "checkpoint", "jit", "remat", "scan", "vmap"]
