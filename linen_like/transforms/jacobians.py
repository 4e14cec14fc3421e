"""Jacobians and Hessians of functions of a module; they are computed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import liftcore
from liftcore.errors import boundary
from liftcore.typing import Filter

from .derivatives import by_argument

__all__ = ["hessian", "jacfwd", "jacrev"]


@boundary
def jacfwd(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    variables: Filter = True,
    rngs: Filter = True,
    wrt: Filter = None,
    argnums: int | Sequence[int] | None = None,
    holomorphic: bool = False,
) -> Any:
    """`liftcore.jacfwd` for a function of a module; `wrt` and `argnums` work as in `nn.value_and_grad`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Jacobian(nn.Module):
        ...     inner: nn.Module
        ...     def __call__(self, x):
        ...         return nn.jacfwd(lambda mdl, x: mdl.inner(x), self, x, wrt="params")
        >>> jacobian, _ = Jacobian(nn.Dense(2)).init_with_output(jax.random.key(0), jax.numpy.ones(3))
        >>> jax.tree.map(jax.numpy.shape, jacobian)
        {'params': {'inner': {'bias': (2, 2), 'kernel': (2, 3, 2)}}}

    Args:
        fn: called as `fn(mdl, *primals)`; with `has_aux` it returns a result and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments; modules and variables in them are lifted too, and their gradient is None.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        wrt: a filter of the variables of the module (position 0) to differentiate with respect to, by default
            `"params"`.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            module, and means the variables that `wrt` matches. By default it is 0 if `wrt` is given, else the
            positions of all primals, including integers.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.

    Returns:
        The Jacobian; with `has_aux`, the Jacobian and the second value.
    """
    options = {"has_aux": has_aux, "variables": variables, "rngs": rngs, "holomorphic": holomorphic}
    return by_argument("nn.jacfwd", liftcore.jacfwd, fn, mdl, primals, wrt, argnums, options)


@boundary
def jacrev(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    variables: Filter = True,
    rngs: Filter = True,
    wrt: Filter = None,
    argnums: int | Sequence[int] | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """`liftcore.jacrev` for a function of a module; see `jacfwd`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Jacobian(nn.Module):
        ...     inner: nn.Module
        ...     def __call__(self, x):
        ...         return nn.jacrev(lambda mdl, x: mdl.inner(x), self, x)
        >>> (jacobian,), _ = Jacobian(nn.Dense(2)).init_with_output(jax.random.key(0), jax.numpy.ones(3))
        >>> jacobian.shape
        (2, 3)

    Args:
        fn: called as `fn(mdl, *primals)`; with `has_aux` it returns a result and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments; modules and variables in them are lifted too, and their gradient is None.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        wrt: a filter of the variables of the module (position 0) to differentiate with respect to, by default
            `"params"`.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            module, and means the variables that `wrt` matches. By default it is 0 if `wrt` is given, else the
            positions of all primals, including integers.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.
        allow_int: whether the argument may be an integer; its gradient has the dtype `float0`.

    Returns:
        The Jacobian; with `has_aux`, the Jacobian and the second value.
    """
    options = {"has_aux": has_aux, "variables": variables, "rngs": rngs, "holomorphic": holomorphic}
    options["allow_int"] = allow_int
    return by_argument("nn.jacrev", liftcore.jacrev, fn, mdl, primals, wrt, argnums, options)


@boundary
def hessian(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    variables: Filter = True,
    rngs: Filter = True,
    wrt: Filter = None,
    argnums: int | Sequence[int] | None = None,
    holomorphic: bool = False,
) -> Any:
    """`liftcore.hessian` for a function of a module; see `jacfwd`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Curvature(nn.Module):
        ...     inner: nn.Module
        ...     def __call__(self, x):
        ...         return nn.hessian(lambda mdl, x: (mdl.inner(x) ** 2).sum(), self, x, argnums=1)
        >>> Curvature(nn.Dense(2)).init_with_output(jax.random.key(0), jax.numpy.ones(3))[0].shape
        (3, 3)

    Args:
        fn: called as `fn(mdl, *primals)`; with `has_aux` it returns a result and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments; modules and variables in them are lifted too, and their gradient is None.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        wrt: a filter of the variables of the module (position 0) to differentiate with respect to, by default
            `"params"`.
        argnums: the position of the argument to differentiate with respect to, or several positions. Position 0 is the
            module, and means the variables that `wrt` matches. By default it is 0 if `wrt` is given, else the
            positions of all primals, including integers.
        holomorphic: whether the function is promised to be holomorphic; required for complex inputs.

    Returns:
        The Hessian; with `has_aux`, the Hessian and the second value.
    """
    options = {"has_aux": has_aux, "variables": variables, "rngs": rngs, "holomorphic": holomorphic}
    return by_argument("nn.hessian", liftcore.hessian, fn, mdl, primals, wrt, argnums, options)
