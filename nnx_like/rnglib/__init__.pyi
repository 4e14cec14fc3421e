from .splitting import fork_rngs, reseed, restore_rngs, split_rngs, with_rngs
from .streams import Rngs, RngStream

__all__ = ["RngStream", "Rngs", "fork_rngs", "reseed", "restore_rngs", "split_rngs", "with_rngs"]
