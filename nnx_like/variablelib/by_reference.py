"""`ByReference`: the common base of objects and variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ByReference", "is_object"]


class ByReference:
    """The base class of objects and variables, which are shared by reference."""

    __slots__ = ()


is_object: Callable[[Any], bool] = ByReference.__instancecheck__
"""Returns whether a value is a variable or an object with attributes. JAX calls it on each leaf, so it runs in C."""
