"""`Blueprint`: the arrays of a pytree as variables by path, and the pytree again from a scope or from variables."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings

import liftcore
from liftcore import Blueprint, Scope, is_array, meta
from liftcore.errors import (
    LiftArgumentError,
    ModifyScopeVariableError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
)
from liftcore.filters import All, PathContains
from liftcore.statics import Undescribed
from tests.core.pytrees import PYTREES, Layer, Pair, same

KEY = jax.random.key(0)


def make(key: Any, size: int = 3) -> Any:
    """A small network that is a pytree, with a function in it and a count."""
    first, second = jax.random.split(key)
    return {
        "layers": [
            Layer(jax.random.normal(first, (size, size)), jnp.tanh),
            Layer(jax.random.normal(second, (size, size)), jax.nn.relu),
        ],
        "steps": jnp.int32(0),
        "name": "mlp",
    }


def by_dtype(leaf: Any) -> str:
    return "params" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "state"


def call(network: Any, x: Any) -> Any:
    for layer in network["layers"]:
        x = layer.act(x @ layer.weight)
    return x


NETWORK = make(KEY)
BLUEPRINT = Blueprint.of(NETWORK, by_dtype)
PATHS = (("params", "layers", "0", "weight"), ("params", "layers", "1", "weight"), ("state", "steps"))


def model(scope: Scope, x: Any) -> Any:
    """Makes the network where there is none, runs it, and counts."""
    below = scope.push("network")
    if scope.is_initializing():
        BLUEPRINT.write(below, make(scope.make_rng("params")))
    network = BLUEPRINT.read(below)
    if scope.is_mutable_collection("state") and not scope.is_initializing():
        BLUEPRINT.write(below, {**network, "steps": network["steps"] + 1})
    return call(network, x)


# -- variables and back ------------------------------------------------------------------------------------------------


@given(PYTREES)
@settings(deadline=None)
def test_a_pytree_comes_back_from_its_variables(tree: Any) -> None:
    blueprint = Blueprint.of(tree)
    variables = blueprint.variables(tree)
    assert same(blueprint.read(variables), tree)
    assert len(jax.tree.leaves(variables)) == len(set(blueprint.paths))
    assert same(liftcore.apply(lambda scope: blueprint.read(scope))(variables), tree)


@given(PYTREES)
@settings(deadline=None, max_examples=50)
def test_a_pytree_comes_back_from_a_scope_that_it_was_written_to(tree: Any) -> None:
    blueprint = Blueprint.of(tree)

    def written(scope: Scope) -> Any:
        blueprint.write(scope, tree)
        return blueprint.read(scope)

    result, variables = liftcore.init(written)(KEY)
    assert same(result, tree)
    assert same(variables, blueprint.variables(tree))


@given(PYTREES, PYTREES)
@settings(deadline=None, max_examples=50)
def test_blueprints_are_equal_where_all_but_the_arrays_is(one: Any, other: Any) -> None:
    again = jax.tree.map(lambda leaf: leaf, one)
    assert Blueprint.of(one) == Blueprint.of(again)
    assert hash(Blueprint.of(one)) == hash(Blueprint.of(again))
    assume(jax.tree.structure(one) != jax.tree.structure(other))
    assert Blueprint.of(one) != Blueprint.of(other)


def test_each_array_is_a_variable_at_its_path() -> None:
    assert BLUEPRINT.paths == PATHS
    variables = BLUEPRINT.variables(NETWORK)
    assert variables["params"]["layers"]["1"]["weight"] is NETWORK["layers"][1].weight
    assert variables["state"] == {"steps": NETWORK["steps"]}


def test_a_pytree_that_is_one_array_has_a_name_all_the_same() -> None:
    blueprint = Blueprint.of(jnp.ones(2))
    assert blueprint.paths == (("params", "value"),)
    assert blueprint.read({"params": {"value": 3}}) == 3


def test_one_array_in_two_places_is_one_variable() -> None:
    shared = jnp.ones(2)
    tree = {"decode": [shared], "own": jnp.ones(2), "reads": shared}  # the other one lies between them
    blueprint = Blueprint.of(tree)
    assert blueprint.paths == (("params", "decode", "0"), ("params", "own"), ("params", "decode", "0"))
    assert set(blueprint.variables(tree)["params"]) == {"decode", "own"}
    found = blueprint.read({"params": {"decode": {"0": shared + 1}, "own": shared}})
    assert found["reads"] is found["decode"][0]


def test_the_gradient_of_a_shared_array_is_the_sum_of_both_uses() -> None:
    shared = jnp.float32(3)
    tree = (shared, shared)
    blueprint = Blueprint.of(tree)

    def product(scope: Scope) -> Any:
        one, other = blueprint.read(scope)
        return one * other

    grads = jax.grad(liftcore.apply(product))(blueprint.variables(tree))
    assert jax.tree.leaves(grads) == [6]


def test_types_stand_for_arrays() -> None:
    types = jax.eval_shape(lambda key: jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, make(key)), KEY)
    full = {**types, "name": "mlp", "layers": [Layer(one.weight, layer.act) for one, layer in pairs(types)]}
    assert Blueprint.of(full, by_dtype) == BLUEPRINT


def pairs(types: Any) -> Any:
    return zip(types["layers"], NETWORK["layers"], strict=True)


def test_a_predicate_says_which_leaves_are_variables() -> None:
    blueprint = Blueprint.of({"rate": 0.5, "n": 3}, "rates", lambda leaf: is_array(leaf) or isinstance(leaf, float))
    assert blueprint.paths == (("rates", "rate"),)
    assert blueprint.read({"rates": {"rate": 1.5}}) == {"rate": 1.5, "n": 3}


# -- in a model --------------------------------------------------------------------------------------------------------


def test_a_model_makes_it_and_reads_it() -> None:
    x = jnp.ones((2, 3))
    y, variables = liftcore.init(model)(KEY, x)
    assert jax.tree.map(jnp.shape, variables) == {
        "params": {"network": {"layers": {"0": {"weight": (3, 3)}, "1": {"weight": (3, 3)}}}},
        "state": {"network": {"steps": ()}},
    }
    np.testing.assert_allclose(liftcore.apply(model)(variables, x), y)
    _, updated = liftcore.apply(model, mutable="state")(variables, x)
    assert updated == {"state": {"network": {"steps": 1}}}


def test_only_what_changed_is_written() -> None:
    variables = {"params": {"w": jnp.ones(2)}, "state": {"n": jnp.int32(0)}}
    blueprint = Blueprint.of({"w": jnp.ones(2), "n": jnp.int32(0)}, by_dtype)

    def count(scope: Scope) -> None:
        tree = blueprint.read(scope)
        blueprint.write(scope, {**tree, "n": tree["n"] + 1})

    _, updated = liftcore.apply(count, mutable="state")(variables)  # `params` are immutable, and are not written
    assert updated == {"state": {"n": 1}}
    with pytest.raises(ModifyScopeVariableError):
        liftcore.apply(count)(variables)


def test_a_filter_reaches_its_single_arrays() -> None:
    axes = {All("params", PathContains("0")): None, "params": 0, "state": None}
    lifted = liftcore.vmap(model, variable_axes=axes, split_rngs={"params": False}, in_axes=None, axis_size=4)
    y, variables = liftcore.init(lifted)(KEY, jnp.ones((2, 3)))
    first, second = variables["params"]["network"]["layers"].values()
    assert (y.shape, first["weight"].shape, second["weight"].shape) == ((4, 2, 3), (3, 3), (4, 3, 3))


def test_it_is_made_inside_nested_loops() -> None:
    def step(scope: Scope, carry: Any, _: Any) -> Any:
        return liftcore.remat(model)(scope, carry), None

    options: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 5}
    loop = liftcore.scan(step, variable_carry="state", **options)
    (y, _), variables = liftcore.init(loop)(KEY, jnp.ones((2, 3)), None)
    assert variables["params"]["network"]["layers"]["0"]["weight"].shape == (5, 3, 3)
    (again, _), updated = liftcore.apply(loop, mutable="state")(variables, jnp.ones((2, 3)), None)
    np.testing.assert_allclose(again, y, rtol=1e-6)
    assert updated == {"state": {"network": {"steps": 5}}}


def test_values_in_boxes_are_read_and_written_in_them() -> None:
    blueprint = Blueprint.of({"w": jnp.ones(2)})

    def double(scope: Scope) -> Any:
        tree = blueprint.read(scope)
        blueprint.write(scope, {"w": 2 * tree["w"]})
        return tree["w"]

    boxed = {"params": {"w": meta.Partitioned(jnp.ones(2), names=("features",))}}
    w, updated = liftcore.apply(double, mutable="params")(boxed)
    assert w.shape == (2,)
    assert updated["params"]["w"].names == ("features",)
    np.testing.assert_array_equal(updated["params"]["w"].value, [2, 2])
    assert blueprint.read(boxed)["w"].shape == (2,)


def test_it_is_static_in_jit() -> None:
    compiled = jax.jit(lambda blueprint, variables: blueprint.read(variables)["steps"] + 1, static_argnums=0)
    assert compiled(BLUEPRINT, BLUEPRINT.variables(NETWORK)) == 1


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_pytree_of_another_kind_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match=r"differs in more than its arrays.*Blueprint\.of\(tree\)"):
        BLUEPRINT.variables({**NETWORK, "name": "other"})


def test_two_arrays_for_one_variable_are_an_error() -> None:
    shared = jnp.ones(2)
    with pytest.raises(LiftArgumentError, match=r"params/0: two places of the pytree share this variable"):
        Blueprint.of([shared, shared]).variables([jnp.ones(2), jnp.ones(2)])


@jax.tree_util.register_pytree_with_keys_class
class Twins(Pair):
    """A node that gives both of its children one key."""

    def tree_flatten_with_keys(self) -> Any:
        return [(jax.tree_util.DictKey("twin"), child) for child in self], None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


def test_two_arrays_at_one_path_are_an_error() -> None:
    message = r"\['twin'\] would be stored at params/twin, but \['twin'\] is stored"
    with pytest.raises(LiftArgumentError, match=message):
        Blueprint.of(Twins(jnp.ones(2), jnp.ones(2)))
    with pytest.raises(LiftArgumentError, match="but another part of the pytree is stored"):
        Blueprint.of(Twins([jnp.ones(2)], jnp.ones(2)))
    with pytest.raises(LiftArgumentError, match=r"would be stored at params/twin/0, but \['twin'\] is stored"):
        Blueprint.of(Twins(jnp.ones(2), [jnp.ones(2)]))


def test_a_collection_that_is_no_text_is_an_error() -> None:
    with pytest.raises(
        LiftArgumentError, match=r"a float32\[2\] array: expected the name of a collection as `collection`, given None"
    ):
        Blueprint.of(jnp.ones(2), lambda leaf: None)  # type: ignore[arg-type, return-value]


def test_what_has_no_key_is_an_error() -> None:
    with pytest.raises(Undescribed, match=r"at \['f'\]\.args\[0\]"):
        Blueprint.of({"f": functools.partial(call, jnp.ones(2))})


def test_a_variable_that_is_missing_is_named() -> None:
    with pytest.raises(LiftArgumentError, match=r"no variable params/layers/1/weight \(available: \['0'\]\)"):
        BLUEPRINT.read({"params": {"layers": {"0": {"weight": 1}}}})
    with pytest.raises(ScopeCollectionNotFound, match='"params/weight" at /layers/0'):
        liftcore.apply(lambda scope: BLUEPRINT.read(scope))({})
    with pytest.raises(ScopeParamNotFoundError, match='"params/weight" at /layers/0'):
        liftcore.apply(lambda scope: BLUEPRINT.read(scope))({"params": {"other": 1}})


def test_adopt_makes_once_in_init_and_only_traces_later() -> None:
    keys: list[Any] = []

    def shared(key: Any) -> Any:
        keys.append(key)
        w = jax.random.normal(key, (3,))
        return {"a": w, "b": w}

    def model(scope: Scope) -> Any:
        return Blueprint.adopt(scope, shared, Blueprint.of).read(scope)

    made, variables = liftcore.init(model)(KEY)
    assert list(variables["params"]) == ["a"]
    assert made["a"] is made["b"]
    assert not isinstance(keys.pop(), jax.core.Tracer)
    assert same(liftcore.apply(model)(variables), made)
    assert isinstance(keys.pop(), jax.core.Tracer)
    assert not keys
