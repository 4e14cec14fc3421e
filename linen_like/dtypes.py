"""The dtype that layers compute in; the functions are those of `liftcore.nn`."""

from __future__ import annotations

from liftcore.nn import PromoteDtypeFn, canonicalize_dtype, promote_dtype

__all__ = ["PromoteDtypeFn", "canonicalize_dtype", "promote_dtype"]
