"""Lifted `jax.jacfwd`, `jax.jacrev` and `jax.hessian`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..pipeline.body import Body
from ..runners.differentiating import TreesByScope, by_argument, check_wrt, derivative, differentiable, positive
from ..typing import Filter

__all__ = ["hessian", "jacfwd", "jacrev"]


def jacfwd(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.jacfwd` for a function of scopes; for variables and `argnums` see `value_and_grad`.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return jnp.sin(x @ scope.param("w", jax.random.normal, (3, 2)))
        >>> model = liftcore.jacfwd(layer)
        >>> jacobian, _ = liftcore.init(model)(jax.random.key(0), jnp.ones(3))
        >>> jacobian["params"]["w"].shape  # that of the result, then that of the variable
        (2, 3, 2)

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`; with `has_aux` it returns a result and another value.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            scope, and means the variables that `wrt` matches.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.
        wrt: a filter of the variables to differentiate with respect to; it may select single variables.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the Jacobian, or with `has_aux` the Jacobian and the other
        value.

    Raises:
        LiftArgumentError: when called, if `wrt` takes no variable, or one that is not a floating-point array.
    """
    jacobian = functools.partial(jax.jacfwd, holomorphic=holomorphic)
    return _lifted("jacfwd", jacobian, fn, argnums, has_aux, False, (wrt, variables, rngs))


def jacrev(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.jacrev` for a function of scopes; see `jacfwd`.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return jnp.sin(x @ scope.param("w", jax.random.normal, (3, 2)))
        >>> jacobian, _ = liftcore.init(liftcore.jacrev(layer, argnums=1))(jax.random.key(0), jnp.ones(3))
        >>> jacobian.shape
        (2, 3)

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`; with `has_aux` it returns a result and another value.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            scope, and means the variables that `wrt` matches.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.
        allow_int: whether the argument may be an integer; its gradient has the dtype `float0`.
        wrt: a filter of the variables to differentiate with respect to; it may select single variables.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the Jacobian, or with `has_aux` the Jacobian and the other
        value.

    Raises:
        LiftArgumentError: see `jacfwd`.
    """
    jacobian = functools.partial(jax.jacrev, holomorphic=holomorphic, allow_int=allow_int)
    return _lifted("jacrev", jacobian, fn, argnums, has_aux, allow_int, (wrt, variables, rngs))


def hessian(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.hessian` for a function of scopes: `jacfwd` of `jacrev`.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def loss(scope, x):
        ...     return jnp.sum((x * scope.param("w", lambda key: jnp.ones(2))) ** 2)
        >>> second, _ = liftcore.init(liftcore.hessian(loss, argnums=1))(jax.random.key(0), jnp.ones(2))
        >>> second
        Array([[2., 0.],
               [0., 2.]], dtype=float32)

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`; with `has_aux` it returns a result and another value.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            scope, and means the variables that `wrt` matches.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.
        wrt: a filter of the variables to differentiate with respect to; it may select single variables.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the Hessian, or with `has_aux` the Hessian and the other
        value. With respect to a scope it is a tree of trees: `hessian["params"]["a"]["params"]["b"]`.

    Raises:
        LiftArgumentError: see `jacfwd`.
    """
    inner = jacrev(fn, argnums, has_aux, holomorphic, wrt=wrt, variables=variables, rngs=rngs)
    jacobian = functools.partial(jax.jacfwd, holomorphic=holomorphic)
    return _lifted("hessian", jacobian, inner, argnums, has_aux, False, (wrt, variables, rngs))


def _lifted(
    name: str,
    jacobian_of: Callable[..., Any],
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    allow_int: bool,
    rules: tuple[Filter, Filter, Filter],
) -> Callable[..., Any]:
    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        nums = positive(body, argnums, 1 + len(args))
        call, trees, finish = differentiable(body, variable_groups, rng_groups, nums, args, kwargs, has_aux)
        if 0 in nums:
            check_wrt(body, trees, allow_int)

        def flat(*args: Any) -> tuple[Any, Any]:
            result, rest = call(*args)
            return result, (jax.tree.map(lambda _: 0, result), *rest)

        jacobian, (like, aux, groups) = jacobian_of(flat, nums, has_aux=True)(trees, *args)
        scoped = TreesByScope.of(body.layout)
        outer: Any = jax.tree.structure(like)
        parts = [by_argument(scoped, argnums, nums, part) for part in outer.flatten_up_to(jacobian)]
        jacobian = jax.tree.unflatten(outer, parts)
        return (jacobian, aux) if has_aux else jacobian, finish(groups)

    return derivative(transform, name, *rules)(fn)
