"""Graphs of objects: their definitions, their values, and functions over both."""

from ..filterlib import Key
from .functions import flatten, unflatten

__all__ = ["Key", "flatten", "unflatten"]
