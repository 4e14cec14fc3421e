"""Derivatives with respect to the floating-point arrays in the first arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore import Scope, is_scoped
from liftcore.calls import boundary, call_user
from liftcore.errors import Expected, LiftArgumentError, check_function, name_of, shown

from .methods import MISSING, FilteredFunction, filtered
from .options import UNSET, check_options
from .rules import as_arrays
from .split import SplitResult, SplitTree, leafwise
from .tree import is_array_like, is_inexact_array, is_inexact_array_like

__all__ = [
    "filter_grad",
    "filter_hessian",
    "filter_jacfwd",
    "filter_jacrev",
    "filter_jvp",
    "filter_value_and_grad",
    "filter_vjp",
]

# --- a call that is differentiated ------------------------------------------------------------------------------------


class Differentiated:
    """A call, split into scopes, arrays to differentiate, and everything else.

    Args:
        fun: the function.
        primals: the first arguments, which are differentiated.
        args: the positional arguments after them.
        kwargs: the keyword arguments.
        is_traced: whether a leaf of the primals is differentiated: a function of the leaf, or a bool for each leaf.

    Attributes:
        scopes: the scopes in the function and its arguments.
        arrays: the arrays that are differentiated.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        primals: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        is_traced: Callable[[Any], bool] | Iterable[bool] = is_inexact_array,
    ) -> None:
        self._primals = SplitTree(tuple(primals), is_traced)
        self._others = SplitTree((fun, tuple(args), dict(kwargs or {})), lambda leaf: False)
        self.scopes = [*self._primals.scopes, *self._others.scopes]
        self.arrays = self._primals.arrays

    def run(self, scopes: Sequence[Scope], arrays: Iterable[Any], has_aux: bool = False) -> tuple[Any, Any]:
        """Call the function with other arrays and scopes. Return its result, and the second of a pair or None."""
        count = len(self._primals.scopes)
        primals = self._primals.join(arrays, scopes[:count])
        fun, args, kwargs = self._others.join((), scopes[count:])
        found = call_user(name_of(fun), fun, *primals, *args, **kwargs)
        return found if has_aux else (found, None)

    def like_primals(self, values: Iterable[Any]) -> Any:
        """Return a tuple like the primals, with a value for each leaf that is differentiated, and None for others."""
        return self._primals.fill(values)


def check_first(where: str, args: tuple[Any, ...]) -> None:
    """Check that a call has a first argument that may be differentiated.

    Args:
        where: the name of the transformation, for errors.
        args: the positional arguments.

    Raises:
        LiftArgumentError: if there is none, or it is static.
    """
    if not args:
        raise LiftArgumentError(
            where,
            "it was called without a positional argument, but it differentiates the first one.",
            "Pass that one by position.",
            expected="a positional argument",
        )
    if jax.tree_util.all_leaves(args[:1]) and not is_array_like(args[0]):
        what = f"the first argument, {shown(args[0])}, is not a pytree of arrays, so it has no gradient."
        fix = (
            "Pass what you differentiate first. For a module of linen_like, that is `eqx.Applied(module, variables)`; "
            "for a scope or a bound module, use `liftcore.grad` or `linen_like.grad`."
        )
        raise LiftArgumentError(where, what, fix, expected="a pytree of arrays", given=shown(args[0]))


# --- gradients --------------------------------------------------------------------------------------------------------


def filter_value_and_grad(fun: Any = MISSING, *, has_aux: bool = False, arg: Any = UNSET, **options: Any) -> Any:
    """Apply `jax.value_and_grad` with respect to the floating-point arrays in the first argument.

    All other leaves are passed unchanged. Scopes among the arguments are lifted as in `liftcore.value_and_grad`; the
    gradient is with respect to the first argument only.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> def loss(model, x):
        ...     return jnp.sum(model["act"](model["w"] * x))
        >>> model = {"w": jnp.float32(3), "act": jnp.square, "steps": 5}
        >>> eqx.filter_value_and_grad(loss)(model, jnp.float32(2))
        (Array(36., dtype=float32), {'act': None, 'steps': None, 'w': Array(24., dtype=float32)})

    Args:
        fun: the function, or any callable pytree; it returns a scalar. If it is left out,
            `filter_value_and_grad(has_aux=…)` is a decorator.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may be anything.
        arg: the leaves of the first argument to differentiate: a pytree prefix of bools, or of functions from a leaf to
            a bool. By default, the floating-point arrays.
        **options: `holomorphic` and `allow_int` of `jax.value_and_grad`.

    Returns:
        A function with the arguments of `fun` that returns the result and the gradient: a pytree like the first
        argument, with None for leaves that have no gradient. With `has_aux`, the result is the pair.

    Raises:
        LiftArgumentError: if there is no such option; when it is called, if there is no positional argument, `arg` is
            not a prefix, or `fun` returns a scope.
    """
    return filtered(
        filter_value_and_grad, _value_and_grad, fun, _options("filter_value_and_grad", has_aux, arg, options)
    )


