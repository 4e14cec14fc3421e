"""Weak types come back as they were saved, whatever the target has: a Python number, a weak scalar, or its shape."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.checkpoints import OrbaxCheckpoints, load_file, save_file
from liftcore.training import DynamicScale, TrainState

optax = pytest.importorskip("optax")


def by_file(tree: Any, target: Any, folder: Path) -> Any:
    file = io.BytesIO()
    save_file(file, tree)
    file.seek(0)
    return load_file(file, target)


def by_orbax(tree: Any, target: Any, folder: Path) -> Any:
    pytest.importorskip("orbax.checkpoint")
    with OrbaxCheckpoints(folder, asynchronous=False) as checkpoints:
        checkpoints.save(0, tree)
        return checkpoints.restore(target)


both = pytest.mark.parametrize("saved_and_restored", [by_file, by_orbax])


@both
def test_a_scalar_is_weakly_typed_if_it_was(saved_and_restored: Callable[..., Any], tmp_path: Path) -> None:
    tree = {"weak": jax.jit(lambda: 1.1)(), "strong": jnp.float32(1.1), "numpy": np.float32(1.1), "number": 1.1}
    expected = {name: jnp.asarray(value).weak_type for name, value in tree.items()}
    weak = jnp.asarray(0.0)
    targets = {"number": 0.0, "weak": weak, "placed": jax.device_put(weak, jax.devices()[0])}
    targets |= {"shape": jax.eval_shape(lambda: weak)}
    restored = saved_and_restored(
        dict.fromkeys(targets, tree),
        {name: dict.fromkeys(tree, target) for name, target in targets.items()},
        tmp_path,
    )
    for name in targets:
        assert {key: jnp.asarray(value).weak_type for key, value in restored[name].items()} == expected, name
        assert all(jnp.float32(value) == jnp.float32(1.1) for value in restored[name].values())


@both
def test_the_step_after_a_restored_one_is_the_same(saved_and_restored: Callable[..., Any], tmp_path: Path) -> None:
    traces = []

    def loss_fn(params: Any) -> jax.Array:
        return params["w"] ** 2 * jnp.float16(500)  # 4500, and infinite if it is scaled in float16

    @jax.jit
    def train_step(state: TrainState, scale: DynamicScale) -> Any:
        traces.append(1)
        scale, _, loss, grads = state.value_and_grad(loss_fn, using=scale.value_and_grad)()
        return state.apply_gradients(grads=grads), scale, loss

    state = TrainState.create(apply_fn=loss_fn, params={"w": jnp.float16(3)}, tx=optax.set_to_zero())
    fresh = (state, DynamicScale(scale=2.0, growth_factor=64.0, growth_interval=0))
    state, scale, _ = train_step(*fresh)
    state, scale, _ = train_step(state, scale)
    expected = train_step(state, scale)
    before = len(traces)
    found = train_step(*saved_and_restored((state, scale), fresh, tmp_path))
    assert len(traces) == before
    assert float(expected[2]) == 4500
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
        np.testing.assert_array_equal(one, other)
