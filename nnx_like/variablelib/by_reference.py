"""`ByReference`: what objects and variables have in common."""

from __future__ import annotations

__all__ = ["ByReference"]


class ByReference:
    """What is known by reference: the base of objects and of variables, by which both are told from all else."""

    __slots__ = ()
