"""`jacfwd`, `jacrev` and `hessian` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore

from ..crossing.ref import Ref, is_ref
from ..graph.definition import Definition, VariableDef
from ..statelib.state import State
from .base import MISSING, also_decorator, checked
from .differentiation import DIFFERENTIATED, ChosenArguments, DiffState, differentiated, state_of

__all__ = ["hessian", "jacfwd", "jacrev"]


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

    def lift(body: Callable[..., Any], numbers: Sequence[int]) -> Callable[..., Any]:
        lifted = lift_of(body, argnums=numbers, has_aux=True, wrt=DIFFERENTIATED, **options)

        def run(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
            jacobian, rest = lifted(scope, *args, **kwargs)
            return None, jacobian, rest

        return run

    def finish(args: Sequence[Any], like: Any, _: None, jacobian: Any) -> Any:
        first = functools.partial(_by_argument, args, arguments.single)
        arranged = functools.partial(first, convert=first, make=_nested) if second else first
        structure: Any = jax.tree.structure(like)
        return structure.unflatten(map(arranged, structure.flatten_up_to(jacobian)))

    return differentiated(name, fun, arguments, has_aux, lift, finish)


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
