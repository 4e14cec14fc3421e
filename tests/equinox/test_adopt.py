"""Pytrees in models of scopes, and models of scopes in pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
from liftcore import Scope
from liftcore.errors import LiftError, ModifyScopeVariableError
from liftcore.filters import All, PathContains

KEY, X = jax.random.key(0), jax.random.normal(jax.random.key(1), (3,))


class Mlp(eqx.Module):
    """Two layers, a static activation, and a table of integers."""

    layers: list[Any]
    order: Any
    act: Any

    def __init__(self, key: Any, size: int) -> None:
        self.layers = [{"w": jax.random.normal(each, (size, size))} for each in jax.random.split(key, 2)]
        self.order = jnp.arange(size)[::-1]
        self.act = jnp.tanh

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.act(layer["w"] @ x)
        return x[self.order]


def layer(scope: Scope, x: Any) -> Any:
    return eqx.adopt(scope.push("mlp"), Mlp, 3)(x)


def by_hand(params: Any, x: Any) -> Any:
    for number in "01":
        x = jnp.tanh(params["layers"][number]["w"] @ x)
    return x[::-1]


def stacked(fn: Callable[..., Any]) -> Callable[..., Any]:
    scan = liftcore.scan(
        lambda scope, x, _: (fn(scope, x), None),
        length=4,
        variable_axes={"params": 0},
        variable_broadcast="constants",
        split_rngs=True,
    )
    return lambda scope, x: scan(scope, x, None)[0]


LIFTS: dict[str, Callable[..., Any]] = {
    "none": lambda fn: fn,
    "jit": liftcore.jit,
    "remat": liftcore.remat,
    "filter_jit": lambda fn: eqx.filter_jit(fn),
    "cond": lambda fn: lambda scope, x: liftcore.cond(fn, fn)(scope, True, x),
}


@pytest.mark.parametrize("lift", LIFTS)
def test_arrays_are_variables_at_their_paths(lift: str) -> None:
    model = LIFTS[lift](layer)
    y, variables = liftcore.init(model)(KEY, X)
    assert set(variables) == {"params", "constants"}
    params = variables["params"]["mlp"]
    np.testing.assert_allclose(y, by_hand(params, X), rtol=1e-6)
    np.testing.assert_array_equal(variables["constants"]["mlp"]["order"], [2, 1, 0])
    changed = jax.tree.map(lambda leaf: 2 * leaf, params)
    given = {**variables, "params": {"mlp": changed}}
    np.testing.assert_allclose(liftcore.apply(model)(given, X), by_hand(changed, X), rtol=1e-6)


@pytest.mark.parametrize("lift", ["none", "remat", "jit"])
def test_a_scan_stacks_them_and_its_body_runs_once(lift: str) -> None:
    runs: list[Any] = []

    def counted(scope: Scope, x: Any) -> Any:
        runs.append(scope.path)
        return layer(scope, x)

    model = stacked(LIFTS[lift](counted))
    y, variables = liftcore.init(model)(KEY, X)
    assert len(runs) == 1
    params, x = variables["params"]["mlp"], X
    assert params["layers"]["0"]["w"].shape == (4, 3, 3)
    assert not jnp.allclose(params["layers"]["0"]["w"][0], params["layers"]["0"]["w"][1])
    for number in range(4):
        x = by_hand(jax.tree.map(lambda leaf, number=number: leaf[number], params), x)
    np.testing.assert_allclose(y, x, rtol=1e-5)
    np.testing.assert_allclose(liftcore.apply(model)(variables, X), x, rtol=1e-5)


def test_filters_reach_single_arrays() -> None:
    first = All("params", PathContains("0"))
    axes = {first: None, "params": 0, "constants": None}
    model = liftcore.vmap(layer, in_axes=None, axis_size=5, variable_axes=axes, split_rngs={"params": False})
    _, variables = liftcore.init(model)(KEY, X)
    layers = variables["params"]["mlp"]["layers"]
    assert (layers["0"]["w"].shape, layers["1"]["w"].shape) == ((3, 3), (5, 3, 3))


def test_in_a_linen_model_under_scan_of_remat() -> None:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return eqx.adopt(self.scope.push("mlp"), Mlp, 3, collection="params")(x), None

    loop = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
    (y, _), variables = loop().init_with_output(KEY, X, None)
    params, x = variables["params"]["mlp"], X
    assert params["order"].shape == (4, 3)
    for number in range(4):
        x = by_hand(jax.tree.map(lambda leaf, number=number: leaf[number], params), x)
    np.testing.assert_allclose(y, x, rtol=1e-5)


def test_a_part_that_is_missing_is_made() -> None:
    _, variables = liftcore.init(layer)(KEY, X)
    w = 3 * jnp.ones((3, 3))
    given = {"params": {"mlp": {"layers": {"0": {"w": w}}}}}
    _, made = liftcore.apply(layer, mutable=True)(given, X, rngs={"params": KEY})
    np.testing.assert_array_equal(made["params"]["mlp"]["layers"]["0"]["w"], w)
    np.testing.assert_array_equal(
        made["params"]["mlp"]["layers"]["1"]["w"], variables["params"]["mlp"]["layers"]["1"]["w"]
    )


def test_what_is_missing_and_may_not_be_made_is_an_error() -> None:
    with pytest.raises(LiftError, match="w"):
        liftcore.apply(layer)({"params": {}, "constants": {"mlp": {"order": jnp.arange(3)}}}, X)


class Tied(eqx.Module):
    """One array in two fields, and one layer in two fields."""

    embed: Any
    head: Any
    layers: list[Any]

    def __init__(self, key: Any) -> None:
        self.embed = self.head = jax.random.normal(key, (3, 3))
        self.layers = [Mlp(key, 3)] * 2

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head.T @ (self.embed @ x)


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.jit, liftcore.remat])
def test_an_array_in_two_places_is_one_variable(lift: Any) -> None:
    model = lift(lambda scope, x: eqx.adopt(scope.push("tied"), Tied)(x))
    y, variables = liftcore.init(model)(KEY, X)
    tied = variables["params"]["tied"]
    assert (sorted(tied), list(tied["layers"])) == (["embed", "layers"], ["0"])
    np.testing.assert_allclose(liftcore.apply(model)(variables, X), y, rtol=1e-6)

    def by_hand_twice(tied: Any) -> Any:
        hidden = by_hand(tied["layers"]["0"], by_hand(tied["layers"]["0"], X))
        return (tied["embed"].T @ (tied["embed"] @ hidden)).sum()

    gradient = jax.grad(lambda params: liftcore.apply(model)({**variables, "params": params}, X).sum())
    expected = jax.grad(by_hand_twice)(tied)
    found = gradient(variables["params"])["tied"]
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), found, expected)


def test_shapes_are_shared_as_arrays_are() -> None:
    shapes = eqx.filter_eval_shape(Tied, KEY)
    assert shapes.embed is shapes.head
    assert jax.tree.leaves(shapes.layers[0])[0] is jax.tree.leaves(shapes.layers[1])[0]
    assert shapes.embed is not shapes.layers[0].layers[0]["w"]
    assert liftcore.Blueprint.of(shapes).paths == liftcore.Blueprint.of(Tied(KEY)).paths


def test_explain_shows_adopted_arrays() -> None:
    scope = liftcore.bind({}, KEY, mutable=True)
    shown = str(liftcore.explain(stacked(layer))(scope, X))
    assert "mlp/layers/0/w" in shown


def test_a_real_module_of_equinox() -> None:
    equinox = pytest.importorskip("equinox")

    def make(key: Any) -> Any:
        return equinox.nn.MLP(3, 3, 8, 2, key=key)

    def model(scope: Scope, x: Any) -> Any:
        return eqx.adopt(scope.push("mlp"), make)(x)

    y, variables = liftcore.init(stacked(model))(KEY, X)
    assert variables["params"]["mlp"]["layers"]["0"]["weight"].shape == (4, 8, 3)
    x = X
    for number in range(4):
        sliced = jax.tree.map(lambda leaf, number=number: leaf[number], variables)
        x = liftcore.apply(model)(sliced, x)
    np.testing.assert_allclose(y, x, rtol=1e-5)
    mlp = make(KEY)
    np.testing.assert_allclose(eqx.filter_jit(mlp)(X), mlp(X), rtol=1e-6)
    gradient = eqx.filter_grad(lambda mlp: mlp(X).sum())(mlp)
    wanted = equinox.filter_grad(lambda mlp: mlp(X).sum())(mlp)
    assert jax.tree.structure(gradient) == jax.tree.structure(wanted)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), gradient, wanted)
    ensemble = eqx.filter_vmap(make)(jax.random.split(KEY, 3))
    found = eqx.filter_vmap(lambda mlp, x: mlp(x), in_axes=(eqx.if_array(0), None))(ensemble, X)
    assert found.shape == (3, 3)


# -- Applied -----------------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A dense layer with a counter."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        count = self.variable("state", "count", lambda: jnp.int32(0))
        count.value += 1
        return nn.Dense(3)(x)


def counting(scope: Scope, x: Any) -> Any:
    count = scope.variable("state", "count", lambda: jnp.int32(0))
    if scope.is_mutable_collection("state"):
        count.value += 1
    return x * scope.param("w", nn.initializers.ones, (3,))


@pytest.mark.parametrize(
    "fn", [counting, nn.Dense(3), nn.Sequential([nn.Dense(3), jnp.tanh])], ids=["function", "layer", "sequence"]
)
def test_a_function_of_a_scope_and_a_module_are_pytrees(fn: Any) -> None:
    model = eqx.Applied.init(fn, KEY, X)
    y = model(X)
    np.testing.assert_allclose(eqx.filter_jit(model)(X), y, rtol=1e-6)
    gradient = eqx.filter_grad(lambda model: model(X).sum())(model)
    assert jax.tree.structure(gradient.variables["params"]) == jax.tree.structure(model.variables["params"])
    ensemble = eqx.filter_vmap(lambda key: eqx.Applied.init(fn, key, X))(jax.random.split(KEY, 2))
    assert eqx.filter_vmap(lambda model: model(X))(ensemble).shape == (2, 3)
    changed = eqx.tree_at(lambda model: model.variables, model, jax.tree.map(jnp.zeros_like, model.variables))
    np.testing.assert_array_equal(changed(X), jnp.zeros(3))


@pytest.mark.parametrize("fn", [counting, Counting()], ids=["function", "module"])
def test_it_is_changed_by_a_copy(fn: Any) -> None:
    model = eqx.Applied.init(fn, KEY, X)
    y, after = eqx.filter_jit(lambda model, x: model(x, mutable="state"))(model, X)
    assert (int(model.variables["state"]["count"]), int(after.variables["state"]["count"])) == (1, 2)
    np.testing.assert_allclose(
        y, X @ after.variables["params"]["Dense_0"]["kernel"] if fn != counting else X, rtol=1e-5
    )


def test_what_must_be_mutable_says_how() -> None:
    norm = eqx.Applied.init(nn.BatchNorm(use_running_average=False), KEY, X[None])
    with pytest.raises(ModifyScopeVariableError) as caught:
        norm(X[None])
    assert 'model(x, mutable="batch_stats")' in caught.value.__notes__[-1]


def test_it_is_given_random_streams() -> None:
    model = eqx.Applied.init(nn.Dropout(0.5, deterministic=False), {"params": KEY, "dropout": KEY}, X)
    assert float(model(jnp.ones(64), rngs={"dropout": KEY}).sum()) in range(20, 110)


# -- the key -----------------------------------------------------------------------------------------------------------


class Noise(eqx.Module):
    """A module that takes the key by name alone."""

    w: Any

    def __init__(self, size: int, *, key: Any) -> None:
        self.w = jax.random.normal(key, (size,))


def by_position_or_name(size: int, key: Any) -> Any:
    return {"w": jax.random.normal(key, (size,))}


MAKERS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "first": (lambda key, size: by_position_or_name(size, key), (3,)),
    "any name": (lambda random, size: by_position_or_name(size, random), (3,)),
    "by name": (Noise, (3,)),
    "last": (by_position_or_name, (3,)),
    "partial": (functools.partial(Noise, 3), ()),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_key_goes_where_the_constructor_takes_it(kind: str) -> None:
    make, args = MAKERS[kind]

    def model(scope: Scope) -> Any:
        return jax.tree.leaves(eqx.adopt(scope.push("part"), make, *args))[0]

    def wanted(scope: Scope) -> Any:
        return jax.random.normal(scope.push("part").make_rng("params"), (3,))

    y, variables = liftcore.init(model)(KEY)
    np.testing.assert_array_equal(y, liftcore.init(wanted)(KEY)[0])
    np.testing.assert_array_equal(liftcore.apply(model)(variables), y)


class Keyless(eqx.Module):
    """A module whose constructor takes no key."""

    w: Any

    def __init__(self, size: int) -> None:
        self.w = jnp.ones(size)

    def __call__(self, x: Any) -> Any:
        return self.w * x


def test_a_module_is_no_scope_and_a_pytree_is_no_function() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self) -> Any:
            return eqx.adopt(self, Mlp, 3)  # type: ignore[arg-type]

    with pytest.raises(LiftError, match=r'adopt: expected a scope, given Net.*self\.scope\.push\("name"\)'):
        Net().init(KEY)
    with pytest.raises(LiftError, match=r"adopt: expected a function that returns.*lambda key: tree.*Blueprint.of"):
        liftcore.init(lambda scope: eqx.adopt(scope, {"w": X}))(KEY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "args", "how"),
    [
        (Keyless, (3,), "to Keyless: as the first argument"),
        (Keyless(3), (), "to Keyless: as the first argument"),
        (lambda *args: Noise(*args), (3,), "to <lambda>: as the first argument"),
        (Noise, (3, 4), "to Noise: as `key=`"),
    ],
)
@pytest.mark.parametrize("entry", [liftcore.init, lambda fn: lambda key: liftcore.apply(fn)({"params": {}})])
def test_what_takes_no_key_is_an_error_that_says_how_it_was_called(make: Any, args: Any, how: str, entry: Any) -> None:
    with pytest.raises(TypeError) as caught:
        entry(lambda scope: eqx.adopt(scope.push("part"), make, *args))(KEY)
    assert [note for note in caught.value.__notes__ if how in note and "lambda key: module" in note]


# -- which leaves are trained ------------------------------------------------------------------------------------------


class Normed(nn.Module):
    """Layers with running statistics, a table of integers, and a parameter in a box."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.variable("tables", "order", lambda: jnp.arange(3))
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", None))
        return nn.BatchNorm(use_running_average=False)(nn.Dense(3, kernel_init=init)(x))


