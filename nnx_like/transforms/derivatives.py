"""Derivatives over objects: `grad`, `vjp`, `jvp`, `linearize`, Jacobians and Hessians."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError

from ..crossing.groups import Ref, is_ref
from ..graph.definition import Definition, VariableDef
from ..statelib.state import State
from .base import MISSING, also_decorator, checked, positional, title
from .differentiation import (
    DIFFERENTIATED,
    EVERYTHING,
    ChosenArguments,
    Derivative,
    DiffState,
    differentiated,
    outline,
    state_of,
    tangents_in,
    with_states,
)

__all__ = ["DiffState", "grad", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "value_and_grad", "vjp"]


# --- gradients --------------------------------------------------------------------------------------------------------


@also_decorator
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
    options = {"holomorphic": holomorphic, "allow_int": allow_int}
    return _gradient("grad", f, argnums, has_aux, reduce_axes, options)


@also_decorator
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
    options = {"holomorphic": holomorphic, "allow_int": allow_int}
    return _gradient("value_and_grad", f, argnums, has_aux, reduce_axes, options, with_value=True)


def _gradient(
    name: str,
    f: Callable[..., Any],
    argnums: Any,
    has_aux: bool,
    reduce_axes: Sequence[Any],
    options: dict[str, Any],
    with_value: bool = False,
) -> Callable[..., Any]:
    """Implement `grad` and `value_and_grad`, under the name that errors use."""
    where = checked(name, f)
    _check_not_reduced(where, reduce_axes)
    arguments = ChosenArguments(where, argnums, options["allow_int"])

    def finish(args: Sequence[Any], like: Any, value: Any, grads: Any, aux: Any) -> Any:
        found = with_states(tuple(grads[-len(args) :]), lambda group, key: grads[0][group][key])
        chosen = found[0] if arguments.single else found
        if with_value:
            return (value, aux) if has_aux else value, chosen
        return (chosen, aux) if has_aux else chosen

    lift = functools.partial(liftcore.value_and_grad, **options)
    return differentiated(name, f, arguments, has_aux, lift, lambda pair, grads: (pair[0], grads, pair[1]), finish)


# --- pullbacks --------------------------------------------------------------------------------------------------------


@boundary
@also_decorator
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
    _check_not_reduced("vjp", reduce_axes)
    return _of_all(liftcore.vjp, f, primals, has_aux, lambda given: _pulled_back)


def _of_all(
    lift: Callable[..., Any],
    f: Callable[..., Any],
    primals: tuple[Any, ...],
    has_aux: bool,
    convert: Callable[[Any], Callable[..., Any]],
) -> Any:
    """Apply a derivative of the core with respect to all floating values, which returns a linear function.

    Args:
        lift: the derivative of the core.
        f: the user's function.
        primals: the arguments; without them, the result is a function of them.
        has_aux: whether `f` returns a pair.
        convert: returns, for the crossed arguments, how to call the linear function with what the user passes.
    """
    name = lift.__name__
    derivative = Derivative(name, f, has_aux)
    lifted = lift(derivative.body, has_aux=True, wrt=DIFFERENTIATED.name)

    @functools.wraps(f)
    @boundary
    def wrapped(*primals: Any, **kwargs: Any) -> Any:
        primals = positional(name, f, primals, kwargs)
        given, _, y, linear, aux = derivative.run(
            primals, {}, EVERYTHING, "primals", lambda scope, args, *_: lifted(scope, *args)
        )
        linear = jax.tree_util.Partial(convert(given), linear)
        return (y, linear, aux) if has_aux else (y, linear)

    return wrapped(*primals) if primals else wrapped


def _pulled_back(back: Callable[..., Any], cotangent: Any) -> Any:
    variables, *cotangents = back(cotangent)
    return with_states(tuple(cotangents), lambda group, key: variables[group][key])


# --- tangents ---------------------------------------------------------------------------------------------------------


@boundary
@also_decorator
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
    derivative = Derivative("jvp", f, has_aux)
    lifted = liftcore.jvp(derivative.body, has_aux=True, wrt=DIFFERENTIATED.name)

    @functools.wraps(f)
    @boundary
    def wrapped(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def run(scope: liftcore.Scope, given: Any, *_: Any) -> Any:
            along, moved = _along(derivative.groups.where, given, tuple(tangents))
            return lifted(scope, given, moved, along)

        _, _, *found, aux = derivative.run(tuple(primals), {}, EVERYTHING, "primals", run)
        return (*found, aux) if has_aux else tuple(found)

    return wrapped if primals is MISSING else wrapped(primals, tangents)


@boundary
@also_decorator
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

    def convert(given: Any) -> Callable[..., Any]:
        return functools.partial(_moved_along, title("linearize", f), outline(given))

    return _of_all(liftcore.linearize, f, primals, has_aux, convert)


def _moved_along(where: str, given: Any, linear: Callable[..., Any], *tangents: Any) -> Any:
    along, moved = _along(where, given, tangents)
    return linear(along, *moved)


def _along(where: str, given: Any, tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Split tangents into those of variables and those of arrays, which all need one."""
    variables, moved = tangents_in(where, given, tangents, "tangents")
    places: Any = jax.tree.structure(given, is_leaf=is_ref)
    if any(one is None for one in places.flatten_up_to(moved)):
        what = Expected("a tangent for each array", given=None)
        raise LiftArgumentError(where, what, "Give zeros; only an object can have None.")
    return {DIFFERENTIATED.name: variables.get(DIFFERENTIATED.name, {})}, moved


