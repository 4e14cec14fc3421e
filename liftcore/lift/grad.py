"""Lifted `jax.grad` and `jax.value_and_grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..calls import boundary
from ..pipeline.body import Body
from ..runners.differentiating import TreesByScope, by_argument, check_wrt, derivative, differentiable, positive
from ..typing import Filter

__all__ = ["grad", "value_and_grad"]


def value_and_grad(
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
    """`jax.value_and_grad` for a function of scopes: with respect to variables, to arguments, or to both.

    The function writes, draws and sows the same as without the derivative. No gradient of this derivative flows through
    the values that it writes; a derivative around it sees them.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def loss(scope, x):
        ...     return (x * scope.param("w", lambda key: jnp.float32(3))) ** 2
        >>> model = liftcore.value_and_grad(loss, argnums=(0, 1))
        >>> (value, (variables, x)), _ = liftcore.init(model)(jax.random.key(0), 2.0)
        >>> float(value), float(variables["params"]["w"]), float(x)
        (36.0, 24.0, 36.0)

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`; returns a number, or with `has_aux` a number and another value.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            scope, and means the variables that `wrt` matches.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.
        allow_int: whether the argument may be an integer; its gradient has the dtype `float0`.
        wrt: a filter of the variables to differentiate with respect to; it may select single variables.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the value and the gradient. The gradient with respect to a
        scope is `{collection: {module: {name: …}}}`; with respect to a pytree of scopes, it is a pytree of such trees.

    Raises:
        LiftArgumentError: when called, if `wrt` takes no variable, or one that is not a floating-point array.
    """
    return _lifted("value_and_grad", fn, argnums, has_aux, holomorphic, allow_int, (wrt, variables, rngs))


def grad(
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
    """`jax.grad` for a function of scopes; see `value_and_grad`.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def energy(scope, x):
        ...     return jnp.sum(scope.param("w", jax.random.normal, (3,)) * x**2)
        >>> def force(scope, x):
        ...     return -liftcore.grad(energy, argnums=1)(scope, x)
        >>> y, variables = liftcore.init(force)(jax.random.key(0), jnp.ones(3))
        >>> bool((y == -2 * variables["params"]["w"]).all())
        True

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`; returns a number, or with `has_aux` a number and another value.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            scope, and means the variables that `wrt` matches.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.
        allow_int: whether the argument may be an integer; its gradient has the dtype `float0`.
        wrt: a filter of the variables to differentiate with respect to; it may select single variables.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the gradient, or with `has_aux` the gradient and the other
        value.

    Raises:
        LiftArgumentError: see `value_and_grad`.
    """
    both = _lifted("grad", fn, argnums, has_aux, holomorphic, allow_int, (wrt, variables, rngs))

    @functools.wraps(fn)
    @boundary
    def lifted(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        value, grads = both(scopes, *args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return lifted


def _lifted(
    name: str,
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    rules: tuple[Filter, Filter, Filter],
) -> Callable[..., Any]:
    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        nums = positive(body, argnums, 1 + len(args))
        call, trees, finish = differentiable(body, variable_groups, rng_groups, nums, args, kwargs, has_aux)
        if 0 in nums:
            check_wrt(body, trees, allow_int)
        run = jax.value_and_grad(call, nums, True, holomorphic, allow_int)
        (value, (aux, groups)), grads = run(trees, *args)
        grads = by_argument(TreesByScope.of(body.layout), argnums, nums, grads)
        return ((value, aux) if has_aux else value, grads), finish(groups)

    return derivative(transform, name, *rules)(fn)
