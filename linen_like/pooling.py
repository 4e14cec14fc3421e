"""Pooling functions from `liftcore.nn`; they hold no variables."""

from __future__ import annotations

from liftcore.nn import avg_pool, max_pool, min_pool, pool

__all__ = ["avg_pool", "max_pool", "min_pool", "pool"]