def test_parameters_are_trained_and_statistics_are_not() -> None:
    optax = pytest.importorskip("optax")
    x = jax.random.normal(KEY, (8, 3))
    model = {"net": eqx.Applied.init(Normed(), KEY, x), "scale": jnp.float32(2), "act": jnp.tanh, "steps": 3}
    chosen = eqx.trainable(model)
    assert jax.tree.structure(chosen) == jax.tree.structure(model)
    tx = optax.adamw(0.1, weight_decay=0.5)
    state = tx.init(eqx.filter(model, chosen))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        def loss(model: Any) -> Any:
            y, net = model["net"](x, mutable="batch_stats")
            return jnp.mean((model["scale"] * model["act"](y) - x) ** 2), {**model, "net": net}

        gradient, after = eqx.filter_grad(loss, has_aux=True, arg=chosen)(model)
        updates, state = tx.update(gradient, state, eqx.filter(model, chosen))
        return gradient, eqx.apply_updates(after, updates), state

    gradient, after, state = step(model, state)
    of_net = gradient["net"].variables
    assert jax.tree.leaves(of_net["batch_stats"]) == jax.tree.leaves(of_net["tables"]) == []
    assert len(jax.tree.leaves(of_net["params"])) == len(jax.tree.leaves(model["net"].variables["params"])) == 4
    assert gradient["steps"] is gradient["act"] is None
    assert gradient["scale"] != 0
    _, wanted = model["net"](x, mutable="batch_stats")
    for found, stat in zip(
        *(jax.tree.leaves(one.variables["batch_stats"]) for one in (after["net"], wanted)), strict=True
    ):
        np.testing.assert_allclose(found, stat, rtol=1e-5)


