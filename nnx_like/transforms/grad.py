"""`grad` and `value_and_grad` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import liftcore
from liftcore.errors import LiftArgumentError, boundary

from .decorating import MISSING, checked
from .differentiation import DIFFERENTIATED, ChosenArguments, DiffState, differentiated
from .tangents import with_states

__all__ = ["DiffState", "grad", "value_and_grad"]


def grad(
    f: Callable[..., Any] = MISSING,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Any:
    """`jax.grad` for functions of objects: with respect to their `Param`s, or to variables that a filter selects.

    If the function changes an object, or its structure, the caller's object changes. No gradient flows through values
    that it writes.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> def loss(model, x):
        ...     model.calls += 1
        ...     return jnp.sum(model.w * x)
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones(2)), calls=nnx.Variable(0))
        >>> nnx.grad(loss)(model, jnp.array([2.0, 3.0])).w[...]
        Array([2., 3.], dtype=float32)
        >>> int(model.calls[...])
        1

    Args:
        f: the function; it returns a number, or with `has_aux` a number and something else. Without it the result is a
            decorator. Methods may be decorated.
        argnums: the number of the argument to differentiate with respect to, or several. Arrays in it must be floating.
            In objects, the `Param`s are differentiated; to select other variables, give `DiffState(number, filter)`.
            Variables that are not floating have no derivative.
        has_aux: whether `f` returns a pair, of which only the first is differentiated; the second may hold objects.
        holomorphic: whether the function is holomorphic; complex inputs require True.
        allow_int: whether to allow integer arguments; their gradient has dtype `float0`.
        reduce_axes: no longer used; leave it empty.

    Returns:
        A function of the same arguments that returns the gradient, or with `has_aux` the gradient and the rest. The
        gradient has the structure of the argument, with a `State` in place of each object. The variables of this state
        have the same kinds and metadata, and hold the gradients. A shared variable appears once, at its first path. For
        several arguments, the gradient is a tuple.

    Raises:
        LiftArgumentError: if `f` is a bound method, or `argnums` does not fit.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    options: dict[str, Any] = {
        "has_aux": has_aux,
        "holomorphic": holomorphic,
        "allow_int": allow_int,
        "reduce_axes": reduce_axes,
    }
    if f is MISSING:
        return functools.partial(grad, argnums=argnums, **options)
    both = _gradient("grad", f, argnums, **options)

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def value_and_grad(
    f: Callable[..., Any] = MISSING,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Any:
    """`jax.value_and_grad` for functions of objects; see `grad`.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(3.0))
        >>> value, grads = nnx.value_and_grad(lambda model: model.w**2)(model)
        >>> float(value), float(grads.w[...])
        (9.0, 6.0)

    Args:
        f: the function; it returns a number, or with `has_aux` a number and something else. Without it the result is a
            decorator. Methods may be decorated.
        argnums: the number of the argument to differentiate with respect to, or several. Arrays in it must be floating.
            In objects, the `Param`s are differentiated; to select other variables, give `DiffState(number, filter)`.
            Variables that are not floating have no derivative.
        has_aux: whether `f` returns a pair, of which only the first is differentiated; the second may hold objects.
        holomorphic: whether the function is holomorphic; complex inputs require True.
        allow_int: whether to allow integer arguments; their gradient has dtype `float0`.
        reduce_axes: no longer used; leave it empty.

    Returns:
        A function of the same arguments. It returns the value and the gradient, which `grad` describes; with `has_aux`,
        a pair of the value and the rest takes the place of the value.

    Raises:
        LiftArgumentError: if `f` is a bound method, or `argnums` does not fit.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    options: dict[str, Any] = {
        "has_aux": has_aux,
        "holomorphic": holomorphic,
        "allow_int": allow_int,
        "reduce_axes": reduce_axes,
    }
    if f is MISSING:
        return functools.partial(value_and_grad, argnums=argnums, **options)
    return _gradient("value_and_grad", f, argnums, **options)


def _gradient(
    name: str,
    f: Callable[..., Any],
    argnums: Any,
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    reduce_axes: Sequence[Any],
) -> Callable[..., Any]:
    """Implement `grad` and `value_and_grad`, under the name that errors use."""
    where = checked(name, f)
    if reduce_axes:
        raise LiftArgumentError(where, "JAX no longer supports `reduce_axes`.", "Reduce with `jax.lax.psum`.")
    arguments = ChosenArguments(where, argnums, allow_int)

    def lift(body: Callable[..., Any], numbers: Sequence[int]) -> Callable[..., Any]:
        options: dict[str, Any] = {"holomorphic": holomorphic, "allow_int": allow_int}
        lifted = liftcore.value_and_grad(body, argnums=numbers, has_aux=True, wrt=DIFFERENTIATED, **options)

        def run(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
            (value, rest), grads = lifted(scope, *args, **kwargs)
            return value, rest, grads

        return run

    def finish(args: Sequence[Any], like: Any, value: Any, grads: Any) -> Any:
        found = with_states(tuple(grads[-len(args) :]), lambda group, key: grads[0][group][key])
        return value, found[0] if arguments.single else found

    both = differentiated(name, f, arguments, has_aux, lift, finish)
    if not has_aux:
        return both

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        (value, grads), aux = both(*args, **kwargs)
        return (value, aux), grads

    return wrapped
