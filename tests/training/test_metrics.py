"""Metrics are sums: in any order, in loops, over devices and over short batches they are those of all examples."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import nnx_like as nnx
import pax_like as pax
from liftcore.errors import AxisSizeError, LiftArgumentError
from liftcore.serialization import from_bytes, to_bytes
from liftcore.struct import field
from liftcore.training import Accuracy, Average, Metric, MultiMetric, evaluate

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(10, 3)).astype(np.float32), RNG.integers(3, size=10)
LOSSES = RNG.normal(size=10).astype(np.float32)


def both() -> Any:
    return MultiMetric({"accuracy": Accuracy(), "loss": Average("loss")})


def over(rows: Any) -> dict[str, Any]:
    return {"logits": LOGITS[rows], "labels": LABELS[rows], "loss": LOSSES[rows]}


def close(one: Any, other: Any) -> bool:
    return bool(jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-6), one, other)))


WHOLE = {"accuracy": np.mean(LOGITS.argmax(-1) == LABELS), "loss": LOSSES.mean()}


@pytest.mark.parametrize("cuts", [[], [3], [0, 4, 4], [1, 2, 9, 10]])
def test_the_parts_of_the_data_may_be_merged_in_any_way(cuts: list[int]) -> None:
    parts = [np.arange(10)[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 10], strict=True)]
    updated, merged = both(), both()
    for rows in parts:
        updated = updated.update(**over(rows))
        merged = both().update(**over(rows)).merge(merged)
    assert close(updated.compute(), WHOLE)
    assert close(merged.compute(), WHOLE)


def test_metrics_go_through_jit_scan_and_devices() -> None:
    batches = jax.tree.map(lambda leaf: leaf.reshape(5, 2, *leaf.shape[1:]), over(slice(None)))
    scanned, _ = jax.jit(
        lambda metrics: jax.lax.scan(lambda metrics, one: (metrics.update(**one), None), metrics, batches)
    )(both())
    assert close(scanned.compute(), WHOLE)
    mapped = jax.vmap(lambda one: both().update(**one).reduce("data").compute(), axis_name="data", out_axes=0)(batches)
    assert close(jax.tree.map(lambda leaf: leaf[3], mapped), WHOLE)
    assert close(scanned.reset().update(**over(slice(None))).compute(), WHOLE)


def test_metrics_are_those_of_nnx() -> None:
    theirs = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    ours, mask = both(), np.arange(10) % 3 > 0
    theirs.update(**jax.tree.map(jnp.asarray, over(slice(None))), mask=jnp.asarray(mask))
    assert close(ours.update(**over(slice(None)), mask=mask).compute(), theirs.compute())


def test_a_mask_has_the_first_axes_and_may_be_weights() -> None:
    values, mask = RNG.normal(size=(4, 3)), np.array([1, 0, 1, 0])
    assert close(Average().update(values=values, mask=mask).compute(), values[::2].mean())
    weights = RNG.uniform(size=(4, 3))
    assert close(Average().update(values=values, mask=weights).compute(), np.average(values, weights=weights))
    hidden = Average().update(values=np.array([1.0, np.nan]), mask=np.array([True, False]))
    assert hidden.compute() == 1


def test_half_precision_and_integers_are_summed_in_float32() -> None:
    assert Average().update(values=jnp.ones(3000, jnp.bfloat16)).total == 3000
    found = Average().update(values=jnp.full(1000, 127, jnp.int8))
    assert (found.total.dtype, float(found.compute())) == (jnp.float32, 127.0)
    with jax.enable_x64(True):
        assert Average().update(values=np.ones(2)).total.dtype == jnp.float32


def test_accuracy_takes_a_threshold_and_more_axes() -> None:
    scores, labels = np.array([[0.2, 0.7], [0.9, 0.4]]), np.array([[0, 1], [0, 0]])
    assert Accuracy(threshold=0.5).update(logits=scores, labels=labels).compute() == 0.75
    assert Accuracy().update(logits=np.eye(2)[None], labels=np.array([[0, 0]])).compute() == 0.5


def test_a_metric_of_nothing_is_not_a_number_and_is_saved() -> None:
    assert jnp.isnan(Average().compute())
    saved = both().update(**over(slice(None)))
    assert close(from_bytes(both(), to_bytes(saved)).compute(), WHOLE)


class Confusion(Metric):
    counts: Any = field(default_factory=lambda: np.zeros((3, 3), np.int32))

    def update(self, *, logits: Any, labels: Any, mask: Any, **_: Any) -> Any:
        counts = jnp.zeros((3, 3), jnp.int32).at[labels, logits.argmax(-1)].add(mask.astype(jnp.int32))
        return self.merge(Confusion(counts))

    def compute(self) -> Any:
        return self.counts


def measure(scale: Any, logits: Any, labels: Any, loss: Any) -> Any:
    return {"logits": scale * logits, "labels": labels, "loss": loss}


@pytest.mark.parametrize("size", [1, 3, 4, 10, 16])
def test_a_short_batch_counts_each_example_once(size: int) -> None:
    traces = []

    def counted(*args: Any) -> Any:
        traces.append(1)
        return measure(*args)

    batches = [tuple(over(slice(start, start + size)).values()) for start in range(0, 10, size)]
    assert close(evaluate(counted, 1.0, batches, both()), WHOLE)
    assert len(traces) == 1
    confusion = evaluate(measure, 1.0, batches, Confusion())
    assert confusion.sum() == 10
    assert np.trace(confusion) == round(10 * WHOLE["accuracy"])


def test_an_evaluation_averages_what_it_is_given() -> None:
    def squares(scale: Any, batch: Any) -> Any:
        return {"square": (scale * batch["x"]) ** 2, "mask": batch["valid"]}

    x, valid = RNG.normal(size=(5, 4)), RNG.integers(2, size=(5, 4))
    batches = [{"x": x[start : start + 2], "valid": valid[start : start + 2]} for start in (0, 2, 4)]
    found = evaluate(squares, 2.0, batches)
    assert list(found) == ["square"]
    assert close(found["square"], ((2 * x) ** 2 * valid).sum() / valid.sum())


def test_an_evaluation_continues_from_metrics() -> None:
    begun = Average("loss").update(loss=np.zeros(10))
    assert close(evaluate(measure, 1.0, [tuple(over(slice(None)).values())], begun), LOSSES.mean() / 2)


class Layer(eqx.Module):
    w: Any
    activation: Any

    def __call__(self, x: Any) -> Any:
        return self.activation(x @ self.w)


STYLES = {
    "nnx_like": (lambda: nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.jit),
    "pax_like": (lambda: pax.Linear(3, 1, key=jax.random.key(0)), jax.jit),
    "equinox_like": (lambda: Layer(jnp.ones((3, 1)), jnp.tanh), eqx.filter_jit),
}


@pytest.mark.parametrize("style", STYLES)
def test_an_evaluation_takes_models_of_all_styles(style: str) -> None:
    make, jit = STYLES[style]
    net: Any = make()
    found = evaluate(lambda net, x: {"out": net(x)}, net, [LOGITS[:8], LOGITS[8:]], jit=jit)
    assert close(found["out"], net(LOGITS).mean())


class Held:
    """A callable with a method, whose results depend on an attribute."""

    w = 2.0

    def __eq__(self, other: object) -> bool:  # without a hash
        return isinstance(other, Held)

    def measure(self, _: Any, x: Any) -> Any:
        return {"out": self.w * x}

    __call__ = measure


@pytest.mark.parametrize("call", [lambda held: held, lambda held: held.measure, lambda held: partial(held.measure)])
def test_an_evaluation_uses_the_present_values_of_an_object(call: Any) -> None:
    held = Held()
    assert evaluate(call(held), None, [jnp.ones(2)])["out"] == 2
    held.w = 5.0
    assert evaluate(call(held), None, [jnp.ones(2)])["out"] == 5


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit])
def test_an_evaluation_keeps_the_program_of_a_function_and_no_function(wrap: Any) -> None:
    traces = []

    def jit(fn: Any) -> Any:
        traces.append(1)
        return jax.jit(fn)

    fn = wrap(lambda _, x: {"out": x})
    for _ in range(3):
        evaluate(fn, None, [jnp.ones(2)], jit=jit)
    assert len(traces) == 1
    gone = weakref.ref(fn)
    del fn
    gc.collect()
    assert gone() is None


def test_an_evaluation_makes_the_check_of_its_jit() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones(()))

        def measure(self, _: Any, x: Any) -> Any:
            return {"out": self.w * x}

    with pytest.raises(LiftArgumentError, match="it is a method bound to one Net"):
        evaluate(Net().measure, None, [jnp.ones(2)], jit=nnx.jit)


def test_an_average_of_complex_values_has_a_complex_sum() -> None:
    values = jnp.array([1 + 2j, 3 - 4j])
    begun = Average(total=jnp.zeros((), jnp.complex64))
    average = begun.update(values=values).update(values=values + 2, mask=jnp.array([True, False]))
    assert abs(average.compute() - 7 / 3) < 1e-6
    assert average.weight.dtype == jnp.float32


ERRORS = {
    "no batch": (lambda: evaluate(measure, 1.0, []), LiftArgumentError, "there is no example"),
    "empty batches": (lambda: evaluate(lambda _, x: {"x": x}, 1.0, [LOGITS[:0]]), LiftArgumentError, "no example"),
    "an array": (
        lambda: evaluate(lambda _, x: x, 1.0, [LOGITS]),
        LiftArgumentError,
        "expected the function to return a dict",
    ),
    "a mean": (lambda: evaluate(lambda _, x: {"m": x.mean()}, 1.0, [LOGITS]), LiftArgumentError, 'value of "m" for'),
    "sizes": (lambda: evaluate(measure, 1.0, [(LOGITS, LABELS[:3], LOSSES)]), AxisSizeError, "1: 3"),
    "merge": (lambda: Average().merge(Accuracy()), LiftArgumentError, "expected a metric like this Average"),
    "no values": (lambda: Average("loss").update(x=1), LiftArgumentError, "values by the name `loss`, given x"),
    "complex": (lambda: Average().update(values=1j), LiftArgumentError, r"lose a part. Begin with a complex sum"),
    "labels": (lambda: Accuracy().update(logits=LOGITS), LiftArgumentError, "Pass `labels=…` too"),
    "shapes": (
        lambda: Accuracy().update(logits=LABELS, labels=LABELS),
        LiftArgumentError,
        r"logits of shape \(10, classes\) for labels of shape \(10,\), given \(10,\)",
    ),
    "mask": (lambda: Average().update(values=LOGITS, mask=np.ones(3)), LiftArgumentError, "a mask of the first axes"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_use_says_what_is_right(name: str) -> None:
    use, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        use()
