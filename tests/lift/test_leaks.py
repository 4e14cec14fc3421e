"""No value of a trace outlives it: the lifts pass under `jax.checking_leaks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from tests.lift.quick import key, uniform
from tests.lift.rows.row import REVERSE
from tests.lift.ruled import ruled_backward, ruled_forward
from tests.lift.table import TABLE

Body = Callable[..., Any]

AXES: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": True}
CARRIED: dict[str, Any] = {"variable_carry": "state", "split_rngs": {"params": False, "dropout": True}}


def _scanned(body: Body) -> Body:
    lifted = liftcore.scan(lambda s, c, x: (c + body(s, x), x), variable_carry="state", **AXES)
    return lambda scope, x: lifted(scope, jnp.zeros(()), x)[0]


def _repeated(body: Body) -> Body:
    lifted = liftcore.while_loop(lambda _, i: i < 2, lambda scope, i: i + 1 + 0 * body(scope, i).astype(int), **CARRIED)
    return lambda scope, x: lifted(scope, 0) * x.sum()


def _counted(body: Body) -> Body:
    lifted = liftcore.fori_loop(lambda scope, i, x: x + body(scope, x), **CARRIED)
    return lambda scope, x: lifted(scope, 0, 2, x).sum()


def _differentiated(lift: Any) -> Callable[[Body], Body]:
    return lambda body: lambda scope, x: sum(leaf.sum() for leaf in jax.tree.leaves(lift(body, (0, 1))(scope, x)))


def _pulled(body: Body) -> Body:
    def model(scope: Any, x: Any) -> Any:
        y, pullback = liftcore.vjp(body)(scope, x)
        return y + pullback(y)[1].sum()

    return model


def _linear(body: Body) -> Body:
    def model(scope: Any, x: Any) -> Any:
        y, along = liftcore.linearize(body)(scope, x)
        return y + along(None, x)

    return model


LIFTS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda body: liftcore.vmap(body, variable_axes={"params": 0, "state": None}, split_rngs=True),
    "scan": _scanned,
    "remat": liftcore.remat,
    "jit": liftcore.jit,
    "scan of remat of jit": lambda body: _scanned(liftcore.remat(liftcore.jit(body))),
    "cond": lambda body: lambda scope, x: liftcore.cond(body, lambda _, x: x.sum())(scope, x.sum() > 0, x),
    "switch": lambda body: lambda scope, x: liftcore.switch([lambda _, x: x.sum(), body, body])(scope, 1, x),
    "fori_loop": _counted,
    "grad": _differentiated(liftcore.grad),
    "value_and_grad": _differentiated(liftcore.value_and_grad),
    "jacfwd": _differentiated(liftcore.jacfwd),
    "jacrev": _differentiated(liftcore.jacrev),
    "hessian": _differentiated(liftcore.hessian),
    "vjp": _pulled,
    "jvp": lambda body: lambda scope, x: sum(liftcore.jvp(body)(scope, (x,), (x,))),
    "linearize": _linear,
    "custom_vjp": ruled_backward,
    "custom_jvp": ruled_forward,
    "jit of cond of grad": lambda body: liftcore.jit(LIFTS["cond"](_differentiated(liftcore.grad)(body))),
}


def body(scope: Any, x: Any) -> Any:
    count = scope.variable("state", "count", lambda: jnp.zeros(()))
    count.value += 1
    scope.sow("intermediates", "x", x)
    return (x * scope.param("w", jax.random.normal, ()) + jax.random.normal(scope.make_rng("dropout"))).sum()


@pytest.mark.parametrize("name", LIFTS)
def test_no_tracer_leaks(name: str) -> None:
    model, x, root = LIFTS[name](body), jnp.ones(2), jax.random.key(0)
    with jax.checking_leaks():
        _, variables = liftcore.init(model)(root, x)
        variables.pop("intermediates")
        liftcore.apply(model, mutable=["state", "intermediates"])(variables, x, rngs={"dropout": root})
        jax.grad(lambda v: liftcore.apply(model, mutable=["state"])(v, x, rngs={"dropout": root})[0].sum())(variables)


@pytest.mark.parametrize("bound", ["while_loop", "fori_loop"])
def test_no_tracer_leaks_from_loops_of_unknown_length(bound: str) -> None:
    def quiet(scope: Any, x: Any) -> Any:
        count = scope.variable("state", "count", lambda: jnp.zeros(()))
        count.value += 1
        return jnp.sum(x * scope.param("w", jax.random.normal, ()) + jax.random.normal(scope.make_rng("dropout")))

    def known_when_it_runs(scope: Any, x: Any) -> Any:
        loop = liftcore.fori_loop(lambda scope, i, x: x + quiet(scope, x), **CARRIED)
        return loop(scope, 0, x.astype(int).sum(), x).sum()

    model = _repeated(quiet) if bound == "while_loop" else known_when_it_runs
    x, root = jnp.ones(2), jax.random.key(0)
    with jax.checking_leaks():
        _, variables = jax.jit(liftcore.init(model))(root, x)
        apply = liftcore.apply(model, mutable=["state"])
        jax.jit(apply)(variables, x, rngs={"dropout": root})
        jax.jit(jax.jacfwd(lambda x: apply(variables, x, rngs={"dropout": root})[0]))(x)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("around", [lambda fn: fn, liftcore.jit], ids=["bare", "jit"])
def test_no_row_of_the_table_leaks(name: str, around: Any) -> None:
    def body(scope: Any, x: Any) -> Any:
        state = scope.variable("state", "s", lambda: uniform(scope.make_rng("dropout")))
        if scope.is_mutable_collection("state"):
            state.value = state.value + x
        return jnp.tanh(x * scope.param("w", uniform, (3,)) + uniform(scope.make_rng("dropout"))) + state.value

    model, x, rngs = around(TABLE[name].lifted(body)), jnp.arange(3.0), {"params": key(0), "dropout": key(1)}
    derivative = jax.jacfwd if REVERSE & TABLE[name].refuses else jax.jacrev
    apply, mutating = liftcore.apply(model), liftcore.apply(model, mutable=["state"])
    with jax.checking_leaks():
        _, variables = jax.eval_shape(liftcore.init(model), rngs, x)
        jax.jit(mutating).lower(variables, x, rngs=rngs)
        jax.jit(derivative(lambda x, variables: apply(variables, x, rngs=rngs))).lower(x, variables)
