"""Masks for attention, from `liftcore.nn`."""

from __future__ import annotations

from liftcore.nn import combine_masks, make_attention_mask, make_causal_mask

__all__ = ["combine_masks", "make_attention_mask", "make_causal_mask"]
