"""linen_like: a Module layer with the API of `flax.linen`, on top of liftcore."""

from __future__ import annotations

from liftcore.filters import DenyList as DenyList
from liftcore.scope import Scope as Scope
from liftcore.scope import Variable as Variable

from .calling import compact as compact
from .calling import nowrap as nowrap
from .entry import apply as apply
from .entry import init as init
from .entry import init_with_output as init_with_output
from .module import Module as Module
from .module import merge_param as merge_param

__all__ = [
    "DenyList",
    "Module",
    "Scope",
    "Variable",
    "apply",
    "compact",
    "init",
    "init_with_output",
    "merge_param",
    "nowrap",
]
