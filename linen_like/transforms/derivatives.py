"""Derivatives of functions of a module, with respect to arguments and variables; they are computed at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary
from liftcore.errors import LiftArgumentError
from liftcore.typing import Filter, PyTree

from ..lifting import lift_functions, refuse
from ..rebuilding.splitting import ArgumentAt
from .trees import Trees, run_arranged, without_modules

__all__ = ["grad", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "value_and_grad", "vjp"]


@boundary
def value_and_grad(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    variables: Filter = True,
    rngs: Filter = True,
    wrt: Filter = None,
    argnums: int | Sequence[int] | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> tuple[Any, Any]:
    """`liftcore.value_and_grad` for a function of a module: by default with respect to the primals only, as in Linen.

    Example:
        >>> import jax, linen_like as nn
        >>> class Learner(nn.Module):  # one step of gradient descent, inside a model
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         loss = lambda mdl, x: (mdl(x) ** 2).sum()
        ...         model = nn.Dense(1, name="model")
        ...         value, grads = nn.value_and_grad(loss, model, x, wrt="params")
        ...         return jax.tree.map(lambda p, g: p - 0.1 * g, model.variables["params"], grads["params"])
        >>> params, _ = Learner().init_with_output(jax.random.key(0), jax.numpy.ones((2, 3)))
        >>> jax.tree.map(jax.numpy.shape, params)
        {'bias': (1,), 'kernel': (3, 1)}

    Args:
        fn: called as `fn(mdl, *primals)`; returns a number, or with `has_aux` a number and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments; modules and variables in them are lifted too, and their gradient is None.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        reduce_axes: must be empty; JAX has removed this option.
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
        The value and the gradient. By default, the gradient is a tuple with one gradient for each primal. For a module
        it is `{collection: {module: {name: …}}}`, and for a pytree of modules a pytree of such gradients.

    Raises:
        LiftArgumentError: if `wrt` matches no variable, or the call uses other modules whose gradient would be left
            out.
    """
    allow_int = allow_int or (argnums is None and wrt is None)
    return _by_argument(liftcore.value_and_grad, locals())


@boundary
def grad(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    variables: Filter = True,
    rngs: Filter = True,
    wrt: Filter = None,
    argnums: int | Sequence[int] | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """`liftcore.grad` for a function of a module; see `value_and_grad`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Force(nn.Module):
        ...     energy: nn.Module
        ...     def __call__(self, x):
        ...         (gradient,) = nn.grad(lambda mdl, x: mdl.energy(x).sum(), self, x)
        ...         return -gradient
        >>> Force(nn.Dense(1)).init_with_output(jax.random.key(0), jax.numpy.ones((2, 3)))[0].shape
        (2, 3)

    Args:
        fn: called as `fn(mdl, *primals)`; returns a number, or with `has_aux` a number and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments; modules and variables in them are lifted too, and their gradient is None.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        reduce_axes: must be empty; JAX has removed this option.
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
        The gradient; with `has_aux`, the gradient and the second value.
    """
    allow_int = allow_int or (argnums is None and wrt is None)
    return _by_argument(liftcore.grad, locals())


@boundary
def vjp(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    vjp_variables: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
    multi_scope: bool = False,
) -> tuple[Any, ...]:
    """`liftcore.vjp` for a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         y, pullback = nn.vjp(lambda mdl, x: mdl(x), nn.Dense(2), x)
        ...         return pullback(jax.numpy.ones_like(y))
        >>> (of_variables, of_x), _ = Model().init_with_output(jax.random.key(0), jax.numpy.ones((5, 3)))
        >>> of_variables["params"]["kernel"].shape, of_x.shape
        ((3, 2), (5, 3))

    Args:
        fn: called as `fn(mdl, *primals)`; with `has_aux` it returns a result and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments; modules and variables in them are lifted too, and their cotangent is None.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        reduce_axes: must be empty; JAX has removed this option.
        vjp_variables: a filter of the variables that get cotangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        multi_scope: whether the cotangent of variables is a list, with one for each module that is bound elsewhere and
            comes along as a field or argument, and last the one of `mdl`.

    Returns:
        `(result, pullback)` or `(result, pullback, aux)`. The pullback takes a cotangent of the result. It returns the
        cotangent of the variables, `{collection: {module: {name: …}}}`, or a pytree of these if `mdl` is a pytree of
        modules, and the cotangents of the primals.

    Raises:
        LiftArgumentError: if the call uses other modules whose cotangent would be left out.
    """
    refuse("vjp", reduce_axes=reduce_axes)

    def lift(trees: Trees, call: Callable[..., Any]) -> Callable[..., Any]:
        lifted = liftcore.vjp(call, has_aux, wrt=vjp_variables, variables=variables, rngs=rngs)
        return _with_partial(lifted, functools.partial(_pull_back, trees))

    return run_arranged("nn.vjp", lift, [fn], mdl, primals, several=multi_scope)


def _with_partial(lifted: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lifted function whose second result, a function, becomes the first argument of `fn`."""

    def run(*args: Any) -> tuple[Any, ...]:
        result, inner, *aux = lifted(*args)
        return result, jax.tree_util.Partial(fn, inner), *aux

    return run


