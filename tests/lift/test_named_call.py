"""`named_call`: a name in profiles, and nothing else."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.lift.named_call import named_call
from tests.lift.quick import assert_same, key, uniform

RNGS = {"params": key(0), "dropout": key(1)}
X = jnp.arange(3.0)


def layer(scope: Scope, x: Any, *, scale: Any = 1.0) -> Any:
    w = scope.param("w", uniform, (3,))
    n = scope.variable("state", "n", lambda: jnp.zeros(()))
    n.value += 1
    scope.sow("intermediates", "x", x)
    return jnp.sin(x * w) * n.value * scale + uniform(scope.make_rng("dropout"))


def block(scope: Scope, x: Any) -> Any:
    return scope.child(layer)(x) + scope.child(layer)(x)


def names(fn: Any, *args: Any) -> str:
    return str(jax.jit(liftcore.apply(fn, mutable=True)).lower({}, *args, rngs=RNGS).as_text(debug_info=True))


def test_the_operations_carry_the_name() -> None:
    assert "attention" in names(named_call(block, "attention"), X)
    assert "attention" not in names(block, X)
    assert "block/" in names(lambda scope, x: named_call(block)(scope, x), X)
    assert "block/" in names(lambda scope: named_call(functools.partial(block, x=X))(scope))
    assert "block/" not in names(lambda scope, x: block(scope, x), X)


def test_names_values_and_draws_are_those_of_the_function() -> None:
    lifted = named_call(block, "attention")
    ours, theirs = liftcore.init(lifted)(RNGS, X), liftcore.init(block)(RNGS, X)
    assert_same(ours, theirs, exact=True)

    def loss(variables: Any, fn: Any) -> Any:
        y, mutated = liftcore.apply(fn, mutable=["state", "intermediates"])(variables, X, rngs=RNGS)
        return y.sum(), mutated

    variables = {name: theirs[1][name] for name in ("params", "state")}
    ours, theirs = (jax.value_and_grad(loss, has_aux=True)(variables, fn) for fn in (lifted, block))
    assert_same(ours, theirs, exact=True)


def test_it_adds_no_equation() -> None:
    ours, theirs = (
        jax.make_jaxpr(lambda fn=fn: liftcore.init(fn)(RNGS, X))() for fn in (named_call(block, "attention"), block)
    )
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat, lambda fn: liftcore.vmap(
    fn, variable_axes={True: 0}, split_rngs=True)])  # fmt: skip
def test_in_and_round_other_lifts(lift: Any) -> None:
    x = jnp.stack([X, X])
    outside, inside, plain = (
        liftcore.init(fn)(RNGS, x) for fn in (named_call(lift(layer)), lift(named_call(layer, "a")), lift(layer))
    )
    assert_same(outside, plain)
    assert_same(inside, plain)


def test_a_loop_carries_what_is_created_inside() -> None:
    def step(scope: Scope, x: Any, _: Any) -> Any:
        return layer(scope, x), None

    options = {"variable_carry": "state", "variable_axes": {"params": 0}, "split_rngs": True, "length": 3}
    ours, theirs = (liftcore.init(liftcore.scan(fn, **options))(RNGS, X, None) for fn in (named_call(step), step))
    assert_same(ours, theirs)


def test_it_takes_scopes_and_keyword_arguments() -> None:
    def two(scopes: Any, x: Any, *, scale: Any) -> Any:
        return [layer(scope, x, scale=scale) for scope in scopes]

    def model(scope: Scope, fn: Any) -> Any:
        return fn((scope.push("a"), scope.push("b")), X, scale=2.0)

    assert_same(liftcore.init(model)(RNGS, named_call(two)), liftcore.init(model)(RNGS, two))
