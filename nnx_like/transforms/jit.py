"""`jit` over objects."""

from __future__ import annotations
