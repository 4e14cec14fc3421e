"""Filtered transformations, given a scope and a static leaf among their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import equinox_like as eqx
from tests.lift.plain import Body, Rule
from tests.lift.rows import derivatives, elements
from tests.lift.rows.row import Row


def _static(body: Body) -> Callable[..., Any]:
    """A body that is given a text and a function beside its arguments, and returns them."""

    def call(scope: Any, x: Any, others: Any) -> Any:
        assert others["mode"] == "train"
        return {"y": others["act"](body(scope, x)), "mode": others["mode"]}

    return call


OTHERS = {"mode": "train", "act": lambda y: y}


def unchanged(lift: Callable[..., Any]) -> Row:
    """A transformation that changes nothing."""
    return Row(lambda body: _taking(lift(_static(body))), lambda body: body)


def _taking(lifted: Callable[..., Any]) -> Body:
    def call(scope: Any, x: Any) -> Any:
        result = lifted(scope, x, OTHERS)
        assert result["mode"] == "train"
        return result["y"]

    return call


def over_elements(rule: Rule, own: bool) -> Row:
    """`filter_vmap`, where each element has an `x` of its own or all have the same."""

    def lift(body: Body, in_axes: Any, **options: Any) -> Callable[..., Any]:
        def call(scope: Any, xs: Any) -> Any:
            over = eqx.filter_vmap(_static(body), in_axes=(None, in_axes, None), out_axes=eqx.if_array(0), **options)
            return over(scope, xs, OTHERS)["y"]

        return call

    return elements.over_elements(rule, own, lift)


def with_gradient() -> Row:
    """`filter_value_and_grad`, with respect to the argument."""

    def lifted(body: Body) -> Body:
        def loss(x: Any, scope: Any, others: Any) -> Any:
            y = _static(body)(scope, x, others)["y"]
            return y.sum(), y

        def call(scope: Any, x: Any) -> Any:
            (_, y), dx = eqx.filter_value_and_grad(loss, has_aux=True)(x, scope, OTHERS)
            return y + 0.1 * dx

        return call

    return derivatives.with_gradient()._replace(lifted=lifted)


def pushed_forward() -> Row:
    """`filter_jvp`, along the argument."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            given = (scope, x, OTHERS)
            result, along = eqx.filter_jvp(_static(body), given, (None, x + 1, {"mode": None, "act": None}))
            return result["y"] + 0.1 * along["y"]

        return call

    return derivatives.pushed_forward()._replace(lifted=lifted)


def with_jacobian(lift: Callable[..., Any], needs: frozenset[str]) -> Row:
    """`filter_jacfwd` or `filter_jacrev`, with respect to the argument."""

    def lifted(body: Body) -> Body:
        def both(x: Any, scope: Any, others: Any) -> Any:
            y = _static(body)(scope, x, others)["y"]
            return y, y

        def call(scope: Any, x: Any) -> Any:
            jacobian, y = lift(both, has_aux=True)(x, scope, OTHERS)
            return y + 0.1 * jacobian.sum(0)

        return call

    return derivatives.with_jacobian(lift, needs)._replace(lifted=lifted)


def pulled_back() -> Row:
    """`filter_vjp`, with respect to the argument."""

    def lifted(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            result, pullback = eqx.filter_vjp(_static(body), scope, x, OTHERS)
            none, dx, _ = pullback({"y": jnp.ones_like(x), "mode": None})
            assert not jax.tree.leaves(none)
            return result["y"] + 0.1 * dx

        return call

    return derivatives.with_gradient()._replace(lifted=lifted)
