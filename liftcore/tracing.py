"""`trace_state` identifies the running JAX transformations; `jaxpr_of` and `SharedTraces` trace functions."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from . import _compat
from .calls import boundary

__all__ = ["SharedTraces", "jaxpr_of", "trace_state"]


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
    outside = trace_state()
    noted, levels = _noted(fn)
    try:
        jaxpr, shapes = jax.make_jaxpr(noted, return_shape=True)(*operands)
    except BaseException:
        _release(levels, outside)
        raise
    return jaxpr, shapes


def _noted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function, and a list to which each run appends the trace that it is in."""
    levels: list[Any] = []

    @functools.wraps(fn)
    def noted(*args: Any) -> Any:
        levels.append(trace_state())
        return fn(*args)

    return noted, levels


def _release(levels: Sequence[Any], outside: Any) -> None:
    for level in levels:
        _compat.release(level, outside)


_Traced = dict[Hashable, tuple[Any, list[Any]]]
"""By key: a compiled function, and the traces in which it ran."""


class SharedTraces:
    """A function that is traced once for all equal calls in one surrounding trace, such as that of `jax.jit`.

    Calls are equal if their keys are equal, and their operands have the same structure and types. The trace of a call
    that closes over arrays is not used again, since another call may find others there. Nothing is kept when the
    surrounding trace ends. Outside `jit`, each call runs the function.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> runs = []
        >>> def layer(w, x):
        ...     runs.append(x)
        ...     return jnp.sin(w * x)
        >>> shared = liftcore.SharedTraces(layer)
        >>> def model(ws, x):
        ...     for w in ws:
        ...         x = shared("layer", w, x)
        ...     return x
        >>> y = jax.jit(model)([1.0, 2.0, 3.0], 0.5)
        >>> len(runs)
        1

    Args:
        fn: a function of pytrees of arrays. It may close over arrays; everything else that it reads must be the same
            for equal keys.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._kept: weakref.WeakKeyDictionary[Any, tuple[Any, _Traced]] = weakref.WeakKeyDictionary()

    def __call__(self, key: Hashable, *operands: Any, again: Callable[[], Hashable] | None = None) -> Any:
        """Return `fn(*operands)`.

        Args:
            key: equal only for calls that may share a trace.
            *operands: pytrees of arrays.
            again: returns the key of the same call after it. If that differs, the function has changed what it reads,
                and its trace is not used again.
        """
        if jax.config.jax_disable_jit or not _compat.is_staging():  # type: ignore[attr-defined]
            return self._fn(*operands)
        outside = trace_state()
        trace = _compat.trace_of(outside)
        if trace is None:
            return self._fn(*operands)
        around, kept = self._kept.get(trace, (None, {}))
        if around != outside:  # another mapped axis, for example
            kept = {}
            self._kept[trace] = outside, kept
        if key not in kept:
            noted, levels = _noted(self._fn)
            kept[key] = jax.jit(noted, inline=True), levels
        run, levels = kept[key]
        before = len(levels)
        try:
            outputs = run(*operands)
            is_new = len(levels) > before
            if is_new and (_compat.closes_over_arrays(run.trace(*operands)) or (again is not None and again() != key)):
                kept.pop(key, None)
        except BaseException:
            kept.pop(key, None)
            _release(levels[before:], outside)
            raise
        return outputs
