"""`display`: objects as a notebook shows them, with treescope if it is installed, otherwise printed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

__all__ = ["display"]


def display(*args: Any) -> None:
    """Show objects and other values: with `treescope` in a notebook, otherwise printed.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.display(nnx.Dict(rate=0.5))
        Dict(
          rate=0.5,
        )

    Args:
        *args: the values to show.
    """
    if _is_notebook() and importlib.util.find_spec("treescope") is not None:
        treescope = importlib.import_module("treescope")
        for arg in args:
            treescope.display(arg, ignore_exceptions=True, autovisualize=True)
    else:
        for arg in args:
            print(arg)


def _is_notebook() -> bool:
    """Return whether the program runs under IPython, which then is imported already."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