def filter_grad(fun: Any = MISSING, *, has_aux: bool = False, arg: Any = UNSET, **options: Any) -> Any:
    """Apply `jax.grad` with respect to the floating-point arrays in the first argument; see `filter_value_and_grad`.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_grad(lambda model, x: model["w"] * x)({"w": jnp.float32(3), "steps": 5}, 2.0)
        {'steps': None, 'w': Array(2., dtype=float32)}

    Args:
        fun: the function, or any callable pytree; it returns a scalar. If it is left out, `filter_grad(has_aux=…)` is a
            decorator.
        has_aux: whether `fun` returns a pair, of which only the first is differentiated; the second may be anything.
        arg: the leaves of the first argument to differentiate: a pytree prefix of bools, or of functions from a leaf to
            a bool. By default, the floating-point arrays.
        **options: `holomorphic` and `allow_int` of `jax.grad`.

    Returns:
        A function with the arguments of `fun` that returns the gradient: a pytree like the first argument, with None
        for leaves that have no gradient. With `has_aux`, it returns the gradient and the second of the pair.

    Raises:
        LiftArgumentError: if there is no such option; when it is called, if there is no positional argument, `arg` is
            not a prefix, or `fun` returns a scope.
    """
    return filtered(filter_grad, _grad, fun, _options("filter_grad", has_aux, arg, options))


def _options(where: str, has_aux: bool, arg: Any, others: dict[str, Any]) -> dict[str, Any]:
    check_options(where, others, ("holomorphic", "allow_int"))
    return {"has_aux": has_aux, **({} if arg is UNSET else {"arg": arg}), **others}


