"""The common parts of custom derivative rules: symbolic zeros, and checks of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from liftcore import Scope, is_array, is_traceable
from liftcore.errors import LiftArgumentError, shown

from .errors import RuleStructureError
from .filters import is_array_like
from .parts import SplitResult, SplitTree

__all__ = ["along", "as_arrays", "check_rule_scopes", "is_zero", "taken", "traced"]


def is_zero(tangent: Any) -> bool:
    """Return whether a tangent or cotangent is known to be zero, such as the tangent of an integer."""
    return isinstance(tangent, SymbolicZero) or jnp.result_type(tangent) == jax.dtypes.float0


def as_arrays(values: Iterable[Any]) -> list[Any]:
    """Convert numbers to arrays. JAX passes them to a rule unchanged, and values computed from them would be static."""
    return [one if is_traceable(one) or isinstance(one, SymbolicZero) else jnp.asarray(one) for one in values]


def along(where: str, primal: Any, way: Any) -> Any:
    """Convert a tangent or cotangent from a rule to the form that JAX expects: None becomes zero, a number an array.

    Args:
        where: the name of the function, for errors.
        primal: the primal value that the tangent or cotangent belongs to.
        way: the tangent or cotangent that the rule returned.

    Raises:
        RuleStructureError: if it is not an array, a number or None.
    """
    if way is None:
        return SymbolicZero(jax.typeof(primal).to_tangent_aval())
    if not is_array_like(way):
        raise RuleStructureError(
            where,
            f"its rule returned {shown(way)}, expected an array like {shown(primal)}.",
            "Return such an array, or None for zero.",
        )
    return way if is_array(way) else jnp.asarray(way, primal.dtype)


def taken(where: str, parts: SplitTree, tree: Any, what: str) -> list[Any]:
    """Return the values that the result of a rule has in the places of arrays.

    Args:
        where: the name of the function, for errors.
        parts: the pytree whose structure the result must have.
        tree: the result of the rule.
        what: the kind of result, for errors.

    Raises:
        RuleStructureError: if the structures differ.
    """
    try:
        return parts.take(tree)
    except (ValueError, TypeError) as error:
        raise RuleStructureError(
            where,
            f"its rule returned {what} of the structure {jax.tree.structure(tree)}, expected {parts.structure}.",
            "Return that structure, with None for a leaf that is zero or is not an array.",
        ) from error


def check_rule_scopes(where: str, lift: str, scopes: Sequence[Scope]) -> None:
    """Check that no scope is among the arguments of a function with a rule."""
    if scopes:
        raise LiftArgumentError(
            where,
            f"the scope {scopes[0].path_text} is among the arguments, but the rule of this function does not handle "
            "variables.",
            f"Use `liftcore.{lift}`, whose rule does.",
        )


def traced(result: SplitResult, value: Any, is_traced: Callable[[Any], bool] = is_traceable) -> list[Any]:
    """Return the arrays in the result of a function or of its rule. JAX may call both, in any order, or one of them.

    Args:
        result: an object that keeps the static part of the result.
        value: the result.
        is_traced: a function that returns whether a leaf is an array, or becomes one.

    Raises:
        LiftArgumentError: if the static parts of the two results differ.
    """
    before = getattr(result, "parts", None)
    arrays = as_arrays(result.arrays(value, is_traced))
    if before is not None and not before.is_like(result.parts):
        raise LiftArgumentError(
            result.where,
            "its rule returns other static leaves than the function, or arrays in other places.",
            "Return the same structure from both, with arrays in the same places.",
        )
    return arrays
