"""Training: optimizers that use optax, metrics, and averages of parameters."""

from __future__ import annotations

from . import metrics, optimizer

__all__ = ["metrics", "optimizer"]
