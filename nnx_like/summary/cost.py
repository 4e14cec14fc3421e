"""Costs: the number of floating-point operations in a call, as XLA counts them in the lowered program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .apart import Apart

__all__ = ["flops", "vjp_flops"]


def flops(apart: Apart, fn: Callable[..., Any]) -> int | None:
    """Return the number of operations in a call; None if it cannot be traced separately.

    Args:
        apart: the call.
        fn: called with the object and the arguments.
    """
    return _counted(lambda values: apart.run(values, fn), apart.types)


def vjp_flops(apart: Apart, fn: Callable[..., Any]) -> int | None:
    """Return the number of operations in a call and its pullback, with respect to all floating inputs.

    Args:
        apart: the call.
        fn: called with the object and the arguments.
    """

    def pullback(leaves: list[Any]) -> Any:
        chosen = [_is_inexact(leaf) for leaf in leaves]

        def outputs(numbers: list[Any]) -> Any:
            now = iter(numbers)
            given = [next(now) if one else leaf for one, leaf in zip(chosen, leaves, strict=True)]
            result = apart.run(given, fn)
            return [leaf for leaf in jax.tree.leaves(result) if _is_inexact(leaf)]

        y, pull = jax.vjp(outputs, [leaf for one, leaf in zip(chosen, leaves, strict=True) if one])
        return y, pull(y)

    return _counted(pullback, apart.types)


def _counted(run: Callable[[Any], Any], types: Any) -> int | None:
    try:
        found = jax.jit(run).lower(types).cost_analysis() or {}
    except Exception:  # it may need its surroundings, such as the name of an axis
        return None
    return int(found.get("flops", 0))


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