# --- Jacobians --------------------------------------------------------------------------------------------------------


@also_decorator
def jacfwd(
    fun: Callable[..., Any] = MISSING,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """`jax.jacfwd` for functions of objects: with respect to their `Param`s, or to variables that a filter selects.

    If the function changes an object, or its structure, the caller's object changes.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones((3, 2))))
        >>> jacobian = nnx.jacfwd(lambda model, x: jnp.sin(x @ model.w))(model, jnp.ones(3))
        >>> jacobian.w.shape  # that of the result, then that of the variable
        (2, 3, 2)

    Args:
        fun: the function; it returns arrays, or with `has_aux` arrays and something else. Without it the result is a
            decorator. Methods may be decorated.
        argnums: the number of the argument to differentiate with respect to, or several. Arrays in it must be floating.
            In objects, the `Param`s are differentiated; to select other variables, give `DiffState(number, filter)`.
            Variables that are not floating have no derivative.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may hold objects.
        holomorphic: whether the function is holomorphic; complex inputs require True.

    Returns:
        A function of the same arguments that returns the Jacobian, or with `has_aux` the Jacobian and the rest. It
        has the structure of the result. In place of each array it has the structure of the argument, with a `State` in
        place of each object: variables of the same kinds, without metadata.

    Raises:
        LiftArgumentError: if `fun` is a bound method, or `argnums` does not fit.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    return _jacobian(liftcore.jacfwd, fun, argnums, has_aux, holomorphic=holomorphic)


@also_decorator
def jacrev(
    fun: Callable[..., Any] = MISSING,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """`jax.jacrev` for functions of objects; see `jacfwd`.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones((3, 2))))
        >>> jacobian = nnx.jacrev(lambda model, x: {"y": x @ model.w}, argnums=(0, 1))(model, jnp.ones(3))
        >>> jacobian["y"][0].w.shape, jacobian["y"][1].shape
        ((2, 3, 2), (2, 3))

    Args:
        fun: the function; it returns arrays, or with `has_aux` arrays and something else. Without it the result is a
            decorator. Methods may be decorated.
        argnums: the number of the argument to differentiate with respect to, or several. Arrays in it must be floating.
            In objects, the `Param`s are differentiated; to select other variables, give `DiffState(number, filter)`.
            Variables that are not floating have no derivative.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may hold objects.
        holomorphic: whether the function is holomorphic; complex inputs require True.
        allow_int: whether to allow integer arguments; their derivative has dtype `float0`.

    Returns:
        A function of the same arguments that returns the Jacobian, or with `has_aux` the Jacobian and the rest. It
        has the structure of the result. In place of each array it has the structure of the argument, with a `State` in
        place of each object: variables of the same kinds, without metadata.

    Raises:
        LiftArgumentError: if `fun` is a bound method, or `argnums` does not fit.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    return _jacobian(liftcore.jacrev, fun, argnums, has_aux, holomorphic=holomorphic, allow_int=allow_int)


