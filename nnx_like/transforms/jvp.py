"""`jvp` and `linearize` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError, boundary

from ..crossing.ref import is_ref
from .decorating import MISSING, positional, title
from .differentiation import DIFFERENTIATED
from .tangents import outline, tangents_in
from .vjp import differentiable

__all__ = ["jvp", "linearize"]


@boundary
def jvp(
    f: Callable[..., Any] = MISSING,
    primals: Sequence[Any] = MISSING,
    tangents: Sequence[Any] = MISSING,
    *,
    has_aux: bool = False,
) -> Any:
    """`jax.jvp` for functions of objects: the derivative along tangents of arrays and of floating variables.

    If the function changes an object, or its structure, the caller's object changes. Values that it writes have no
    tangent.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
        >>> f = lambda model, x: jnp.sum(model.w * x)
        >>> y, dy = nnx.jvp(f, (model, jnp.array([2.0, 3.0])), (nnx.State({"w": jnp.ones(2)}), jnp.ones(2)))
        >>> float(y), float(dy)
        (5.0, 7.0)

    Args:
        f: the function; it returns arrays, or with `has_aux` arrays and something else. Without it the result is a
            decorator for functions of `primals` and `tangents`. Methods may be decorated.
        primals: the arguments; arrays, and objects of any kind.
        tangents: one tangent for each argument. For an object, give a `State` with tangents of its floating variables
            (a missing tangent is zero), an object of the same structure, or None for zero.
        has_aux: whether `f` returns a pair, of which only the first is differentiated; the second may hold objects.

    Returns:
        The result and its tangent; with `has_aux`, the rest too.

    Raises:
        LiftArgumentError: if `f` is a bound method, tangents do not fit, or a differentiated result holds an object.
        TraceContextError: if the function returns or changes an object that is not an argument.
    """
    if f is MISSING:
        return functools.partial(jvp, has_aux=has_aux)
    start = differentiable("jvp", liftcore.jvp, f, has_aux)

    @functools.wraps(f)
    @boundary
    def wrapped(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def more(where: str, given: Any) -> Any:
            along, moved = _along(where, given, tuple(tangents))
            return given, moved, along

        _, *found, aux = start(*primals, more=more)
        return (*found, aux) if has_aux else tuple(found)

    return wrapped if primals is MISSING else wrapped(primals, tangents)


@boundary
def linearize(f: Callable[..., Any] = MISSING, *primals: Any, has_aux: bool = False) -> Any:
    """`jax.linearize` for functions of objects: the derivative at some arguments, as a function of tangents.

    If the function changes an object, or its structure, the caller's object changes. Values that it writes have no
    tangent.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
        >>> y, along = nnx.linearize(lambda model, x: jnp.sum(model.w * x), model, jnp.array([2.0, 3.0]))
        >>> float(along(nnx.State({"w": jnp.ones(2)}), jnp.ones(2)))
        7.0

    Args:
        f: the function; it returns arrays, or with `has_aux` arrays and something else. Without it and `primals`, the
            result is a decorator. Methods may be decorated.
        primals: the arguments; arrays, and objects of any kind. Without them the result is a function of them.
        has_aux: whether `f` returns a pair, of which only the first is differentiated; the second may hold objects.

    Returns:
        The result and a function of tangents; with `has_aux`, the rest too. The function takes one tangent for each
        argument. For an object, give a `State` with tangents of its floating variables (a missing tangent is zero), an
        object of the same structure, or None for zero.

    Raises:
        LiftArgumentError: if `f` is a bound method, or a differentiated result holds an object.
        TraceContextError: if the function returns or changes an object that is not an argument.
    """
    if f is MISSING:
        return functools.partial(linearize, has_aux=has_aux)
    start = differentiable("linearize", liftcore.linearize, f, has_aux)

    @functools.wraps(f)
    @boundary
    def wrapped(*primals: Any, **kwargs: Any) -> Any:
        given, y, linear, aux = start(*positional("jvp", f, primals, kwargs))
        move = functools.partial(_moved_along, title("linearize", f), outline(given))
        along = jax.tree_util.Partial(move, linear)
        return (y, along, aux) if has_aux else (y, along)

    return wrapped(*primals) if primals else wrapped


def _moved_along(where: str, given: Any, linear: Callable[..., Any], *tangents: Any) -> Any:
    along, moved = _along(where, given, tangents)
    return linear(along, *moved)


def _along(where: str, given: Any, tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Split tangents into those of variables and those of arrays, which all need one."""
    variables, moved = tangents_in(where, given, tangents, "tangents")
    places: Any = jax.tree.structure(given, is_leaf=is_ref)
    if any(one is None for one in places.flatten_up_to(moved)):
        raise LiftArgumentError(where, "the tangent of an array is None.", "Give zeros; only an object can have None.")
    return {DIFFERENTIATED: variables.get(DIFFERENTIATED, {})}, moved
