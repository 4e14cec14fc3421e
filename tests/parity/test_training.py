"""Training state, loss scaling, early stopping, cursors and traversals do what those of flax do."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from liftcore import serialization, training, traverse_util
from liftcore.cursor import cursor
from liftcore.frozen_dict import FrozenDict

flax = pytest.importorskip("flax")
optax = pytest.importorskip("optax")

SERIALIZATION = importlib.import_module("flax.serialization")
TRAIN_STATE = importlib.import_module("flax.training.train_state")
DYNAMIC_SCALE = importlib.import_module("flax.training.dynamic_scale")
EARLY_STOPPING = importlib.import_module("flax.training.early_stopping")
CURSOR = importlib.import_module("flax.cursor")
THEIR_TRAVERSALS = importlib.import_module("flax.traverse_util")


def equal(a: Any, b: Any) -> bool:
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))


PARAMS = {"dense": {"kernel": jnp.arange(6.0).reshape(3, 2), "bias": jnp.ones(2, jnp.bfloat16)}}
TX = {
    "adamw": lambda: optax.adamw(0.1),
    "chain": lambda: optax.chain(optax.clip(0.5), optax.sgd(0.1, momentum=0.9)),
    "steps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
}


@pytest.mark.parametrize("name", TX)
def test_steps_and_state_dicts_are_those_of_flax(name: str) -> None:
    tx = TX[name]()
    ours, theirs = (
        cls.create(apply_fn=len, params=PARAMS, tx=tx) for cls in (training.TrainState, TRAIN_STATE.TrainState)
    )
    for scale in (1.0, -2.0, 0.5):
        grads = jax.tree.map(lambda leaf, scale=scale: (scale * leaf).astype(leaf.dtype), PARAMS)
        ours, theirs = ours.apply_gradients(grads=grads), theirs.apply_gradients(grads=grads)
        assert equal(ours, theirs)
    state, expected = serialization.to_state_dict(ours), SERIALIZATION.to_state_dict(theirs)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    fresh = training.TrainState.create(apply_fn=len, params=PARAMS, tx=tx)
    assert equal(serialization.from_bytes(fresh, SERIALIZATION.to_bytes(theirs)), ours)
    fields = [field.name for field in dataclasses.fields(ours)]
    assert fields == [*(field.name for field in dataclasses.fields(theirs)), "trainable", "model_state", "rngs"]


def test_values_of_fp8_are_overwritten_by_their_gradients_as_in_flax() -> None:
    model = linen_like.Dense(4, dot_general_cls=linen_like.Fp8DotGeneralOp)
    x = jax.random.normal(jax.random.key(1), (8, 16))
    variables = model.init(jax.random.key(0), x)
    ours, theirs = (
        cls.create(apply_fn=model.apply, params=variables, tx=optax.adam(0.1))
        for cls in (training.TrainState, TRAIN_STATE.TrainState)
    )
    assert equal(ours.opt_state, theirs.opt_state)
    for _ in range(2):
        grads = jax.grad(lambda params: model.apply(params, x).mean())(ours.params)
        _, found = ours.value_and_grad(lambda params: model.apply(params, x).mean())()
        assert equal(found, grads)
        ours, theirs = ours.apply_gradients(grads=grads), theirs.apply_gradients(grads=grads)
        assert equal(ours, theirs)


SCALES: list[dict[str, Any]] = [
    {},
    {"growth_interval": 2, "scale": 2.0**120},
    {"minimum_scale": None, "scale": 2.0**-140},
]


@pytest.mark.parametrize("options", SCALES)
@pytest.mark.parametrize("has_aux", [False, True])
def test_scales_are_those_of_flax(options: dict[str, Any], has_aux: bool) -> None:
    def fun(w: Any, factor: Any) -> Any:
        value = (factor * w["a"] ** 2).sum()
        return (value, w["a"] + 1) if has_aux else value

    ours, theirs = training.DynamicScale(**options), DYNAMIC_SCALE.DynamicScale(**options)
    w = {"a": jnp.array([1.0, 3.0], jnp.float16)}
    for factor in (1.0, 1.0, 1.0, float("inf"), 1.0, float("nan"), 2.0):
        found = jax.jit(lambda scale, *args: scale.value_and_grad(fun, has_aux=has_aux)(*args))(ours, w, factor)
        expected = jax.jit(lambda scale, *args: scale.value_and_grad(fun, has_aux=has_aux)(*args))(theirs, w, factor)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        assert found._fields == expected._fields
        ours, theirs = found.dynamic_scale, expected.dynamic_scale
    default, their_default = training.DynamicScale(), DYNAMIC_SCALE.DynamicScale()
    assert dataclasses.asdict(default) == pytest.approx(dataclasses.asdict(their_default))


def test_gradients_are_averaged_over_an_axis_as_in_flax() -> None:
    def run(cls: Any) -> Any:
        scaled = cls().value_and_grad(lambda w: w**2, axis_name="batch")
        return jax.vmap(scaled, axis_name="batch")(jnp.arange(3.0))

    assert equal(run(training.DynamicScale), run(DYNAMIC_SCALE.DynamicScale))


@pytest.mark.parametrize("options", [{}, {"min_delta": 0.5, "patience": 1}, {"patience": 2}])
def test_early_stopping_is_that_of_flax(options: dict[str, Any]) -> None:
    def fields_of(stopping: Any) -> dict[str, Any]:
        return {"best": None, "mode": "min", **dataclasses.asdict(stopping)}  # theirs keeps no values, and minimizes

    ours, theirs = training.EarlyStopping(**options), EARLY_STOPPING.EarlyStopping(**options)
    for metric in (4.0, 3.8, 3.0, 3.0, 3.1, 2.9, 5.0, 5.0, 5.0, 1.0):
        ours, theirs = ours.update(metric), theirs.update(metric)
        assert fields_of(ours) == fields_of(theirs)
    assert fields_of(ours.reset()) == fields_of(theirs.reset())


class Pair(NamedTuple):
    first: Any
    second: Any


def tree(frozen: Any) -> dict[str, Any]:
    return {"a": [1, {"b": (2, 3)}], "pair": Pair(4, [5]), "frozen": frozen({"x": {"y": 8}}), "w": 9}


def edited(make: Any) -> Any:
    edit = make()
    edit["a"][1]["b"][0] += 10
    edit["a"][0] = edit["w"] * 2
    edit["pair"].first = {"new": 1}
    edit["pair"].first["new"] -= 3
    edit["new"] = 7
    return edit.build()


def found(make: Any) -> Any:
    edit = make()
    for one in edit.find_all(lambda path, value: path in ("a/1", "pair/second") or value == 8):
        edit["seen"] = [one.build(), *(edit["seen"].build() if "seen" in edit.build() else [])]
    edit.find(lambda path, value: "y" in path).set(0)
    return edit.build()


def updated(make: Any) -> Any:
    asked: list[Any] = []

    def update(path: str, value: Any) -> Any:
        asked.append(path)
        return value + 1 if isinstance(value, int) else "b" if path == "a/1" else value

    return make().apply_update(update).build(), asked


@pytest.mark.parametrize("use", [edited, found, updated, lambda make: make()["pair"][1][-1].set(3)])
def test_cursors_edit_as_those_of_flax(use: Any) -> None:
    ours = use(lambda: cursor(tree(FrozenDict)))
    theirs = use(lambda: CURSOR.cursor(tree(flax.core.FrozenDict)))
    assert repr(ours) == repr(theirs)


def test_methods_of_cursors_have_the_names_of_flax() -> None:
    names = {name for name in dir(CURSOR.Cursor) if not name.startswith("_")}
    assert names <= set(dir(cursor({})))


TRAVERSALS = {
    "each": lambda t: t["a"].each(),
    "tree": lambda t: t.tree(),
    "filter": lambda t: t.tree().filter(lambda x: x > 3),
    "merge": lambda t: t.merge(t["pair"].second.each(), t["a"][1]["b"]),
    "compose": lambda t: t["frozen"].compose(t["x"]),
}


WARNS = pytest.mark.filterwarnings("ignore:.*will be deprecated:DeprecationWarning")


@WARNS
@pytest.mark.parametrize("name", TRAVERSALS)
def test_traversals_are_those_of_flax(name: str) -> None:
    results = []
    for module, frozen in ((traverse_util, FrozenDict), (THEIR_TRAVERSALS, dict)):
        traversal, given = TRAVERSALS[name](module.t_identity), tree(frozen)
        values = list(traversal.iterate(given))
        new = traversal.update(lambda value: (value,), given)
        results.append((values, new, traversal.set(list(range(len(values))), given)))
    ours, theirs = results
    assert ours == theirs


@WARNS
def test_parameters_are_traversed_as_in_flax() -> None:
    seen: list[list[Any]] = []
    params = {"l": {"kernel": 1, "bias": 2}, "deep": {"er": {"kernel": 3}}, "e": {}}
    for module in (traverse_util, THEIR_TRAVERSALS):
        paths: list[Any] = []
        kernels = module.ModelParamTraversal(lambda path, value, paths=paths: paths.append(path) or "kernel" in path)
        seen.append([kernels.update(lambda x: 10 * x, params), sorted(kernels.iterate(params)), sorted(set(paths))])
    assert seen[0] == seen[1]
