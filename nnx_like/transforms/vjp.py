"""`vjp` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError, boundary, call_user

from ..crossing.inside import Inside, stay
from ..crossing.outside import Outside
from .decorating import MISSING, named, positional
from .differentiation import DIFFERENTIATED, EVERYTHING, REST, in_two_groups, plain_result, unveiled, veiled
from .tangents import with_states

__all__ = ["differentiable", "vjp"]


@boundary
def vjp(f: Callable[..., Any] = MISSING, *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """`jax.vjp` for functions of objects: with respect to all floating values in the arguments.

    If the function changes an object, or its structure, the caller's object changes. No gradient flows through values
    that it writes.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
        >>> y, pull_back = nnx.vjp(lambda model, x: model.w * x, model, jnp.array([2.0, 3.0]))
        >>> grads, x_grad = pull_back(jnp.ones(2))
        >>> grads.w[...], x_grad
        (Array([2., 3.], dtype=float32), Array([1., 1.], dtype=float32))

    Args:
        f: the function; it returns arrays, or with `has_aux` arrays and something else. Without it and `primals`, the
            result is a decorator. Methods may be decorated.
        primals: the arguments; arrays, and objects of any kind. Without them the result is a function of them.
        has_aux: whether `f` returns a pair, of which only the first is differentiated; the second may hold objects.
        reduce_axes: no longer used; leave it empty.

    Returns:
        The result and the pullback; with `has_aux`, the rest too. The pullback takes a cotangent of the result and
        returns a cotangent for each argument, with a `State` in place of each object. The variables of this state have
        the same kinds and metadata, and hold the cotangents. The pullback may be returned from a `jit`.

    Raises:
        LiftArgumentError: if `f` is a bound method, or a differentiated result holds an object.
        TraceContextError: if the function returns or changes an object that is not an argument.
    """
    if reduce_axes:
        raise LiftArgumentError("vjp", "JAX no longer supports `reduce_axes`.", "Reduce with `jax.lax.psum`.")
    if f is MISSING:
        return functools.partial(vjp, has_aux=has_aux)
    start = differentiable("vjp", liftcore.vjp, f, has_aux)

    @functools.wraps(f)
    @boundary
    def wrapped(*primals: Any, **kwargs: Any) -> Any:
        _, y, back, aux = start(*positional("vjp", f, primals, kwargs))
        pull_back = jax.tree_util.Partial(_pulled_back, back)
        return (y, pull_back, aux) if has_aux else (y, pull_back)

    return wrapped(*primals) if primals else wrapped


def _pulled_back(back: Callable[..., Any], cotangent: Any) -> Any:
    variables, *cotangents = back(cotangent)
    return with_states(tuple(cotangents), lambda group, key: variables[group][key])


def differentiable(
    name: str, lift: Callable[..., Any], f: Callable[..., Any], has_aux: bool
) -> Callable[..., tuple[Any, Any, Any, Any]]:
    """Return a function of objects under a derivative with respect to all floating values.

    Args:
        name: what errors call the transformation.
        lift: `liftcore.vjp` or a similar lift: it returns a result, its derivative, and the rest.
        f: the function.
        has_aux: whether the function returns a pair, of which only the first is differentiated.

    Returns:
        `start(*primals)`, which returns the primals with refs, the result, the lift's derivative, and the rest of the
        function's result. More arguments of the lifted function come from its option `more`, which is called with the
        primals.
    """
    groups = in_two_groups(name, f)

    @named(f)
    def body(scope: liftcore.Scope, *args: Any) -> Any:
        inside = Inside(scope, groups)
        y, aux = plain_result(groups.where, call_user(groups.where, f, *inside.decode(args)), has_aux)
        return y, inside.encode(veiled(aux), REST, stays=stay)

    lifted = lift(body, has_aux=True, wrt=DIFFERENTIATED)

    def start(*primals: Any, more: Callable[..., Any] | None = None) -> tuple[Any, Any, Any, Any]:
        outside = Outside(groups, primals, EVERYTHING, "primals", cached=False)
        with outside.scope() as scope:
            given = outside.args if more is None else more(groups.where, outside.args)
            y, derivative, home = lifted(scope, *given)
            return outside.args, y, derivative, unveiled(outside.leave(scope, *home))

    return start
