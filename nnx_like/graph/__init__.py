"""Graphs of objects: their definitions, their values, and what is done with both."""

from ..filterlib import Key
from .flattening import flatten, unflatten

__all__ = ["Key", "flatten", "unflatten"]
