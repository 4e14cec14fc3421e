"""Layers: objects with parameters, thin over the functions of `liftcore.nn`."""

from __future__ import annotations

from . import initializers

__all__ = ["initializers"]
