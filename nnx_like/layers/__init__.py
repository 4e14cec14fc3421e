"""Layers: objects with parameters, built on the functions of `liftcore.nn`."""

from __future__ import annotations

from . import initializers

__all__ = ["initializers"]
