"""Lifted `jax.vjp`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ..pipeline.body import Body
from ..runners.differentiating import TreesByScope, check_unnamed, derivative, differentiable
from ..typing import Filter

__all__ = ["vjp"]


def vjp(
    fn: Callable[..., Any],
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.vjp` for a function of scopes.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x * scope.param("w", lambda key: jnp.float32(3))
        >>> def model(scope, x):
        ...     y, pullback = liftcore.vjp(layer)(scope, x)
        ...     return pullback(jnp.ones_like(y))
        >>> (variables, x), _ = liftcore.init(model)(jax.random.key(0), jnp.float32(2))
        >>> float(variables["params"]["w"]), float(x)
        (2.0, 3.0)

    Args:
        fn: called as `fn(scopes, *primals)`; with `has_aux` it returns a result and another value.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        wrt: a filter of the variables that get cotangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *primals)`, which returns `(result, pullback)` or `(result, pullback, aux)`. The pullback, a
        pure function, takes a cotangent of the result and returns those of the scopes' variables and of each primal.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *primals: Any, **named: Any) -> Any:
        check_unnamed(body, named)
        nums = range(1 + len(primals))
        call, trees, finish = differentiable(body, variable_groups, rng_groups, nums, primals, {}, has_aux)
        result, pullback, (aux, groups) = jax.vjp(call, trees, *primals, has_aux=True)
        back = functools.partial(_pull_back, TreesByScope.of(body.layout))
        pull_back = jax.tree_util.Partial(back, pullback)  # type: ignore[no-untyped-call]
        return (result, pull_back, aux) if has_aux else (result, pull_back), finish(groups)

    return derivative(transform, "vjp", wrt, variables, rngs)(fn)


def _pull_back(scoped: TreesByScope, pullback: Callable[..., Any], cotangent: Any) -> Any:
    trees, *cotangents = pullback(cotangent)
    return scoped.out(trees), *cotangents
