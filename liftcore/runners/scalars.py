"""Checks of scalars: the predicate or index that selects a branch, and the condition that continues a loop."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..errors import LiftArgumentError, shown
from ..leaves import is_number

__all__ = ["check_condition", "check_index", "check_pred"]

_REDUCE = "Reduce it, `pred.any()` or `pred.all()`"


def check_pred(where: str, pred: Any) -> None:
    """Check the predicate of a branch: a scalar, for which 0 means false.

    Raises:
        LiftArgumentError: if it is not a scalar bool or number.
    """
    kinds = jnp.bool_, jnp.integer, jnp.floating
    fix = f"{_REDUCE}; to choose for each element, use `jnp.where`; for each batch element, `vmap` the function."
    _check(where, "one bool as its predicate", pred, kinds, fix)


def check_index(where: str, index: Any) -> None:
    """Check the index of a branch: a scalar integer.

    Raises:
        LiftArgumentError: if it is not a scalar integer.
    """
    fix = "Pass one, `index.astype(int)`; for a different index in each batch element, `vmap` the function."
    _check(where, "one integer as its index", index, (jnp.integer,), fix)


def check_condition(where: str, pred: Any) -> None:
    """Check that the condition of a loop returned a scalar bool.

    Raises:
        LiftArgumentError: if it did not.
    """
    _check(where, "its condition to return one bool", pred, (jnp.bool_,), f"{_REDUCE}, or compare: `value > 0`.")


def _check(where: str, expected: str, given: Any, kinds: tuple[Any, ...], fix: str) -> None:
    if hasattr(given, "dtype") or is_number(given):
        dtype = jnp.result_type(given)
        if jnp.shape(given) == () and any(jnp.issubdtype(dtype, kind) for kind in kinds):
            return
    raise LiftArgumentError(where, f"expected {expected}, given {shown(given)}.", fix)
