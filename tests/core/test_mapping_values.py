"""Law 13: a variable whose value is a mapping is one variable, and comes out as it went in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore.errors import LiftArgumentError
from liftcore.filters import All, PathContains
from liftcore.frozen_dict import FrozenDict
from tests.lift.own import inline

KEY = jax.random.key(0)

VALUES: dict[str, Any] = {
    "a dict": {"x": jnp.arange(3.0), "y": {"z": jnp.ones(2)}},
    "an empty dict": {},
    "an empty dict inside": {"x": jnp.ones(()), "y": {}},
    "a frozen dict": FrozenDict({"x": jnp.arange(3.0), "y": {"z": jnp.ones(2)}}),
    "an empty tuple": (),
    "a tuple of dicts": ({"x": jnp.ones(2)}, {}),
    "None": None,
}


def scanned(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    over = liftcore.scan(lambda scope, c, _: (c, fn(scope)), length=2, split_rngs=True, **options)
    return lambda scope: over(scope, 0.0, None)[1]


def looped(fn: Callable[..., Any]) -> Callable[..., Any]:
    over = liftcore.fori_loop(lambda scope, index, c: (fn(scope), c)[1], variable_carry=True, split_rngs=True)
    return lambda scope: over(scope, 0, 2, 0.0)


def repeated(fn: Callable[..., Any]) -> Callable[..., Any]:
    over = liftcore.while_loop(
        lambda scope, c: c < 2, lambda scope, c: (fn(scope), c + 1)[1], variable_carry=True, split_rngs=True
    )
    return lambda scope: over(scope, 0.0)


def other_paths(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Under a filter that looks at paths, and finds none that it is for."""
    shared = All("state", PathContains("other"))
    over = liftcore.scan(
        lambda scope, c, _: (c, fn(scope)), length=1, variable_broadcast=shared, variable_carry=True, split_rngs=True
    )
    return lambda scope: jax.tree.map(lambda leaf: leaf[0], over(scope, 0.0, None)[1])


def seen(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf, tree)


UNCHANGED: dict[str, Callable[..., Any]] = {
    "nothing": lambda fn: fn,
    "jit": liftcore.jit,
    "remat": liftcore.remat,
    "cond": lambda fn: lambda scope: liftcore.cond(fn, fn)(scope, True),
    "carried": lambda fn: scanned(fn, variable_carry=True),
    "fori_loop": looped,
    "while_loop": repeated,
    "checkify": lambda fn: lambda scope: liftcore.checkify(fn)(scope)[1],
    "vjp": lambda fn: lambda scope: liftcore.vjp(fn, wrt="params")(scope)[0],
    "custom": inline,
    "map_variables": lambda fn: liftcore.map_variables(fn, "state", seen, seen, init=True, mutable=True),
    "other paths": lambda fn: other_paths(fn),
    "a branch with other paths": lambda fn: lambda scope: liftcore.cond(other_paths(fn), fn)(scope, True),
    "path filters": lambda fn: liftcore.vmap(
        fn, axis_size=1, variable_axes={All("state", PathContains("x")): 0, ...: None}, split_rngs=True
    ),
}
"""Lifts under which a variable called `v` keeps its value; the last has a filter that looks at paths."""


def declaring(value: Any, reads: bool = True) -> Callable[..., Any]:
    def body(scope: Any) -> Any:
        found = scope.variable("state", "v", lambda: value)
        scope.param("w", lambda key: jnp.ones(()))
        return jax.tree.map(jnp.sum, found.value) if reads else jnp.zeros(())

    return body


def assert_is(given: Any, expected: Any) -> None:
    assert jax.tree.structure(given) == jax.tree.structure(expected)
    assert type(given) is type(expected)
    assert jax.tree.all(jax.tree.map(lambda one, other: bool(jnp.all(one == other)), given, expected))


@pytest.mark.parametrize("lift", UNCHANGED)
@pytest.mark.parametrize("kind", VALUES)
def test_what_init_makes_it_gives_back(kind: str, lift: str) -> None:
    made = liftcore.init(UNCHANGED[lift](declaring(VALUES[kind], reads=kind != "None")))(KEY)[1]
    assert_is(made["state"]["v"], VALUES[kind])


