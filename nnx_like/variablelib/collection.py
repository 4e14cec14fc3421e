"""`collection_of`: the collection of a variable when its object is stored in a tree of variables."""

from __future__ import annotations

from typing import Any

from .registry import variable_name_from_type
from .variable import Variable

__all__ = ["CONSTANTS", "collection_of"]

CONSTANTS = "constants"
"""The collection of arrays that are attributes without being variables."""


def collection_of(value: Any) -> str:
    """Return the collection of a variable: the registered name of its kind, or else the name of its class.

    Example:
        >>> from nnx_like.variablelib.kinds import BatchStat
        >>> collection_of(BatchStat(0.0)), collection_of(3.0)
        ('batch_stats', 'constants')

    Args:
        value: a variable, or an array that is an attribute.
    """
    return variable_name_from_type(type(value), allow_register=True) if isinstance(value, Variable) else CONSTANTS
