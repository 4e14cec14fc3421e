"""Lifted `jax.jvp` and `jax.linearize`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from ..errors import Expected, LiftArgumentError, name_of, words
from ..filters.trees import overlay, select
from ..pipeline.body import Body
from ..runners.arguments import named_like
from ..runners.differentiating import (
    TreesByScope,
    check_tangents,
    check_unnamed,
    derivative,
    differentiable,
    zero_tangents,
)
from ..typing import Filter, PyTree

__all__ = ["jvp", "linearize"]


def jvp(
    fn: Callable[..., Any],
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.jvp` for a function of scopes.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x * scope.param("w", lambda key: jnp.float32(3))
        >>> def model(scope, x):
        ...     direction = {"params": {"w": jnp.float32(10)}}
        ...     return liftcore.jvp(layer)(scope, (x,), (jnp.float32(1),), direction)
        >>> liftcore.init(model)(jax.random.key(0), jnp.float32(2))[0]
        (Array(6., dtype=float32), Array(23., dtype=float32))

    Args:
        fn: called as `fn(scopes, *primals)`; with `has_aux` it returns a result and another value.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        wrt: a filter of the variables that may have tangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, primals, tangents, variable_tangents=None)`, which returns `(result, tangent)` or `(result,
        tangent, aux)`. `primals` and `tangents` are tuples; a primal without arrays, such as an object under
        `nnx.lift`, has the tangent None. The tangents of variables are a tree `{collection: {module: {name: …}}}`, or a
        pytree of such trees if the scopes are a pytree. Missing variables have zero tangents.

    Raises:
        LiftArgumentError: when called, if the primals or tangents are no tuples, a tangent is given for a variable that
            `wrt` does not match, or the tangent of a variable has another shape or dtype.
    """

    def transform(
        body: Body, variable_groups: Any, rng_groups: Any, primals: Any, tangents: Any, given: Any
    ) -> tuple[Any, Any]:
        nums = range(1 + len(primals))
        call, trees, finish = differentiable(body, variable_groups, rng_groups, nums, primals, {}, has_aux)
        scoped = TreesByScope.of(body.layout)
        option = words().option("jvp", "wrt")
        along = tuple({} for _ in trees) if given is None else scoped.into(body.where, given, trees, option)
        check_tangents(body.where, along, trees)

        def moving(some: PyTree, *primals: Any) -> Any:
            return call(overlay(trees, some), *primals)

        start = select(trees, along), *primals
        result, tangent, (aux, groups) = jax.jvp(moving, start, (along, *tangents), has_aux=True)
        return (result, tangent, aux) if has_aux else (result, tangent), finish(groups)

    lifted = derivative(transform, "jvp", wrt, variables, rngs)(fn)

    @named_like(fn)
    def call(
        scopes: Any, primals: Iterable[Any], tangents: Iterable[Any], variable_tangents: PyTree = None, *others: Any
    ) -> Any:
        where, expected = f"jvp({name_of(fn)})", "a tuple of primals and a tuple of tangents"
        fix = f"Call it as `lifted({words().first}(x,), (x_tangent,), variable_tangents)`."
        for one in (primals, tangents):
            if not isinstance(one, tuple | list | Iterator):
                raise LiftArgumentError(where, Expected(expected, given=one), fix)
        if others:
            given = f"{3 + len(others)} arguments"
            raise LiftArgumentError(where, Expected(expected, given, words=given), fix)
        primals, tangents = tuple(primals), tuple(tangents)
        # JAX asks for equal structures, also of what holds no arrays.
        alike = [
            one if along is None and not jax.tree.leaves(one) else along
            for one, along in zip(primals, tangents, strict=False)
        ]
        tangents = (*alike, *tangents[len(alike) :])
        structures: list[Any] = [jax.tree.structure(primals), jax.tree.structure(tangents)]
        if structures[0] != structures[1]:
            given = "{1} for {0}".format(*structures)
            wrong = Expected("a tangent for each primal, with the same structure", given, words=given)
            raise LiftArgumentError(where, wrong, "Use the same containers, with zeros for what does not change.")
        return lifted(scopes, primals, tangents, variable_tangents)

    return call


def linearize(
    fn: Callable[..., Any],
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.linearize` for a function of scopes.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x**2 * scope.param("w", lambda key: jnp.float32(3))
        >>> def model(scope, x):
        ...     y, along = liftcore.linearize(layer)(scope, x)
        ...     return y, along(None, jnp.float32(1))
        >>> liftcore.init(model)(jax.random.key(0), jnp.float32(2))[0]
        (Array(12., dtype=float32), Array(12., dtype=float32))

    Args:
        fn: called as `fn(scopes, *primals)`; with `has_aux` it returns a result and another value.
        has_aux: whether `fn` returns a pair. Only its first part is differentiated; the second is returned unchanged.
        wrt: a filter of the variables that may have tangents.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *primals)`, which returns `(result, along)` or `(result, along, aux)`; `along(variable_tangents,
        *tangents)` is a pure function that returns the tangent of the result.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *primals: Any, **named: Any) -> tuple[Any, Any]:
        check_unnamed(body, named)
        nums = range(1 + len(primals))
        call, trees, finish = differentiable(body, variable_groups, rng_groups, nums, primals, {}, has_aux)
        result, linear, (aux, groups) = jax.linearize(call, trees, *primals, has_aux=True)
        zeros = zero_tangents(trees)
        move = functools.partial(_along, body.where, TreesByScope.of(body.layout))
        along = jax.tree_util.Partial(move, linear, zeros)  # type: ignore[no-untyped-call]
        return (result, along, aux) if has_aux else (result, along), finish(groups)

    return derivative(transform, "linearize", wrt, variables, rngs)(fn)


def _along(
    where: str,
    scoped: TreesByScope,
    linear: Callable[..., Any],
    zeros: PyTree,
    variable_tangents: PyTree,
    *tangents: Any,
) -> Any:
    if variable_tangents is not None:
        given = scoped.into(where, variable_tangents, zeros)
        check_tangents(where, given, zeros)
        zeros = overlay(zeros, given)
    return linear(zeros, *tangents)
