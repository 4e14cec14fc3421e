"""Checks of the numbers that limit which tokens are drawn, for `generate` and for functions that sample."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError

__all__ = ["check_temperature", "check_top_k", "check_top_p", "check_values"]


def check_temperature(where: str, given: Any) -> None:
    """Check that known temperatures are finite and not negative.

    Args:
        where: the name of the function, for errors.
        given: one number, or an array of them. Traced numbers are not checked.

    Raises:
        LiftArgumentError: if one is not.
    """
    _check_known(where, "temperature", given, lambda one: (one >= 0) & (one < np.inf), "0 or a positive number", "0.8")


def check_top_k(where: str, given: Any) -> None:
    """Check that known numbers of tokens are at least 1; see `check_temperature`.

    Args:
        where: the name of the function, for errors.
        given: one number, or an array of them.

    Raises:
        LiftArgumentError: if one is not.
    """
    _check_known(where, "top_k", given, lambda one: one >= 1, "1 or more", "40")


def check_top_p(where: str, given: Any) -> None:
    """Check that known probabilities are above 0 and at most 1; see `check_temperature`.

    Args:
        where: the name of the function, for errors.
        given: one number, or an array of them.

    Raises:
        LiftArgumentError: if one is not.
    """
    _check_known(where, "top_p", given, lambda one: (one > 0) & (one <= 1), "a number above 0 and at most 1", "0.9")


def check_values(where: str, name: str, given: Any, is_right: Any, expected: str, example: str) -> None:
    """Check that all numbers are right.

    Args:
        where: the name of the function, for errors.
        name: the name of the argument.
        given: the numbers, an array of NumPy.
        is_right: of each number, whether it is right.
        expected: a description of right numbers.
        example: a right number.

    Raises:
        LiftArgumentError: if one is not right.
    """
    if not is_right.all():
        raise LiftArgumentError(
            where,
            Expected(expected, given=given[~is_right][0].item()),
            f"Pass a value such as `{name}={example}`.",
            option=name,
        )


def _check_known(where: str, name: str, given: Any, is_right: Any, expected: str, example: str) -> None:
    if not isinstance(given, jax.core.Tracer):
        numbers = np.atleast_1d(np.asarray(given))
        if not jnp.issubdtype(numbers.dtype, jnp.number):
            raise LiftArgumentError(
                where, Expected(expected, given=given), f"Pass a value such as `{name}={example}`.", option=name
            )
        check_values(where, name, numbers, is_right(numbers), expected, example)
