"""Filters over parameters in containers of all kinds: one walk for masks, labels, states, counts and files."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import equinox_like as eqx
import nnx_like as nnx
import pax_like as pax
from liftcore import struct
from liftcore.checkpoints import load_file, load_safetensors, match_state, save_file, save_safetensors
from liftcore.errors import LiftError
from liftcore.filters import All, DenyList, Not, OfType, Parameters, PathContains
from liftcore.frozen_dict import FrozenDict
from liftcore.meta import Partitioned
from liftcore.training import ExponentialMovingAverage, TrainState, count, labels, mask, part_of, size_bytes


class Equinox(eqx.Module):
    kernel: Any
    bias: Any
    name: str = eqx.field(static=True, default="layer")


class Pax(pax.Module):
    def __init__(self, kernel: Any, bias: Any) -> None:
        super().__init__()
        self.register_parameter("kernel", kernel)
        self.register_parameter("bias", bias)


@struct.dataclass
class Dataclass:
    kernel: Any
    bias: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["kernel", "bias"], meta_fields=[])
@dataclasses.dataclass
class Registered:
    kernel: Any
    bias: Any


Pair = namedtuple("Pair", ["kernel", "bias"])
CONTAINERS: dict[str, Any] = {
    "dict": lambda kernel, bias: {"kernel": kernel, "bias": bias},
    "ordered dict": lambda kernel, bias: OrderedDict(kernel=kernel, bias=bias),
    "default dict": lambda kernel, bias: defaultdict(dict, kernel=kernel, bias=bias),
    "frozen dict": lambda kernel, bias: FrozenDict({"kernel": kernel, "bias": bias}),
    "named tuple": Pair,
    "dataclass": Dataclass,
    "registered": Registered,
    "Equinox": Equinox,
    "Pax": Pax,
    "State": lambda kernel, bias: nnx.State({"kernel": kernel, "bias": bias}),
    "Variables": lambda kernel, bias: nnx.State({"kernel": nnx.Param(kernel), "bias": nnx.Param(bias)}),
    "boxes": lambda kernel, bias: {"kernel": Partitioned(kernel, (None, "x")), "bias": Partitioned(bias, ("x",))},
}


def layer(kind: str) -> Any:
    return CONTAINERS[kind](jnp.ones((2, 2)), jnp.ones(2))


def tree(kind: str) -> Any:
    """Three layers: in a list, in a tuple, and below a name."""
    return {"layers": [layer(kind), (layer(kind),)], "head": layer(kind)}


FIRST, SECOND, HEAD = "layers/0", "layers/1/0", "head"
BIASES = {f"{place}/bias" for place in (FIRST, SECOND, HEAD)}
KERNELS = {f"{place}/kernel" for place in (FIRST, SECOND, HEAD)}
CHOICES: dict[str, tuple[Any, set[str]]] = {
    "name": (PathContains("bias"), BIASES),
    "part of a name": (PathContains("kern", exact=False), KERNELS),
    "index": (PathContains(1), {f"{SECOND}/bias", f"{SECOND}/kernel"}),
    "index as text": (PathContains("1"), {f"{SECOND}/bias", f"{SECOND}/kernel"}),
    "negative": (DenyList(PathContains("bias")), KERNELS),
    "not an index": (Not(PathContains(0)), {f"{HEAD}/bias", f"{HEAD}/kernel"}),
    "all": (All("params", PathContains("head"), Not(PathContains("bias"))), {f"{HEAD}/kernel"}),
    "any": ((PathContains("head"), PathContains("kernel")), KERNELS | {f"{HEAD}/bias"}),
    "function": (lambda path, value: path[-1] == "bias" and "layers" in path, {f"{FIRST}/bias", f"{SECOND}/bias"}),
    "shape": (lambda path, value: len(jax.tree.leaves(value)[0].shape) == 1, BIASES),
    "collection": ("params", BIASES | KERNELS),
    "everything": (..., BIASES | KERNELS),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("name", CHOICES)
def test_every_use_of_a_filter_makes_the_same_choice(kind: str, name: str, tmp_path: Path) -> None:
    filter, expected = CHOICES[name]
    params = tree(kind)

    def chosen(answers: Any) -> set[str]:
        places = Parameters.of(answers)
        values = [jax.tree.leaves(value)[0] for value in places.values]
        return {"/".join(path) for path, value in zip(places.paths, values, strict=True) if value}

    assert chosen(mask(filter)(params)) == expected
    assert jax.tree.structure(mask(filter)(params)) == jax.tree.structure(
        jax.tree.map(lambda leaf: 0, params, is_leaf=lambda node: isinstance(node, Partitioned | nnx.Variable))
    )
    rules = {1: filter, 0: ...} if expected < BIASES | KERNELS else {1: filter}
    assert chosen(labels(rules)(params)) == expected
    numbers = sum(4 if path in KERNELS else 2 for path in expected)
    assert (count({"params": params}, filter), size_bytes({"params": params}, filter)) == (numbers, 4 * numbers)
    state = TrainState.create(apply_fn=None, params=params, tx=optax.sgd(1.0), trainable=filter)
    _, grads = state.value_and_grad(lambda params: sum(map(jnp.sum, jax.tree.leaves(params))))()
    after = state.apply_gradients(grads=grads).params
    assert jax.tree.structure(after) == jax.tree.structure(params)
    assert chosen(jax.tree.map(lambda leaf: (leaf == 0).all(), after)) == expected
    average = ExponentialMovingAverage.create({"params": params}, 0.5, only=filter).update({"params": after})
    moved = average.apply_to({"params": params})["params"]
    assert chosen(jax.tree.map(lambda leaf: (leaf == 0.5).all(), moved)) == expected
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), {"params": params})
    for save, load in ((save_file, load_file), (save_safetensors, load_safetensors)):
        save(tmp_path / "file", {"params": params})
        loaded = load(tmp_path / "file", zeros, filter=filter)["params"]
        assert chosen(jax.tree.map(lambda leaf: leaf.all(), loaded)) == expected
    answers = eqx.trainable(params, filter)
    assert chosen(answers) == expected
    assert jax.tree.structure(answers) == jax.tree.structure(params)


# --- filters that match nothing ---------------------------------------------------------------------------------------

MISSPELLED = {
    "mask": lambda params, filter: mask(filter)(params),
    "labels": lambda params, filter: labels({"a": filter, "b": ...})(params),
    "count": lambda params, filter: count({"params": params}, filter),
    "TrainState": lambda params, filter: TrainState.create(
        apply_fn=None, params=params, tx=optax.sgd(1.0), trainable=filter
    ),
    "average": lambda params, filter: ExponentialMovingAverage.create({"params": params}, 0.5, only=filter),
    "match_state": lambda params, filter: match_state({"params": params}, {}, filter=filter),
    "trainable": eqx.trainable,
    "Optimizer": lambda params, filter: nnx.Optimizer(nnx.State(params), optax.sgd(1.0), wrt=filter),
}


@pytest.mark.parametrize("use", MISSPELLED)
@pytest.mark.parametrize("filter", [PathContains("biass"), All("params", PathContains(7)), Not(PathContains("params"))])
def test_a_filter_that_matches_nothing_lists_the_closest_names(use: str, filter: Any) -> None:
    params = {"layers": [{"kernel": jnp.ones((2, 2))} for _ in range(7)], "norm": {"bias": jnp.ones(2)}}
    if use == "Optimizer":
        filter = PathContains("biass")
    with pytest.raises(LiftError, match="matches no") as caught:
        MISSPELLED[use](params, filter)
    if filter == PathContains("biass"):
        available = str(caught.value).partition("available: ")[2]
        assert available.removeprefix("params/").startswith("norm/bias, "), available
        assert "and 2 more" in available


# --- masks and labels of a part ---------------------------------------------------------------------------------------

MASK = mask(PathContains("kernel"))
LABELS = labels({"slow": PathContains("head"), "fast": ...})
OPTIMIZERS: dict[str, Any] = {
    "mask": lambda: optax.adamw(0.1, mask=MASK),
    "labels": lambda: optax.multi_transform({"slow": optax.sgd(0.01), "fast": optax.sgd(0.1)}, LABELS),
    "chain": lambda: optax.chain(optax.clip(1.0), optax.masked(optax.add_decayed_weights(0.1), MASK), optax.sgd(0.1)),
    "mask in labels": lambda: optax.multi_transform(
        {"slow": optax.adamw(0.1, mask=MASK), "fast": optax.adamw(0.1, mask=mask(PathContains("head")))}, LABELS
    ),
    "mask in a mask": lambda: optax.masked(optax.adamw(0.1, mask=MASK), mask(PathContains("bias"))),
    "MultiSteps": lambda: optax.MultiSteps(optax.adamw(0.1, mask=MASK), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["dict", "Equinox", "State"])
def test_masks_and_labels_may_be_about_what_is_frozen(name: str, kind: str) -> None:
    for filter in (PathContains("bias"), DenyList(PathContains("head")), PathContains("head"), True):
        state = TrainState.create(apply_fn=None, params=tree(kind), tx=OPTIMIZERS[name](), trainable=filter)
        grads = jax.tree.map(jnp.ones_like, state.trainable_params)
        after = state.apply_gradients(grads=grads)
        assert jax.tree.structure(after.params) == jax.tree.structure(state.params)
    wrong = optax.adamw(0.1, mask=mask(PathContains("kernell")))
    with pytest.raises(LiftError, match=r"kernell.*params/head/kernel, params/layers"):
        TrainState.create(apply_fn=None, params=tree(kind), tx=wrong, trainable=PathContains("bias"))


def test_an_optimizer_of_objects_may_have_masks_of_what_it_does_not_see() -> None:
    model = nnx.Dict(layers=nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(0))]))
    optimizer = nnx.Optimizer(model, optax.adamw(0.1, mask=MASK), wrt=nnx.PathContains("bias"))
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.PathContains("bias"))))
    assert float(model.layers[0].bias[0]) < 0
    kinds = mask(nnx.Param)(nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(0))))
    assert kinds == nnx.State({"bias": True, "mean": False, "scale": True, "var": False})


def test_a_part_may_be_seen_without_a_training_state() -> None:
    whole = tree("dict")
    part = {"head": {"bias": whole["head"]["bias"]}}
    with pytest.raises(LiftError, match="mask: the filter"):
        MASK(part)
    with part_of(lambda: whole):
        assert MASK(part) == {"head": {"bias": False}}
    hidden = {"head": {"bias": jnp.ones(2), "kernel": optax.MaskedNode()}, "rest": None}
    assert jax.tree.leaves(MASK(hidden)) == [False]
    assert jax.tree.leaves(mask(PathContains("rest"))(hidden)) == [False]
    assert jax.tree.leaves(mask(lambda path, value: value.ndim == 2)(hidden)) == [False]
    with pytest.raises(LiftError, match="mask: the filter"):
        mask(PathContains("kernell"))(hidden)


# --- what is chosen ---------------------------------------------------------------------------------------------------


def test_a_box_is_one_variable_for_every_filter(tmp_path: Path) -> None:
    boxed, plain = Partitioned(jnp.ones((2, 2)), (None, "x")), jnp.ones(2)
    params = {"layers": [{"kernel": boxed, "bias": plain}]}
    for filter in (OfType(Partitioned), lambda path, value: path[-1] == "kernel", Not(PathContains("bias"))):
        assert mask(filter)(params) == {"layers": [{"kernel": True, "bias": False}]}
        assert count({"params": params}, filter) == 4
        zeros = jax.tree.map(jnp.zeros_like, {"params": params})
        for save, load in ((save_file, load_file), (save_safetensors, load_safetensors)):
            save(tmp_path / "file", {"params": params})
            loaded = load(tmp_path / "file", zeros, filter=filter)["params"]["layers"][0]
            assert float(loaded["kernel"].value.sum()) == 4 > float(loaded["bias"].sum()) == 0


@pytest.mark.parametrize("filter", [PathContains("w"), Not(PathContains("w"))])
def test_nodes_without_a_chosen_variable_stay_in_a_part(filter: Any) -> None:
    params = jax.tree_util.Partial(max, jnp.ones(1), w=jnp.ones(1))
    places = Parameters.of(params)
    part = places.part(places.chosen("test", filter))
    assert isinstance(part, jax.tree_util.Partial)
    assert len(jax.tree.leaves(part)) == 1


def test_what_is_not_trained_has_no_place_in_mappings_and_none_elsewhere() -> None:
    layers = [{"kernel": 1.0, "bias": 2.0}, Pair(3.0, 4.0), Equinox(5.0, None), (6.0,), {}]
    places = Parameters.of(layers, ("params",))
    part = places.part(places.chosen("test", PathContains("kernel")))
    assert part == [{"kernel": 1.0}, Pair(3.0, None), Equinox(5.0, None), (None,), {}]
    assert places.part([True] * len(places.paths)) is layers
    state = TrainState.create(apply_fn=None, params=layers, tx=optax.sgd(1.0), trainable=PathContains("kernel"))
    whole = state.with_trainable([{"kernel": 7.0}, Pair(8.0, None), Equinox(9.0, None), (None,), {}])
    assert whole == [{"kernel": 7.0, "bias": 2.0}, Pair(8.0, 4.0), Equinox(9.0, None), (6.0,), {}]
    with pytest.raises(LiftError, match="unexpected 1/bias"):
        state.with_trainable([{"kernel": 7.0}, Pair(8.0, 8.0), Equinox(9.0, None), (None,), {}])
    with pytest.raises(LiftError, match="grads: unexpected 1/bias"):
        state.apply_gradients(grads=[{"kernel": 7.0}, Pair(8.0, 8.0), Equinox(9.0, None), (None,), {}])


@pytest.mark.parametrize("filter", [True, None, "params", PathContains("0")])
def test_parameters_may_be_a_module_an_item_or_one_array(filter: Any) -> None:
    for params in (Equinox(jnp.ones(2), None), [jnp.ones(2)], (Pair(jnp.ones(2), jnp.ones(2)),)):
        if filter == PathContains("0") and isinstance(params, Equinox):
            continue
        state = TrainState.create(apply_fn=None, params=params, tx=optax.sgd(1.0), trainable=filter)
        after = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.trainable_params)).params
        assert jax.tree.structure(after) == jax.tree.structure(params)
        assert float(jax.tree.leaves(after)[0][0]) == (1 if filter is None else 0)
        assert count(params, filter) == (0 if filter is None else sum(map(jnp.size, jax.tree.leaves(params))))
    assert mask("params")(jnp.ones(2)) is True
