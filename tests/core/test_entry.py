"""The ways in: what `init`, `apply`, `bind` and `lazy_init` take, give back and refuse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    InvalidRngError,
    InvalidScopeError,
    LazyInitError,
    ModifyScopeVariableError,
)

KEY = jax.random.key(0)


def layer(scope: Any, x: Any, scale: Any = 1.0) -> Any:
    """A layer with parameters, a running sum and a captured value."""
    w = scope.param("w", jax.random.normal, (x.shape[-1], 2))
    total = scope.variable("stats", "total", lambda: jnp.zeros(2))
    y = x @ w * scale
    if scope.is_mutable_collection("stats"):
        total.value += y.sum(0)
    scope.sow("intermediates", "y", y)
    return y


def test_init_returns_the_result_and_all_variables_as_plain_dicts() -> None:
    y, variables = liftcore.init(layer)(KEY, jnp.ones((4, 3)))
    assert y.shape == (4, 2)
    assert set(variables) == {"params", "stats", "intermediates"}
    assert type(variables) is type(variables["params"]) is dict
    assert variables["params"]["w"].shape == (3, 2)
    np.testing.assert_allclose(variables["stats"]["total"], y.sum(0), rtol=1e-6)


def test_init_makes_only_what_mutable_says() -> None:
    def params_only(scope: Any) -> Any:
        scope.sow("intermediates", "y", 1.0)
        return scope.param("w", lambda key: 2.0), scope.is_mutable_collection("stats")

    (_, mutable), variables = liftcore.init(params_only, mutable="params")(KEY)
    assert list(variables) == ["params"]
    assert not mutable


def test_init_without_a_key_says_what_to_pass() -> None:
    with pytest.raises(InvalidRngError, match=r"expected a PRNG key, given None\. Pass one: `jax.random.key\(0\)`"):
        liftcore.init(layer)(None, jnp.ones((1, 3)))


def test_apply_returns_the_result_alone_unless_something_is_mutable() -> None:
    y, variables = liftcore.init(layer)(KEY, jnp.ones((4, 3)))
    again = liftcore.apply(layer)(variables, jnp.ones((4, 3)))
    np.testing.assert_array_equal(again, y)
    result, mutated = liftcore.apply(layer, mutable=["stats"])(variables, jnp.ones((4, 3)))
    np.testing.assert_array_equal(result, y)
    assert list(mutated) == ["stats"]
    np.testing.assert_allclose(mutated["stats"]["total"], 2 * y.sum(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("mutable", "returned"),
    [
        ("stats", {"stats"}),
        (["stats", "intermediates"], {"stats", "intermediates"}),
        (True, {"params", "stats", "intermediates"}),
        (liftcore.filters.DenyList("params"), {"stats", "intermediates"}),
        ([], set()),
    ],
)
def test_apply_returns_the_mutable_collections(mutable: Any, returned: set[str]) -> None:
    variables = liftcore.init(layer)(KEY, jnp.ones((4, 3)))[1]
    del variables["intermediates"]
    _, mutated = liftcore.apply(layer, mutable=mutable)(variables, jnp.ones((4, 3)))
    assert set(mutated) == returned


def test_a_filter_of_single_variables_returns_those() -> None:
    def count(scope: Any) -> None:
        for name in "ab":
            if name == "a":
                scope.put_variable("state", name, scope.get_variable("state", name) + 1)

    only_a = liftcore.filters.All("state", liftcore.filters.PathContains("a"))
    _, mutated = liftcore.apply(count, mutable=only_a)({"state": {"a": 1, "b": 1}})
    assert mutated == {"state": {"a": 2}}
    with pytest.raises(ModifyScopeVariableError):
        liftcore.apply(lambda scope: scope.put_variable("state", "b", 0), mutable=only_a)({"state": {"a": 1, "b": 1}})


def test_keyword_arguments_reach_the_function() -> None:
    y, variables = liftcore.init(layer)(KEY, jnp.ones((4, 3)), scale=2.0)
    np.testing.assert_allclose(liftcore.apply(layer)(variables, jnp.ones((4, 3)), scale=4.0), 2 * y, rtol=1e-6)


def test_is_initializing_tells_init_from_apply() -> None:
    def ask(scope: Any) -> bool:
        return scope.push("a").is_initializing()

    assert liftcore.init(ask)(KEY)[0] is True
    assert liftcore.apply(ask, mutable=True)({})[0] is False


def test_nothing_given_in_is_changed() -> None:
    def write(scope: Any) -> None:
        scope.put_variable("state", "a", 2)
        scope.push("deep").push("er").put_variable("state", "b", 2)
        scope.push("new").put_variable("state", "c", 2)

    other = {"x": 1}
    deep = {"er": {"b": 1, "kept": other}}
    variables = {"state": {"a": 1, "deep": deep}, "params": other}
    _, mutated = liftcore.apply(write, mutable=True)(variables)
    assert variables == {"state": {"a": 1, "deep": {"er": {"b": 1, "kept": {"x": 1}}}}, "params": {"x": 1}}
    assert variables["state"]["deep"] is deep
    assert mutated["state"] == {"a": 2, "deep": {"er": {"b": 2, "kept": {"x": 1}}}, "new": {"c": 2}}
    mutated["params"]["x"] = 5
    assert other == {"x": 1}, "what is returned is no part of what was given"


def test_two_calls_give_the_same() -> None:
    first = liftcore.init(layer)(KEY, jnp.ones((4, 3)))
    second = liftcore.init(layer)(KEY, jnp.ones((4, 3)))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, second))


def test_apply_is_pure_under_jax_transformations() -> None:
    variables = liftcore.init(layer)(KEY, jnp.ones((4, 3)))[1]

    def loss(params: Any, x: Any) -> Any:
        return liftcore.apply(layer)({**variables, "params": params}, x).sum()

    x = jnp.arange(12.0).reshape(4, 3)
    grads = jax.jit(jax.grad(loss))(variables["params"], x)
    np.testing.assert_allclose(grads["w"], jnp.tile(x.sum(0)[:, None], (1, 2)), rtol=1e-6)
    assert jax.vmap(loss, (None, 0))(variables["params"], jnp.ones((5, 4, 3))).shape == (5,)


def test_a_scope_ends_with_its_entry() -> None:
    kept: list[Any] = []
    liftcore.init(lambda scope: kept.extend([scope, scope.push("a"), scope.variable("s", "v", lambda: 1)]))(KEY)
    root, below, variable = kept
    assert not root.is_valid
    assert not below.is_valid
    for use in (lambda: root.make_rng(), lambda: below.get_variable("s", "v"), lambda: variable.value):
        with pytest.raises(InvalidScopeError, match=r"after the lift, `init` or `apply` .* had ended") as caught:
            use()
        assert caught.value.where in ("scope at /", "scope at /a")


def test_a_scope_ends_when_its_function_raises() -> None:
    kept: list[Any] = []

    def broken(scope: Any) -> None:
        kept.append(scope)
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        liftcore.init(broken)(KEY)
    assert not kept[0].is_valid


def test_bind_lives_on() -> None:
    variables = {"params": {"a": {"w": 2}}}
    scope = liftcore.bind(variables, KEY, mutable=["state"])
    assert scope.push("a").get_variable("params", "w") == 2
    scope.put_variable("state", "n", 1)
    assert scope.mutable_variables() == {"state": {"n": 1}}
    assert scope.variables() == {"params": {"a": {"w": 2}}, "state": {"n": 1}}
    assert variables == {"params": {"a": {"w": 2}}}
    assert scope.has_rng("params")
    assert scope.path == ()
    assert scope.name is None
    assert scope.path_text == "/"


@pytest.mark.parametrize("given", [None, jnp.ones(2), [1]])
def test_variables_must_be_a_mapping(given: Any) -> None:
    with pytest.raises(
        ApplyScopeInvalidVariablesTypeError, match=r"expected a mapping .* given (None|a float32\[2\] array|\[1\])\."
    ) as caught:
        liftcore.apply(layer)(given, jnp.ones((1, 3)))
    assert caught.value.where == "variables"
    assert isinstance(caught.value, TypeError)


def test_variables_one_level_too_deep_say_so() -> None:
    with pytest.raises(ApplyScopeInvalidVariablesStructureError, match="one level too deep"):
        liftcore.apply(layer)({"params": {"params": {"w": jnp.ones((3, 2))}, "state": {}}}, jnp.ones((1, 3)))


def test_a_collection_must_be_a_mapping() -> None:
    with pytest.raises(ApplyScopeInvalidVariablesTypeError, match=r"Pass `\{\"params\": params\}`") as caught:
        liftcore.apply(layer)({"w": jnp.ones((3, 2))}, jnp.ones((1, 3)))
    assert caught.value.where == 'variables["w"]'


def test_a_collection_is_named_by_text() -> None:
    with pytest.raises(ApplyScopeInvalidVariablesTypeError, match=r"expected names of collections, given 3\."):
        liftcore.apply(layer)({3: {}}, jnp.ones((1, 3)))  # type: ignore[dict-item]
    with pytest.raises(InvalidRngError, match=r"expected names of streams, given 3\."):
        liftcore.apply(layer)({}, jnp.ones((1, 3)), rngs={3: jax.random.key(0)})  # type: ignore[dict-item]


@pytest.mark.parametrize("rngs", [None, "key", 3, {"params": 3}])
def test_init_and_lazy_init_take_keys(rngs: Any) -> None:
    for start in (liftcore.init, liftcore.lazy_init):
        with pytest.raises(InvalidRngError, match=r"expected (one|a) PRNG key, given"):
            start(layer)(rngs, jnp.ones((1, 3)))


def test_lazy_init_makes_what_init_makes_from_shapes_alone() -> None:
    shape = jax.ShapeDtypeStruct((4, 3), jnp.float32)

    def params_only(scope: Any, x: Any) -> Any:
        return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))

    made = liftcore.lazy_init(params_only)(KEY, shape)
    np.testing.assert_array_equal(
        made["params"]["w"], liftcore.init(params_only)(KEY, jnp.ones((4, 3)))[1]["params"]["w"]
    )


def test_lazy_init_computes_nothing_that_no_variable_needs() -> None:
    ran: list[int] = []

    def costly(scope: Any, x: Any) -> Any:
        w = scope.param("w", jax.random.normal, (3,))
        return jax.pure_callback(lambda x: ran.append(1) or x, x, x * w)

    made = liftcore.lazy_init(costly)({"params": KEY}, jnp.ones(3))
    jax.block_until_ready(made)
    assert not ran


def test_lazy_init_takes_arrays_that_initial_values_depend_on() -> None:
    def centred(scope: Any, x: Any, factor: int) -> Any:
        return scope.variable("stats", "mean", lambda: factor * x.mean(0)).value

    made = liftcore.lazy_init(centred)(KEY, jnp.arange(6.0).reshape(2, 3), 2)
    assert made["stats"]["mean"].tolist() == [3.0, 5.0, 7.0]
    with pytest.raises(LazyInitError, match="values of an argument that is given as a shape only") as caught:
        liftcore.lazy_init(centred)(KEY, jax.ShapeDtypeStruct((2, 3), jnp.float32), 2)
    assert "stats/mean" in caught.value.where


def test_lazy_init_traces_once_and_makes_what_mutable_says() -> None:
    runs: list[int] = []

    def counted(scope: Any, x: Any) -> Any:
        runs.append(1)
        scope.sow("intermediates", "x", x)
        return scope.param("w", jax.random.normal, (3,)) * x

    made = liftcore.lazy_init(counted, mutable="params")(KEY, jax.ShapeDtypeStruct((3,), jnp.float32))
    assert list(made) == ["params"]
    assert len(runs) == 1


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat, liftcore.jit])
def test_a_scope_that_creates_nothing_is_written_and_says_what_is_missing(lift: Any) -> None:
    scope = liftcore.bind({"state": {"n": 1}}, KEY, mutable=True, creates=False)

    def count(scope: Any) -> None:
        scope.variable("state", "n", lambda: 0).value += 1

    def create(scope: Any) -> None:
        scope.variable("state", "m", lambda: 0)

    def put(scope: Any) -> None:
        scope.put_variable("state", "m", jnp.ones(()))

    def parameter(scope: Any) -> None:
        scope.param("w", jax.random.normal, ())

    lift(count)(scope)
    assert scope.variables() == {"state": {"n": 2}}
    for fn in (create, put):
        with pytest.raises(liftcore.errors.ScopeVariableNotFoundError, match=r"creates=False"):
            lift(fn)(scope.rewound())
    with pytest.raises(liftcore.errors.ScopeParamNotFoundError, match=r"creates=False"):
        lift(parameter)(scope.rewound())
    lift(lambda scope: scope.sow("seen", "n", 1))(scope)
    assert scope.variables() == {"state": {"n": 2}, "seen": {"n": (1,)}}
