"""Training: optimizers over optax, metrics, averages of parameters."""

from __future__ import annotations

from . import metrics, optimizer

__all__ = ["metrics", "optimizer"]
