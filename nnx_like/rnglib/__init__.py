"""RNG streams: named streams of keys, which can be split for a transformation and restored."""

from __future__ import annotations

from .copies import with_rngs
from .reseeding import reseed
from .splitting import fork_rngs, restore_rngs, split_rngs
from .streams import Rngs, RngStream

__all__ = ["RngStream", "Rngs", "fork_rngs", "reseed", "restore_rngs", "split_rngs", "with_rngs"]
