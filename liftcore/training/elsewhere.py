"""Names of `flax.training` that are elsewhere or left out: for the error about an unknown name."""

from __future__ import annotations

from ..elsewhere import instead_of

__all__ = ["INSTEAD"]

INSTEAD = instead_of("flax.training")
