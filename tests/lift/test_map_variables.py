"""`map_variables`: what is stored, what the body sees, and that `init` gives what `apply` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError, UnliftedCollectionError
from liftcore.filters import All, PathContains
from liftcore.lift.map_variables import map_variables
from liftcore.nn import dense
from tests.lift.quick import assert_same, key, uniform

KEY = key(0)
X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def transpose(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.T, variables)


def double(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, variables)


def halve(variables: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf / 2, variables)


def sign(variables: Any) -> Any:
    return jax.tree.map(jnp.sign, variables)


def centred(variables: Any) -> Any:
    """Weight standardization over everything at once: what one variable looks like depends on the others."""
    leaves = jax.tree.leaves(variables)
    mean = sum(leaf.sum() for leaf in leaves) / sum(leaf.size for leaf in leaves)
    return jax.tree.map(lambda leaf: leaf - mean, variables)


def linear(scope: Scope, x: Any) -> Any:
    return jnp.tanh(x @ scope.param("w", uniform, (3, 2)) + scope.param("b", uniform, (2,)))


def child(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda scope, x: scope.child(fn, "a")(x)


# -- values ------------------------------------------------------------------------------------------------------------


def test_the_body_sees_what_map_in_makes_of_what_is_stored() -> None:
    variables = {"params": {"a": {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.arange(2.0)}}}
    lifted = child(map_variables(linear, "params", transpose))

    def by_hand(variables: Any) -> Any:
        return jnp.tanh(X @ variables["params"]["a"]["w"].T + variables["params"]["a"]["b"])

    assert_same(liftcore.apply(lifted)(variables, X), by_hand(variables))
    ours = jax.grad(lambda variables: liftcore.apply(lifted)(variables, X).sum())(variables)
    assert_same(ours, jax.grad(lambda variables: by_hand(variables).sum())(variables))


def test_what_is_created_is_stored_as_map_out_makes_it() -> None:
    lifted = child(map_variables(linear, "params", transpose, transpose, init=True))
    y, variables = liftcore.init(lifted)(KEY, X)
    expected, plain = liftcore.init(child(linear))(KEY, X)
    assert_same(variables, transpose(plain))
    assert_same(y, expected)
    assert_same(liftcore.apply(lifted)(variables, X), y)


@pytest.mark.parametrize("map_in", [sign, centred, lambda variables: jax.tree.map(jnp.zeros_like, variables)])
def test_init_gives_what_apply_gives(map_in: Callable[..., Any]) -> None:
    lifted = map_variables(linear, "params", map_in, init=True)
    y, variables = liftcore.init(lifted)(KEY, X)
    assert_same(variables, liftcore.init(linear)(KEY, X)[1])
    assert_same(y, liftcore.apply(lifted)(variables, X))
    assert_same(y, liftcore.apply(linear)(map_in(variables), X))


def test_the_gradient_of_init_goes_through_both_functions() -> None:
    def scaled(scope: Scope, scale: Any) -> Any:
        return scope.param("w", lambda key: scale * jnp.ones(3)).sum()

    cubed = map_variables(scaled, "params", halve, lambda tree: jax.tree.map(lambda leaf: leaf**3, tree), init=True)
    grad = jax.grad(lambda scale: liftcore.init(cubed)(KEY, scale)[0])(2.0)
    np.testing.assert_allclose(grad, 3 * 3 * 2.0**2 / 2, rtol=1e-6)


def test_what_is_created_joins_what_is_there() -> None:
    lifted = map_variables(linear, "params", centred, init=True)

    def model(scope: Scope, x: Any) -> Any:
        scope.param("w", uniform, (3, 2))
        return lifted(scope.rewound(), x)

    y, variables = liftcore.init(model)(KEY, X)
    assert sorted(variables["params"]) == ["b", "w"]
    assert_same(y, liftcore.apply(lifted)(variables, X))
    assert_same(y, liftcore.apply(linear)(centred(variables), X))


def test_other_variables_are_made_from_what_the_body_sees() -> None:
    def body(scope: Scope) -> Any:
        w = scope.param("w", lambda key: jnp.float32(3))
        copy = scope.variable("state", "copy", lambda: w + 1)
        return w * copy.value

    y, variables = liftcore.init(map_variables(body, "params", double, init=True))(KEY)
    assert variables == {"params": {"w": 3.0}, "state": {"copy": 7.0}}
    assert y == 42.0


def test_tied_weights() -> None:
    def autoencoder(scope: Scope, x: Any) -> Any:
        layer = scope.push("layer")
        tied = map_variables(dense, "params", transpose)
        return tied(layer.rewound(), dense(layer, x, 2, use_bias=False), 3, use_bias=False)

    y, variables = liftcore.init(autoencoder)(KEY, X)
    kernel = variables["params"]["layer"]["kernel"]
    assert kernel.shape == (3, 2)
    assert_same(y, X @ kernel @ kernel.T)


def test_what_the_body_made_with_a_dtype_of_its_own_keeps_it_in_init() -> None:
    def body(scope: Scope) -> Any:
        return scope.param("w", lambda key: jnp.float32(3))

    y, _ = liftcore.init(map_variables(body, "params", lambda tree: jax.tree.map(lambda _: 3.0, tree), init=True))(KEY)
    assert (y * jnp.bfloat16(2)).dtype == jnp.float32


def test_one_stored_variable_may_be_seen_as_several() -> None:
    """Weight normalization: a kernel is stored as its direction and its lengths."""

    def joined(variables: Any) -> Any:
        stored = variables["params"]
        direction = stored["direction"] / jnp.linalg.norm(stored["direction"], axis=0)
        return {"params": {"kernel": stored["length"] * direction}}

    def split(variables: Any) -> Any:
        kernel = variables["params"]["kernel"]
        return {"params": {"direction": kernel, "length": jnp.linalg.norm(kernel, axis=0)}}

    lifted = map_variables(dense, "params", joined, split, init=True)
    y, variables = liftcore.init(lifted)(KEY, X, 2, use_bias=False)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"direction": (3, 2), "length": (2,)}}
    assert_same(y, liftcore.init(dense)(KEY, X, 2, use_bias=False)[0])
    variables["params"]["direction"] *= 5
    assert_same(y, liftcore.apply(lifted)(variables, X, 2, use_bias=False))


def test_the_functions_may_change_what_they_are_given() -> None:
    def in_place(variables: Any) -> Any:
        variables["params"]["w"] = variables["params"].pop("v")
        return variables

    variables = {"params": {"v": 3.0}}
    lifted = map_variables(lambda scope: scope.get_variable("params", "w"), "params", in_place)
    assert liftcore.apply(lifted)(variables) == 3
    assert variables == {"params": {"v": 3.0}}


# -- initial values that read others -----------------------------------------------------------------------------------


def data_dependent(scope: Scope, x: Any) -> Any:
    kernel = scope.param("kernel", uniform, (3, 2))
    return x @ kernel + scope.param("bias", lambda key: -(x @ kernel).mean(0))


def test_an_initial_value_reads_a_mapped_one_as_the_body_sees_it() -> None:
    y, variables = liftcore.init(map_variables(data_dependent, "params", sign, init=True))(KEY, X)
    kernel = liftcore.init(data_dependent)(KEY, X)[1]["params"]["kernel"]
    assert_same(variables["params"], {"kernel": kernel, "bias": -(X @ jnp.sign(kernel)).mean(0)})
    assert_same(y, X @ jnp.sign(kernel) + jnp.sign(variables["params"]["bias"]))


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat, liftcore.jit])
def test_an_initial_value_that_reads_a_mapped_one_is_stored_itself_if_all_are_seen_as_the_same(lift: Any) -> None:
    def sevens(variables: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, 7), variables)

    lifted = lift(map_variables(data_dependent, "params", sevens, init=True))
    y, variables = liftcore.init(lifted)(KEY, X)
    assert_same(variables["params"]["bias"], -(7 * X.sum(1, keepdims=True) * jnp.ones(2)).mean(0))
    assert_same(y, liftcore.apply(lifted)(variables, X))


def test_a_map_gets_all_variables_at_once_though_one_reads_a_variable_that_is_not_mapped() -> None:
    given: list[list[str]] = []

    def store(variables: Any) -> Any:
        given.append(sorted(variables["params"]))
        return halve(variables)

    def body(scope: Scope) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(2))
        return scope.param("a", lambda key: jnp.float32(3)) * scope.param("b", lambda key: n.value + 5)

    y, variables = liftcore.init(map_variables(body, "params", double, store, init=True))(KEY)
    assert given == [["a", "b"]]
    assert (y, variables) == (21.0, {"params": {"a": 1.5, "b": 3.5}, "state": {"n": 2.0}})


def test_a_map_in_parts_gets_each_variable_once_and_those_first_that_others_read() -> None:
    parts: list[list[str]] = []

    def store(variables: Any) -> Any:
        parts.append(sorted(variables["params"]))
        return halve(variables)

    store.by_parts = True  # type: ignore[attr-defined]

    def model(scope: Scope, x: Any) -> Any:
        scope.variable("params", "scale", lambda: jnp.float32(3))
        return map_variables(scaled, "params", double, store, init=True)(scope.rewound(), x)

    def scaled(scope: Scope, x: Any) -> Any:
        return scope.get_variable("params", "scale") * data_dependent(scope, x)

    y, variables = liftcore.init(model)(KEY, X)
    assert parts == [["kernel"], ["bias"]]
    plain = liftcore.init(data_dependent)(KEY, X)[1]
    assert_same(variables["params"], {**halve(plain)["params"], "scale": jnp.float32(3)})
    assert_same(y, 6 * liftcore.apply(data_dependent)(plain, X))


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat, liftcore.jit])
def test_maps_may_name_all_variables_though_one_reads_another(lift: Callable[..., Any]) -> None:
    calls: list[str] = []

    def into(variables: Any) -> Any:
        calls.append("into")
        stored = variables["params"]
        return {"params": {"kernel": stored["scale"] * stored["kernel"].T, "bias": stored["bias"]}}

    def out(variables: Any) -> Any:
        calls.append("out")
        kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
        return {"params": {"kernel": kernel.T / 4, "scale": jnp.float32(4), "bias": bias}}

    lifted = lift(map_variables(data_dependent, "params", into, out, init=True))
    y, variables = liftcore.init(lifted)(KEY, X)
    assert calls == ["out", "into"]
    expected, plain = liftcore.init(data_dependent)(KEY, X)
    kernel, bias = plain["params"]["kernel"], plain["params"]["bias"]
    assert_same((y, variables), (expected, {"params": {"kernel": kernel.T / 4, "scale": jnp.float32(4), "bias": bias}}))
    assert_same(liftcore.apply(lifted)(variables, X), y)


def test_the_leaves_of_a_variable_may_read_different_others() -> None:
    def body(scope: Scope, x: Any) -> Any:
        pair = scope.variable("state", "pair", lambda: (jnp.float32(1), 2 * x))
        other = scope.variable("log", "other", lambda: pair.value[0] + 1)
        return scope.variable("state", "last", lambda: (other.value * pair.value[1], pair.value[0])).value

    lifted = map_variables(body, ("state", "log"), double, halve, mutable=True)
    for lift in (lambda fn: fn, liftcore.jit):
        y, variables = liftcore.init(lift(lifted))(KEY, jnp.float32(3))
        assert y == (12.0, 1.0)
        assert variables == {"state": {"pair": (0.5, 3.0), "last": (6.0, 0.5)}, "log": {"other": 1.0}}


def test_a_loop_around_sees_which_mapped_variable_another_one_reads() -> None:
    def body(scope: Scope, x: Any, _: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(1))
        scope.variable("log", "seen", lambda: 10 * n.value)
        n.value += 1
        return x, None

    lifted = map_variables(body, ("state", "log"), double, halve, mutable=True)
    loop = liftcore.scan(lifted, length=3, variable_carry="state", variable_axes={"log": 0})
    variables = liftcore.init(loop)(KEY, 0.0, None)[1]
    assert variables["state"]["n"] == 2
    assert variables["log"]["seen"].tolist() == [5.0, 10.0, 15.0]


@pytest.mark.parametrize("maps", [(centred, lambda tree: tree), (lambda tree: tree, centred)])
def test_what_a_map_makes_of_a_variable_may_not_depend_on_one_that_reads_it(maps: Any) -> None:
    message = (
        r'"params/bias" in map_variables\(data_dependent\) at /a: its initial value reads "params/kernel", but the '
        r"form of it that `map_out` and `map_in` return depends on \['params/bias'\]. Map them separately"
    )
    with pytest.raises(LiftArgumentError, match=message):
        liftcore.init(child(map_variables(data_dependent, "params", *maps, init=True)))(KEY, X)
    apart = data_dependent
    for name in ("kernel", "bias"):
        apart = map_variables(apart, PathContains(name), *maps, init=True)
    variables = liftcore.init(apart)(KEY, X)[1]
    assert sorted(variables["params"]) == ["bias", "kernel"]


def test_effects_of_maps_run_once_though_one_variable_reads_another() -> None:
    seen: list[float] = []

    def shown(variables: Any) -> Any:
        jax.debug.callback(lambda value: seen.append(float(value)), variables["params"]["bias"].sum())
        return variables

    _, variables = liftcore.init(map_variables(data_dependent, "params", map_out=shown, init=True))(KEY, X)
    jax.effects_barrier()
    assert seen == [float(variables["params"]["bias"].sum())]


# -- writing -----------------------------------------------------------------------------------------------------------


def tick(scope: Scope, x: Any) -> Any:
    count = scope.variable("state", "n", lambda: jnp.float32(10))
    count.value += 1
    return x * count.value


def test_what_is_written_is_stored_as_map_out_makes_it() -> None:
    lifted = map_variables(tick, "state", double, halve, mutable=True)
    y, mutated = liftcore.apply(lifted, mutable=["state"])({"state": {"n": jnp.float32(4)}}, 2.0)
    assert (y, mutated) == (18.0, {"state": {"n": 4.5}})
    y, variables = liftcore.init(lifted)(KEY, 2.0)
    assert (y, variables) == (22.0, {"state": {"n": 5.5}})


def test_what_is_only_read_is_not_written() -> None:
    stored = {"state": {"n": jnp.arange(3)}}
    lifted = map_variables(lambda scope: scope.get_variable("state", "n").sum(), "state", double, mutable=True)
    y, mutated = liftcore.apply(lifted, mutable=["state"])(stored)
    assert y == 6
    assert mutated["state"]["n"] is stored["state"]["n"]


def test_others_may_be_written_without_saying_so() -> None:
    def body(scope: Scope, x: Any) -> Any:
        return linear(scope, x) * tick(scope, 1.0)

    variables = {**liftcore.init(linear)(KEY, X)[1], "state": {"n": jnp.float32(1)}}
    y, mutated = liftcore.apply(map_variables(body, "params", sign), mutable=["state"])(variables, X)
    assert mutated == {"state": {"n": 2.0}}
    assert_same(y, 2 * liftcore.apply(linear)(sign(variables), X))


def test_sown_values_pass_through() -> None:
    def body(scope: Scope, x: Any) -> Any:
        y = linear(scope, x)
        scope.sow("intermediates", "y", y)
        return y

    for options in ({}, {"variables": "params"}):
        lifted = map_variables(body, "params", sign, init=True, **options)
        y, variables = liftcore.init(lifted)(KEY, X)
        assert_same(variables["intermediates"], {"y": (y,)})
        y, kept = liftcore.apply(lifted, mutable=["intermediates"])({"params": variables["params"]}, X)
        assert_same(kept, {"intermediates": {"y": (y,)}})


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_creating_needs_init() -> None:
    with pytest.raises(UnliftedCollectionError, match=r"\"params/w\" at /a/map_variables\(linear\).*`init=True`"):
        liftcore.init(child(map_variables(linear, "params", sign)))(KEY, X)


@pytest.mark.parametrize("options", [{}, {"init": True}])
def test_writing_needs_mutable(options: dict[str, Any]) -> None:
    lifted = child(map_variables(tick, "state", double, halve, **options))
    variables = {"state": {"a": {"n": jnp.float32(1)}}}
    with pytest.raises(UnliftedCollectionError, match=r"state/n.* written.*mutable=True"):
        liftcore.apply(lifted, mutable=["state"])(variables, X)


def test_the_initial_value_may_not_be_written_either_without_mutable() -> None:
    with pytest.raises(UnliftedCollectionError, match=r"map_variables\(tick\) at /: \['state/n'\] was written"):
        liftcore.init(map_variables(tick, "state", double, halve, init=True))(KEY, X)


def test_map_in_must_undo_what_map_out_does_to_types() -> None:
    with pytest.raises(LiftArgumentError, match=r"\"params/w\" in .*at /a: .* as float32\[3,2\].*\[2,3\]"):
        liftcore.init(child(map_variables(linear, "params", map_out=transpose, init=True)))(KEY, X)

    def forgetful(variables: Any) -> Any:
        return {"params": {name: value for name, value in variables["params"].items() if name != "w"}}

    with pytest.raises(LiftArgumentError, match=r"\"params/w\".*`map_in` returns None .*Make `map_in` undo"):
        liftcore.init(map_variables(linear, "params", forgetful, init=True))(KEY, X)


def test_a_map_by_parts_receives_each_variable_once_and_after_those_that_it_reads() -> None:
    parts = []

    def halved(variables: Any) -> Any:
        parts.append(variables)
        return halve(variables)

    def body(scopes: tuple[Scope, Scope]) -> Any:
        w = scopes[0].param("w", lambda key: jnp.float32(2))
        return scopes[1].param("w", lambda key: w * 3)

    halved.by_parts = True  # type: ignore[attr-defined]
    lifted = map_variables(body, "params", double, halved, init=True)
    made = liftcore.init(lambda scope: lifted((scope.push("a"), scope.push("b"))))(KEY)
    assert made == (6.0, {"params": {"a": {"w": 1.0}, "b": {"w": 3.0}}})
    assert parts == [{"params": {"w": 2.0}}, {"params": {"w": 6.0}}]


def test_what_is_stored_must_be_mapped_too() -> None:
    def astray(variables: Any) -> Any:
        return {"other": {"w": variables["params"]["w"], "b": {0: variables["params"]["b"]}}}

    with pytest.raises(
        LiftArgumentError, match=r"`map_out` returned \['other/w', 'other/b/0'\], which `mapped` does not"
    ):
        liftcore.init(map_variables(linear, "params", map_out=astray, init=True))(KEY, X)


@pytest.mark.parametrize("wrong", [lambda tree: None, lambda tree: jax.tree.leaves(tree), lambda tree: {"params": 1.0}])
def test_the_functions_return_collections(wrong: Callable[..., Any]) -> None:
    variables = liftcore.init(linear)(KEY, X)[1]
    with pytest.raises(LiftArgumentError, match=r"`map_in` of map_variables\(linear\) at /a: expected a dict"):
        liftcore.apply(child(map_variables(linear, "params", wrong)))({"params": {"a": variables["params"]}}, X)
    with pytest.raises(LiftArgumentError, match=r"`map_out` of map_variables\(linear\) at /: expected a dict"):
        liftcore.init(map_variables(linear, "params", map_out=wrong, init=True))(KEY, X)


def test_nothing_has_changed_if_the_body_raises() -> None:
    def fails(scope: Scope, x: Any) -> Any:
        linear(scope, x)
        tick(scope, x)
        raise ZeroDivisionError

    root = liftcore.bind({}, KEY, True)
    with pytest.raises(ZeroDivisionError):
        map_variables(fails, "params", sign, init=True)(root, X)
    assert root.variables() == {}
    root.param("w", uniform)
    assert_same(root.get_variable("params", "w"), liftcore.init(lambda scope: scope.param("w", uniform))(KEY)[0])


# -- filters and scopes ------------------------------------------------------------------------------------------------

LORA = All("params", PathContains("lora"))


def adapted(scope: Scope, x: Any) -> Any:
    return x @ (scope.param("kernel", uniform, (3, 2)) + scope.param("lora", uniform, (3, 2)))


def test_single_variables_can_be_mapped() -> None:
    lifted = child(map_variables(adapted, LORA, double, halve, init=True))
    y, variables = liftcore.init(lifted)(KEY, X)
    plain_y, plain = liftcore.init(child(adapted))(KEY, X)
    assert_same(variables["params"]["a"], {**plain["params"]["a"], "lora": plain["params"]["a"]["lora"] / 2})
    assert_same(y, plain_y)
    assert_same(liftcore.apply(lifted)(variables, X), y)
    with pytest.raises(UnliftedCollectionError, match=r"\"params/lora\""):
        liftcore.init(map_variables(adapted, LORA, double))(KEY, X)


def test_several_scopes_are_mapped_each() -> None:
    seen: list[Any] = []

    def two(scopes: Any, x: Any) -> Any:
        return linear(scopes["a"], x) + linear(scopes["b"], x)

    def look(variables: Any) -> Any:
        seen.append(sorted(variables["params"]))
        return sign(variables)

    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        return lift(two)({"a": scope.push("a"), "b": scope.push("b")}, x)

    y, variables = liftcore.init(model)(KEY, X, lambda fn: map_variables(fn, "params", look, init=True))
    assert seen == [["b", "w"]] * 2
    assert_same(variables, liftcore.init(model)(KEY, X, lambda fn: fn)[1])
    assert_same(y, liftcore.apply(model)(sign(variables), X, lambda fn: fn))


def test_aliased_scopes_and_a_parent_with_its_child() -> None:
    def twice(scopes: Any, x: Any) -> Any:
        one, same, below = scopes
        y = linear(one, x)
        assert same.get_variable("params", "w") is one.get_variable("params", "w")
        return y.sum() + linear(below, x).sum()

    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        a = scope.push("a")
        return lift(twice)((a, a, a.push("below")), x)

    def lifting(fn: Callable[..., Any]) -> Callable[..., Any]:
        return map_variables(fn, "params", double, halve, init=True)

    y, variables = liftcore.init(model)(KEY, X, lifting)
    plain_y, plain = liftcore.init(model)(KEY, X, lambda fn: fn)
    assert_same((y, variables), (plain_y, halve(plain)))
    assert_same(liftcore.apply(model)(variables, X, lifting), y)


# -- once, nested ------------------------------------------------------------------------------------------------------


def test_the_body_runs_once() -> None:
    runs: list[int] = []

    def body(scope: Scope, x: Any) -> Any:
        runs.append(1)
        tick(scope, x)
        return linear(scope, x)

    lifted = map_variables(body, ("params", "state"), double, halve, mutable=True)
    _, variables = liftcore.init(lifted)(KEY, X)
    assert len(runs) == 1
    liftcore.apply(lifted, mutable=["state"])(variables, X)
    assert len(runs) == 2
    jax.grad(lambda variables: liftcore.apply(lifted, mutable=True)(variables, X)[0].sum())(variables)
    assert len(runs) == 3
    deep = lifted
    for map_in in (sign, double, centred):
        deep = map_variables(deep, "params", map_in, init=True)
    _, variables = liftcore.init(deep)(KEY, X)
    assert len(runs) == 4
    jax.grad(lambda variables: liftcore.apply(deep, mutable=["state"])(variables, X)[0].sum())(variables)
    assert len(runs) == 5


def test_results_that_are_no_arrays_come_out() -> None:
    def body(scope: Scope, x: Any) -> Any:
        return {"y": linear(scope, x), "name": "linear", "n": 3, "none": None}

    result, variables = liftcore.init(map_variables(body, "params", sign, init=True))(KEY, X)
    assert (result["name"], result["n"], result["none"]) == ("linear", 3, None)
    assert_same(result["y"], liftcore.apply(linear)(sign(variables), X))


def test_no_tracer_is_left_behind() -> None:
    with jax.checking_leaks():
        y, variables = jax.jit(liftcore.init(map_variables(linear, "params", sign, init=True)))(KEY, X)
    assert_same(y, liftcore.apply(linear)(sign(variables), X))


def test_it_maps_twice() -> None:
    lifted = map_variables(map_variables(linear, "params", double, halve, init=True), "params", sign, init=True)
    y, variables = liftcore.init(lifted)(KEY, X)
    assert_same(variables, halve(liftcore.init(linear)(KEY, X)[1]))
    assert_same(y, liftcore.apply(linear)(double(sign(variables)), X))
    assert_same(y, liftcore.apply(lifted)(variables, X))


def lifting(fn: Callable[..., Any]) -> Callable[..., Any]:
    return map_variables(fn, ("params", "state"), double, halve, mutable=True)


def body(scope: Scope, x: Any) -> Any:
    return linear(scope, x) * tick(scope, 0.1)


@pytest.mark.parametrize("outer", [liftcore.remat, liftcore.jit, lambda fn: fn])
@pytest.mark.parametrize("inner", [liftcore.remat, liftcore.jit, lambda fn: fn])
def test_in_and_round_transparent_lifts(outer: Callable[..., Any], inner: Callable[..., Any]) -> None:
    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        for name in "ab":
            x = jnp.pad(scope.child(lift(body), name)(x), [(0, 0), (0, 1)])
        return x.sum()

    def lift(fn: Callable[..., Any]) -> Callable[..., Any]:
        return outer(lifting(inner(fn)))

    y, variables = liftcore.init(model)(KEY, X, lift)
    expected, plain = liftcore.init(model)(KEY, X, lambda fn: fn)
    assert_same((y, variables), (expected, halve(plain)))

    def loss(variables: Any, lift: Callable[..., Any]) -> Any:
        return liftcore.apply(model, mutable=["state"])(variables, X, lift)

    (y, mutated), grad = jax.value_and_grad(loss, has_aux=True)(variables, lift)
    (expected, theirs), their_grad = jax.value_and_grad(loss, has_aux=True)(plain, lambda fn: fn)
    assert_same((y, mutated, grad), (expected, halve(theirs), double(their_grad)))


@pytest.mark.parametrize("swap", [False, True])
def test_in_and_round_vmap(swap: bool) -> None:
    def mapping(fn: Callable[..., Any]) -> Callable[..., Any]:
        return liftcore.vmap(fn, variable_axes={"params": 1, "state": None}, split_rngs=True)

    lifted = mapping(lifting(body)) if swap else lifting(mapping(body))
    ours, theirs = (liftcore.init(fn)(KEY, jnp.stack([X, 2 * X])) for fn in (lifted, mapping(body)))
    assert_same(ours, (theirs[0], halve(theirs[1])))
    ours, theirs = (
        liftcore.apply(fn, mutable=["state"])(variables, jnp.stack([X, 2 * X]))
        for fn, variables in ((lifted, ours[1]), (mapping(body), theirs[1]))
    )
    assert_same(ours, (theirs[0], halve(theirs[1])))


def looped(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
    y = x * scope.param("w", uniform, (3,))
    return jnp.sin(y) * tick(scope, 1.0), y.sum()


SCANS = {
    "stacked": {"variable_axes": {"params": 1, "state": 0}, "split_rngs": True},
    "shared": {"variable_broadcast": "params", "variable_carry": "state", "split_rngs": False},
    "carried": {"variable_carry": ("params", "state"), "split_rngs": True},
}


@pytest.mark.parametrize("options", SCANS.values(), ids=SCANS)
@pytest.mark.parametrize("swap", [False, True])
def test_in_and_round_scan(options: dict[str, Any], swap: bool) -> None:
    """Inside a loop that carries what the body creates and writes, the loop must find what it begins with."""

    def loop(fn: Callable[..., Any]) -> Callable[..., Any]:
        return liftcore.scan(fn, length=3, **options)

    lifted = loop(lifting(looped)) if swap else lifting(loop(looped))
    ours, theirs = (liftcore.init(fn)(KEY, X[0], None) for fn in (lifted, loop(looped)))
    assert_same(ours, (theirs[0], halve(theirs[1])))

    def loss(variables: Any, fn: Callable[..., Any]) -> Any:
        (x, _), mutated = liftcore.apply(fn, mutable=["state"])(variables, X[0], None)
        return x.sum(), mutated

    ours = jax.value_and_grad(loss, has_aux=True)(ours[1], lifted)
    theirs = jax.value_and_grad(loss, has_aux=True)(theirs[1], loop(looped))
    assert_same(ours, ((theirs[0][0], halve(theirs[0][1])), double(theirs[1])))


def test_a_loop_in_a_loop_with_a_map_between() -> None:
    def inner(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
        return looped(scope, x, _)

    def model(lift: Callable[..., Any]) -> Callable[..., Any]:
        options = SCANS["carried"]
        return liftcore.scan(lift(liftcore.scan(lift(inner), length=2, **options)), length=3, **options)

    ours, theirs = (liftcore.init(model(lift))(KEY, X[0], None) for lift in (lifting, lambda fn: fn))
    assert_same(ours, (theirs[0], halve(halve(theirs[1]))))


def test_a_number_that_is_stored_may_stand_beside_a_variable_that_the_body_makes() -> None:
    def negated(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: -leaf, tree)

    def body(scope: Any, x: Any) -> Any:
        scope.variable("state", "v", lambda: x)
        return x

    def model(scope: Any, x: Any) -> Any:
        scope.param("w", lambda key: 1.5)
        return liftcore.map_variables(body, ["state", "params"], negated, negated, init=True, mutable=True)(scope, x)

    made = liftcore.init(model)(jax.random.key(0), jnp.ones(3))[1]
    assert made["params"]["w"] == 1.5
    assert made["state"]["v"].tolist() == [-1.0, -1.0, -1.0]
