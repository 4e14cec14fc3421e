"""`trace_state`: which JAX transformations are running."""

from __future__ import annotations

from typing import Any

from . import _compat

__all__ = ["trace_state"]


def trace_state() -> Any:
    """A value that compares equal exactly while no JAX transformation has been entered or left.

    An object that can change remembers the one in which it was made. Where another is current, a change would put a
    value that is being traced into what outlives the trace.

    Example:
        >>> import jax, liftcore
        >>> here = liftcore.trace_state()
        >>> liftcore.trace_state() == here
        True
        >>> jax.jit(lambda: print(liftcore.trace_state() == here))()
        False
    """
    return _compat.trace_state()
