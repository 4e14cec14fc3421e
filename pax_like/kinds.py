"""The kinds of attributes."""

from __future__ import annotations

import enum

__all__ = ["COLLECTIONS", "PaxKind"]


class PaxKind(enum.Enum):
    """What an attribute of a module is.

    Attributes:
        STATE: arrays that calls change: statistics, caches, counters, keys.
        PARAMETER: arrays that are differentiated with respect to.
        MODULE: a module, or a pytree of modules; each of them knows the kinds of its own attributes.
        OTHERS: no arrays; a part of the tree definition.
    """

    STATE = 1
    PARAMETER = 2
    MODULE = 3
    OTHERS = -1


COLLECTIONS = {PaxKind.STATE: "state", PaxKind.PARAMETER: "params"}
"""The collections that lifts keep the arrays of a kind in."""
