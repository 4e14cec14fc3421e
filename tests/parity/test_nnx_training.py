"""Optimizers, metrics and averages have the numbers, the variables and the paths of those of `flax.nnx`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

LOGITS = jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
LABELS = jnp.array([1, 1, 0])


def make(nnx: Any) -> Any:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.kernel = nnx.Param(jnp.arange(4.0).reshape(2, 2), names="ab")
            self.layers = nnx.List([nnx.Param(jnp.ones(2)), nnx.LoRAParam(jnp.ones((), jnp.bfloat16))])
            self.seen = nnx.BatchStat(jnp.zeros(()))

    return Model()


def leaves(nnx: Any, node: Any) -> list[tuple[Any, ...]]:
    """Path, kind, dtype and value of each variable below an object."""
    found = []
    for path, leaf in nnx.to_flat_state(nnx.state(node)):
        value = leaf.get_value()  # of what optax masks, a pytree without leaves
        arrays = [(str(one.dtype), np.asarray(one, np.float32).tolist()) for one in jax.tree.leaves(value)]
        found.append((path, type(leaf).__name__, arrays))
    return found


def gradients(nnx: Any, model: Any, wrt: Any) -> Any:
    return jax.tree.map(lambda x: 3 * jnp.ones_like(x) + x, nnx.state(model, wrt))


def trained(tx: Any, wrt: Callable[[Any], Any] = lambda nnx: nnx.Param, older: bool = False, **kwargs: Any) -> Any:
    def program(nnx: Any) -> Any:
        model = make(nnx)
        optimizer = nnx.ModelAndOptimizer(model, tx) if older else nnx.Optimizer(model, tx, wrt=wrt(nnx))
        given = []
        for _ in range(2):
            grads = gradients(nnx, model, wrt(nnx))
            given.append(optimizer.update(grads, **kwargs) if older else optimizer.update(model, grads, **kwargs))
        arrays = [jax.tree.map(lambda x: np.asarray(x, np.float32).tolist(), nnx.to_pure_dict(one)) for one in given]
        return leaves(nnx, optimizer), leaves(nnx, model), arrays

    return program


def measured(make_metric: Callable[[Any], Any], *updates: dict[str, Any]) -> Any:
    def program(nnx: Any) -> Any:
        metric, seen = make_metric(nnx), []
        for update in updates:
            metric.update(**update)
            seen.append([leaves(nnx, metric), np.asarray(jax.tree.leaves(metric.compute())).tolist()])
        metric.reset()
        return seen, leaves(nnx, metric)

    return program


def averaged(nnx: Any) -> Any:
    model = make(nnx)
    ema = nnx.EMA(model, decay=0.9, only=nnx.Param)
    applied = ema.apply_to(model)
    model.kernel[...] = model.kernel[...] * 2
    model.seen[...] = model.seen[...] + 1
    ema.update(model)
    ema.update(nnx.state(model, nnx.Param))
    found = [leaf for leaf in leaves(nnx, ema) if leaf[0][0] != "wide"]  # flax averages in half precision
    return found, leaves(nnx, applied), ema.decay, ema.filter.__name__


def stepped(nnx: Any) -> Any:
    graphdef, params, _ = nnx.split(make(nnx), nnx.Param, ...)
    train = nnx.TrainState.create(graphdef, params=params, tx=optax.adam(1e-2), step=3)
    train = train.apply_gradients(jax.tree.map(jnp.ones_like, params))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(train)]
    return int(train.step), str(train.step.dtype), leaves(nnx, train.params), leaves(nnx, params), paths


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sgd": trained(optax.sgd(0.1)),
    "momentum": trained(optax.sgd(0.1, momentum=0.9), lambda nnx: (nnx.Param, nnx.BatchStat)),
    "adam": trained(optax.adam(1e-2)),
    "path": trained(optax.adam(1e-2), lambda nnx: nnx.PathContains("layers")),
    "kind": trained(optax.adamw(1e-2), lambda nnx: nnx.LoRAParam),
    "nothing": trained(optax.adam(1e-2), lambda nnx: nnx.Cache),
    "schedule": trained(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(1.0, 0.0, 10)))),
    "inject": trained(optax.inject_hyperparams(optax.adam)(learning_rate=0.1)),
    "masked": trained(
        optax.masked(optax.sgd(0.1, momentum=0.9), lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree))
    ),
    "MultiSteps": trained(optax.MultiSteps(optax.adam(1e-2), 2)),
    "older form": trained(optax.adam(1e-2), older=True),
    "further arguments": trained(optax.sgd(0.1), value=1.0),
    "Average": measured(
        lambda nnx: nnx.metrics.Average("loss"),
        {"loss": jnp.arange(4)},
        {"loss": 2},
        {"loss": 2.5, "other": 1},
        {"loss": np.arange(3.0)},
        {"loss": jnp.array([True, False])},
        {"loss": jnp.ones((2, 3), jnp.bfloat16)},
        {"loss": jnp.arange(3.0), "mask": jnp.array([1.0, 0.0, 1.0])},
        {"loss": jnp.arange(3.0), "mask": jnp.array([True, False, True])},
    ),
    "Accuracy": measured(
        lambda nnx: nnx.metrics.Accuracy(),
        {"logits": LOGITS, "labels": LABELS},
        {"logits": np.asarray(LOGITS), "labels": np.asarray(LABELS), "mask": jnp.array([1, 0, 1])},
    ),
    "threshold": measured(
        lambda nnx: nnx.metrics.Accuracy(threshold=0.5), {"logits": LOGITS[:, 0], "labels": LABELS, "values": 3}
    ),
    "Welford": measured(
        lambda nnx: nnx.metrics.Welford("x"),
        {"x": jnp.arange(5.0)},
        {"x": 3},
        {"x": jnp.ones((2, 2))},
        {"x": np.arange(3) + 1e6},
    ),
    "MultiMetric": measured(
        lambda nnx: nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average()),
        {"logits": LOGITS, "labels": LABELS, "values": jnp.ones(3)},
        {"logits": LOGITS, "labels": LABELS, "values": jnp.ones(3), "mask": jnp.array([1, 0, 0])},
        {"logits": LOGITS, "labels": LABELS, "values": jnp.ones(3), "mask": {"loss": jnp.array([1, 0, 0])}},
    ),
    "EMA": averaged,
    "TrainState": stepped,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_variables(name: str) -> None:
    ours, theirs = PROGRAMS[name](nnx_like), PROGRAMS[name](nnx)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine == other or (mine != mine and other != other)  # nan is not itself


REFUSED: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "wrt": (TypeError, lambda nnx: nnx.Optimizer(make(nnx), optax.sgd(0.1))),
    "wrt by position": (TypeError, lambda nnx: nnx.Optimizer(make(nnx), optax.sgd(0.1), nnx.Param)),
    "grads": (TypeError, lambda nnx: nnx.Optimizer(make(nnx), optax.sgd(0.1), wrt=nnx.Param).update(make(nnx))),
    "model": (AttributeError, lambda nnx: nnx.Optimizer(make(nnx), optax.sgd(0.1), wrt=nnx.Param).model),
    "older form": (TypeError, lambda nnx: nnx.ModelAndOptimizer(make(nnx), optax.sgd(0.1)).update(make(nnx), 1)),
    "values": (TypeError, lambda nnx: nnx.metrics.Average().update(loss=1)),
    "mask": (ValueError, lambda nnx: nnx.metrics.Average().update(values=1, mask=jnp.ones(1))),
    "threshold": (TypeError, lambda nnx: nnx.metrics.Accuracy(threshold="a")),
    "classes": (ValueError, lambda nnx: nnx.metrics.Accuracy().update(logits=LOGITS, labels=LOGITS)),
    "labels": (ValueError, lambda nnx: nnx.metrics.Accuracy().update(logits=LOGITS, labels=jnp.ones(3))),
    "base": (NotImplementedError, lambda nnx: nnx.metrics.Metric()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_there_is_refused_here(name: str) -> None:
    error, program = REFUSED[name]
    for package in (nnx, nnx_like):
        with pytest.raises(error):
            program(package)
