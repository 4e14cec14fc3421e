"""`Table`: the name that `flax.linen.summary` has for a summary."""

from __future__ import annotations

from .tabulation import Summary

__all__ = ["Table"]

Table = Summary
