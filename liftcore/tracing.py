"""`trace_state` identifies the running JAX transformations; `jaxpr_of` traces a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from . import _compat
from .calls import boundary

__all__ = ["jaxpr_of", "trace_state"]


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


@boundary
def jaxpr_of(fn: Callable[..., Any], *operands: Any) -> tuple[Any, Any]:
    """Return `jax.make_jaxpr(fn, return_shape=True)(*operands)`; if the function raises, its trace keeps nothing alive.

    JAX keeps a trace that fails, with the arrays that the function closes over.

    Example:
        >>> import jax.numpy as jnp, liftcore
        >>> jaxpr, shape = liftcore.jaxpr_of(lambda x: 2 * x, jnp.ones(3))
        >>> shape
        ShapeDtypeStruct(shape=(3,), dtype=float32)

    Args:
        fn: a function of pytrees of arrays.
        *operands: its arguments, or their types.

    Returns:
        The closed jaxpr, and the shapes and dtypes of the result.
    """
    outside, inside = trace_state(), []

    @functools.wraps(fn)
    def noted(*args: Any) -> Any:
        inside.append(trace_state())
        return fn(*args)

    try:
        jaxpr, shapes = jax.make_jaxpr(noted, return_shape=True)(*operands)
    except BaseException:
        for level in inside:
            _compat.release(level, outside)
        raise
    return jaxpr, shapes
