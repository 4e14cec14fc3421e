"""What the tests of derivatives share: a layer, what it gives, and that its state stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.filters import All, PathContains
from tests.lift.quick import assert_same

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
X = jnp.array([0.1, 0.2, 0.3])
PARAMS = {"layer": {"w": jnp.arange(1.0, 4.0), "lora": jnp.arange(2.0, 5.0)}, "scale": jnp.float32(2)}
VARIABLES = {"params": PARAMS, "state": {"n": jnp.float32(1.5)}}
BOTH = pytest.mark.parametrize("mutable", [False, ["state"]])
LORA = All("params", PathContains("lora"))


def layer(scope: Scope, x: Any, y: Any = 1.0) -> Any:
    """Reads, and writes what it may; returns a pytree."""
    inner = scope.push("layer")
    w, lora = inner.param("w", jax.random.normal, (3,)), inner.param("lora", jax.random.normal, (3,))
    n = scope.variable("state", "n", lambda: jnp.float32(1.5))
    result = {"a": jnp.sin(w * x) * n.value, "b": (jnp.sum(lora**2) * scope.param("scale", jax.random.normal, ()) * y,)}
    if scope.is_mutable_collection("state"):
        n.value = n.value * 2
    return result


def result(fn: Callable[..., Any], mutable: Any, *args: Any, given: Any = None, **kwargs: Any) -> Any:
    found = liftcore.apply(fn, mutable=mutable)(VARIABLES if given is None else given, *args, rngs=RNGS, **kwargs)
    return found[0] if mutable else found


def counts(scope: Scope, x: Any) -> Any:
    """A body that counts its runs in a variable, where it may."""
    n = scope.variable("state", "n", lambda: jnp.zeros(()))
    if scope.is_mutable_collection("state"):
        n.value += 1
    return jnp.tanh(x * scope.param("w", jax.random.normal, ())) + n.value


def noisy(scope: Scope, x: Any, start: float = 2.0) -> Any:
    """A body that makes, writes, draws and sows."""
    scope.sow("intermediates", "x", x)
    key = scope.push("inner").make_rng("dropout")
    seen = scope.variable("state", "seen", lambda: start * x)
    seen.value = seen.value + x + jax.random.uniform(key)
    return scope.param("w", jax.random.normal, (3,)) * seen.value


def assert_state_stays(
    lift: Callable[..., Any], body: Callable[..., Any] = noisy, value: Callable[[Any], Any] = lambda y: y
) -> None:
    """Checks that a derivative changes no value, no variable and no later draw of a body.

    Args:
        lift: gives a function of the value that the body gives, derivative aside.
        body: the body.
        value: what of its result is compared.
    """

    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        return value(lift(body)(scope, x)), jax.random.key_data(scope.make_rng("dropout"))

    bare, lifted = (liftcore.init(model)(RNGS, X, one) for one in (lambda fn: fn, lift))
    assert_same(lifted, bare)
    held = {name: found for name, found in bare[1].items() if name != "intermediates"}
    apply = liftcore.apply(model, mutable=["state", "intermediates"])
    assert_same(*(apply(held, X, one, rngs=RNGS) for one in (lift, lambda fn: fn)))
