"""Promotion of arrays to the dtype that a layer computes in: the functions of `liftcore.nn`."""

from __future__ import annotations

from liftcore.nn import PromoteDtypeFn, canonicalize_dtype, promote_dtype

__all__ = ["PromoteDtypeFn", "canonicalize_dtype", "promote_dtype"]
