"""What the tests of functions with rules of their own share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError
from tests.lift.derivatives import RNGS

PARAMS = {"w": jnp.arange(1.0, 4.0), "lora": jnp.arange(2.0, 5.0)}
VARIABLES = {"params": PARAMS, "state": {"n": jnp.float32(1.5)}}
MUTABLE = ["state", "intermediates"]

CHOSEN = [((1, 3), ()), ((-1, -3), ()), ([3, 1], ()), ((1, -1), ()), ((), ("n", "mode")), ((3,), ["mode"])]
"""Arguments 1 and 3 of a function, `mode` and `n`, by number or name."""


def layer(scope: Scope, x: Any) -> Any:
    """Makes, reads, writes, draws and sows what it may."""
    w, lora = (scope.param(name, jax.random.normal, (3,)) for name in ("w", "lora"))
    n = scope.variable("state", "n", lambda: jnp.float32(1.5))
    noise = jax.random.uniform(scope.push("noise", reuse=True).make_rng("dropout"))
    y = jnp.sin(w * x) * n.value + lora * noise
    scope.sow("intermediates", "y", y)
    if scope.is_mutable_collection("state"):
        n.value = n.value + jnp.sum(y)
    return y


def scaled(scope: Scope, x: Any, y: Any) -> Any:
    return {"a": x * scope.param("w", lambda key: jnp.float32(3)), "b": y}


def ruled_forward(fn: Callable[..., Any], rule: Any = None, **options: Any) -> Callable[..., Any]:
    """A function with its own derivative for a rule, or another one."""
    lifted = liftcore.custom_jvp(fn, **options)
    own = {name: options[name] for name in ("wrt",) if name in options}
    lifted.defjvp(rule or (lambda scope, *args: liftcore.jvp(fn, **own)(scope, *args)))
    return lifted


def ruled_backward(
    fn: Callable[..., Any], forward: Any = None, backward: Any = None, **options: Any
) -> Callable[..., Any]:
    """A function with its own pullback for a rule, or another one."""
    lifted = liftcore.custom_vjp(fn, **options)
    own = {name: options[name] for name in ("wrt",) if name in options}
    pull = lambda pullback, cotangent: pullback(cotangent)  # noqa: E731
    lifted.defvjp(forward or (lambda scope, *args: liftcore.vjp(fn, **own)(scope, *args)), backward or pull)
    return lifted


def result(fn: Callable[..., Any], mutable: Any, *args: Any, given: Any = None, **kwargs: Any) -> Any:
    found = liftcore.apply(fn, mutable=mutable)(VARIABLES if given is None else given, *args, rngs=RNGS, **kwargs)
    return found[0] if mutable else found


def total(tree: Any) -> Any:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


def fails(lifted: Callable[..., Any], *args: Any, mutable: Any = True, given: Any = None, grad: bool = False) -> Any:
    """The error of a call, in `apply` or in its gradient."""

    def run(*args: Any) -> Any:
        variables = {name: {"m": value} for name, value in (given or {}).items()}
        model = liftcore.apply(lambda scope: lifted(scope.push("m"), *args), mutable=mutable)
        return total(model(variables, rngs=RNGS)[0])

    with pytest.raises(LiftArgumentError) as caught:
        jax.grad(run)(*args) if grad else run(*args)
    return caught.value
