"""The kinds of attributes."""

from __future__ import annotations

import enum

__all__ = ["COLLECTIONS", "PaxKind"]


class PaxKind(enum.Enum):
    """The kind of an attribute of a module.

    Attributes:
        STATE: arrays that calls change: statistics, caches, counters, keys.
        PARAMETER: arrays to differentiate with respect to.
        MODULE: a module, or a pytree of modules; each of them has kinds for its own attributes.
        OTHERS: a value without arrays, which is a part of the tree definition.
    """

    STATE = 1
    PARAMETER = 2
    MODULE = 3
    OTHERS = -1


COLLECTIONS = {PaxKind.STATE: "state", PaxKind.PARAMETER: "params"}
"""The collections of variables in which lifts keep the arrays of each kind."""
