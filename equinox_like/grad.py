"""Gradients with respect to the floating-point arrays in the first argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import liftcore
from liftcore import is_scoped
from liftcore.errors import name_of

from .calls import UNSET
from .differentiated import Differentiated, check_first
from .filters import is_inexact_array
from .functions import MISSING, filtered
from .options import check_options
from .parts import SplitResult
from .prefixes import leafwise

__all__ = ["filter_grad", "filter_value_and_grad"]


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
    chosen = leafwise(f"arg of {where}", options.pop("arg"), args[0]) if "arg" in options else None
    call = Differentiated(fun, args[:1], args[1:], kwargs, is_inexact_array if chosen is None else _in_order(chosen))

    def body(scopes: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
        found = call.run(scopes, arrays)
        value, aux = found if has_aux else (found, None)
        return value, result.arrays(aux)

    lifted = liftcore.value_and_grad(body, 1, has_aux=True, wrt=False, **options)
    (value, aux), arrays = lifted(call.scopes, call.arrays)
    (gradient,) = call.like_primals(arrays)
    return ((value, result.join(aux)), gradient) if has_aux else (value, gradient)


def _grad(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, gradient = _value_and_grad(fun, options, args, kwargs, "filter_grad")
    return (gradient, value[1]) if options["has_aux"] else gradient


def _in_order(chosen: Sequence[Any]) -> Callable[[Any], bool]:
    """Return a function that returns whether a leaf is differentiated; call it for each leaf, in order."""
    answers = iter(chosen)
    return lambda leaf: bool(next(answers)) and not is_scoped(leaf)
