"""`filter_custom_jvp`: a function of any Python objects with a custom rule for tangents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from liftcore.errors import LiftArgumentError, boundary, call_user, check_function, name_of

from .filters import is_array_like
from .parts import SplitResult, SplitTree
from .rules import along, as_arrays, check_rule_scopes, is_zero, taken, traced

__all__ = ["filter_custom_jvp"]


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
            raise LiftArgumentError(where, "it has no rule yet.", "Define it: `@fn.def_jvp`.")
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
