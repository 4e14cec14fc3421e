"""What a style needs to know about the tree of a scope: places, draws, threads, views of new variables."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import ScopeCollectionNotFound, ScopeVariableNotFoundError, ThreadError, UnliftedCollectionError

KEY = jax.random.key(0)


def test_a_scope_holds_what_is_at_its_place_or_below() -> None:
    root = liftcore.bind({}, KEY)
    encoder, decoder = root.push("encoder"), root.push("decoder")
    below = encoder.push("dense")
    assert root.holds(root)
    assert root.holds(below)
    assert encoder.holds(below)
    assert not (below.holds(encoder))
    assert not (decoder.holds(below))
    assert not (liftcore.bind({}, KEY).holds(below))
    assert encoder.rewound().place == encoder.place != decoder.place
    assert below.entry is root


def test_inside_a_lift_the_entry_is_where_the_lift_begins() -> None:
    def inner(scope: Scope, x: Any) -> Any:
        below = scope.push("b")
        assert below.entry.path == ("a",)
        assert below.entry.holds(below)
        assert not outside[0].holds(below)
        return x

    outside: list[Scope] = []

    def model(scope: Scope, x: Any) -> Any:
        outside.append(scope.push("a"))
        return liftcore.vmap(inner)(outside[0], x)

    liftcore.apply(model)({}, jnp.ones(2))


def test_draws_count_at_one_place_and_streams_are_found_as_make_rng_finds_them() -> None:
    root = liftcore.bind({}, {"params": KEY, "dropout": KEY})
    root.make_rng("dropout"), root.make_rng("noise"), root.push("a").make_rng("dropout")
    assert root.draws == {"dropout": 1, "params": 1}
    assert root.given_rngs == ("params", "dropout")
    assert root.can_draw("noise")
    assert not liftcore.bind({}, {"dropout": KEY}).can_draw("noise")

    def inner(scope: Scope) -> None:
        assert scope.given_rngs == ("params", "dropout")
        assert scope.can_draw("params")
        assert not scope.can_draw("dropout")

    liftcore.vmap(inner, split_rngs={"params": True}, axis_size=2)(root)


def test_one_thread_at_a_time_owns_a_tree_and_others_read() -> None:
    root = liftcore.bind({"params": {"a": {"w": 1.0}}}, KEY)
    assert not root.is_claimed
    assert root.claim()
    assert root.is_claimed
    found: list[Any] = []

    def other() -> None:
        found.append((root.is_claimed, root.claim()))
        reader = root.push("a", reuse=True).reader()
        found.append((reader.path, reader.is_claimed, reader.below(("a",)).get_variable("params", "w")))
        with pytest.raises(ThreadError):
            reader.put_variable("params", "b", 1.0)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [(False, False), ((), True, 1.0)]
    root.release()
    assert not root.is_claimed


def test_views_of_new_variables_follow_each_other_and_change_nothing_outside() -> None:
    def model(scope: Scope) -> Any:
        assert not scope.has_view
        scope.entry.view(lambda path, value: value + 1 if path[0] == "params" else value)
        scope.entry.view(lambda path, value: 10 * value if path[-1] == "w" else value)
        assert scope.has_view
        state = scope.variable("state", "n", lambda: 1.0).value
        return scope.param("w", lambda key: 2.0), scope.push("a").param("b", lambda key: 3.0), state

    def outer(scope: Scope) -> Any:
        return liftcore.remat(model)(scope)

    seen, variables = liftcore.init(outer)(KEY)
    assert seen == (30.0, 4.0, 1.0)
    assert variables == {"params": {"w": 2.0, "a": {"b": 3.0}}, "state": {"n": 1.0}}


def test_scopes_change_outside_a_lift_in_functions_that_it_calls_there() -> None:
    def model(scope: Scope) -> Any:
        def see(variables: Any) -> Any:
            with scope.outside_lift():
                scale = scope.param("scale", lambda key: 3.0)
            return jax.tree.map(lambda value: scale * value, variables)

        inner = lambda scope: scope.get_variable("state", "n")  # noqa: E731
        return liftcore.map_variables(inner, "state", see)(scope)

    y, variables = liftcore.apply(model, mutable=True)({"state": {"n": 2.0}}, rngs=KEY)
    assert y == 6
    assert variables["params"] == {"scale": 3.0}


@pytest.mark.parametrize("given", [{}, {"other": 1.0}])
def test_a_perturbation_that_is_missing_where_its_collection_is_given_is_an_error(given: dict[str, Any]) -> None:
    def model(scope: Scope, x: Any) -> Any:
        return 2 * scope.perturb("h", x)

    assert liftcore.apply(model)({}, 1.0) == 2
    assert liftcore.apply(model)({"perturbations": {"h": 1.0}}, 1.0) == 4
    kind = ScopeVariableNotFoundError if given else ScopeCollectionNotFound
    with pytest.raises(kind, match='"perturbations/h"'):
        liftcore.apply(model)({"perturbations": given}, 1.0)


def test_a_perturbation_in_a_lift_that_does_not_take_its_collection_is_an_error() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.vmap(lambda scope, x: scope.perturb("h", x, "probes"))(scope, x)

    with pytest.raises(UnliftedCollectionError, match='"probes'):
        liftcore.init(model)(KEY, jnp.ones(2))
    assert liftcore.apply(model)({}, jnp.ones(2)).shape == (2,)