@pytest.mark.parametrize("lift", UNCHANGED)
@pytest.mark.parametrize("kind", VALUES)
def test_what_apply_is_given_it_gives_back_as_it_was_written(kind: str, lift: str) -> None:
    if lift == "path filters" or (lift, kind) == ("map_variables", "a frozen dict"):
        pytest.skip("nothing can tell a dict from a module before the body declares it")

    def body(scope: Any) -> Any:
        v = scope.variable("state", "v", lambda: pytest.fail("it exists"))
        v.value = jax.tree.map(lambda leaf: leaf + 1, v.value)
        return jnp.zeros(())

    given = {"params": {"w": jnp.ones(())}, "state": {"v": VALUES[kind]}}
    times = 2 if lift in ("carried", "fori_loop", "while_loop") else 1
    _, written = liftcore.apply(UNCHANGED[lift](body), mutable=["state"])(given)
    assert_is(written["state"]["v"], jax.tree.map(lambda leaf: leaf + times, VALUES[kind]))


@pytest.mark.parametrize("made", ["in the lift", "before it", "outside"])
@pytest.mark.parametrize("kind", [dict, FrozenDict, OrderedDict])
@pytest.mark.parametrize("lift", UNCHANGED)
def test_a_scope_with_the_name_of_a_dict_writes_a_part_of_it(lift: str, kind: Any, made: str) -> None:
    if (lift, made) == ("path filters", "outside"):
        pytest.skip("nothing can tell a dict from a module before the body declares it")
    # An order of its own, in which the leaves of a plain dict would not be.
    value = kind({"y": kind({"z": jnp.ones(2)}), "x": jnp.arange(3.0)})

    def writing(scope: Any) -> Any:
        scope.param("w", lambda key: jnp.ones(()))
        scope.variable("state", "v", lambda: value)
        part = scope.rewound().push("v")
        part.put_variable("state", "x", part.get_variable("state", "x") + 1)
        return jnp.zeros(())

    def model(scope: Any) -> Any:
        if made == "before it":
            scope.rewound().variable("state", "v", lambda: value)
        return UNCHANGED[lift](writing)(scope)

    if made == "outside":
        found = liftcore.apply(model, mutable=True)({"params": {"w": jnp.ones(())}, "state": {"v": value}})[1]
    else:
        found = liftcore.init(model)(KEY)[1]
    times = 2 if lift in ("carried", "fori_loop", "while_loop") else 1
    expected = {"x": value["x"] + times, "y": dict(value["y"])}
    assert_is({**found["state"]["v"], "y": dict(found["state"]["v"]["y"])}, expected)


def test_a_write_under_a_filter_of_paths_is_kept() -> None:
    def body(scope: Any) -> None:
        v = scope.variable("state", "v", dict)
        v.value = {"x": v.value["x"] + 1, "y": v.value["y"] * 2}

    lifted = liftcore.vmap(body, axis_size=3, variable_axes={PathContains("v"): 0})
    given = {"state": {"v": {"x": jnp.zeros(3), "y": jnp.ones(3)}}}
    written = liftcore.apply(lifted, mutable=True)(given)[1]
    assert jax.tree.map(lambda leaf: leaf.tolist(), written) == {"state": {"v": {"x": [1.0] * 3, "y": [2.0] * 3}}}


INLINE = [lambda fn: fn, liftcore.jit, liftcore.remat]

CUT = {
    "a part in another group": {PathContains("x"): 0, ...: None},
    "a part that is not lifted": {PathContains("x"): 0},
}


@pytest.mark.parametrize("axes", CUT.values(), ids=CUT)
@pytest.mark.parametrize("inside", INLINE)
def test_a_dict_that_a_filter_cuts_in_two_is_an_error(axes: Any, inside: Any) -> None:
    def reading(scope: Any) -> Any:
        return scope.variable("state", "v", dict).value["x"]

    def param(scope: Any) -> Any:
        return scope.param("v", None)["x"]

    def writing(scope: Any) -> Any:
        scope.put_variable("state", "v", {"x": 1.0, "y": 2.0})

    value = {"x": jnp.zeros(3), "y": jnp.ones(())}
    for body, collection in ((reading, "state"), (param, "params"), (writing, "state")):
        lifted = liftcore.vmap(inside(body), axis_size=3, variable_axes=axes)
        with pytest.raises(LiftArgumentError) as caught:
            liftcore.apply(lambda scope, lifted=lifted: lifted(scope.push("m")), mutable=True)(
                {collection: {"m": {"v": value}}}
            )
        assert caught.value.where.startswith(f'"{collection}/m/v" in vmap(')
        assert f'"{collection}/m/v/x" by PathContains' in caught.value.what
        assert 'PathContains("v")' in caught.value.fix


