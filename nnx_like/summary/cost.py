"""Costs: the number of floating-point operations of a call without the model around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from liftcore import OperationCount, count_operations
from liftcore.leaves import split_leaves

from .apart import Apart

__all__ = ["flops", "vjp_flops"]


def flops(apart: Apart, fn: Callable[..., Any]) -> OperationCount | None:
    """Return the number of operations in a call; None if it cannot be traced separately.

    Args:
        apart: the call.
        fn: called with the object and the arguments.
    """
    return _counted(lambda values: apart.run(values, fn), apart.types)


def vjp_flops(apart: Apart, fn: Callable[..., Any]) -> OperationCount | None:
    """Return the number of operations in a call and its pullback, with respect to all floating inputs.

    Args:
        apart: the call.
        fn: called with the object and the arguments.
    """

    def pullback(leaves: list[Any]) -> Any:
        numbers, others = split_leaves(leaves, _is_inexact)

        def outputs(numbers: list[Any]) -> Any:
            result = apart.run(others.join(numbers), fn)
            return [leaf for leaf in jax.tree.leaves(result) if _is_inexact(leaf)]

        y, pull = jax.vjp(outputs, numbers)
        return y, pull(y)

    return _counted(pullback, apart.types)


def _counted(run: Callable[[Any], Any], types: Any) -> OperationCount | None:
    try:
        return count_operations(run)(types)
    except Exception:  # it may need its surroundings, such as the name of an axis
        return None


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
