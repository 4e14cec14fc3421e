"""`filter_vjp`: the result of a function of any Python objects, and its pullback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

import liftcore
from liftcore.errors import boundary, check_function, name_of

from .differentiated import Differentiated
from .filters import is_inexact_array
from .parts import SplitResult

__all__ = ["filter_vjp"]


@boundary
def filter_vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Apply `jax.vjp` to a function of any Python objects, with respect to its floating-point arrays.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> result, pullback = eqx.filter_vjp(lambda model, x: {"y": model["w"] * x, "name": "net"},
        ...                                   {"w": jnp.float32(3), "steps": 5}, jnp.float32(2))
        >>> result["name"], pullback({"y": jnp.float32(1), "name": None})
        ('net', ({'steps': None, 'w': Array(2., dtype=float32)}, Array(3., dtype=float32)))

    Args:
        fun: the function, or any callable pytree.
        *primals: its arguments. Scopes among them are lifted as in `liftcore.vjp`.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may be anything.

    Returns:
        The result and the pullback; with `has_aux`, also the second of the pair. The pullback takes a cotangent: a
        pytree like the result, with None or any other value for leaves that are not floating-point arrays. It returns
        a tuple of cotangents of the arguments, with None for leaves that have none.

    Raises:
        LiftArgumentError: if `fun` returns a scope.
    """
    check_function("filter_vjp", fun)
    where = f"filter_vjp({name_of(fun)})"
    call = Differentiated(fun, primals)
    result, others, second = SplitResult(where), SplitResult(where), SplitResult(where)

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], Any]:
        found = call.run(scopes, arrays)
        value, aux = found if has_aux else (found, None)
        differentiable = result.arrays(value, is_inexact_array)
        return differentiable, (others.arrays(value), second.arrays(aux))

    _, pullback, (arrays, aux) = liftcore.vjp(body, has_aux=True, wrt=False)(call.scopes, call.arrays)
    back = jax.tree_util.Partial(functools.partial(_pull_back, call, result), pullback)
    found = others.join(arrays)
    return (found, back, second.join(aux)) if has_aux else (found, back)


def _pull_back(call: Differentiated, result: SplitResult, pullback: Callable[..., Any], cotangent: Any) -> Any:
    _, arrays = pullback(result.parts.take(cotangent))
    return call.like_primals(arrays)
