from .equinox import from_equinox
from .haiku import from_haiku
from .linen import from_linen
from .low_rank import with_lora
from .nnx import from_nnx
from .parts import watching

__all__ = ["from_equinox", "from_haiku", "from_linen", "from_nnx", "watching", "with_lora"]