def _value_and_grad(
    fun: Callable[..., Any],
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str = "filter_value_and_grad",
) -> Any:
    where, options = f"{name}({name_of(fun)})", dict(options)
    check_first(where, args)
    result, has_aux = SplitResult(where), options.pop("has_aux")
    is_traced: Any = is_inexact_array
    if "arg" in options:
        answers = leafwise(f"arg of {where}", options.pop("arg"), args[0])
        pairs = zip(answers, jax.tree.leaves(args[0]), strict=True)
        is_traced = [bool(answer) and not is_scoped(leaf) for answer, leaf in pairs]
    call = Differentiated(fun, args[:1], args[1:], kwargs, is_traced)

    def body(scopes: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
        value, aux = call.run(scopes, arrays, has_aux)
        return value, result.arrays(aux)

    lifted = liftcore.value_and_grad(body, 1, has_aux=True, wrt=False, **options)
    (value, aux), arrays = lifted(call.scopes, call.arrays)
    (gradient,) = call.like_primals(arrays)
    return ((value, result.join(aux)), gradient) if has_aux else (value, gradient)


def _grad(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, gradient = _value_and_grad(fun, options, args, kwargs, "filter_grad")
    return (gradient, value[1]) if options["has_aux"] else gradient


# --- pullbacks --------------------------------------------------------------------------------------------------------


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
        LiftArgumentError: if `fun` returns a scope; by the pullback, if the cotangent has another structure.
    """
    check_function("filter_vjp", fun)
    where = f"filter_vjp({name_of(fun)})"
    call = Differentiated(fun, primals)
    result, others, second = SplitResult(where), SplitResult(where), SplitResult(where)

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], Any]:
        value, aux = call.run(scopes, arrays, has_aux)
        differentiable = result.arrays(value, is_inexact_array)
        return differentiable, (others.arrays(value), second.arrays(aux))

    _, pullback, (arrays, aux) = liftcore.vjp(body, has_aux=True, wrt=False)(call.scopes, call.arrays)
    back = jax.tree_util.Partial(functools.partial(_pull_back, call, result), pullback)
    found = others.join(arrays)
    return (found, back, second.join(aux)) if has_aux else (found, back)


def _pull_back(call: Differentiated, result: SplitResult, pullback: Callable[..., Any], cotangent: Any) -> Any:
    try:
        cotangents = result.parts.take(cotangent)
    except (ValueError, TypeError):
        cotangents = [None]
    if any(one is None for one in cotangents):
        given = str(jax.tree.structure(cotangent))
        raise LiftArgumentError(
            f"the cotangent of {result.where}",
            Expected(f"the structure {result.parts.structure}", given, words=given),
            "Pass a pytree like the result, with an array for each floating-point array: zeros if it is constant.",
        )
    _, arrays = pullback(cotangents)
    return call.like_primals(arrays)


# --- tangents ---------------------------------------------------------------------------------------------------------


@boundary
def filter_jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], **kwargs: Any) -> Any:
    """Apply `jax.jvp` to a function of any Python objects. The tangent of a constant leaf is None.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_jvp(lambda x, scale: (scale * x, "done"), (jnp.float32(3), 2.0), (jnp.float32(1), None))
        ((Array(6., dtype=float32), 'done'), (Array(2., dtype=float32), None))

    Args:
        fn: the function, or any callable pytree.
        primals: the positional arguments of the function. Scopes among them are lifted as in `liftcore.jvp`.
        tangents: a tangent for each positional argument: a pytree like it, with None for leaves that are constant or
            not numbers. The tangent of an array has its shape and dtype.
        **kwargs: further arguments of the function, which are constant.

    Returns:
        The result and its tangent: a pytree like the result, with None for constant leaves. Inside a lift that creates
        variables, and under an outer `filter_jvp`, the tangent of a constant leaf may be zeros instead.

    Raises:
        LiftArgumentError: if `tangents` has another structure, or `fn` returns a scope.
    """
    check_function("filter_jvp", fn)
    where = f"filter_jvp({name_of(fn)})"
    primals, tangents = tuple(primals), tuple(tangents)
    if len(primals) != len(tangents):
        what = Expected(f"{len(primals)} `tangents`", given=len(tangents))
        raise LiftArgumentError(where, what, "Pass None for constant arguments.", option="tangents")
    each = _one_each(where, tangents, primals)
    call = Differentiated(fn, primals, (), kwargs, [tangent is not None for tangent in each])
    result, moved = SplitResult(where), SplitResult(where)

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        found, _ = call.run(scopes, arrays)
        kinds = set(map(type, arrays))  # types of tracers: a leaf of no such type was not computed from a primal
        return moved.arrays(found, lambda leaf: is_inexact_array(leaf) and type(leaf) in kinds), result.arrays(found)

    along = [tangent for tangent in each if tangent is not None]
    lifted = liftcore.jvp(body, has_aux=True, wrt=False)
    _, tangent, arrays = lifted(call.scopes, (call.arrays,), (along,))
    return result.join(arrays), moved.parts.fill(tangent)


def _one_each(where: str, tangents: tuple[Any, ...], primals: tuple[Any, ...]) -> list[Any]:
    """Return the tangent of each leaf of the primals; a None in `tangents` applies to all leaves below it."""
    each: list[Any] = []

    def below(tangent: Any, primal: Any) -> None:
        leaves = jax.tree.leaves(primal)
        if tangent is not None and (len(leaves) != 1 or leaves[0] is not primal or not is_array_like(tangent)):
            raise LiftArgumentError(
                f"tangents of {where}",
                Expected(f"a tangent for each number in {shown(primal)}", tangent),
                "Pass a pytree like the primals, with None for constant leaves.",
                option="tangents",
            )
        each.extend([tangent] * len(leaves))

    try:
        jax.tree.map(below, tangents, primals, is_leaf=lambda one: one is None)
    except (ValueError, TypeError) as error:
        if isinstance(error, LiftArgumentError):
            raise
        given = str(jax.tree.structure(tangents))
        raise LiftArgumentError(
            f"tangents of {where}",
            Expected(f"the structure {jax.tree.structure(primals)}", given, words=given),
            "Pass a pytree like the primals, with None for constant leaves.",
            option="tangents",
        ) from error
    return each


# --- Jacobians --------------------------------------------------------------------------------------------------------


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
        value, aux = call.run(scopes, arrays, has_aux)
        outputs = as_arrays(result.arrays(value, is_inexact_array_like))
        return outputs or [jnp.zeros(())], second.arrays(aux)

    if call.arrays:
        rows, aux = lift(body, 1, has_aux=True, wrt=False, **options)(call.scopes, call.arrays)
    else:  # JAX does not differentiate with respect to nothing
        outputs, aux = body(call.scopes, [])
        rows = [[]] * len(outputs)
    found = result.parts.fill([call.like_primals(row)[0] for row in rows])
    return (found, second.join(aux)) if has_aux else found
