"""`Node`: what objects and variables have in common."""

from __future__ import annotations

__all__ = ["Node"]


class Node:
    """What is known by reference: the base of objects and of variables, by which both are told from all else."""

    __slots__ = ()
