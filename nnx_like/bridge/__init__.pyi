from liftcore.meta import with_partitioning

from .adopting import Adopted, adopt, object_in_scope
from .linen_module import ToLinen, to_linen
from .stateless import Functional, functional
from .variables import (
    NNXMeta,
    linen_vars_to_nnx_attrs,
    nnx_attrs_to_linen_vars,
    to_linen_var,
    to_nnx_var,
)
from .wrapping import FromLinen, LinenPart, ToNNX, lazy_init

__all__ = [
    "Adopted",
    "FromLinen",
    "Functional",
    "LinenPart",
    "NNXMeta",
    "ToLinen",
    "ToNNX",
    "adopt",
    "functional",
    "lazy_init",
    "linen_vars_to_nnx_attrs",
    "nnx_attrs_to_linen_vars",
    "object_in_scope",
    "to_linen",
    "to_linen_var",
    "to_nnx_var",
    "with_partitioning",
]
