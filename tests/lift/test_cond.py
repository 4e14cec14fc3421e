"""Lifted `cond` and `switch`: branches that make, write, draw and sow, of which one runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import liftcore
from liftcore import Scope
from liftcore.errors import (
    JaxTransformError,
    LiftArgumentError,
    ModifyScopeVariableError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, Not, PathContains
from tests.lift.own import one_equation
from tests.lift.quick import assert_same
from tests.machine import make_mesh

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
X = jnp.arange(1.0, 4.0)


def same(scope: Scope, x: Any) -> Any:
    return x


def scaled(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", jax.random.normal, ())


def words(key: Any) -> Any:
    return jax.random.key_data(key)


# -- the branch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("pred", [True, False, np.bool_(True), jnp.array(False), 1, 0])
def test_the_branch_is_that_of_jax(pred: Any, mutable: bool) -> None:
    def first(x: Any, more: Any) -> Any:
        return {"y": x + more[0], "n": jnp.int32(1)}

    def second(x: Any, more: Any) -> Any:
        return {"y": x * 2, "n": jnp.int32(2)}

    lifted = liftcore.cond(lambda _, *args: first(*args), lambda _, *args: second(*args))
    result = liftcore.apply(lifted, mutable=mutable)({}, pred, X, (1.0, None))
    assert_same(result[0] if mutable else result, jax.lax.cond(pred, first, second, X, (1.0, None)))


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7, np.int8(1), jnp.uint8(2)])
def test_an_index_out_of_range_is_clamped(index: Any, mutable: bool) -> None:
    branches = [lambda x: x, lambda x: -x, lambda x: x**2]
    lifted = liftcore.switch([lambda _, x, fn=fn: fn(x) for fn in branches])
    result = liftcore.apply(lifted, mutable=mutable)({}, index, X)
    assert_same(result[0] if mutable else result, jax.lax.switch(index, branches, X))


def test_one_branch_is_enough_and_branches_may_come_from_an_iterator() -> None:
    y, variables = liftcore.init(liftcore.switch([scaled]))(KEY, 5, X)
    assert_same(liftcore.init(scaled)(KEY, X), (y, variables))
    lifted = liftcore.switch(fn for fn in (same, lambda scope, x: -x))
    for _ in range(2):
        assert liftcore.apply(lifted)({}, 1, 2.0) == -2.0


@pytest.mark.parametrize("mutable", [False, True])
def test_results_keep_weak_types(mutable: bool) -> None:
    lifted = liftcore.cond(lambda scope, x: x * 2.0, lambda scope, x: 2.5)
    result = liftcore.apply(lifted, mutable=mutable)({}, False, 1.0)
    y = result[0] if mutable else result
    assert jax.typeof(y) == jax.typeof(jax.lax.cond(False, lambda x: x * 2.0, lambda x: 2.5, 1.0))


@pytest.mark.parametrize("mutable", [False, True])
def test_results_of_several_types_are_an_error_that_says_where(mutable: bool) -> None:
    lifted = liftcore.cond(lambda scope, x: {"y": jnp.stack([x, x])}, lambda scope, x: {"y": x})
    with pytest.raises(LiftArgumentError) as caught:
        liftcore.apply(lambda scope: lifted(scope.push("a"), True, 1.0), mutable=mutable)({})
    assert caught.value.where == "cond(<lambda>) at /a"
    assert caught.value.what == "the branches return different types: {'y': 'float32[2]'}, {'y': 'float32[]'}."


@pytest.mark.parametrize("mutable", [False, True])
def test_a_mistake_in_a_branch_is_raised_as_it_is(mutable: bool) -> None:
    lifted = liftcore.switch([lambda scope, x: x, lambda scope, x: x + "a"])
    with pytest.raises(TypeError, match="unsupported operand"):
        liftcore.apply(lifted, mutable=mutable)({}, 0, 1.0)


@pytest.mark.parametrize("mutable", [False, True])
def test_operands_that_are_no_arrays_are_passed_as_they_are(mutable: bool) -> None:
    def branch(scope: Scope, x: Any, mode: str, flag: bool) -> Any:
        return x if mode == "keep" and flag else -x

    result = liftcore.apply(liftcore.cond(branch, branch), mutable=mutable)({}, True, 1.0, "keep", True)
    assert (result[0] if mutable else result) == 1.0


def test_gradients_flow_into_operands_and_variables_of_the_branch_that_ran() -> None:
    def other(scope: Scope, x: Any) -> Any:
        return jnp.sin(x) * scope.param("u", jax.random.normal, ())

    def by_hand(params: Any, x: Any, pred: Any) -> Any:
        return jax.lax.cond(pred, lambda: jnp.cos(x * params["w"]), lambda: jnp.sin(x) * params["u"])

    model = liftcore.cond(lambda scope, x: jnp.cos(scaled(scope, x)), other)
    params = {"w": jnp.float32(2), "u": jnp.float32(3)}
    for pred in (True, False):
        for mutable in (False, ["state"]):

            def ours(params: Any, x: Any, pred: Any = pred, mutable: Any = mutable) -> Any:
                result = liftcore.apply(model, mutable=mutable)({"params": params}, pred, x)
                return result[0] if mutable else result

            def theirs(params: Any, x: Any, pred: Any = pred) -> Any:
                return by_hand(params, x, pred)

            for transform in (jax.grad, jax.hessian, jax.jacfwd):
                each = [transform(fn, argnums=(0, 1))(params, jnp.float32(0.5)) for fn in (ours, theirs)]
                assert_same(*each)


def test_a_mapped_predicate_chooses_for_each_element() -> None:
    branch = liftcore.cond(scaled, lambda scope, x: x - scope.param("w", jax.random.normal, ()))
    model = liftcore.vmap(
        lambda scope, x: branch(scope, x > 1.5, x), variable_axes={"params": 0}, split_rngs={"params": True}
    )
    y, variables = liftcore.init(model)(KEY, X)
    w = variables["params"]["w"]
    assert_same(y, jnp.where(X > 1.5, X * w, X - w))
    assert_same(liftcore.apply(model)(variables, X), y)


def test_a_branch_may_ask_for_a_mapped_axis() -> None:
    def total(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x)
        return jax.lax.psum(scaled(scope, x), "elements")

    model = liftcore.vmap(
        lambda scope, x: liftcore.cond(total, same)(scope, True, x),
        axis_name="elements",
        variable_axes={"params": None},
        split_rngs={"params": False},
    )
    y, variables = liftcore.init(model)(KEY, X)
    assert_same(y, jnp.full(3, 6 * variables["params"]["w"]))
    assert_same(variables["intermediates"]["x"], (X,))


# -- what branches create ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pred", [True, False])
def test_a_branch_that_is_not_taken_owns_its_parameters(pred: bool) -> None:
    def wide(scope: Scope, x: Any) -> Any:
        return x @ scope.child(lambda scope: scope.param("kernel", jax.random.normal, (3, 3)), "wide")()

    y, variables = liftcore.init(liftcore.cond(scaled, wide))(KEY, pred, X)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"w": (), "wide": {"kernel": (3, 3)}}}
    alone = [liftcore.init(fn)(KEY, X)[1]["params"] for fn in (scaled, wide)]
    assert_same(variables["params"], {**alone[0], **alone[1]}, exact=True)
    assert_same(y, liftcore.apply(scaled if pred else wide)(variables, X))


@pytest.mark.parametrize("pred", [True, False])
def test_a_variable_that_both_create_begins_as_the_first_makes_it(pred: bool) -> None:
    def starting(value: float, write: bool) -> Callable[..., Any]:
        def branch(scope: Scope, x: Any) -> Any:
            n = scope.variable("state", "n", lambda: jnp.float32(value))
            if write:
                n.value += 1
            return n.value

        return branch

    for lift in (lambda fn: fn, liftcore.remat, liftcore.jit):
        for write in (False, True):
            model = liftcore.cond(lift(starting(1, write)), lift(starting(10, write)))
            y, variables = liftcore.init(model)(KEY, pred, X)
            assert y == variables["state"]["n"] == (2.0 if write else 1.0)


def test_the_first_of_three_branches_wins_and_later_ones_add_theirs() -> None:
    def making(**values: float) -> Callable[..., Any]:
        def branch(scope: Scope, x: Any) -> Any:
            return sum(scope.variable("consts", name, lambda value=value: jnp.float32(value)).value
                       for name, value in values.items())  # fmt: skip

        return branch

    model = liftcore.switch([making(a=1), making(b=2, a=20), making(c=3, b=30, a=300)])
    for index, expected in enumerate([1.0, 3.0, 6.0]):
        y, variables = liftcore.init(model)(KEY, index, X)
        assert variables == {"consts": {"a": 1.0, "b": 2.0, "c": 3.0}}
        assert y == expected


def test_initial_values_may_use_operands_and_state() -> None:
    def branch(scope: Scope, x: Any) -> Any:
        before = scope.variable("state", "before", lambda: 2 * x)
        after = scope.variable("state", "after", lambda: before.value + scope.get_variable("state", "given"))
        before.value += 1
        return after.value

    model = liftcore.cond(same, branch)
    y, variables = liftcore.apply(model, mutable=["state"])({"state": {"given": 10 * X}}, True, X)
    assert_same(variables["state"], {"given": 10 * X, "before": 2 * X, "after": 12 * X})
    assert_same(y, X)
    y, variables = liftcore.apply(model, mutable=["state"])({"state": {"given": 10 * X}}, False, X)
    assert_same((y, variables["state"]["before"]), (12 * X, 2 * X + 1))


def test_a_branch_answers_as_at_entry_whatever_another_creates() -> None:
    def asks(scope: Scope, x: Any) -> Any:
        return x * (3 if scope.has_variable("params", "w") else 2)

    assert liftcore.init(liftcore.cond(scaled, asks))(KEY, False, 1.0)[0] == 2.0
    assert liftcore.apply(liftcore.cond(scaled, asks))({"params": {"w": 1.0}}, False, 1.0) == 3.0


def test_effects_of_an_initial_value_happen_once_whichever_runs() -> None:
    seen: list[str] = []

    def making(name: str) -> Callable[..., Any]:
        def create() -> Any:
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            return io_callback(lambda: seen.append(name) or np.float32(0), shape, ordered=False)  # type: ignore[func-returns-value]

        return lambda scope, x: x + scope.variable("state", name, create).value

    liftcore.init(liftcore.cond(making("a"), making("b")))(KEY, False, 1.0)
    jax.effects_barrier()
    assert sorted(seen) == ["a", "b"]


@pytest.mark.parametrize("pred", [True, False])
def test_what_a_branch_does_not_write_stays_as_it_was(pred: bool) -> None:
    def writes(name: str) -> Callable[..., Any]:
        def branch(scope: Scope, x: Any) -> Any:
            scope.put_variable("state", name, scope.get_variable("state", name) + x)
            return x

        return branch

    state = {"a": jnp.float32(1), "b": jnp.int32(2), "untouched": X}
    _, mutated = liftcore.apply(liftcore.cond(writes("a"), writes("b")), mutable=True)({"state": state}, pred, 3)
    assert_same(mutated["state"], {**state, **({"a": jnp.float32(4)} if pred else {"b": jnp.int32(5)})})
    assert mutated["state"]["untouched"] is X


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({0: 1.0, 1: 2.0}, {0: 5.0, 1: 6.0}),  # keys that are no strings
        ({"k": 1.0, "v": {"deep": 2.0}}, {"k": 3.0, "v": {"deep": 4.0}}),
        ((1.0, [2.0], None), (3.0, [4.0], None)),
        (None, None),
        ((), ()),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("pred", [True, False])
def test_values_may_be_any_pytree(first: Any, second: Any, pred: bool) -> None:
    def branch(scope: Scope, x: Any) -> Any:
        cache = scope.variable("state", "cache", lambda: jax.tree.map(jnp.float32, first))
        cache.value = jax.tree.map(lambda old, new: old + new * x, cache.value, second)
        return x

    changed = jax.tree.map(lambda old, new: jnp.float32(old + new), first, second)
    unchanged = jax.tree.map(jnp.float32, first)
    for model, runs in (((branch, same), pred), ((same, branch), not pred), ((branch, branch), True)):
        _, variables = liftcore.init(liftcore.cond(*model))(KEY, pred, 1.0)
        assert_same(variables.get("state", {}).get("cache", {}), changed if runs else unchanged)


def test_keys_are_values_too() -> None:
    def renew(scope: Scope, x: Any) -> Any:
        key = scope.variable("state", "key", lambda: jax.random.key(3))
        raw = scope.variable("state", "raw", lambda: jax.random.PRNGKey(4))
        key.value, raw.value = jax.random.split(key.value)[0], jax.random.split(raw.value)[1]
        return x + jax.random.uniform(key.value)

    model = liftcore.cond(renew, same)
    for pred in (True, False):
        _, variables = liftcore.init(model)(KEY, pred, 1.0)
        first, raw = jax.random.key(3), jax.random.PRNGKey(4)
        expected = (jax.random.split(first)[0], jax.random.split(raw)[1]) if pred else (first, raw)
        assert_same((variables["state"]["key"], variables["state"]["raw"]), expected)


def test_a_branch_that_drops_a_key_of_a_dictionary_is_an_error() -> None:
    def drop(scope: Scope, x: Any) -> Any:
        scope.put_variable("cache", "kv", {"k": x})
        return x

    variables = {"cache": {"kv": {"k": jnp.float32(1), "v": jnp.float32(1)}}}
    with pytest.raises(LiftArgumentError, match=r'"cache/kv" in cond\(drop\) at /: branch 0 writes it as .*elsewhere'):
        liftcore.apply(liftcore.cond(drop, same), mutable=["cache"])(variables, True, 1.0)


def test_a_dictionary_gains_keys_in_a_branch_if_all_branches_have_them() -> None:
    def grow(scope: Scope, x: Any) -> Any:
        cache = scope.variable("state", "cache", lambda: {"a": x})
        cache.value = {"a": cache.value["a"] + 1, "b": x}
        return x

    with pytest.raises(LiftArgumentError, match=r'"state/cache" in cond\(grow\) at /: branch 0 writes it as'):
        liftcore.init(liftcore.cond(grow, same))(KEY, True, jnp.float32(1))
    variables = {"state": {"cache": {"a": jnp.float32(1), "b": jnp.float32(9)}}}
    _, mutated = liftcore.apply(liftcore.cond(grow, same), mutable=["state"])(variables, True, jnp.float32(5))
    assert mutated["state"]["cache"] == {"a": 2.0, "b": 5.0}


# -- keys and names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_draws_go_on_after_the_branch_that_drew_most(mutable: bool, raw: bool) -> None:
    make = jax.random.PRNGKey if raw else jax.random.key
    rngs = {"params": make(0), "dropout": make(1)}

    def drawing(times: int) -> Callable[..., Any]:
        def branch(scope: Scope) -> Any:
            inner = scope.push("inner")
            for _ in range(times):
                key, below = scope.make_rng("dropout"), inner.make_rng("dropout")
            return words(key), words(below)

        return branch

    def model(scope: Scope, index: Any) -> Any:
        first = words(scope.make_rng("dropout"))
        inside = liftcore.switch([drawing(2), drawing(1), drawing(3)])(scope, index)
        inner = scope.push("inner", reuse=True)
        return first, inside, words(scope.make_rng("dropout")), words(inner.make_rng("dropout"))

    def expected(scope: Scope, index: int) -> Any:
        own, below = ([words(place.make_rng("dropout")) for _ in range(5)] for place in (scope, scope.push("inner")))
        last = [2, 1, 3][index]
        return own[0], (own[last], below[last - 1]), own[4], below[3]

    for index in range(3):
        result = liftcore.apply(model, mutable=mutable)({}, index, rngs=rngs)
        wanted = liftcore.apply(expected)({}, index, rngs=rngs)
        assert_same(result[0] if mutable else result, wanted)


def test_sequences_that_were_never_given_draw_from_params() -> None:
    def branch(scope: Scope, x: Any) -> Any:
        return words(scope.make_rng("noise"))

    bare = liftcore.apply(branch)({}, X, rngs=KEY)
    assert_same(liftcore.apply(liftcore.cond(branch, branch))({}, True, X, rngs=KEY), bare)


@pytest.mark.parametrize("mutable", [False, True])
def test_automatic_names_go_on_after_the_branches(mutable: bool) -> None:
    def block(times: int) -> Callable[..., Any]:
        def branch(scope: Scope, x: Any) -> Any:
            for _ in range(times):
                x = scope.child(scaled)(x)
            return x

        return branch

    def model(scope: Scope, pred: Any, x: Any) -> Any:
        x = scope.child(scaled)(x)
        x = liftcore.cond(block(2), block(1))(scope, pred, x)
        return scope.child(scaled)(x)

    y, variables = liftcore.init(model)(KEY, False, 1.0)
    names = ["scaled_0", "scaled_1", "scaled_2", "scaled_3"]
    assert sorted(variables["params"]) == names
    result = liftcore.apply(model, mutable=mutable)(variables, False, 1.0)
    assert (result[0] if mutable else result) == y
    w = [variables["params"][name]["w"] for name in names]
    assert_same(y, w[0] * w[1] * w[3])


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_numbers_go_on_after_the_branch_that_numbered_most(run: str) -> None:
    def numbering(times: int) -> Callable[..., Any]:
        return lambda scope: jnp.array([scope.number("Dense") for _ in range(times)])[-1]

    def model(scope: Scope) -> Any:
        return scope.number("Dense"), liftcore.cond(numbering(3), numbering(1))(scope, True), scope.number("Dense")

    if run == "init":
        result = liftcore.init(model)(KEY)[0]
    else:
        result = liftcore.apply(model)({}) if run == "apply" else liftcore.apply(model, mutable=True)({})[0]
    assert result == (0, 3, 4)


def test_a_lifted_branch_has_the_name_of_its_function() -> None:
    _, variables = liftcore.init(lambda scope: scope.child(liftcore.cond(scaled, same))(True, X))(KEY)
    assert list(variables["params"]) == ["scaled_0"]
    _, variables = liftcore.init(lambda scope: scope.child(liftcore.switch([scaled, same]))(1, X))(KEY)
    assert list(variables["params"]) == ["scaled_0"]


def test_a_later_branch_derives_from_what_the_first_one_made() -> None:
    def first(scope: Scope, x: Any) -> Any:
        return x * scope.variable("state", "w", lambda: jnp.float32(1)).value

    def second(scope: Scope, x: Any) -> Any:
        w = scope.variable("state", "w", lambda: jnp.float32(5))
        return x * scope.variable("state", "v", lambda: 10 * w.value).value

    for index in (0, 1):
        y, variables = liftcore.init(liftcore.switch([first, second]))(KEY, index, X)
        assert_same(variables, {"state": {"w": jnp.float32(1), "v": jnp.float32(10)}})
        assert_same(y, X * (1, 10)[index])


# -- sown values -------------------------------------------------------------------------------------------------------


def sown(model: Callable[..., Any], *args: Any, given: Any = None) -> Any:
    apply = liftcore.apply(model, mutable=["intermediates"])
    return apply(given or {}, *args, rngs=RNGS)[1].get("intermediates", {})


def sowing(name: str, value: Any) -> Callable[..., Any]:
    def branch(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", name, value * x)
        return x

    return branch


def test_values_of_the_branch_that_does_not_run_are_zeros() -> None:
    def both(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "y", x.sum())
        scope.push("inner").sow("intermediates", "z", {"a": x, "n": jnp.int32(7)})
        return x

    model = liftcore.cond(both, same)
    assert_same(sown(model, True, X), {"y": (6.0 + 0 * X[0],), "inner": {"z": ({"a": X, "n": jnp.int32(7)},)}})
    zeros = {"a": 0 * X, "n": jnp.int32(0)}
    assert_same(sown(model, False, X), {"y": (0 * X[0],), "inner": {"z": (zeros,)}})


def test_values_under_one_name_share_a_place_if_their_types_agree() -> None:
    model = liftcore.switch([sowing("y", 1), sowing("y", 10), sowing("z", 100), same])
    zero = 0 * X
    expected = [(X, zero), (10 * X, zero), (zero, 100 * X), (zero, zero)]
    for index, (y, z) in enumerate(expected):
        assert_same(sown(model, index, X), {"y": (y,), "z": (z,)})
    wide = liftcore.cond(sowing("y", jnp.ones((2, 1))), sowing("y", 1))
    assert_same(sown(wide, True, X), {"y": (jnp.stack([X, X]), zero)})
    assert_same(sown(wide, False, X), {"y": (jnp.zeros((2, 3)), X)})


def test_several_values_under_one_name_keep_their_order() -> None:
    def twice(scope: Scope, x: Any) -> Any:
        return sowing("y", 2)(scope, sowing("y", 1)(scope, x))

    model = liftcore.cond(twice, sowing("y", 5))
    assert_same(sown(model, True, X), {"y": (X, 2 * X)})
    assert_same(sown(model, False, X), {"y": (5 * X, 0 * X)})


def test_values_of_several_types_under_one_name_keep_their_order_in_their_branch() -> None:
    def pair(first: Any, second: Any) -> Callable[..., Any]:
        return lambda scope, x: sowing("y", second)(scope, sowing("y", first)(scope, x))

    model = liftcore.cond(pair(1.0, jnp.ones(2)), pair(3 * jnp.ones(2), 4.0))
    found = sown(model, False, jnp.float32(1))["y"]
    assert [np.max(value) for value in found if np.any(value)] == [3.0, 4.0]


def test_sown_values_go_on_from_what_was_there_and_by_their_own_rule() -> None:
    def add(value: Any) -> Callable[..., Any]:
        def branch(scope: Scope, x: Any) -> Any:
            scope.sow("losses", "total", value * x, lambda: 0.0, lambda old, new: old + new)
            return x

        return branch

    def model(scope: Scope, pred: Any, x: Any) -> Any:
        return liftcore.cond(add(1), lambda scope, x: add(10)(scope, add(100)(scope, x)))(scope, pred, x)

    apply = liftcore.apply(model, mutable=["losses"])
    for pred, expected in ((True, 2.0), (False, 220.0)):
        assert apply({}, pred, 2.0)[1] == {"losses": {"total": expected}}
        assert apply({"losses": {"total": jnp.float32(7)}}, pred, 2.0)[1] == {"losses": {"total": 7 + expected}}


@pytest.mark.parametrize("mutable", [False, ["state"]])
def test_nothing_is_sown_that_was_not_asked_for(mutable: Any) -> None:
    kept: list[bool] = []

    def branch(scope: Scope, x: Any) -> Any:
        kept.append(scope.sow("intermediates", "y", x))
        return x

    assert liftcore.apply(liftcore.cond(branch, same), mutable=mutable)({}, True, 1.0) in (1.0, (1.0, {}))
    assert kept == [False]


def test_sown_values_pass_filters_that_do_not_take_them() -> None:
    for variables in ("params", False):
        model = liftcore.cond(sowing("y", 1), same, variables=variables)
        assert_same(sown(model, True, X), {"y": (X,)})


def test_keys_may_be_sown() -> None:
    def branch(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "key", scope.make_rng("dropout"))
        return x

    (key,) = sown(liftcore.cond(branch, same), True, X)["key"]
    assert_same(key, liftcore.apply(lambda scope: scope.make_rng("dropout"))({}, rngs=RNGS))
    (key,) = sown(liftcore.cond(branch, same), False, X)["key"]
    assert words(key).tolist() == [0, 0]


@pytest.mark.parametrize("pred", [True, False])
def test_values_sown_in_lifts_inside_and_outside(pred: bool) -> None:
    inner = liftcore.vmap(sowing("y", 1))
    fact = 1.0 if pred else 0.0
    assert_same(sown(liftcore.cond(inner, same), pred, X), {"y": (fact * X,)})

    def loop(scope: Scope, x: Any) -> Any:
        return liftcore.scan(lambda scope, x, _: (sowing("y", 1)(scope, x) + 1, None), length=2)(scope, x, None)[0]

    assert_same(sown(liftcore.cond(loop, same), pred, X), {"y": (fact * jnp.stack([X, X + 1]),)})
    nested = liftcore.cond(lambda scope, x: liftcore.cond(same, sowing("y", 1))(scope, False, x), same)
    assert_same(sown(nested, pred, X), {"y": (fact * X,)})
    for lift in (liftcore.remat, liftcore.jit):
        assert_same(sown(lift(liftcore.cond(lift(sowing("y", 1)), same)), pred, X), {"y": (fact * X,)})
    elements = liftcore.vmap(lambda scope, x: liftcore.cond(sowing("y", 1), same)(scope, (x > 1.5) == pred, x))
    assert_same(sown(elements, X), {"y": (jnp.where((X > 1.5) == pred, X, 0),)})


def test_values_are_sown_inside_a_shard_map() -> None:
    def model(scope: Scope, x: Any) -> Any:
        count = scope.variable("state", "n", lambda: 0 * x.sum())
        count.value += 1
        return liftcore.cond(sowing("y", 2), same)(scope, x.sum() > 2, x)

    def local(x: Any) -> Any:
        return liftcore.apply(model, mutable=["intermediates", "state"])({}, x)[1]["intermediates"]["y"][0]

    mesh = make_mesh((2,), "devices")
    spec = PartitionSpec("devices")
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec))
    assert run(jnp.arange(4.0)).tolist() == [0.0, 0.0, 4.0, 6.0]


# -- what is lifted ----------------------------------------------------------------------------------------------------

VARIABLES = {"params": {"a": {"lora": jnp.float32(2), "w": jnp.float32(3)}}, "state": {"a": {"n": jnp.float32(5)}}}


def reading(collection: str, name: str) -> Callable[..., Any]:
    return lambda scope, x: x * scope.push("a").get_variable(collection, name)


def test_single_variables_may_be_lifted() -> None:
    lora = All("params", PathContains("lora"))
    lifted = liftcore.cond(reading("params", "lora"), same, variables=lora)
    assert liftcore.apply(lifted)(VARIABLES, True, 1.0) == 2.0
    without = liftcore.switch([same, reading("params", "w")], variables=Not(lora))
    assert liftcore.apply(without)(VARIABLES, 1, 1.0) == 3.0
    for collection, name in (("params", "w"), ("state", "n")):
        model = liftcore.cond(same, reading(collection, name), variables=lora)
        with pytest.raises(UnliftedCollectionError) as caught:
            liftcore.apply(model)(VARIABLES, True, 1.0)
        assert caught.value.where == f'"{collection}/{name}" at /cond(same)/a'
        assert caught.value.fix == f'Add "{collection}" to `variables`.'


def test_only_lifted_sequences_are_there() -> None:
    def draw(scope: Scope, x: Any) -> Any:
        return x + jax.random.uniform(scope.make_rng("dropout"))

    liftcore.apply(liftcore.switch([same, draw], rngs="dropout"))({}, 1, 1.0, rngs=RNGS)
    for lifted in (liftcore.cond(same, draw, rngs="params"), liftcore.cond(draw, same, rngs=False)):
        with pytest.raises(UnliftedStreamError, match=r"cond\(\w+\) does not pass it in .*\"dropout\" to `rngs`"):
            liftcore.apply(lifted)({}, True, 1.0, rngs=RNGS)


def test_a_collection_that_is_not_lifted_cannot_be_written() -> None:
    def write(scope: Scope, x: Any) -> Any:
        scope.put_variable("cache", "c", x)
        return x

    model = liftcore.cond(same, write, variables="state")
    with pytest.raises(UnliftedCollectionError, match=r'"cache/c" at /m/cond\(same\): .*Add "cache" to `variables`'):
        liftcore.apply(lambda scope: model(scope.push("m"), True, 1.0), mutable=True)({})
    with pytest.raises(ModifyScopeVariableError, match=r'"cache/c" at /m/cond\(same\): .*immutable'):
        liftcore.apply(lambda scope: liftcore.cond(same, write)(scope.push("m"), True, 1.0), mutable=["state"])({})


def test_several_aliased_and_nested_scopes() -> None:
    def first(scopes: Any, x: Any) -> Any:
        parent, child, other = scopes
        child.rewound().variable("state", "n", lambda: jnp.float32(1)).value += x
        parent.variable("state", "top", lambda: parent.push("c", reuse=True).get_variable("state", "n"))
        return x * other["far"].param("w", jax.random.normal, ())

    def second(scopes: Any, x: Any) -> Any:
        parent = scopes[0]
        n = parent.push("c", reuse=True).rewound().variable("state", "n", lambda: jnp.float32(100))
        n.value *= 2
        return n.value

    def model(scope: Scope, pred: Any, x: Any) -> Any:
        parent = scope.push("p")
        child = parent.push("c")
        return liftcore.cond(first, second)((parent, child, {"far": scope.push("far")}), pred, x)

    for pred, n, top in ((True, 4.0, 4.0), (False, 2.0, 4.0)):
        y, variables = liftcore.init(model)(KEY, pred, 3.0)
        state = variables["state"]["p"]
        assert (state["c"]["n"], state["top"]) == (n, top)
        assert y == (3.0 * variables["params"]["far"]["w"] if pred else n)


# -- errors ------------------------------------------------------------------------------------------------------------


def placed(lifted: Callable[..., Any]) -> Callable[..., Any]:
    return lambda scope, *args: lifted(scope.push("m"), *args)


def test_branches_must_agree_about_what_they_create() -> None:
    def wide(scope: Scope, x: Any) -> Any:
        return x * scope.param("w", jax.random.normal, (3,)).sum()

    with pytest.raises(LiftArgumentError) as caught:
        liftcore.init(placed(liftcore.cond(scaled, wide)))(KEY, True, 1.0)
    assert caught.value.where == '"params/w" in cond(scaled) at /m'
    assert caught.value.what == "branch 1 creates it as float32[3], but elsewhere it is float32[]."
    assert "a different name in each" in caught.value.fix


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.ones(3), "float32[3]"),
        (jnp.int32(1), "int32[]"),
        ((jnp.float32(1),) * 2, "('float32[]', 'float32[]')"),
        (None, "None"),
    ],
)
def test_branches_must_agree_about_what_they_write(value: Any, text: str) -> None:
    def write(scope: Scope) -> None:
        scope.put_variable("state", "n", value)

    model = placed(liftcore.switch([lambda scope: None, write]))
    with pytest.raises(LiftArgumentError) as caught:
        liftcore.apply(model, mutable=["state"])({"state": {"m": {"n": jnp.float32(1)}}}, 0)
    assert caught.value.where == '"state/n" in switch(<lambda>) at /m'
    assert caught.value.what == f"branch 1 writes it as {text}, but elsewhere it is float32[]."


def test_branches_that_all_write_a_variable_may_give_it_another_type() -> None:
    def write(value: float) -> Callable[..., Any]:
        return lambda scope: scope.put_variable("state", "n", jnp.full(3, value))

    model = placed(liftcore.switch([write(1.0), write(2.0)]))
    _, changed = liftcore.apply(model, mutable=["state"])({"state": {"m": {"n": jnp.int32(1)}}}, 1)
    assert changed["state"]["m"]["n"].tolist() == [2, 2, 2]
    model = placed(liftcore.switch([write(1.0), lambda scope: None, write(2.0)]))
    with pytest.raises(LiftArgumentError, match=r"branch 0 writes it as float32\[3\], but elsewhere it is int32\[\]"):
        liftcore.apply(model, mutable=["state"])({"state": {"m": {"n": jnp.int32(1)}}}, 1)


def test_a_branch_cannot_write_what_no_branch_creates() -> None:
    def write(scope: Scope) -> None:
        scope.put_variable("state", "n", 1.0)

    with pytest.raises(LiftArgumentError) as caught:
        liftcore.apply(placed(liftcore.cond(write, lambda scope: None)), mutable=["state"])({}, True)
    assert caught.value.where == '"state/n" in cond(write) at /m'
    assert "branch 0 writes it, but there is no such variable if another branch runs" in caught.value.what
    assert "Create it first" in caught.value.fix


def test_there_must_be_branches() -> None:
    with pytest.raises(LiftArgumentError, match=r"switch: expected at least one function, given \[\]\. Give a list"):
        liftcore.switch([])


@pytest.mark.parametrize("below", [(), ("m",)])
def test_what_one_equation_of_ones_own_created_cannot_begin_as_another_branch_makes_it(below: tuple[str, ...]) -> None:
    def starting(value: float) -> Callable[..., Any]:
        own = one_equation(lambda scope, x: x * scope.variable("state", "n", lambda: jnp.float32(value)).value)
        return lambda scope, x: own(scope.below(below), x)

    with pytest.raises(LiftArgumentError) as caught:
        liftcore.init(placed(liftcore.cond(starting(1), starting(10))))(KEY, False, 1.0)
    assert caught.value.where.startswith(f'"{"/".join(("state", *below, "n"))}" in cond(')
    assert "in a custom lift" in caught.value.what
    made = liftcore.init(liftcore.cond(same, starting(10)))(KEY, False, 1.0)
    assert made == (10.0, {"state": {"m": {"n": 10.0}} if below else {"n": 10.0}})


def test_if_a_later_branch_raises_the_scopes_are_as_before() -> None:
    class Broken(Exception):
        pass

    def first(scope: Scope) -> Any:
        scope.put_variable("state", "n", 2.0)
        scope.number("Dense")
        return scope.push("inner").param("w", jax.random.normal, ()) + jax.random.normal(scope.make_rng())

    def second(scope: Scope) -> Any:
        raise Broken

    root = liftcore.bind({"state": {"n": 1.0}}, RNGS, mutable=True)
    with pytest.raises(Broken):
        liftcore.cond(first, second)(root, True)
    fresh = liftcore.bind({"state": {"n": 1.0}}, RNGS, mutable=True)
    assert root.variables() == {"state": {"n": 1.0}}
    assert_same(root.make_rng(), fresh.make_rng())
    assert (root.number("Dense"), root.push("inner").path) == (0, ("inner",))


def test_a_raw_cond_names_the_lifted_one() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return jax.lax.cond(x > 0, lambda: scope.param("w", jax.random.normal, ()), lambda: x)

    with pytest.raises(JaxTransformError, match=r"jax\.lax\.cond .*`liftcore\.cond`"):
        liftcore.init(model)(KEY, 1.0)


# -- how often bodies run ----------------------------------------------------------------------------------------------


class Counted:
    """A body that counts its runs."""

    __name__ = "counted"

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, scope: Scope, x: Any) -> Any:
        self.runs += 1
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        if scope.is_mutable_collection("state"):
            n.value += 1
        scope.sow("intermediates", "x", x)
        return jnp.tanh(scaled(scope, x)) + 0 * jax.random.normal(scope.make_rng("dropout"))

    def since(self) -> int:
        runs, self.runs = self.runs, 0
        return runs


def one_of_two(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda scope, x: liftcore.cond(body, same)(scope, x > 0, x)


def one_of_three(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda scope, x: liftcore.switch([same, same, body])(scope, 2, x)


def looped(body: Callable[..., Any]) -> Callable[..., Any]:
    def loop(scope: Scope, x: Any) -> Any:
        step = liftcore.scan(
            lambda scope, x, _: (body(scope, x), None),
            length=2,
            variable_axes={"params": 0},
            variable_carry="state",
            split_rngs=True,
        )
        return step(scope, x, None)[0]

    return loop


def mapped(body: Callable[..., Any]) -> Callable[..., Any]:
    elements = liftcore.vmap(body, variable_axes={"params": 0, "state": 0}, split_rngs=True)
    return lambda scope, x: elements(scope, jnp.stack([x, x])).sum()


LIFTS = {
    "cond": one_of_two,
    "switch": one_of_three,
    "scan": looped,
    "vmap": mapped,
    "remat": liftcore.remat,
    "jit": liftcore.jit,
}


@pytest.mark.parametrize(
    "names",
    [
        *(("cond",) * depth for depth in (1, 2, 3, 4)),
        *(("switch",) * depth for depth in (1, 4)),
        ("cond", "scan"),
        ("scan", "cond"),
        ("cond", "vmap"),
        ("vmap", "switch"),
        ("remat", "cond", "jit", "switch"),
        ("jit", "switch", "remat", "cond"),
        ("cond", "scan", "cond", "vmap"),
    ],
)
def test_each_body_runs_once(names: tuple[str, ...]) -> None:
    body = Counted()
    model: Callable[..., Any] = body
    for name in names:
        model = LIFTS[name](model)
    _, variables = jax.eval_shape(liftcore.init(model), RNGS, 1.0)
    assert body.since() == 1
    variables.pop("intermediates")
    for mutable in ([], ["state"], ["state", "intermediates"]):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, 1.0, rngs=RNGS)
        assert body.since() == 1
    loss = liftcore.apply(model, mutable=["state"])
    jax.eval_shape(jax.grad(loss, has_aux=True), variables, 1.0, rngs=RNGS)
    assert body.since() == (0 if "jit" in names else 1), "a lifted jit has seen this before"


@pytest.mark.parametrize("name", ["cond", "switch"])
def test_each_body_runs_once_when_it_is_computed(name: str) -> None:
    body = Counted()
    model = LIFTS[name](body)
    variables = liftcore.init(model)(RNGS, 1.0)[1]
    assert body.since() == 1
    liftcore.apply(model)(variables, 1.0, rngs=RNGS)
    assert body.since() == 1
    jax.grad(lambda x: liftcore.apply(model, mutable=["state"])(variables, x, rngs=RNGS)[0])(1.0)
    assert body.since() == 1


def test_every_branch_runs_once() -> None:
    bodies = [Counted() for _ in range(3)]
    liftcore.init(liftcore.switch(bodies))(RNGS, 1, 1.0)
    assert [body.since() for body in bodies] == [1, 1, 1]


def test_a_cached_call_runs_no_branch() -> None:
    body = Counted()
    lifted = liftcore.jit(one_of_two(liftcore.jit(body)))
    variables = liftcore.init(lifted)(RNGS, 1.0)[1]
    body.since()
    variables.pop("intermediates")
    apply = liftcore.apply(lifted, mutable=["state"])
    first = apply(variables, 1.0, rngs=RNGS)
    runs = body.since()
    assert_same(apply(variables, 1.0, rngs=RNGS), first)
    assert (runs, body.since()) == (1, 0)


# -- loops around ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1.0, -1.0])
def test_a_scan_carries_and_writes_what_a_branch_created(start: float) -> None:
    def count(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return -x + 0.1 * n.value

    def model(scope: Scope, x: Any) -> Any:
        def step(scope: Scope, x: Any, _: Any) -> Any:
            x = liftcore.cond(count, same)(scope, x > 0, x)
            seen = scope.get_variable("state", "n")
            scope.put_variable("state", "n", seen * 2)
            return x, seen

        return liftcore.scan(step, length=3, variable_carry="state")(scope, x, None)

    x, n, seen = start, 10 * start, []
    for _ in range(3):
        if x > 0:
            n += 1
            x = -x + 0.1 * n
        seen.append(n)
        n *= 2
    (y, ns), variables = liftcore.init(model)(KEY, jnp.float32(start))
    np.testing.assert_allclose(ns, seen, rtol=1e-6)
    np.testing.assert_allclose(y, x, rtol=1e-6)
    np.testing.assert_allclose(variables["state"]["n"], n, rtol=1e-6)


def test_stacked_parameters_of_a_branch_in_a_loop_that_depend_on_the_carry() -> None:
    def branch(scope: Scope, x: Any) -> Any:
        start = scope.variable("params", "start", lambda: jnp.sin(x))
        return x + start.value + scope.param("w", jax.random.normal, ())

    def loop(scope: Scope, x: Any) -> Any:
        step = liftcore.scan(
            lambda scope, x, i: (liftcore.cond(branch, same)(scope, i > 0, x), x),
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        return step(scope, x, jnp.arange(3))

    for model in (loop, liftcore.remat(loop), liftcore.jit(loop)):
        (y, xs), variables = liftcore.init(model)(KEY, jnp.float32(1))
        np.testing.assert_allclose(variables["params"]["start"], jnp.sin(xs), rtol=1e-6)
        assert_same(liftcore.apply(model)(variables, jnp.float32(1)), (y, xs))


@pytest.mark.parametrize("chosen", [0, 1, 2])
@pytest.mark.parametrize("counts", [(2, 1, 0), (1, 2, 0), (0, 1, 2)])
def test_draws_that_follow_go_on_after_the_branch_that_drew_most_wherever_it_stands(
    counts: tuple[int, ...], chosen: int
) -> None:
    def drawing(count: int) -> Callable[..., Any]:
        return lambda scope: sum((jax.random.normal(scope.make_rng("dropout")) for _ in range(count)), jnp.zeros(()))

    def model(scope: Scope) -> Any:
        liftcore.switch([drawing(count) for count in counts])(scope, chosen)
        return jax.random.key_data(scope.make_rng("dropout"))

    def straight(scope: Scope) -> Any:
        return [jax.random.key_data(scope.make_rng("dropout")) for _ in range(3)][-1]

    for mutable in (False, True):
        ours, expected = (liftcore.apply(fn, mutable=mutable)({}, rngs=RNGS) for fn in (model, straight))
        assert_same(ours, expected, exact=True)