def _pull_back(trees: Trees, pullback: Callable[..., Any], cotangent: Any) -> Any:
    return without_modules(trees.out(pullback(cotangent)))


@boundary
def jvp(
    fn: Callable[..., Any],
    mdl: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    variable_tangents: PyTree,
    variables: Filter = True,
    rngs: Filter = True,
    *,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """`liftcore.jvp` for a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         bias = {"params": {"bias": jax.numpy.ones(2)}}
        ...         return nn.jvp(lambda mdl, x: mdl(x), nn.Dense(2), (x,), (0 * x,), bias)
        >>> (y, tangent), _ = Model().init_with_output(jax.random.key(0), jax.numpy.ones((1, 3)))
        >>> tangent
        Array([[1., 1.]], dtype=float32)

    Args:
        fn: called as `fn(mdl, *primals)`.
        mdl: the module, or a pytree of modules.
        primals: its other arguments; modules and variables in them are lifted too.
        tangents: the tangents of the primals; None for a module.
        variable_tangents: the tangents of variables, `{collection: {module: {name: …}}}`, or a pytree of these if `mdl`
            is a pytree of modules. Tangents that are left out are zero.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.

    Returns:
        `(result, tangent)` or `(result, tangent, aux)`.
    """

    def lift(trees: Trees, call: Callable[..., Any]) -> Callable[..., Any]:
        given = trees.into(variable_tangents)
        wrt = sorted({collection for tree in given if tree for collection in tree})
        lifted = liftcore.jvp(call, has_aux, wrt=wrt, variables=variables, rngs=rngs)

        def run(scopes: Any, *args: Any) -> Any:
            return lifted(scopes, args, jax.tree.map(_tangent, args, tuple(tangents), is_leaf=_is_module), given)

        return run

    return run_arranged("nn.jvp", lift, [fn], mdl, tuple(primals))


def _is_module(value: Any) -> bool:
    return isinstance(value, ArgumentAt)


def _tangent(primal: Any, tangent: Any) -> Any:
    """Return the tangent of a primal; a module has none, whatever is given."""
    return primal if _is_module(primal) else tangent


@boundary
def linearize(
    fn: Callable[..., Any],
    mdl: Any,
    *primals: Any,
    has_aux: bool = False,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> tuple[Any, ...]:
    """`liftcore.linearize` for a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         y, along = nn.linearize(lambda mdl, x: mdl(x) ** 2, nn.Dense(2), x)
        ...         return along(None, jax.numpy.ones_like(x))
        >>> Model().init_with_output(jax.random.key(0), jax.numpy.ones((1, 3)))[0].shape
        (1, 2)

    Args:
        fn: called as `fn(mdl, *primals)`; with `has_aux` it returns a result and another value.
        mdl: the module, or a pytree of modules.
        *primals: its other arguments.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        wrt: a filter of the variables that may have tangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `(result, along)` or `(result, along, aux)`; `along(variable_tangents, *tangents)` returns the tangent of the
        result. The tangents of variables have the same form as in `jvp`.
    """

    def lift(trees: Trees, call: Callable[..., Any]) -> Callable[..., Any]:
        lifted = liftcore.linearize(call, has_aux, wrt=wrt, variables=variables, rngs=rngs)
        return _with_partial(lifted, functools.partial(_along, trees))

    return run_arranged("nn.linearize", lift, [fn], mdl, primals)


def _along(trees: Trees, along: Callable[..., Any], variable_tangents: PyTree, *tangents: Any) -> Any:
    return along(trees.into(variable_tangents), *tangents)


def _by_argument(transformation: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Compute a derivative with respect to the arguments at some positions; see `value_and_grad`.

    Args:
        transformation: the transformation of liftcore.
        given: the arguments of the function here of that name, `locals()` in it; all others are options.
    """
    options, name = dict(given), transformation.__name__
    refuse(name, reduce_axes=options.pop("reduce_axes", ()))
    where, primals = f"nn.{name}", options.pop("primals")
    fn, mdl, wrt, argnums = [options.pop(each) for each in ("fn", "mdl", "wrt", "argnums")]
    if argnums is None and wrt is None and not primals:
        what = "there are no primals to differentiate with respect to."
        fix = 'For a derivative with respect to variables, choose them: `wrt="params"`.'
        raise LiftArgumentError(where, what, fix, option="wrt")
    if argnums is None:
        argnums = tuple(range(1, 1 + len(primals))) if wrt is None else 0
    if 0 not in ((argnums,) if isinstance(argnums, int) else argnums):
        only_arguments = functools.partial(transformation, argnums=argnums, wrt=False, **options)
        return without_modules(lift_functions(only_arguments, fn, name=where)(mdl, *primals))

    def lift(trees: Trees, call: Callable[..., Any]) -> Callable[..., Any]:
        lifted = transformation(call, argnums, wrt="params" if wrt is None else wrt, **options)
        return lambda *args: without_modules(trees.out(lifted(*args)))

    return run_arranged(where, lift, [fn], mdl, primals)


# --- Jacobians and Hessians -------------------------------------------------------------------------------------------


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
    return _by_argument(liftcore.jacfwd, locals())


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
    return _by_argument(liftcore.jacrev, locals())


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
    return _by_argument(liftcore.hessian, locals())
