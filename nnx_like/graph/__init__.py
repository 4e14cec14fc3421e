"""Graphs of objects: their definitions, their values, and functions over both."""

from ..filterlib import Key
from .flattening import flatten, unflatten

__all__ = ["Key", "flatten", "unflatten"]
