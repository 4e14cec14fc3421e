"""The promotion of a layer's arrays, under the name of the file that has it in NNX."""

from __future__ import annotations

from .parameters import PromoteDtypeFn, canonicalize_dtype, promote_dtype, unpacked

__all__ = ["PromoteDtypeFn", "canonicalize_dtype", "promote_dtype", "unpacked"]
