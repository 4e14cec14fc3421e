"""The table of silent differences in docs/from-equinox.md: layers of Equinox beside those of linen_like."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import linen_like as nn

equinox = pytest.importorskip("equinox")

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 4))


def initialized(layer: nn.Module, *args: Any) -> Any:
    return layer.init(KEY, *args)["params"]


def trained(mode: str, steps: int) -> tuple[Any, Any, Any]:
    """Return the last result of `equinox.nn.BatchNorm` in training, one in inference, and the module with its state."""
    made = equinox.nn.make_with_state(equinox.nn.BatchNorm)(4, axis_name="batch", momentum=0.9, mode=mode)
    axes = {"in_axes": (0, None), "out_axes": (0, None), "axis_name": "batch"}
    norm, state = made
    for step in range(steps):
        y, state = jax.vmap(norm, **axes)((step + 1) * X, state)
    inferred, _ = jax.vmap(equinox.nn.inference_mode(norm), **axes)(X, state)
    return y, inferred, (norm, state)


def test_layouts_and_initial_values() -> None:
    linear, dense = equinox.nn.Linear(400, 400, key=KEY), initialized(nn.Dense(400), jnp.ones((1, 400)))
    assert linear.weight.shape == dense["kernel"].T.shape
    assert 0.99 / 20 < abs(linear.weight).max() <= 1 / 20
    assert linear.bias.any()
    np.testing.assert_allclose(dense["kernel"].std(), 1 / 20, rtol=0.05)
    assert not dense["bias"].any()
    conv, port = equinox.nn.Conv2d(1, 4, 3, key=KEY), nn.Conv(4, (3, 3))
    images = jnp.ones((1, 8, 8, 1))
    assert conv.weight.shape == (4, 1, 3, 3)
    assert initialized(port, images)["kernel"].shape == (3, 3, 1, 4)
    assert conv(jnp.ones((1, 8, 8))).shape == (4, 6, 6)
    assert port.init_with_output(KEY, images)[0].shape == (1, 8, 8, 4)
    assert initialized(nn.Conv(4, 3), images)["kernel"].shape == (3, 1, 4)
    np.testing.assert_allclose(equinox.nn.Embedding(99, 25, key=KEY).weight.std(), 1, rtol=0.05)
    np.testing.assert_allclose(initialized(nn.Embed(99, 25), jnp.array([0]))["embedding"].std(), 1 / 5, rtol=0.05)
    assert (equinox.nn.PReLU().negative_slope, initialized(nn.PReLU(), X)["negative_slope"]) == (
        0.25,
        jnp.float32(0.01),
    )


def test_normalization() -> None:
    for layer, port in [
        (equinox.nn.LayerNorm(4), nn.LayerNorm),
        (equinox.nn.GroupNorm(2, 4), lambda **options: nn.GroupNorm(2, **options)),
        (equinox.nn.RMSNorm(4), nn.RMSNorm),
    ]:
        assert (layer.eps, port().epsilon) == (1e-5, 1e-6)
        same = port(epsilon=1e-5)
        np.testing.assert_allclose(jax.vmap(layer)(X), same.apply(same.init(KEY, X), X), atol=1e-4)
    assert equinox.nn.RMSNorm(4).bias is not None
    assert set(initialized(nn.RMSNorm(), X)) == {"scale"}
    both = nn.LayerNorm(epsilon=1e-5, reduction_axes=(-2, -1), feature_axes=(-2, -1))
    np.testing.assert_allclose(equinox.nn.LayerNorm((6, 4))(X), both.apply(both.init(KEY, X), X), atol=1e-5)


def test_batch_statistics() -> None:
    port = nn.BatchNorm(momentum=0.9)
    variables = port.init(KEY, X, use_running_average=True)
    for step in range(3):
        y, changed = port.apply(variables, (step + 1) * X, use_running_average=False, mutable="batch_stats")
        variables = {**variables, **changed}
    by_batch, inferred, (norm, state) = trained("batch", 3)
    np.testing.assert_allclose(by_batch, y, atol=1e-5)
    mean, var = state.get(norm.batch_state_index)
    np.testing.assert_allclose(mean, variables["batch_stats"]["mean"], atol=1e-5)
    np.testing.assert_allclose(var, variables["batch_stats"]["var"], atol=1e-5)
    share = 1 - 0.9**3
    divided = {**variables, "batch_stats": {"mean": mean / share, "var": var / share}}
    np.testing.assert_allclose(inferred, port.apply(divided, X, use_running_average=True), atol=1e-5)
    assert abs(trained("ema", 3)[0] - y).max() > 0.1


def test_batch_statistics_under_vmap() -> None:
    def one(axis_name: str | None) -> Any:
        norm = nn.BatchNorm(use_running_average=False, axis_name=axis_name)
        made = eqx.Applied.init(nn.BatchNorm(use_running_average=False), KEY, X)
        return jax.vmap(lambda x: norm.apply(made.variables, x, mutable="batch_stats")[0], axis_name="batch")(X)

    assert not one(None).any()
    np.testing.assert_allclose(one("batch"), trained("batch", 1)[0], atol=1e-5)


def test_attention_and_recurrent_cells() -> None:
    attention = equinox.nn.MultiheadAttention(2, 4, key=KEY)
    assert all(not getattr(attention, f"{name}_proj").use_bias for name in ("query", "key", "value", "output"))
    assert all("bias" in part for part in initialized(nn.MultiHeadDotProductAttention(2), X).values())
    hidden, cell = equinox.nn.LSTMCell(4, 4, key=KEY)(X[0], (jnp.zeros(4), jnp.ones(4)))
    assert (abs(hidden) <= abs(jnp.tanh(cell))).all()
    port = nn.LSTMCell(4)
    (_, carried), result = port.apply(port.init(KEY, (X[0], X[0]), X[0]), (X[0], X[0]), X[0])
    assert (carried == result).all()


def test_inference_mode_leaves_an_applied_alone() -> None:
    applied = eqx.Applied(nn.Dropout(0.5, deterministic=False), {})
    assert not eqx.inference_mode(applied).fn.deterministic
    assert eqx.inference_mode(equinox.nn.Dropout(0.5)).inference
