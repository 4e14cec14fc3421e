"""What custom rules have in common: zeros that are known, and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from liftcore import Scope, is_array
from liftcore.errors import LiftArgumentError, shown

from .errors import RuleStructureError
from .filters import is_array_like
from .parts import SplitResult, SplitTree

__all__ = ["along", "as_arrays", "check_rule_scopes", "is_zero", "taken", "traced"]


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero, as that of an integer is."""
    return isinstance(tangent, SymbolicZero) or jnp.result_type(tangent) == jax.dtypes.float0


def as_arrays(values: Iterable[Any]) -> list[Any]:
    """Numbers as arrays, which JAX hands a rule as they were given; else what is computed with them would be static."""
    return [one if is_array(one) or isinstance(one, SymbolicZero) else jnp.asarray(one) for one in values]


def along(where: str, primal: Any, way: Any) -> Any:
    """A tangent or cotangent that a rule returned, as JAX takes it: None stands for zero, and a number for an array.

    Args:
        where: the function, for the text of errors.
        primal: what it is along.
        way: what the rule returned in its place.

    Raises:
        RuleStructureError: where it is no array, no number and not None.
    """
    if way is None:
        return SymbolicZero(jax.typeof(primal).to_tangent_aval())
    if not is_array_like(way):
        raise RuleStructureError(
            where,
            f"its rule returned {shown(way)}, expected an array like {shown(primal)}.",
            "Return that, or None for zero.",
        )
    return way if is_array(way) else jnp.asarray(way, primal.dtype)


def taken(where: str, parts: SplitTree, tree: Any, what: str) -> list[Any]:
    """What a rule returned in the places of arrays.

    Args:
        where: the function, for the text of errors.
        parts: what it has to be like.
        tree: what the rule returned.
        what: what it is, likewise.

    Raises:
        RuleStructureError: where its structure is another one.
    """
    try:
        return parts.take(tree)
    except (ValueError, TypeError) as error:
        raise RuleStructureError(
            where,
            f"its rule returned {what} of the structure {jax.tree.structure(tree)}, expected {parts.structure}.",
            "Return that, with None in the place of a leaf for zero, and of one that is no array.",
        ) from error


def check_rule_scopes(where: str, lift: str, scopes: Sequence[Scope]) -> None:
    """Checks that no scope is among the arguments of a function with a rule."""
    if scopes:
        raise LiftArgumentError(
            where,
            f"the scope {scopes[0].path_text} is among the arguments, and its rule says nothing of variables.",
            f"Use `liftcore.{lift}`, whose rule does.",
        )


def traced(result: SplitResult, value: Any, is_traced: Callable[[Any], bool] = is_array) -> list[Any]:
    """The arrays of what a function or its rule returned; JAX may call both, in any order, or one of them.

    Args:
        result: keeps what is static of it.
        value: what was returned.
        is_traced: which leaves are arrays, or are made arrays.

    Raises:
        LiftArgumentError: where the one returns something else than the other, but for the arrays.
    """
    before = getattr(result, "parts", None)
    arrays = as_arrays(result.arrays(value, is_traced))
    if before is not None and not before.is_like(result.parts):
        raise LiftArgumentError(
            result.where,
            "its rule returns other static leaves than the function, or arrays in other places.",
            "Return from the rule what the function returns: an array where that returns an array.",
        )
    return arrays
