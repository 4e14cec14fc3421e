"""The shapes and dtypes, or the jaxpr, of a call, without computing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import liftcore
from liftcore import is_traceable
from liftcore.errors import LiftArgumentError, boundary, call_user, check_function, name_of

from .functions import FilteredFunction
from .parts import SplitResult, SplitTree

__all__ = ["filter_eval_shape", "filter_make_jaxpr", "is_typed"]


@boundary
def filter_eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply `jax.eval_shape` to a function of any Python objects.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> eqx.filter_eval_shape(lambda x, name: (x.sum(), name), jax.ShapeDtypeStruct((3,), jnp.float32), "net")
        (ShapeDtypeStruct(shape=(), dtype=float32), 'net')

    Args:
        fun: the function, or any callable pytree.
        *args: its arguments; a `jax.ShapeDtypeStruct` may take the place of an array. Scopes are lifted as in
            `liftcore.eval_shape`, and do not change.
        **kwargs: the keyword arguments.

    Returns:
        The result of the call, with a `jax.ShapeDtypeStruct` in place of each array. If one array is in two places, so
        is its `jax.ShapeDtypeStruct`.

    Raises:
        LiftArgumentError: if `fun` returns a scope.
    """
    check_function("filter_eval_shape", fun)
    given, result = SplitTree((fun, args, kwargs), is_typed), SplitResult(f"filter_eval_shape({name_of(fun)})")
    numbers: list[int] = []

    def body(scopes: Any, arrays: list[Any]) -> list[Any]:
        function, args, kwargs = given.join(arrays, scopes)
        found = result.arrays(call_user(result.where, function, *args, **kwargs))
        distinct = {id(array): array for array in found}  # JAX would return another shape for each place of an array
        order = {each: number for number, each in enumerate(distinct)}
        numbers.extend([order[id(array)] for array in found])
        return list(distinct.values())

    shapes = liftcore.eval_shape(body)(given.scopes, given.arrays)
    return result.join([shapes[number] for number in numbers])


def filter_make_jaxpr(fun: Callable[..., Any]) -> Any:
    """Apply `jax.make_jaxpr` to a function of any Python objects.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> make = eqx.filter_make_jaxpr(lambda x, name: {"y": 2 * x, "name": name})
        >>> jaxpr, shapes, static = make(jnp.ones(3), "net")
        >>> jaxpr
        { lambda ; a:f32[3]. let b:f32[3] = mul 2.0:f32[] a in (b,) }
        >>> shapes, static
        ({'name': None, 'y': ShapeDtypeStruct(shape=(3,), dtype=float32)}, {'name': 'net', 'y': None})

    Args:
        fun: the function, or any callable pytree.

    Returns:
        A function with the arguments of `fun`; a `jax.ShapeDtypeStruct` may take the place of an array. It returns
        three values: the closed jaxpr, whose inputs and outputs are the arrays, and whose constants are the arrays that
        `fun` holds; the result with a `jax.ShapeDtypeStruct` for each array and None for all other leaves; and the
        result with None for each array.

    Raises:
        LiftArgumentError: when it is called with a scope, which a jaxpr cannot have.
    """
    check_function("filter_make_jaxpr", fun)
    return FilteredFunction(_make_jaxpr, fun, {})


def _make_jaxpr(fun: Callable[..., Any], _: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    where = f"filter_make_jaxpr({name_of(fun)})"
    given, result = SplitTree((args, kwargs), is_typed), SplitResult(where)
    if given.scopes:
        raise LiftArgumentError(
            where,
            f"the scope {given.scopes[0].path_text} is among the arguments, but a jaxpr cannot have scopes.",
            "Make a function of variables first: `pure, variables = liftcore.purify(fn, scope, …)`.",
        )

    def run(*arrays: Any) -> list[Any]:
        args, kwargs = given.join(arrays)
        return result.arrays(call_user(where, fun, *args, **kwargs))

    jaxpr, shapes = liftcore.jaxpr_of(run, *given.arrays)
    nothing = [None] * len(shapes)
    return jaxpr, result.parts.fill(shapes), result.parts.join(nothing)


def is_typed(leaf: Any) -> bool:
    """Return whether a leaf is an array, or has the type of one."""
    return is_traceable(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
