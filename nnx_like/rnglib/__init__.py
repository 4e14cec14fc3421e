"""RNG streams: named streams of keys, which can be split for a transformation and restored."""

from __future__ import annotations

from .splitting import fork_rngs, reseed, restore_rngs, split_rngs, with_rngs
from .streams import Rngs, RngStream

__all__ = ["RngStream", "Rngs", "fork_rngs", "reseed", "restore_rngs", "split_rngs", "with_rngs"]
