"""Calls of a lifted `jit` that only read a scope skip the stages of the lift, and see and leave the same as others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError, LiftError

KEY = jax.random.key(0)
VARIABLES = {"params": {"w": jnp.ones(3)}, "state": {"n": jnp.zeros(())}}


def told(scope: Scope, x: Any) -> Any:
    """What a body can see of its scope, as numbers; it takes a name."""
    scope.push(prefix="child")
    asked = [
        scope.is_mutable_collection("state"),
        scope.is_initializing(),
        scope.is_collection_empty("state"),
        scope.has_rng("params"),
        scope.has_variable("state", "n"),
        len(scope.names().taken),
    ]
    return x * scope.get_variable("params", "w"), jnp.array(list(map(int, asked)))


def skips(call: Callable[[], Any]) -> bool:
    """Whether a call goes through no stage of a lift."""
    found = set()
    sys.setprofile(lambda frame, event, _: found.add(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return not found & {"dedupe", "filter_", "commit"}


SCOPES: dict[str, Callable[[], Scope]] = {
    "bound": lambda: liftcore.bind(VARIABLES),
    "creates nothing": lambda: liftcore.bind(VARIABLES, creates=False),
    "mutable": lambda: liftcore.bind(VARIABLES, mutable=["state"]),
    "with a stream": lambda: liftcore.bind(VARIABLES, rngs=KEY),
    "initializing": lambda: liftcore.bind(VARIABLES, initializing=True),
    "empty collection": lambda: liftcore.bind({**VARIABLES, "state": {}}),
    "no such collection": lambda: liftcore.bind({"params": VARIABLES["params"]}),
    "below": lambda: liftcore.bind({name: {"below": VARIABLES[name]} for name in VARIABLES}).push("below"),
    "other types": lambda: liftcore.bind({"params": {"w": jnp.ones(3, int)}, "state": {"n": jnp.zeros(2)}}),
}


@pytest.mark.parametrize("again", [1, 2])
def test_what_one_call_saw_is_never_told_to_another(again: int) -> None:
    jitted = liftcore.jit(told)
    for _ in range(again):
        for name, make in SCOPES.items():
            scope, plain = make(), make()
            for x in (2.0, jnp.ones(3), 3.0):  # each finds one name more taken
                for ours, theirs in zip(jitted(scope, x), told(plain, x), strict=True):
                    assert jnp.array_equal(ours, theirs), name
                assert scope.names() == plain.names(), name


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("name", ["bound", "creates nothing", "below"])
def test_a_call_that_only_reads_skips_the_stages_once_it_is_traced(name: str, lower: bool) -> None:
    jitted = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w"))
    if lower:
        jitted.lower(SCOPES[name](), 1.0)
    jitted(SCOPES[name](), 1.0)
    scope = SCOPES[name]()
    assert skips(lambda: jitted(scope, 2.0))
    assert not skips(lambda: jitted(scope, jnp.ones(3)))
    assert skips(lambda: jitted(scope, jnp.zeros(3)))


@pytest.mark.parametrize("name", ["mutable", "with a stream", "empty collection"])
def test_other_calls_go_through_the_stages(name: str) -> None:
    jitted, scope = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w")), SCOPES[name]()
    jitted(scope, 1.0)
    assert not skips(lambda: jitted(scope, 2.0))


def test_where_some_variables_are_not_lifted_a_call_goes_through_the_stages() -> None:
    jitted = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w"), variables="params")
    scope = liftcore.bind(VARIABLES)
    jitted(scope, 1.0)
    assert not skips(lambda: jitted(scope, 2.0))


def test_errors_are_those_of_a_first_call() -> None:
    jitted = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w"))
    jitted(liftcore.bind(VARIABLES), 1.0)
    with pytest.raises(TypeError, match=r"not a valid JAX type|as an abstract array"):
        jitted(liftcore.bind(VARIABLES), "text")
    with pytest.raises(LiftArgumentError, match="valid Python names"):
        jitted(liftcore.bind(VARIABLES), **{"1": 1.0})
    ended = liftcore.bind(VARIABLES)
    ended.invalidate()
    with pytest.raises(LiftError, match=r"ended|over|no longer"):
        jitted(ended, 1.0)


def test_inside_a_transformation_a_call_is_traced_as_ever() -> None:
    jitted = liftcore.jit(lambda scope, x: x * scope.get_variable("params", "w"))

    def outer(w: Any, x: Any) -> Any:
        return jitted(liftcore.bind({"params": {"w": w}}), x).sum()

    assert outer(jnp.ones(3), 2.0) == 6
    assert jnp.array_equal(jax.grad(outer)(jnp.ones(3), 2.0), jnp.full(3, 2.0))
    assert jnp.array_equal(jax.jit(jax.vmap(outer, (None, 0)))(jnp.ones(3), jnp.arange(2.0)), jnp.array([0.0, 3.0]))
    scope = liftcore.bind(VARIABLES)
    assert jax.jit(lambda x: jitted(scope, x).sum())(2.0) == 6
    assert jitted(scope, 2.0).sum() == 6