@pytest.mark.parametrize(
    "lift", [lambda fn: fn, liftcore.jit, liftcore.remat, lambda fn: scanned(fn, variable_carry=True)]
)
def test_a_dict_written_over_a_scope_is_what_the_scope_holds(lift: Any) -> None:
    def body(scope: Any) -> Any:
        child = scope.push("a")
        x = child.variable("state", "x", lambda: jnp.zeros(()))
        before = x.value
        scope.put_variable("state", "a", {"x": before + 1})
        after = x.value
        x.value = after + 10
        return jnp.stack([before, after, x.value])

    given = {"state": {"a": {"x": jnp.zeros(())}}}
    seen, written = liftcore.apply(lift(body), mutable=True)(given)
    assert jnp.ravel(seen)[:3].tolist() == [0.0, 1.0, 11.0]
    assert written == {"state": {"a": {"x": jnp.ravel(seen)[-1]}}}


@pytest.mark.parametrize(
    "lift", [lambda fn: fn, liftcore.jit, liftcore.remat, lambda fn: scanned(fn, variable_broadcast=True)]
)
def test_a_parameter_may_be_a_tree_of_parameters(lift: Any) -> None:
    def layer(scope: Any, x: Any) -> Any:
        return x @ scope.param("w", jax.random.normal, (3, 3))

    def model(scope: Any) -> Any:
        params = scope.param("mlp", lambda key: liftcore.init(layer)(jax.random.key(1), jnp.ones(3))[1])
        return liftcore.apply(layer)(params, jnp.ones(3))

    y, variables = liftcore.init(lift(model))(KEY)
    assert variables["params"]["mlp"]["params"]["w"].shape == (3, 3)
    assert (liftcore.apply(lift(model))(variables) == y).all()


def test_gradients_of_a_dict_are_a_dict() -> None:
    def loss(scope: Any, x: Any) -> Any:
        params = scope.param("p", lambda key: {"a": jnp.ones(()), "b": 2.0 * jnp.ones(())})
        return params["a"] * x + params["b"] ** 2

    grads, variables = liftcore.init(liftcore.grad(loss))(KEY, 3.0)
    assert grads == {"params": {"p": {"a": 3.0, "b": 4.0}}}
    assert liftcore.apply(liftcore.grad(loss))(variables, 3.0) == grads


def test_tangents_of_a_dict_are_given_as_a_dict() -> None:
    def fn(scope: Any, x: Any) -> Any:
        params = scope.param("p", lambda key: {"a": jnp.ones(()), "b": 2.0 * jnp.ones(())})
        return params["a"] * x + params["b"]

    tangents = {"params": {"p": {"a": 1.0, "b": 10.0}}}
    (_, slope), _ = liftcore.init(liftcore.jvp(fn))(KEY, (3.0,), (0.0,), tangents)
    assert slope == 13.0


PLACES = {
    "the variables": lambda value: FrozenDict({"state": {"m": {"v": value}}}),
    "a collection": lambda value: {"state": FrozenDict({"m": {"v": value}})},
    "a module": lambda value: {"state": {"m": FrozenDict({"v": value})}},
    "the value": lambda value: {"state": {"m": {"v": FrozenDict(value)}}},
}


@pytest.mark.parametrize("value", [{}, {"x": jnp.ones(2)}], ids=["empty", "filled"])
@pytest.mark.parametrize("place", PLACES)
def test_a_frozen_dict_that_is_given_may_be_mapped_in_a_branch(place: str, value: Any) -> None:
    def negated(tree: Any) -> Any:
        tree["state"].pop("nothing", None)  # what a map is given is a copy, so it may change it
        return jax.tree.map(lambda leaf: -leaf, tree)

    def body(scope: Any) -> Any:
        v = scope.push("m").variable("state", "v", lambda: FrozenDict(value))
        v.value = jax.tree.map(lambda leaf: leaf - 1, v.value)
        scope.variable("state", "made", lambda: len(v.value) + jnp.zeros(()))
        return type(v.value)

    kinds = []

    def branch(scope: Any) -> None:
        kinds.append(liftcore.map_variables(body, "state", negated, negated, init=True, mutable=True)(scope))

    _, written = liftcore.apply(liftcore.cond(branch, lambda scope: None), mutable=True)(PLACES[place](value), True)
    assert kinds == [FrozenDict]
    expected = {name: leaf + 1 for name, leaf in value.items()}
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), dict(written["state"]["m"]["v"]), expected))
