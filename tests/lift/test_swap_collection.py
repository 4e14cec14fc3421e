"""`swap_collection`: two collections that change places, for reading, making and writing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import ModifyScopeVariableError
from liftcore.filters import All, PathContains
from liftcore.lift.swap_collection import Renamed, swap_collection
from tests.lift.quick import assert_same, key, uniform

KEY = key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def layer(scope: Scope, x: Any) -> Any:
    return jnp.sin(x * scope.param("w", uniform, (3,)))


def model(scope: Scope, x: Any) -> Any:
    """The same layer with its own weights and with those of a teacher."""
    return scope.child(layer, "a")(x), scope.child(swap_collection(layer, "params", "ema"), "b")(x)


def test_each_is_seen_under_the_name_of_the_other() -> None:
    def both(scope: Scope) -> Any:
        return scope.get_variable("a", "x"), scope.get_variable("b", "x"), scope.get_variable("c", "x")

    variables = {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}
    assert liftcore.apply(swap_collection(both, "a", "b"))(variables) == (2, 1, 3)
    assert liftcore.apply(swap_collection(swap_collection(both, "a", "b"), "a", "b"))(variables) == (1, 2, 3)
    with pytest.raises(liftcore.errors.UnliftedCollectionError, match="c/x"):
        liftcore.apply(swap_collection(both, "a", "b", variables=False))(variables)


def test_what_is_made_as_one_lies_in_the_other() -> None:
    (_, y), variables = liftcore.init(model)(KEY, X)
    plain_y, plain = liftcore.init(lambda scope, x: scope.child(layer, "b")(x))(KEY, X)
    assert sorted(variables) == ["ema", "params"]
    assert_same(variables["ema"], plain["params"])
    assert_same(y, plain_y)
    assert_same(liftcore.apply(model)(variables, X)[1], y)


def test_the_gradient_is_that_of_the_other() -> None:
    _, variables = liftcore.init(model)(KEY, X)
    grad = jax.grad(lambda variables: liftcore.apply(model)(variables, X)[1].sum())(variables)
    assert_same(grad["params"], jax.tree.map(jnp.zeros_like, variables["params"]))
    assert_same(grad["ema"], {"b": {"w": X * jnp.cos(X * variables["ema"]["b"]["w"])}})


def count(scope: Scope) -> Any:
    n = scope.variable("a", "n", lambda: jnp.float32(0))
    if scope.is_mutable_collection("a"):
        n.value += 1
    return n.value


def test_it_may_be_written_where_the_other_may_be() -> None:
    lifted = swap_collection(count, "a", "b")
    variables = {"a": {"n": jnp.float32(5)}, "b": {"n": jnp.float32(7)}}
    y, mutated = liftcore.apply(lifted, mutable=["b"])(variables)
    assert (y, mutated) == (8.0, {"b": {"n": 8.0}})
    y, mutated = liftcore.apply(lifted, mutable=["a"])(variables)
    assert (y, mutated["a"]["n"]) == (7.0, 5.0), "what the body calls a is not mutable"
    with pytest.raises(ModifyScopeVariableError):
        liftcore.apply(swap_collection(lambda s: s.put_variable("a", "n", 1), "a", "b"), mutable=["a"])(variables)


def test_single_variables_may_be_mutable() -> None:
    only = All("b", PathContains("n"))
    y, mutated = liftcore.apply(swap_collection(count, "a", "b"), mutable=only)({"b": {"n": 1.0, "m": 2.0}})
    assert (y, mutated) == (2.0, {"b": {"n": 2.0}})


def test_a_renamed_filter_decides_by_the_other_name() -> None:
    renamed = Renamed(liftcore.filters.to_predicate("b"), (("a", "b"), ("b", "a")))
    assert [renamed.decide((name,)) for name in "abc"] == [True, False, False]
    assert [renamed((name, "x"), None) for name in "abc"] == [True, False, False]
    assert renamed == Renamed(liftcore.filters.to_predicate("b"), (("a", "b"), ("b", "a")))


def test_the_one_that_exists_does_not_stand_in_for_the_other() -> None:
    def model(scope: Scope, x: Any) -> Any:
        layer(scope, x)
        there = swap_collection(lambda scope: scope.has_variable("params", "w"), "params", "ema")(scope.rewound())
        assert there is not scope.is_initializing()
        return swap_collection(layer, "params", "ema")(scope.rewound(), x)

    y, variables = liftcore.init(model)(KEY, X)
    assert sorted(variables) == ["ema", "params"]
    assert not jnp.array_equal(variables["ema"]["w"], variables["params"]["w"])
    assert_same(liftcore.apply(model)(variables, X), y)


def test_aliased_scopes_swap_once() -> None:
    def body(scopes: Any) -> Any:
        return [scope.get_variable("a", "x") for scope in scopes]

    def model(scope: Scope) -> Any:
        child = scope.push("child")
        return swap_collection(body, "a", "b")((scope, scope, child))

    variables = {"a": {"x": 1, "child": {"x": 3}}, "b": {"x": 2, "child": {"x": 4}}}
    assert liftcore.apply(model)(variables) == [2, 2, 4]


def test_a_compiled_body_is_traced_once_at_all_places() -> None:
    runs: list[int] = []

    def counted(scope: Scope) -> Any:
        runs.append(1)
        return count(scope)

    jitted = liftcore.jit(counted)

    def model(scope: Scope) -> Any:
        return [swap_collection(jitted, "a", "b")(scope.push(name)) for name in "xyz"]

    assert_same(
        liftcore.init(model)(KEY), ([jnp.float32(1)] * 3, {"b": {name: {"n": jnp.float32(1)} for name in "xyz"}})
    )
    assert len(runs) == 1


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("options", [{"variable_carry": ("a", "b")}, {"variable_axes": {"a": 0, "b": 0}}])
def test_in_a_loop_that_carries_what_it_makes(options: Any, jitted: bool) -> None:
    runs: list[int] = []

    def step(scope: Scope, carry: Any, _: Any) -> Any:
        runs.append(1)
        return carry + count(scope), None

    lifted = swap_collection(step, "a", "b")
    loop = liftcore.scan(liftcore.jit(lifted) if jitted else lifted, length=3, **options)
    (y, _), variables = liftcore.init(loop)(KEY, jnp.zeros(()), None)
    carried = "variable_carry" in options
    n = jnp.float32(3) if carried else jnp.ones(3)
    assert_same((y, variables), (jnp.float32(6 if carried else 3), {"b": {"n": n}}))
    assert len(runs) == 1
    y, mutated = liftcore.apply(loop, mutable=["b"])(variables, jnp.zeros(()), None)
    assert_same(mutated, {"b": {"n": n + 3 if carried else n + 1}})
    assert len(runs) == 2
