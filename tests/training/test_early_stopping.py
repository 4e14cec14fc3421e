"""`EarlyStopping` in checkpoints, and with odd metrics; `tests/parity` compares its numbers with those of flax."""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.checkpoints import load_file, save_file
from liftcore.errors import LiftArgumentError
from liftcore.serialization import to_state_dict
from liftcore.training import EarlyStopping


@pytest.mark.parametrize(
    "metric", [3, True, np.int32(3), jnp.int32(3), jnp.asarray(3), 3.0, np.float32(3), jnp.bfloat16(3)]
)
def test_a_fresh_object_restores_any_metric(metric: Any) -> None:
    stopping, file = EarlyStopping().update(metric), io.BytesIO()
    save_file(file, stopping)
    file.seek(0)
    restored = load_file(file, EarlyStopping())
    assert restored.best_metric == metric
    assert restored.update(metric).patience_count == 1


def test_a_metric_that_is_nan_is_never_the_best() -> None:
    stopping = EarlyStopping(patience=1)
    for metric, best in ((math.nan, math.inf), (3.0, 3.0), (jnp.nan, 3.0), (-math.inf, -math.inf), (1.0, -math.inf)):
        stopping = stopping.update(metric)
        assert stopping.best_metric == best
    assert not stopping.should_stop
    assert stopping.update(math.nan).should_stop
    assert EarlyStopping(best_metric=math.nan).update(3.0).best_metric == 3.0  # of a run that was saved earlier


@pytest.mark.parametrize("metric", ["0.5", None, jnp.ones(2)])
def test_a_metric_that_is_not_one_number_is_an_error(metric: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"EarlyStopping.update, metric: expected one number, given"):
        EarlyStopping().update(metric)


def test_a_traced_metric_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match=r"outside of `jax.jit`"):
        jax.jit(EarlyStopping().update)(1.0)


def test_the_values_of_the_best_update_are_kept_even_if_a_step_is_donated() -> None:
    step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    state: Any = {"w": jnp.zeros(2), "n": np.int32(0)}
    stopping = EarlyStopping(patience=1, best=state)
    for metric in (4.0, 3.0, math.nan, 3.5, 2.0):
        state = step(state)
        stopping = stopping.update(metric, state)
        if stopping.should_stop:
            break
    assert (int(stopping.best["n"]), stopping.best["w"].tolist()) == (2, [2.0, 2.0])
    assert EarlyStopping(best=1).update(math.nan, 2).best == 1


def test_the_best_values_are_saved_and_a_file_without_them_is_as_before() -> None:
    file, state = io.BytesIO(), {"w": jnp.ones(2)}
    save_file(file, EarlyStopping(best=state).update(3.0, {"w": jnp.full(2, 5.0)}))
    file.seek(0)
    assert load_file(file, EarlyStopping(best=state)).best["w"].tolist() == [5.0, 5.0]
    assert "best" not in to_state_dict(EarlyStopping())
    assert "best" in to_state_dict(EarlyStopping(best=state))


def test_more_is_better_if_the_mode_says_so() -> None:
    stopping = EarlyStopping(mode="max", min_delta=0.1, patience=1)
    assert stopping.best_metric == -math.inf
    for metric, best, improved in ((0.5, 0.5, True), (math.nan, 0.5, False), (0.7, 0.7, True), (0.75, 0.7, False)):
        stopping = stopping.update(metric)
        assert (stopping.best_metric, stopping.has_improved) == (best, improved)
    assert not stopping.should_stop
    assert stopping.update(0.1).should_stop
    assert stopping.reset().mode == "max"
    assert stopping.reset().best_metric == -math.inf


def test_a_run_that_maximizes_is_saved_and_resumed() -> None:
    fresh, file = EarlyStopping(mode="max", best={"w": jnp.zeros(1)}), io.BytesIO()
    save_file(file, fresh.update(0.8, {"w": jnp.ones(1)}).update(0.7, {"w": jnp.zeros(1)}))
    file.seek(0)
    restored = load_file(file, fresh)
    assert (restored.mode, restored.best_metric, restored.patience_count) == ("max", 0.8, 1)
    assert restored.best["w"].tolist() == [1.0]
    assert "mode" not in to_state_dict(fresh)  # a file is as before
    copied = jax.tree.map(lambda leaf: leaf, pickle.loads(pickle.dumps(restored)))
    assert (copied.mode, copied.best_metric) == ("max", 0.8)


def test_a_mode_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(
        LiftArgumentError,
        match=r"^EarlyStopping: expected .min. or .max. as `mode`, given 'lowest'\. Give \"min\"",
    ):
        EarlyStopping(mode="lowest")


def test_an_infinite_metric_is_the_best_of_a_greatest_one() -> None:
    assert EarlyStopping(mode="max").update(math.inf).best_metric == math.inf


@pytest.mark.parametrize(("begun", "values"), [(None, 1), (1, None)])
def test_values_are_kept_from_the_start_or_not_at_all(begun: Any, values: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"Pass them to both: `EarlyStopping\(…, best=state\)`"):
        EarlyStopping(best=begun).update(3.0, values)
