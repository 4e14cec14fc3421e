"""`ByReference`: the common base of objects and variables."""

from __future__ import annotations

__all__ = ["ByReference"]


class ByReference:
    """The base class of objects and variables, which are shared by reference."""

    __slots__ = ()