def test_a_filter_chooses_among_the_variables() -> None:
    net = eqx.Applied.init(Normed(), KEY, X[None])
    chosen = eqx.trainable([net, jnp.ones(2)], All("params", PathContains("Dense_0")))
    found = [path for path, answer in jax.tree_util.tree_leaves_with_path(chosen) if answer]
    assert [jax.tree_util.keystr(path) for path in found] == [
        "[0].variables['params']['Dense_0']['bias']",
        "[0].variables['params']['Dense_0']['kernel'].value",
    ]
    assert not any(jax.tree.leaves(eqx.trainable(net, False)))


def test_a_filter_sees_the_path_of_each_array_in_the_pytree() -> None:
    net = {"in": {"w": X, "b": X}, "out": [X, 3, jnp.arange(2)], "act": jnp.tanh}
    norm = eqx.Applied.init(nn.BatchNorm(use_running_average=False), KEY, X[None])
    model = {"net": net, "norm": norm}
    of_w = eqx.trainable(model, PathContains("w"))
    assert of_w["net"] == {"in": {"w": True, "b": False}, "out": [False] * 3, "act": False}
    assert not any(jax.tree.leaves(of_w["norm"]))
    of_net = eqx.trainable(model, PathContains("net"))
    assert of_net["net"] == {"in": {"w": True, "b": True}, "out": [True, False, False], "act": False}
    assert not any(jax.tree.leaves(of_net["norm"]))
    of_norm = eqx.trainable(model, All("params", PathContains("norm")))
    assert of_norm["norm"].variables == {
        "params": {"bias": True, "scale": True},
        "batch_stats": {"mean": False, "var": False},
    }
    assert not any(jax.tree.leaves(of_norm["net"]))
    assert not any(jax.tree.leaves(eqx.trainable(net, ("batch_stats", None))))