@also_decorator
def hessian(
    fun: Callable[..., Any] = MISSING,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """`jax.hessian` for functions of objects: `jacfwd` of `jacrev`.

    If the function changes an object, or its structure, the caller's object changes.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(a=nnx.Param(jnp.ones(2)), b=nnx.Param(jnp.ones(3)))
        >>> second = nnx.hessian(lambda model: jnp.sum(model.a) ** 2 * jnp.sum(model.b))(model)
        >>> second.a.b.shape
        (2, 3)

    Args:
        fun: the function; it returns arrays, or with `has_aux` these and something else. Without it the result is a
            decorator. Methods may be decorated.
        argnums: the number of the argument to differentiate with respect to, or several. Arrays in it must be floating.
            In objects, the `Param`s are differentiated; to select other variables, give `DiffState(number, filter)`.
            Variables that are not floating have no derivative.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may hold objects.
        holomorphic: whether the function is holomorphic; complex inputs require True.

    Returns:
        A function of the same arguments that returns the Hessian, or with `has_aux` that and the rest. The Hessian has
        the structure of a Jacobian of a Jacobian: for an object it is a `State` that holds another `State` at each
        path.

    Raises:
        LiftArgumentError: if `fun` is a bound method, or `argnums` does not fit.
        AliasError: when called, if a variable is differentiated in one argument, and not in another.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    return _jacobian(liftcore.hessian, fun, argnums, has_aux, holomorphic=holomorphic)


def _jacobian(lift_of: Any, fun: Callable[..., Any], argnums: Any, has_aux: bool, **options: Any) -> Any:
    """Apply a derivative of liftcore to functions of objects; without a function, return a decorator."""
    name = lift_of.__name__
    arguments = ChosenArguments(checked(name, fun), argnums, options.get("allow_int", False))
    second = lift_of is liftcore.hessian

    def finish(args: Sequence[Any], like: Any, _: None, jacobian: Any, aux: Any) -> Any:
        first = functools.partial(_by_argument, args, arguments.single)
        arranged = functools.partial(first, convert=first, make=_nested) if second else first
        structure: Any = jax.tree.structure(like)
        found = structure.unflatten(map(arranged, structure.flatten_up_to(jacobian)))
        return (found, aux) if has_aux else found

    lift = functools.partial(lift_of, **options)
    return differentiated(name, fun, arguments, has_aux, lift, lambda jacobian, rest: (None, jacobian, rest), finish)


def _of_kind(definition: Definition, value: Any) -> Any:
    """Return a variable of the same kind without metadata, which describes axes that a Jacobian does not have."""
    return definition.cls.made(value, {}, liftcore.trace_state()) if type(definition) is VariableDef else value


def _nested(definition: Definition, value: Any) -> Any:
    return value.raw_mapping if isinstance(value, State) else value


def _by_argument(
    args: Sequence[Any],
    single: bool,
    parts: Sequence[Any],
    convert: Callable[[Any], Any] = lambda value: value,
    make: Callable[[Definition, Any], Any] = _of_kind,
) -> Any:
    """Return the derivatives of one array, as the user sees them.

    Args:
        args: the arguments that are differentiated, with refs in them.
        single: whether there is one argument that is not in a sequence.
        parts: JAX's derivatives: one for all variables, if there are any, and one for each argument.
        convert: applied to each array.
        make: see `state_of`.
    """

    def seen(leaf: Any, part: Any) -> Any:
        return state_of(leaf, read, make, convert) if type(leaf) is Ref else convert(part)

    def read(group: str, key: Any) -> Any:
        return parts[0][group][key]

    found = tuple(
        [jax.tree.map(seen, arg, part, is_leaf=is_ref) for arg, part in zip(args, parts[-len(args) :], strict=True)]
    )
    return found[0] if single else found


def _check_not_reduced(where: str, reduce_axes: Sequence[Any]) -> None:
    if reduce_axes:
        what = "JAX no longer supports `reduce_axes`."
        raise LiftArgumentError(where, what, "Reduce with `jax.lax.psum`.", option="reduce_axes")
