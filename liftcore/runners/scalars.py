"""What says which branch runs, or whether a loop goes on: one number, checked before anything is traced with it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..errors import LiftArgumentError, shown

__all__ = ["check_condition", "check_index", "check_pred"]

_REDUCE = "Reduce it, `pred.any()` or `pred.all()`"


def check_pred(where: str, pred: Any) -> None:
    """Checks the predicate of a branch: a scalar, of which 0 is false.

    Raises:
        LiftArgumentError: where it is none.
    """
    kinds = jnp.bool_, jnp.number
    fix = f"{_REDUCE}; to choose for each element, `jnp.where`; for each element of a batch, `vmap` the function."
    _check(where, "one bool as its predicate", pred, kinds, fix)


def check_index(where: str, index: Any) -> None:
    """Checks the index of a branch: a scalar integer.

    Raises:
        LiftArgumentError: where it is none.
    """
    fix = "Give one, `index.astype(int)`; for an index for each element of a batch, `vmap` the function."
    _check(where, "one integer as its index", index, (jnp.integer,), fix)


def check_condition(where: str, pred: Any) -> None:
    """Checks what the condition of a loop returned: a scalar bool.

    Raises:
        LiftArgumentError: where it is none.
    """
    _check(where, "its condition to return one bool", pred, (jnp.bool_,), f"{_REDUCE}, or compare: `value > 0`.")


def _check(where: str, expected: str, given: Any, kinds: tuple[Any, ...], fix: str) -> None:
    if hasattr(given, "dtype") or isinstance(given, bool | int | float | complex):
        dtype = jnp.result_type(given)
        if jnp.shape(given) == () and any(jnp.issubdtype(dtype, kind) for kind in kinds):
            return
    raise LiftArgumentError(where, f"expected {expected}, given {shown(given)}.", fix)
