"""`filter_custom_jvp` and `filter_custom_vjp`: functions of any Python objects with derivative rules of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from liftcore import Scope, is_array, is_traceable
from liftcore.calls import boundary, call_user
from liftcore.errors import LiftArgumentError, check_function, name_of, shown
from liftcore.problems import no_rule

from .errors import RuleStructureError
from .split import SplitResult, SplitTree
from .tree import is_array_like, is_inexact_array

__all__ = ["as_arrays", "filter_custom_jvp", "filter_custom_vjp"]

# --- checks and symbolic zeros ----------------------------------------------------------------------------------------


def is_zero(tangent: Any) -> bool:
    """Return whether a tangent or cotangent is known to be zero, such as the tangent of an integer."""
    return isinstance(tangent, SymbolicZero) or jnp.result_type(tangent) == jax.dtypes.float0


def as_arrays(values: Iterable[Any]) -> list[Any]:
    """Convert numbers to arrays. JAX passes them to a rule unchanged, and values computed from them would be static."""
    return [one if is_traceable(one) or isinstance(one, SymbolicZero) else jnp.asarray(one) for one in values]


def along(where: str, primal: Any, given: Any) -> Any:
    """Convert a tangent or cotangent from a rule to the form that JAX expects: None becomes zero, a number an array.

    Args:
        where: the name of the function, for errors.
        primal: the primal value that the tangent or cotangent belongs to.
        given: the tangent or cotangent that the rule returned.

    Raises:
        RuleStructureError: if it is not an array, a number or None.
    """
    if given is None:
        return SymbolicZero(jax.typeof(primal).to_tangent_aval())
    if not is_array_like(given):
        what = f"its rule returned {shown(given)}, expected an array like {shown(primal)}."
        fix = "Return such an array, or None for zero."
        raise RuleStructureError(where, what, fix, expected=f"an array like {shown(primal)}", given=shown(given))
    return given if is_array(given) else jnp.asarray(given, primal.dtype)


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
            expected=str(parts.structure),
            given=str(jax.tree.structure(tree)),
        ) from error


def check_rule_scopes(where: str, lift: str, scopes: Sequence[Scope]) -> None:
    """Check that no scope is among the arguments of a function with a rule."""
    if scopes:
        raise LiftArgumentError(
            where,
            f"the scope {scopes[0].path_text} is among the arguments, but the rule of this function does not handle "
            "variables.",
            f"Use `liftcore.{lift}`, whose rule does.",
            given=scopes[0].path_text,
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
            "its rule and the function return different static leaves, or arrays in different places.",
            "Return the same structure from both, with arrays in the same places.",
        )
    return arrays


# --- tangents ---------------------------------------------------------------------------------------------------------


class filter_custom_jvp:
    """A function of any Python objects with a custom rule for tangents, like `jax.custom_jvp`.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> @eqx.filter_custom_jvp
        ... def scaled(x, model):
        ...     return model["act"](model["w"] * x)
        >>> @scaled.def_jvp
        ... def rule(primals, tangents):
        ...     (x, model), (along_x, _) = primals, tangents
        ...     return scaled(x, model), 10 * along_x
        >>> eqx.filter_grad(scaled)(jnp.float32(1), {"w": 2.0, "act": jnp.tanh})
        Array(10., dtype=float32)

    Args:
        fn: the function, called as `fn(*args, **kwargs)`. Keyword arguments cannot be differentiated.

    Raises:
        LiftArgumentError: when it is called, if the rule is missing, a scope is among the arguments, a keyword argument
            is differentiated, or the rule returns a different structure from the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        check_function("filter_custom_jvp", fn)
        self.fn = fn
        self._rule: Callable[..., Any] | None = None
        functools.update_wrapper(self, fn)

    def def_jvp(self, fn_jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule, and return it.

        Args:
            fn_jvp: the rule, called as `fn_jvp(primals, tangents, **kwargs)`, with tuples like the positional
                arguments. In `tangents`, None replaces a tangent that is zero, and a leaf that has no tangent. The rule
                returns the result and its tangent, a pytree like the result with None for zero.
        """
        check_function("filter_custom_jvp.def_jvp", fn_jvp)
        self._rule = fn_jvp
        return fn_jvp

    def defjvp(self, fn_jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule: the older name of `def_jvp`.

        Args:
            fn_jvp: the rule, called as `fn_jvp(primals, tangents)`.
        """
        return self.def_jvp(fn_jvp)

    @boundary
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        where, rule = f"filter_custom_jvp({name_of(self.fn)})", self._rule
        if rule is None:
            raise no_rule(where, "@fn.def_jvp")
        first, others = SplitTree(args), SplitTree(kwargs)
        check_rule_scopes(where, "custom_jvp", [*first.scopes, *others.scopes])
        result = SplitResult(where)

        @jax.custom_jvp
        def run(arrays: list[Any], named: list[Any]) -> list[Any]:
            value = call_user(where, self.fn, *first.join(arrays), **others.join(named))
            return traced(result, value, is_array_like)

        def moved(primals: Any, tangents: Any) -> Any:
            (arrays, named), (moving, moving_named) = map(as_arrays, primals), map(as_arrays, tangents)
            if not all(map(is_zero, moving_named)):
                raise LiftArgumentError(where, "a keyword argument is differentiated.", "Pass it by position.")
            given = first.fill([None if is_zero(one) else one for one in moving])
            value, tangent = call_user(f"the rule of {where}", rule, first.join(arrays), given, **others.join(named))
            found = traced(result, value, is_array_like)
            ways = taken(where, result.parts, tangent, "a tangent")
            return found, [along(where, one, way) for one, way in zip(found, ways, strict=True)]

        run.defjvp(moved, symbolic_zeros=True)
        return result.join(run(first.arrays, others.arrays))


# --- pullbacks --------------------------------------------------------------------------------------------------------


class filter_custom_vjp:
    """A function of any Python objects with a custom rule for its derivative, like `jax.custom_vjp`.

    Only the floating-point arrays in its first argument are differentiated.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> @eqx.filter_custom_vjp
        ... def clipped(model, x):
        ...     return model["w"] * x
        >>> @clipped.def_fwd
        ... def forward(perturbed, model, x):
        ...     return clipped(model, x), None
        >>> @clipped.def_bwd
        ... def backward(residuals, cotangent, perturbed, model, x):
        ...     return {"w": jnp.clip(cotangent * x, -1, 1), "name": None}
        >>> eqx.filter_grad(lambda model: clipped(model, 5.0))({"w": jnp.float32(2), "name": "net"})
        {'name': None, 'w': Array(1., dtype=float32)}

    Args:
        fn: the function, called as `fn(vjp_arg, *args, **kwargs)`.

    Raises:
        LiftArgumentError: when it is called, if a rule is missing, a scope is among the arguments, an argument other
            than the first is differentiated, or the rule returns a different structure from the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        check_function("filter_custom_vjp", fn)
        self.fn = fn
        self._fwd: Callable[..., Any] | None = None
        self._bwd: Callable[..., Any] | None = None
        self._takes_zeros = False
        functools.update_wrapper(self, fn)

    def def_fwd(self, fn_fwd: Callable[..., Any]) -> Callable[..., Any]:
        """Set the forward rule, and return it.

        Args:
            fn_fwd: the rule, called as `fn_fwd(perturbed, vjp_arg, *args, **kwargs)`. `perturbed` is a pytree of bools
                like `vjp_arg`: whether each leaf is differentiated. The rule returns the result and residuals, any
                pytree.
        """
        check_function("filter_custom_vjp.def_fwd", fn_fwd)
        self._fwd = fn_fwd
        return fn_fwd

    def def_bwd(self, fn_bwd: Callable[..., Any]) -> Callable[..., Any]:
        """Set the backward rule, and return it.

        Args:
            fn_bwd: the rule, called as `fn_bwd(residuals, cotangent, perturbed, vjp_arg, *args, **kwargs)`. The
                cotangent is a pytree like the result; None replaces a cotangent that is zero, and a leaf that has no
                cotangent. The rule returns the cotangent of `vjp_arg`: a pytree like it, with None for zero.
        """
        check_function("filter_custom_vjp.def_bwd", fn_bwd)
        self._bwd, self._takes_zeros = fn_bwd, False
        return fn_bwd

    def defvjp(self, fn_fwd: Callable[..., Any], fn_bwd: Callable[..., Any]) -> None:
        """Set both rules in their older form, which has no argument `perturbed`.

        Args:
            fn_fwd: the forward rule, called as `fn_fwd(vjp_arg, *args, **kwargs)`. It returns the result and residuals,
                any pytree.
            fn_bwd: the backward rule, called as `fn_bwd(residuals, cotangent, vjp_arg, *args, **kwargs)`. The cotangent
                is a pytree like the result, with None for leaves that have none. It returns the cotangent of `vjp_arg`.
        """
        check_function("filter_custom_vjp.defvjp", fn_fwd)
        check_function("filter_custom_vjp.defvjp", fn_bwd)

        where = f"the rule of filter_custom_vjp({name_of(self.fn)})"

        def forward(perturbed: Any, /, *args: Any, **kwargs: Any) -> Any:
            return call_user(where, fn_fwd, *args, **kwargs)

        def backward(residuals: Any, cotangent: Any, perturbed: Any, /, *args: Any, **kwargs: Any) -> Any:
            return call_user(where, fn_bwd, residuals, cotangent, *args, **kwargs)

        self._fwd, self._bwd, self._takes_zeros = forward, backward, True

    @boundary
    def __call__(self, vjp_arg: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        where, fwd, bwd = f"filter_custom_vjp({name_of(self.fn)})", self._fwd, self._bwd
        if fwd is None or bwd is None:
            raise no_rule(where, "@fn.def_fwd", "@fn.def_bwd")
        rule, zero = f"the rule of {where}", zeros if self._takes_zeros else none
        first, others = SplitTree(vjp_arg), SplitTree((args, kwargs))
        check_rule_scopes(where, "custom_vjp", [*first.scopes, *others.scopes])
        result, residuals = SplitResult(where), SplitResult(where)
        perturbed: list[bool] = []

        @jax.custom_vjp
        def run(arrays: list[Any], further: list[Any]) -> list[Any]:
            args, kwargs = others.join(further)
            return traced(result, call_user(where, self.fn, first.join(arrays), *args, **kwargs))

        def forward(arrays: list[Any], further: list[Any]) -> Any:
            if any(one.perturbed for one in further):
                raise LiftArgumentError(
                    where,
                    "an argument other than the first is differentiated.",
                    "Put it into the first argument, or stop its gradient: `jax.lax.stop_gradient(x)`.",
                    expected="the first argument",
                )
            perturbed[:] = [one.perturbed and is_inexact_array(one.value) for one in arrays]
            arrays, further = as_arrays(one.value for one in arrays), as_arrays(one.value for one in further)
            args, kwargs = others.join(further)
            found, kept = call_user(rule, fwd, first.fill(perturbed, False), first.join(arrays), *args, **kwargs)
            return traced(result, found), (residuals.arrays(kept), arrays, further)

        def backward(kept: Any, cotangents: list[Any]) -> Any:
            of_forward, arrays, further = kept
            args, kwargs = others.join(further)
            cotangent = result.parts.fill([zero(one) if is_zero(one) else one for one in cotangents])
            given = residuals.join(of_forward), cotangent, first.fill(perturbed, False), first.join(arrays)
            ways = taken(where, first, call_user(rule, bwd, *given, *args, **kwargs), "a cotangent")
            return [
                None if way is None else along(where, one, way) for one, way in zip(arrays, ways, strict=True)
            ], None

        run.defvjp(forward, backward, symbolic_zeros=True)
        return result.join(run(first.arrays, others.arrays))


def none(cotangent: Any) -> None:
    """Replace a cotangent that is zero by None."""


def zeros(cotangent: Any) -> Any:
    """Replace a cotangent that is zero by an array of zeros; by None if the leaf has no cotangent."""
    return None if cotangent.dtype == jax.dtypes.float0 else jnp.zeros(cotangent.shape, cotangent.dtype)
