"""Lifted functions that change a module: every transformation against a plain loop, gradients by kind, adoption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import pax_like as pax
from liftcore import NO_AXES, InOut, Scope
from liftcore.errors import LiftError, ModifyScopeVariableError
from liftcore.filters import All, PathContains
from pax_like.errors import SharedModuleError

KEY, X = jax.random.key(0), jnp.arange(1.0, 5.0)


class Inner(pax.Module):
    """A parameter and a running sum."""

    def __init__(self, w: float) -> None:
        self.register_parameter("w", jnp.float32(w))
        self.register_state("total", jnp.float32(0))

    def __call__(self, x: Any) -> Any:
        self.total = self.total + x
        return self.w * x


class Model(pax.Module):
    """Two modules in a list, a count, a static power."""

    def __init__(self) -> None:
        self.layers = [Inner(2), Inner(3)]
        self.register_state("count", jnp.int32(0))
        self.power = 2

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        self.count = self.count + 1
        return x**self.power


def state(model: Any) -> list[float]:
    return [*(float(layer.total) for layer in model.layers), int(model.count)]


def plain(xs: Any) -> tuple[list[float], list[float]]:
    """The results of calls one after the other, and the states after them."""
    model = Model()
    results = [float(model(x)) for x in xs]
    return results, state(model)


RUNS: list[int] = []


def call(model: Any, x: Any) -> Any:
    RUNS.append(1)
    return model(x)


def step(model: Any, carry: Any, x: Any) -> Any:
    y = call(model, x)
    return carry + y, y


def unchanged(body: Any, groups: Any, rngs: Any, x: Any) -> Any:
    return body(groups, rngs, x)


ONE = {
    "jit": (liftcore.jit, {}),
    "remat": (liftcore.remat, {}),
    "checkpoint": (liftcore.checkpoint, {}),
    "named_call": (liftcore.named_call, {"name": "model"}),
    "fold_rngs": (liftcore.fold_rngs, {}),
    "pack": (
        liftcore.transformation(
            lambda body, groups, rngs, x: body(groups, rngs, x), [True], [True, liftcore.Captured(all=True)], [True]
        ),
        {},
    ),
    "map_variables": (liftcore.map_variables, {"mapped": "params", "mutable": False}),
}


@pytest.mark.parametrize("name", ONE)
def test_lifts_that_run_a_function_once(name: str) -> None:
    transformation, options = ONE[name]
    RUNS.clear()
    model = Model()
    changed, y = pax.lift(transformation, call, **options)(model, X[1])
    assert ([float(y)], state(changed)) == plain(X[1:2])
    assert state(model) == [0, 0, 0]
    assert len(RUNS) == 1
    assert changed.layers[0].w is model.layers[0].w or name in ("jit", "remat", "checkpoint", "map_variables")


def test_jit_finds_its_trace_again_for_an_equal_definition() -> None:
    RUNS.clear()

    def once(model: Any, x: Any) -> Any:  # of its own: what was compiled for an equal one is found again
        return call(model, x)

    compiled = pax.lift(liftcore.jit, once)
    model = Model()
    for _ in range(3):
        model, _ = compiled(model, X[0])
    assert (state(model)[2], len(RUNS)) == (3, 1)
    model.power = 2.0
    compiled(model, X[0])
    assert len(RUNS) == 2
    compiled(model.eval(), X[0])
    assert len(RUNS) == 3


def test_scan() -> None:
    RUNS.clear()
    scan = pax.lift(liftcore.scan, step, variable_carry="state", variable_broadcast="params")
    changed, (total, ys) = scan(Model(), 0.0, X)
    results, states = plain(X)
    np.testing.assert_allclose(ys, results)
    assert (float(total), state(changed), len(RUNS)) == (sum(results), states, 1)


def test_scan_over_a_module_with_stacked_arrays() -> None:
    stacked = jax.vmap(lambda w: Inner(1).update(_only_w(w)))(jnp.array([2.0, 3.0, 4.0]))
    layers = pax.lift(liftcore.scan, lambda m, x, _: (m(x), None), variable_axes={"params": 0, "state": 0}, length=3)
    changed, (y, _) = layers(stacked, 1.0, None)
    assert float(y) == 24
    assert changed.total.tolist() == [1, 2, 6]


def _only_w(w: Any) -> Any:
    only = Inner(1).parameters()
    return jax.tree.map(lambda _: w, only)


def test_vmap_with_states_of_elements() -> None:
    axes = {"params": None, "state": InOut(None, 0)}
    changed, ys = pax.lift(liftcore.vmap, call, variable_axes=axes)(Model(), X)
    for number, x in enumerate(X):
        results, states = plain([x])
        assert float(ys[number]) == results[0]
        assert [float(changed.layers[0].total[number]), float(changed.layers[1].total[number])] == states[:2]


def test_a_filter_reaches_single_arrays() -> None:
    model = Model()
    model.layers[1].w = jnp.array([3.0, 5.0])
    axes = {All("params", PathContains("1")): 0, "params": None, "state": InOut(None, 0)}
    _, ys = pax.lift(liftcore.vmap, call, variable_axes=axes)(model, X[:2])
    assert ys.tolist() == [36, 400]


def test_pmap() -> None:
    axes = {"params": None, "state": InOut(None, 0)}
    _, ys = pax.lift(liftcore.pmap, call, variable_axes=axes)(Model(), X[:1])
    assert ys.tolist() == plain(X[:1])[0]


def test_map() -> None:
    axes = {"params": None, "state": InOut(None, 0)}
    _, ys = pax.lift(liftcore.map, call, variable_axes=axes)(Model(), X)
    assert ys.tolist() == [plain([x])[0][0] for x in X]


def test_branches_in_a_subclass_of_list() -> None:
    class Branches(list[Any]):
        pass

    branches = Branches([lambda model, x: x, lambda model, x: 2 * x])
    assert (pax.lift(liftcore.switch, branches)(Model(), 1, X[1])[1] == 2 * X[1]).all()
    with pytest.raises(liftcore.errors.LiftArgumentError, match=r"lift\(switch\): expected a function"):
        pax.lift(liftcore.switch, [[lambda model, x: x]])


def test_cond_and_switch() -> None:
    def twice(model: Any, x: Any) -> Any:
        return model(x) + model(x)

    for pred in (True, False):
        changed, y = pax.lift(liftcore.cond, twice, call)(Model(), pred, X[1])
        results, states = plain(X[np.array([1, 1])] if pred else X[1:2])
        assert (float(y), state(changed)) == (sum(results), states)
        changed, y = pax.lift(liftcore.switch, [call, twice])(Model(), int(pred), X[1])
        assert (float(y), state(changed)) == (sum(results), states)


def test_loops() -> None:
    results, states = plain(X[np.zeros(3, int)])
    carried = {"variable_carry": "state", "variable_broadcast": "params"}
    fori = pax.lift(liftcore.fori_loop, lambda model, i, total: total + model(1.0), **carried)
    changed, total = fori(Model(), 0, 3, 0.0)
    assert (float(total), state(changed)) == (sum(results), states)
    loop = pax.lift(
        liftcore.while_loop, lambda model, _: model.count < 3, lambda model, total: total + model(1.0), **carried
    )
    changed, total = loop(Model(), 0.0)
    assert (float(total), state(changed)) == (sum(results), states)


def test_associative_scan() -> None:
    def combine(model: Any, a: Any, b: Any) -> Any:
        return model.layers[0].w * 0 + a + b

    _, ys = pax.lift(liftcore.associative_scan, combine)(Model(), X)
    assert ys.tolist() == [1, 3, 6, 10]


def test_derivatives() -> None:
    model = Model()
    changed, (value, gradient) = pax.lift(liftcore.value_and_grad, call)(model, X[1])
    assert (float(value), state(changed)) == (144, plain(X[1:2])[1])
    assert jax.tree.leaves(gradient) == [144, 96]
    changed, (y, pull) = pax.lift(liftcore.vjp, call)(model, X[1])
    assert (float(y), state(changed)) == (144, plain(X[1:2])[1])
    assert float(pull(1.0)[1]) == 144
    changed, (y, dy) = pax.lift(liftcore.jvp, call)(model, (X[1],), (1.0,), {"params": {}})
    assert (float(y), float(dy), state(changed)) == (144, 144, plain(X[1:2])[1])
    changed, jacobian = pax.lift(liftcore.jacrev, call)(model, X[1])
    assert jax.tree.leaves(jacobian) == [144, 96]
    assert state(changed) == plain(X[1:2])[1]


def test_rules_of_differentiation() -> None:
    def clipped(fn: Callable[..., Any]) -> Any:
        lifted = liftcore.custom_vjp(fn)
        lifted.defvjp(lambda scope, x: liftcore.vjp(fn)(scope, x), lambda pull, ct: pull(jnp.clip(ct, -1, 1)))
        return lifted

    def loss(model: Any, x: Any) -> Any:
        inner, y = pax.lift(clipped, Inner.__call__)(model.layers[0], x)
        model.layers[0] = inner
        return 100 * y

    (changed, value), gradient = pax.value_and_grad(loss)(Model(), X[1])
    assert (float(value), float(gradient.layers[0].w), state(changed)) == (400, 2, [2, 0, 0])


def test_checkify_and_eval_shape() -> None:
    changed, (error, y) = pax.lift(liftcore.checkify, call)(Model(), X[1])
    error.throw()
    assert ([float(y)], state(changed)) == plain(X[1:2])
    _, shape = pax.lift(liftcore.eval_shape, call)(Model(), X)
    assert shape.shape == (4,)


def test_a_lift_in_a_lift() -> None:
    def run(model: Any, xs: Any) -> Any:
        scan = pax.lift(liftcore.scan, step, variable_carry="state", variable_broadcast="params")
        changed, (_, ys) = scan(model, 0.0, xs)
        model.layers, model.count = changed.layers, changed.count
        return ys

    RUNS.clear()
    changed, ys = pax.lift(liftcore.jit, run)(Model(), X)
    results, states = plain(X)
    assert (ys.tolist(), state(changed), len(RUNS)) == (results, states, 1)


def test_plain_transformations_of_pure_functions() -> None:
    model = Model()
    changed, y = jax.jit(pax.module_and_value(model))(X[1])
    assert ([float(y)], state(changed)) == plain(X[1:2])
    changed, y = jax.jit(pax.module_and_value(model.__call__))(X[1])
    assert ([float(y)], state(changed)) == plain(X[1:2])
    changed, y = jax.jit(pax.module_and_value(call))(model, X[1])
    assert ([float(y)], state(changed)) == plain(X[1:2])
    assert state(model) == [0, 0, 0]

    @jax.jit
    @pax.pure
    def body(model: Any, x: Any) -> Any:
        y = model(x)
        return model, y

    changed, ys = jax.lax.scan(body, model, X)
    assert (ys.tolist(), state(changed)) == plain(X)
    assert state(model) == [0, 0, 0]
    assert float(pax.pure(model)(X[1])) == 144
    assert state(model) == [0, 0, 0]


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_gradients_are_modules_with_none_elsewhere() -> None:
    model = Model()
    (changed, (value, aux)), gradient = pax.value_and_grad(lambda m, x: (m(x), "aux"), has_aux=True)(model, X[1])
    assert (float(value), aux, state(changed), state(model)) == (144, "aux", plain(X[1:2])[1], [0, 0, 0])
    assert [float(layer.w) for layer in gradient.layers] == [144, 96]
    assert gradient.count is None
    assert gradient.layers[0].total is None
    assert jax.tree.structure(gradient) == jax.tree.structure(model.parameters())
    trained = changed.update(jax.tree.map(lambda p, g: p - 0.01 * g, changed.parameters(), gradient))
    assert [round(float(layer.w), 2) for layer in trained.layers] == [0.56, 2.04]
    assert state(trained) == state(changed)


def test_what_is_frozen_has_no_gradient() -> None:
    model = Model()
    model.layers[0] = model.layers[0].freeze()
    _, gradient = pax.value_and_grad(call)(model, X[1])
    assert gradient.layers[0].w is None
    assert float(gradient.layers[1].w) == 96
    with pytest.raises(LiftError, match=r"value_and_grad\(call\): the module has no parameter .*`module.unfreeze\(\)`"):
        pax.value_and_grad(call)(model.freeze(), X[1])


def test_a_compiled_step_is_traced_once() -> None:
    RUNS.clear()

    @jax.jit
    def train(model: Any, x: Any) -> Any:
        (model, loss), gradient = pax.value_and_grad(call)(model, x)
        return model.update(jax.tree.map(lambda p, g: p - 1e-4 * g, model.parameters(), gradient)), loss

    model, losses = Model(), []
    for _ in range(3):
        model, loss = train(model, X[1])
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert (int(model.count), len(RUNS)) == (3, 1)


# -- in models of scopes -----------------------------------------------------------------------------------------------


def _random(key: Any) -> Any:
    return Inner(1).update(_only_w(jax.random.normal(key)))


class Block(nn.Module):
    """A Linen-style module around a module."""

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return pax.adopt(self.scope.push("inner"), lambda key: Inner(1).update(_only_w(jax.random.normal(key))))(
            x
        ), None


def test_an_adopted_module_in_a_scan_of_checkpointed_blocks() -> None:
    blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0, "state": 0}, split_rngs={"params": True}, length=3)()
    variables = blocks.init(KEY, 2.0, None)
    w = variables["params"]["inner"]["w"]
    assert w.shape == (3,)
    assert len(set(w.tolist())) == 3
    (y, _), changed = blocks.apply(variables, 2.0, None, mutable=["state"])
    x, totals = 2.0, []
    for each, total in zip(w.tolist(), variables["state"]["inner"]["total"].tolist(), strict=True):
        totals.append(total + x)
        x = x * each
    np.testing.assert_allclose(y, x, rtol=1e-6)
    np.testing.assert_allclose(changed["state"]["inner"]["total"], totals, rtol=1e-6)
    with pytest.raises(ModifyScopeVariableError, match=r'"state/total".*mutable=\["state"\]'):
        blocks.apply(variables, 2.0, None)


def test_an_adopted_module_is_made_once_in_init() -> None:
    made = []

    def make(key: Any) -> Any:
        made.append(key)
        return Inner(4)

    def model(scope: Scope, x: Any) -> Any:
        inner = pax.adopt(scope.push("inner"), make)
        return inner(x) + inner(x)

    y, variables = liftcore.init(model)(KEY, 2.0)
    assert (float(y), len(made)) == (16, 1)
    assert variables == {"params": {"inner": {"w": 4}}, "state": {"inner": {"total": 4}}}
    (_, changed) = liftcore.apply(model, mutable="state")(variables, 2.0)
    assert changed == {"state": {"inner": {"total": 8}}}


def test_an_adopted_module_is_an_argument_of_filtered_functions() -> None:
    def model(scope: Scope, xs: Any) -> Any:
        inner = pax.adopt(scope.push("inner"), Inner(3))
        run = eqx.filter_jit(lambda inner, x: inner(x))
        return [run(inner, x) for x in xs]

    ys, variables = liftcore.init(model)(KEY, X)
    assert ([float(y) for y in ys], float(variables["state"]["inner"]["total"])) == ([3, 6, 9, 12], 10)


def test_explain_knows_adopted_modules() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return pax.adopt(scope.push("inner"), Inner(3))(x)

    elements = liftcore.vmap(model, variable_axes={"params": None, "state": 0})
    text = str(liftcore.explain(elements)(liftcore.bind({}, KEY, mutable=True), X))
    assert "params/inner/w" in text
    assert "state/inner/total" in text


def test_modules_in_filtered_functions() -> None:
    model = Model()
    changed, y = eqx.filter_jit(pax.module_and_value(call))(model, X[1])
    assert ([float(y)], state(changed)) == plain(X[1:2])
    gradient = eqx.filter_grad(pax.pure(call))(model, X[1])
    assert float(gradient.layers[0].w) == 144


# -- layers ------------------------------------------------------------------------------------------------------------


def test_layers_are_those_of_linen_like() -> None:
    x = jax.random.normal(KEY, (4, 6, 6, 3))
    dense = nn.Dense(5)
    params = dense.init(KEY, x)["params"]
    linear = pax.Linear(3, 5, key=KEY)
    np.testing.assert_array_equal(linear.kernel, params["kernel"])
    np.testing.assert_array_equal(linear(x), dense.apply({"params": params}, x))
    conv = pax.Conv(3, 5, (3, 3), key=KEY, strides=2)
    other = nn.Conv(5, (3, 3), strides=2)
    np.testing.assert_array_equal(conv(x), other.apply(other.init(KEY, x), x))


def test_batch_norm_updates_in_training_only() -> None:
    x = jax.random.normal(KEY, (8, 3))
    norm, other = pax.BatchNorm(3), nn.BatchNorm(momentum=0.99)
    variables = other.init(KEY, x, use_running_average=False)
    for _ in range(3):
        y = norm(x)
        expected, changed = other.apply(variables, x, use_running_average=False, mutable=["batch_stats"])
        variables = {**variables, **changed}
        np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(norm.mean, variables["batch_stats"]["mean"])
    away = norm.eval()
    before = away.mean
    np.testing.assert_array_equal(away(x), other.apply(variables, x, use_running_average=True))
    assert away.mean is before


def test_dropout_takes_another_key_each_time() -> None:
    dropout = pax.Dropout(0.5, key=KEY)
    one, two = dropout(jnp.ones(64)), dropout(jnp.ones(64))
    assert (one != two).any()
    assert set(one.tolist()) == {0, 2}
    assert (dropout.eval()(one) == one).all()


def test_a_layer_of_any_function_of_a_scope() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))
            return nn.Dropout(0.5, deterministic=False)(x)

    rngs, x = {"params": KEY, "dropout": KEY}, X[:, None] * jnp.ones(3)
    layer = pax.Layer(Net(), rngs, jax.ShapeDtypeStruct((2, 3), jnp.float32))
    y = layer(x, rngs={"dropout": KEY})
    variables = Net().init(rngs, x)
    expected, changed = Net().apply(variables, x, rngs={"dropout": KEY}, mutable=["batch_stats"])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(layer.BatchNorm_0.mean, changed["batch_stats"]["BatchNorm_0"]["mean"])
    assert layer.BatchNorm_0.name_to_kind["scale"] is pax.PaxKind.PARAMETER
    (_, _loss), gradient = pax.value_and_grad(lambda layer: layer(x, rngs=rngs).sum())(layer)
    assert gradient.Dense_0.kernel.shape == (3, 4)
    assert gradient.BatchNorm_0.mean is None


def test_two_variables_of_a_layer_have_two_paths() -> None:
    def fn(scope: Scope) -> None:
        scope.param("w", lambda key: 1.0)
        scope.variable("cache", "w", lambda: 1.0)

    with pytest.raises(LiftError, match=r'w of Layer: a variable of "(cache|params)" has the same name as another one'):
        pax.Layer(fn, KEY)


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_a_state_of_a_layer_may_become_a_dict() -> None:
    def fn(scope: Any) -> None:
        cache = scope.variable("cache", "last", lambda: jnp.zeros(()))
        if not scope.is_initializing():
            cache.value = {"count": jnp.ones(())}

    layer, _ = pax.module_and_value(pax.Layer(fn, KEY))()
    assert layer.last == {"count": 1.0}


def changes_statically(model: Any, x: Any) -> Any:
    model.layers[1].power = 3
    return x


def registers(model: Any, x: Any) -> Any:
    model.register_state("new", x)
    return x


def more_modules(model: Any, x: Any) -> Any:
    model.layers.append(Inner(1))
    return x


@pytest.mark.parametrize(
    ("misuse", "place"),
    [(changes_statically, r"layers\[1\].power"), (registers, "new"), (more_modules, "its children")],
)
def test_a_lift_changes_arrays_only(misuse: Any, place: str) -> None:
    model = Model()
    with pytest.raises(LiftError, match=rf"{misuse.__name__}: {place} of Model changed inside"):
        pax.lift(liftcore.jit, misuse)(model, X[0])
    assert len(model.layers) == 2
    assert "new" not in model.name_to_kind


def test_misuse_of_lifts() -> None:
    model = Model()
    with pytest.raises(LiftError, match=r'"params".*variable_broadcast|variable_broadcast.*"params"'):
        pax.lift(liftcore.scan, step, variable_carry="state")(model, 0.0, X)
    with pytest.raises(LiftError, match=r"lift\(jit\): expected a module as its first argument, given a float32"):
        pax.lift(liftcore.jit, call)(X)
    with pytest.raises(LiftError, match=r"lift\(jit\): expected a function whose first argument is the module"):
        pax.lift(liftcore.jit, model)
    with pytest.raises(LiftError, match=r"lift\(jit\): .* bound to a Inner. Write `lift\(…, Inner.__call__\)"):
        pax.lift(liftcore.jit, model.layers[0].__call__)
    with pytest.raises(LiftError, match=r"lift\(jit\): expected at least one function"):
        pax.lift(liftcore.jit)
    with pytest.raises(SharedModuleError, match=r"\[0\]\[1\] of the arguments: it is the same Model as \[0\]\[0\]"):
        pax.pure(lambda a, b: a)(model, model)
    with pytest.raises(LiftError, match=r"module_and_value\(<lambda>\): expected a module"):
        pax.module_and_value(lambda x: x)(X)
    assert NO_AXES == {}
