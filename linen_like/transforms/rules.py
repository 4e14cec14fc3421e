"""Functions of a module with a custom derivative or a custom batching rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import liftcore
from liftcore.calls import bind_user, boundary, call_user, check_positional
from liftcore.errors import check_function
from liftcore.typing import Filter

from ..lifting import mark_lifted
from .trees import Trees, run_arranged, without_modules

__all__ = ["custom_jvp", "custom_vjp", "custom_vmap"]


def custom_vjp(
    fn: Callable[..., Any],
    forward_fn: Callable[..., Any],
    backward_fn: Callable[..., Any],
    grad_vars: Filter = "params",
    nondiff_argnums: Sequence[int] = (),
    *,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`liftcore.custom_vjp` for a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> class Clipped(nn.Module):  # the gradient that comes from above is clipped
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         def forward(mdl, x):
        ...             return nn.vjp(nn.Dense.__call__, mdl, x)
        ...         def backward(pullback, cotangent):
        ...             return pullback(jax.numpy.clip(cotangent, -1, 1))
        ...         return nn.custom_vjp(nn.Dense.__call__, forward, backward)(nn.Dense(2), x)
        >>> x = jax.numpy.ones((1, 3))
        >>> variables = Clipped().init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda variables: 100 * Clipped().apply(variables, x).sum())(variables)
        >>> grads["params"]["Dense_0"]["bias"]
        Array([1., 1.], dtype=float32)

    Args:
        fn: called as `fn(mdl, *args)`.
        forward_fn: called as `forward_fn(mdl, *args)`; returns the result and residuals, a pytree.
        backward_fn: called as `backward_fn(*nondiff_args, residuals, cotangent)`; returns the cotangent of the
            variables, as the pullback of `nn.vjp` does, and one for each other argument. None means zero.
        grad_vars: a filter of the variables that have cotangents.
        nondiff_argnums: the positions of arguments that are not differentiated and that Python code needs as values,
            such as flags and functions. Positions count in the signature of `fn`, where the module is 0.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        A function that is called like `fn`.

    Raises:
        LiftArgumentError: if a call uses other modules whose cotangent would be left out.
    """
    check_function("nn.custom_vjp", backward_fn)

    def lift(custom: Any, trees: Trees, call: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward_fn)
        def backward(*args: Any) -> Any:
            given = call_user("the rule of nn.custom_vjp", backward_fn, *without_modules(args))
            if not isinstance(given, tuple | list) or not given:
                return given
            return trees.into(given[0]), *given[1:]

        lifted = liftcore.custom_vjp(call, nondiff_argnums, wrt=grad_vars, variables=variables, rngs=rngs)
        lifted.identity = custom  # the rule may call it, for the same module
        lifted.defvjp(forward, backward)
        return lifted

    return _with_rule("nn.custom_vjp", lift, fn, forward_fn)


def custom_jvp(
    fn: Callable[..., Any],
    jvp_fn: Callable[..., Any],
    grad_vars: Filter = "params",
    nondiff_argnums: Sequence[int] = (),
    *,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`liftcore.custom_jvp` for a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> class Rounded(nn.Module):  # with the derivative that it has without rounding
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         def rounded(mdl, x):
        ...             return jax.numpy.round(mdl(x))
        ...         def rule(mdl, primals, tangents, variable_tangents):
        ...             y, tangent = nn.jvp(nn.Dense.__call__, mdl, primals, tangents, variable_tangents)
        ...             return jax.numpy.round(y), tangent
        ...         return nn.custom_jvp(rounded, rule)(nn.Dense(2), x)
        >>> x = jax.numpy.ones((1, 3))
        >>> variables = Rounded().init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda variables: Rounded().apply(variables, x).sum())(variables)
        >>> grads["params"]["Dense_0"]["bias"]
        Array([1., 1.], dtype=float32)

    Args:
        fn: called as `fn(mdl, *args)`.
        jvp_fn: called as `jvp_fn(mdl, *nondiff_args, primals, tangents, variable_tangents)`; returns the result and its
            tangent. The tangents of variables have the form that `nn.jvp` takes.
        grad_vars: a filter of the variables that have tangents.
        nondiff_argnums: the positions of arguments that are not differentiated and that Python code needs as values,
            such as flags and functions. Positions count in the signature of `fn`, where the module is 0.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        A function that is called like `fn`.

    Raises:
        LiftArgumentError: if a call uses other modules whose tangents would be left out.
    """

    def lift(custom: Any, trees: Trees, call: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule, updated=())
        def on_scopes(scopes: Any, *args: Any) -> Any:
            return rule(scopes, *args[:-1], trees.out(args[-1]))

        lifted = liftcore.custom_jvp(call, nondiff_argnums, wrt=grad_vars, variables=variables, rngs=rngs)
        lifted.identity = custom  # the rule may call it, for the same module
        lifted.defjvp(on_scopes)
        return lifted

    return _with_rule("nn.custom_jvp", lift, fn, jvp_fn)


def custom_vmap(
    fn: Callable[..., Any], rule: Callable[..., tuple[Any, Any]], *, variables: Filter = True, rngs: Filter = True
) -> Callable[..., Any]:
    """`liftcore.custom_vmap` for a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> def rule(axis_size, in_batched, mdl, x):
        ...     return mdl(x), True  # one product of matrices
        >>> class Rows(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, xs):
        ...         layer = nn.custom_vmap(nn.Dense.__call__, rule)
        ...         return nn.vmap(layer, {"params": None}, {"params": False})(nn.Dense(2), xs)
        >>> Rows().init_with_output(jax.random.key(0), jax.numpy.ones((5, 3)))[0].shape
        (5, 2)

    Args:
        fn: called as `fn(mdl, *args)`.
        rule: called as `rule(axis_size, in_batched, mdl, *args)`; see `liftcore.custom_vmap`. The first of `in_batched`
            is a tree of bools, `{collection: {module: {name: bool}}}`, or a pytree of such where `mdl` is a pytree of
            modules.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        A function that is called like `fn`.
    """

    @functools.wraps(rule)
    def of_module(mdl: Any, axis_size: int, in_batched: Any, *args: Any) -> Any:
        return call_user("the rule of nn.custom_vmap", rule, axis_size, in_batched, mdl, *args)

    # JAX keeps the rule, which must not keep the arguments alive.
    def lift(custom: Any, trees: Trees, call: Callable[..., Any], on_module: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def on_scopes(axis_size: int, in_batched: Any, scopes: Any, *args: Any) -> Any:
            of_variables, *others = in_batched
            return on_module(scopes, axis_size, (trees.out(of_variables), *others), *args)

        lifted = liftcore.custom_vmap(call, variables=variables, rngs=rngs)
        lifted.def_vmap(on_scopes)
        return lifted

    return _with_rule("nn.custom_vmap", lift, fn, of_module)


def _with_rule(
    where: str, lift: Callable[..., Callable[..., Any]], fn: Callable[..., Any], rule: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function of a module with a rule, which is a function of a module too.

    Args:
        where: the name of the transformation, for errors.
        lift: called with the function that this one returns, and then as in `run_arranged`.
        fn: the function.
        rule: the rule, or the first part of it.
    """

    @functools.wraps(fn)
    @boundary
    def custom(mdl: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:  # the rule needs all arguments by position
            bound = bind_user(where, fn, mdl, *args, **kwargs)
            check_positional(where, bound.kwargs)
            args = bound.args[1:]
        return run_arranged(where, functools.partial(lift, custom), [fn, rule], mdl, args)

    return mark_lifted(custom)
