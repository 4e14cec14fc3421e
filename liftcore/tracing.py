"""`trace_state`: identifies the running JAX transformations."""

from __future__ import annotations

from typing import Any

from . import _compat

__all__ = ["trace_state"]


def trace_state() -> Any:
    """Return a value that stays equal until a JAX transformation is entered or left.

    An object that can change records the value when it is created. If the current value differs, a change would store
    traced values in an object that outlives the trace.

    Example:
        >>> import jax, liftcore
        >>> here = liftcore.trace_state()
        >>> liftcore.trace_state() == here
        True
        >>> jax.jit(lambda: print(liftcore.trace_state() == here))()
        False
    """
    return _compat.trace_state()
