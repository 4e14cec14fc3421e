"""Finds out which keyword arguments a function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["takes"]


def takes(fn: Callable[..., Any], name: str) -> bool:
    """Return whether a function, or the `__call__` of an object, has a parameter of a given name.

    Args:
        fn: anything that can be called.
        name: the name of a parameter; `**kwargs` alone does not count.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # functions written in C may have no signature
        return False
    return name in parameters
