"""Derivatives: a body, and a bit of its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from tests.lift.plain import Body, again, opaque
from tests.lift.rows.row import FORWARD, REVERSE, Row


def _total(tree: Any) -> Any:
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


def _twice(body: Body, reduce: Callable[[Any], Any] = lambda y: y) -> Body:
    """A body that gives its result beside what is differentiated."""

    def call(scope: Any, x: Any) -> Any:
        y = body(scope, x)
        return reduce(y), y

    return call


def _derived(
    lifted: Callable[[Body], Body], plain: Callable[[Callable[..., Any], Any, Any], Any], needs: frozenset[str]
) -> Row:
    """A row whose plain form adds `plain(run, params, x)` to what the body gives: `run(params, x)` is that body."""

    def beside(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, run, params = again(scope, body, x)
            return y + plain(run, params, x)

        return call

    return Row(lifted, beside, needs=needs)


def pulled_back() -> Row:
    """`vjp`, with respect to the parameters and the argument."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, pullback = liftcore.vjp(body)(scope, x)
            variables, dx = pullback(jnp.ones_like(y))
            outermost = variables[0] if isinstance(variables, tuple) else variables
            return y + 0.1 * dx + 0.01 * _total(outermost)

        return call

    def plain(run: Callable[..., Any], params: Any, x: Any) -> Any:
        variables, dx = jax.grad(lambda params, x: run(params, x).sum(), argnums=(0, 1))(params, x)
        return 0.1 * dx + 0.01 * _total(variables)

    return _derived(lifted, plain, REVERSE)


def with_gradient() -> Row:
    """`value_and_grad`, with respect to the argument."""

    def lifted(body: Body) -> Body:
        both = liftcore.value_and_grad(_twice(body, jnp.sum), argnums=1, has_aux=True)

        def call(scope: Any, x: Any) -> Any:
            (_, y), dx = both(scope, x)
            return y + 0.1 * dx

        return call

    return _derived(lifted, lambda run, params, x: 0.1 * jax.grad(lambda x: run(params, x).sum())(x), REVERSE)


def pushed_forward() -> Row:
    """`jvp`, along the argument."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, dy = liftcore.jvp(body)(scope, (x,), (x + 1,))
            return y + 0.1 * dy

        return call

    return _derived(lifted, _along, FORWARD)


def linearized() -> Row:
    """`linearize`, along the argument."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            y, along = liftcore.linearize(body)(scope, x)
            return y + 0.1 * along(None, x + 1)

        return call

    return _derived(lifted, _along, FORWARD)


def _along(run: Callable[..., Any], params: Any, x: Any) -> Any:
    return 0.1 * jax.jvp(lambda x: run(params, x), (x,), (x + 1,))[1]


def with_jacobian(lift: Callable[..., Any], needs: frozenset[str]) -> Row:
    """`jacfwd` or `jacrev`, with respect to the argument."""

    def lifted(body: Body) -> Body:
        both = lift(_twice(body), argnums=1, has_aux=True)

        def call(scope: Any, x: Any) -> Any:
            jacobian, y = both(scope, x)
            return y + 0.1 * jacobian.sum(0)

        return call

    return _derived(lifted, lambda run, params, x: 0.1 * jax.jacfwd(run, argnums=1)(params, x).sum(0), needs)


def with_hessian() -> Row:
    """`hessian`, with respect to the argument."""

    def lifted(body: Body) -> Body:
        both = liftcore.hessian(_twice(body, jnp.sum), argnums=1, has_aux=True)

        def call(scope: Any, x: Any) -> Any:
            hessian, y = both(scope, x)
            return y + 0.1 * hessian.sum(0)

        return call

    def plain(run: Callable[..., Any], params: Any, x: Any) -> Any:
        return 0.1 * jax.hessian(lambda x: run(params, x).sum())(x).sum(0)

    return _derived(lifted, plain, FORWARD | REVERSE)


def _opaque(body: Body) -> Body:
    return lambda scope, x: opaque(scope, body, x)


def with_a_forward_rule() -> Row:
    """`custom_jvp`, where the rule says what is so anyway."""

    def lifted(body: Body) -> Body:
        def rule(scope: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
            return liftcore.jvp(body)(scope, primals, tangents, variable_tangents)

        ruled = liftcore.custom_jvp(body)
        ruled.defjvp(rule)
        return ruled

    return Row(lifted, _opaque, runs=2, needs=FORWARD)


def with_a_backward_rule() -> Row:
    """`custom_vjp`, where the rule says what is so anyway."""

    def lifted(body: Body) -> Body:
        ruled = liftcore.custom_vjp(body)
        ruled.defvjp(lambda scope, x: liftcore.vjp(body)(scope, x), lambda pullback, dy: pullback(dy))
        return ruled

    return Row(lifted, _opaque, runs=2, needs=REVERSE, refuses=FORWARD)