# -- modules of Equinox ------------------------------------------------------------------------------------------------


def test_a_method_of_a_real_layer_finds_its_trace_for_other_weights() -> None:
    equinox = pytest.importorskip("equinox")
    runs = []

    @eqx.filter_jit
    def call(fn: Any, x: Any) -> Any:
        runs.append(fn)
        return fn(x)

    for seed in range(3):
        linear = equinox.nn.Linear(3, 2, key=jax.random.key(seed))
        np.testing.assert_allclose(call(linear.__call__, X), linear(X), rtol=1e-6)
        np.testing.assert_allclose(eqx.filter_jit(linear.__call__)(X), linear(X), rtol=1e-6)
    assert len(runs) == 1


def test_a_state_of_equinox_needs_a_collection() -> None:
    equinox = pytest.importorskip("equinox")
    make = equinox.nn.make_with_state(lambda: equinox.nn.BatchNorm(3, "batch", mode="ema"))

    def together(scope: Scope) -> Any:
        return eqx.adopt(scope.push("norm"), lambda key: make())

    def apart(scope: Scope, x: Any) -> Any:
        place = scope.push("state")
        norm = eqx.adopt(scope.push("norm"), lambda key: make()[0])
        state = eqx.adopt(place, lambda key: make()[1], collection="batch_stats")
        y, new = eqx.filter_vmap(norm, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)
        liftcore.Blueprint.of(new, "batch_stats").write(place, new)
        return y

    with pytest.raises(LiftError, match=r"adopt: the pytree holds an `equinox.nn.State`.*batch_stats.*write"):
        liftcore.init(together)(KEY)
    with pytest.raises(LiftError, match="the pytree holds an"):
        liftcore.apply(together)({"params": {"norm": {"weight": X}}})
    x = jnp.stack([X, 2 * X])
    _, variables = liftcore.init(apart)(KEY, x)
    assert sorted(variables["params"]) == ["norm"]
    assert len(jax.tree.leaves(variables["batch_stats"])) == 3
