"""What a training script pickles: optimizers and training states, whose transformations are closures."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import nnx_like as nnx
from liftcore.errors import SerializationError
from liftcore.training import TrainState

TRANSFORMATIONS = {
    "sgd": optax.sgd(0.1),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 10))),
    "partition": optax.partition({"a": optax.adam(0.1)}, lambda params: jax.tree.map(lambda _: "a", params)),
}


def model() -> Any:
    return nnx.Dict(w=nnx.Param(jnp.array([3.0, 4.0])))


def of_state(tx: Any) -> Any:
    return TrainState.create(apply_fn=lambda params, x: params["w"] * x, params={"w": jnp.ones(2)}, tx=tx)


def of_nnx_state(tx: Any) -> Any:
    graphdef, params = nnx.split(model())
    return nnx.TrainState.create(graphdef, params=params, tx=tx)


def stepped(state: Any) -> Any:
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params)).params


def updated(optimizer: Any) -> Any:
    own = getattr(optimizer, "model", None)
    if own is not None:
        return optimizer.update(nnx.state(own))
    return optimizer.update(one := model(), nnx.state(one))


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "TrainState": (of_state, stepped),
    "nnx.TrainState": (of_nnx_state, stepped),
    "nnx.Optimizer": (lambda tx: nnx.Optimizer(model(), tx, wrt=nnx.Param), updated),
    "nnx.ModelAndOptimizer": (lambda tx: nnx.ModelAndOptimizer(model(), tx), updated),
    "nnx.split": (
        lambda tx: nnx.split(nnx.Optimizer(model(), tx, wrt=nnx.Param)),
        lambda parts: updated(nnx.merge(*parts)),
    ),
}
"""How each kind is made with a transformation, and a step that it takes."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_was_pickled_takes_the_same_step(kind: str, name: str) -> None:
    pytest.importorskip("cloudpickle")
    make, step = KINDS[kind]
    made = make(TRANSFORMATIONS[name])
    again = [pickle.loads(pickle.dumps(made)), copy.deepcopy(made)]
    steps = [jax.tree.leaves(step(one)) for one in (*again, made)]
    assert all(jnp.array_equal(one, steps[-1][0]) for (one,) in steps)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_package_the_error_names_the_closure_and_the_package(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    made = KINDS[kind][0](optax.sgd(0.1))
    with pytest.raises(SerializationError, match=r"pickle of .*: .*<locals>.*pip install cloudpickle"):
        pickle.dumps(made)
    copy.deepcopy(made)


@pytest.mark.parametrize("kind", ["TrainState", "nnx.TrainState", "nnx.Optimizer"])
def test_copies_have_the_same_transformation(kind: str) -> None:
    """So they share what was compiled."""
    made = KINDS[kind][0](TRANSFORMATIONS["chain"])
    assert copy.copy(made).tx is made.tx
    assert copy.deepcopy(made).tx == made.tx


def by_name(params: Any, x: Any) -> Any:
    return params["w"] * x


def test_functions_with_a_name_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    tx = optax.GradientTransformation(optax.init_empty_state, by_name)
    state = TrainState(step=0, apply_fn=by_name, params={"w": jnp.ones(2)}, tx=tx, opt_state=None)
    assert pickle.loads(pickle.dumps(state)).tx == tx
