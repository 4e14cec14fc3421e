"""Jacobians and Hessians with respect to the floating-point arrays in the first argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import liftcore
from liftcore.errors import check_function, name_of

from .differentiated import Differentiated, check_first
from .filters import is_inexact_array_like
from .functions import FilteredFunction
from .options import check_options
from .parts import SplitResult
from .rules import as_arrays

__all__ = ["filter_hessian", "filter_jacfwd", "filter_jacrev"]


def filter_jacfwd(fun: Callable[..., Any], has_aux: bool = False, **options: Any) -> Any:
    """Apply `jax.jacfwd` with respect to the floating-point arrays in the first argument.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> square = eqx.filter_jacfwd(lambda model: {"y": model["w"] ** 2, "name": "square"})
        >>> square({"w": jnp.arange(2.0), "steps": 5})
        {'name': None, 'y': {'steps': None, 'w': Array([[0., 0.],
               [0., 2.]], dtype=float32)}}

    Args:
        fun: the function, or any callable pytree.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may be anything.
        **options: `holomorphic` of `jax.jacfwd`.

    Returns:
        A function with the arguments of `fun`. It returns a pytree like the result, in which a pytree like the first
        argument replaces each floating-point array, and None replaces every other leaf. With `has_aux`, it returns this
        pytree and the second of the pair.

    Raises:
        LiftArgumentError: if there is no such option; when it is called, if there is no positional argument, or `fun`
            returns a scope.
    """
    check_function("filter_jacfwd", fun)
    check_options("filter_jacfwd", options, ("holomorphic",))
    return FilteredFunction(_jacobian, fun, {"lift": liftcore.jacfwd, "has_aux": has_aux, **options})


def filter_jacrev(fun: Callable[..., Any], has_aux: bool = False, **options: Any) -> Any:
    """Apply `jax.jacrev` with respect to the floating-point arrays in the first argument.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_jacrev(lambda model: model["w"] ** 2)({"w": jnp.float32(3), "steps": 5})
        {'steps': None, 'w': Array(6., dtype=float32)}

    Args:
        fun: the function, or any callable pytree.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may be anything.
        **options: `holomorphic` and `allow_int` of `jax.jacrev`.

    Returns:
        A function with the arguments of `fun`. It returns a pytree like the result, in which a pytree like the first
        argument replaces each floating-point array, and None replaces every other leaf. With `has_aux`, it returns this
        pytree and the second of the pair.

    Raises:
        LiftArgumentError: if there is no such option; when it is called, if there is no positional argument, or `fun`
            returns a scope.
    """
    check_function("filter_jacrev", fun)
    check_options("filter_jacrev", options, ("holomorphic", "allow_int"))
    return FilteredFunction(_jacobian, fun, {"lift": liftcore.jacrev, "has_aux": has_aux, **options})


def filter_hessian(fun: Callable[..., Any], has_aux: bool = False, **options: Any) -> Any:
    """Apply `jax.hessian` with respect to the floating-point arrays in the first argument.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_hessian(lambda model: model["w"] ** 3)({"w": jnp.float32(2), "steps": 5})
        {'steps': None, 'w': {'steps': None, 'w': Array(12., dtype=float32)}}

    Args:
        fun: the function, or any callable pytree.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may be anything.
        **options: `holomorphic` of `jax.hessian`.

    Returns:
        A function with the arguments of `fun`. It returns the Jacobian of the Jacobian; see `filter_jacfwd`.

    Raises:
        LiftArgumentError: if there is no such option; when it is called, if there is no positional argument, or `fun`
            returns a scope.
    """
    check_options("filter_hessian", options, ("holomorphic",))
    return filter_jacfwd(filter_jacrev(fun, has_aux, **options), has_aux, **options)


def _jacobian(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    options = dict(options)
    lift, has_aux = options.pop("lift"), options.pop("has_aux")
    where = f"filter_{lift.__name__}({name_of(fun)})"
    check_first(where, args)
    call, result, second = Differentiated(fun, args[:1], args[1:], kwargs), SplitResult(where), SplitResult(where)

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        found = call.run(scopes, arrays)
        value, aux = found if has_aux else (found, None)
        outputs = as_arrays(result.arrays(value, is_inexact_array_like))
        return outputs or [jnp.zeros(())], second.arrays(aux)

    rows, aux = lift(body, 1, has_aux=True, wrt=False, **options)(call.scopes, call.arrays)
    found = result.parts.fill([call.like_primals(row)[0] for row in rows])
    return (found, second.join(aux)) if has_aux else found
