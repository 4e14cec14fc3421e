"""No value of a trace outlives it: the lifts pass under `jax.checking_leaks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore

AXES: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": True}

LIFTS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda body: liftcore.vmap(body, variable_axes={"params": 0, "state": None}, split_rngs=True),
    "scan": lambda body: _scanned(body),
    "remat": liftcore.remat,
    "jit": liftcore.jit,
    "scan of remat of jit": lambda body: _scanned(liftcore.remat(liftcore.jit(body))),
}


def _scanned(body: Any) -> Any:
    lifted = liftcore.scan(lambda s, c, x: (c + body(s, x), x), variable_carry="state", **AXES)
    return lambda scope, x: lifted(scope, jnp.zeros(()), x)[0]


def body(scope: Any, x: Any) -> Any:
    count = scope.variable("state", "count", lambda: jnp.zeros(()))
    count.value += 1
    scope.sow("intermediates", "x", x)
    return (x * scope.param("w", jax.random.normal, ()) + jax.random.normal(scope.make_rng("dropout"))).sum()


@pytest.mark.parametrize("name", LIFTS)
def test_no_tracer_leaks(name: str) -> None:
    model, x, key = LIFTS[name](body), jnp.ones(2), jax.random.key(0)
    with jax.checking_leaks():
        _, variables = liftcore.init(model)(key, x)
        variables.pop("intermediates")
        liftcore.apply(model, mutable=["state", "intermediates"])(variables, x, rngs={"dropout": key})
        jax.grad(lambda v: liftcore.apply(model, mutable=["state"])(v, x, rngs={"dropout": key})[0].sum())(variables)
