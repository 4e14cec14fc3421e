"""State of pytree modules lies in a scope that they are given: training equals a loop that threads it by hand."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
from liftcore import Scope

KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(jax.random.key(1), (8, 3))


def over_layers(fn: Any) -> Any:
    scan = functools.partial(liftcore.scan, variable_axes={"batch_stats": 0, "cache": 0})
    return liftcore.filtered(scan, fn)


class Norm(eqx.Module):
    """A layer with running statistics, and a cache of its last input."""

    w: jax.Array
    act: Any

    def __init__(self, key: Any) -> None:
        self.w = jax.random.normal(key, (3, 3))
        self.act = jnp.tanh

    def __call__(self, scope: Scope, x: Any) -> Any:
        mean = scope.variable("batch_stats", "mean", lambda: jnp.zeros(3))
        last = scope.variable("cache", "last", lambda: jnp.zeros(3))
        y = x @ self.w
        mean.value = 0.9 * mean.value + 0.1 * y.mean(0)
        y = self.act(y - mean.value + 0.01 * last.value)
        last.value = y[0]
        return y


def by_hand(weights: Any, state: Any, x: Any) -> Any:
    means, lasts = [], []
    for w, mean, last in zip(weights, *state, strict=True):
        y = x @ w
        means.append(0.9 * mean + 0.1 * y.mean(0))
        x = jnp.tanh(y - means[-1] + 0.01 * last)
        lasts.append(x[0])
    return x, (jnp.stack(means), jnp.stack(lasts))


def scanned(scope: Scope, layers: Any, x: Any) -> Any:
    def one(scope: Scope, x: Any, layer: Any) -> Any:
        return layer(scope, x), None

    return over_layers(one)(scope.push("layers"), x, layers)[0]


def checkpointed(scope: Scope, layers: Any, x: Any) -> Any:
    def one(scope: Scope, x: Any, layer: Any) -> Any:
        return eqx.filter_checkpoint(layer)(scope, x), None

    return over_layers(one)(scope.push("layers"), x, layers)[0]


class InLinen(nn.Module):
    """The layers in a Linen-style model."""

    @nn.compact
    def __call__(self, layers: Any, x: Any) -> Any:
        return checkpointed(self.scope, layers, x)


def sequential(scope: Scope, layers: Any, x: Any) -> Any:
    arrays, others = eqx.partition(layers, eqx.is_array)
    for number in range(4):
        layer = eqx.combine(jax.tree.map(operator.itemgetter(number), arrays), others)
        x = layer(scope.push(f"l{number}"), x)
    return x


@pytest.mark.parametrize("model", [scanned, checkpointed, sequential, "linen"])
def test_three_steps_of_training_equal_a_loop_by_hand(model: Any) -> None:
    layers = eqx.filter_vmap(Norm)(KEYS)
    changing = ["batch_stats", "cache"]
    if model == "linen":
        module = InLinen()
        init, apply = module.init, lambda *args: module.apply(*args, mutable=changing)
    else:
        init, apply = liftcore.init(model), liftcore.apply(model, mutable=changing)
    made = init(jax.random.key(2), layers, X)
    state = made if model == "linen" else made[1]

    @eqx.filter_jit
    def step(layers: Any, state: Any) -> Any:
        def loss(layers: Any) -> Any:
            y, changed = apply(state, layers, X)
            return (y**2).mean(), changed

        (value, changed), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(layers)
        return eqx.apply_updates(layers, jax.tree.map(lambda leaf: -0.1 * leaf, gradient)), changed, value

    weights = jnp.stack([Norm(key).w for key in KEYS])
    known = by_hand(weights, (jnp.zeros((4, 3)), jnp.zeros((4, 3))), X)[1]  # `init` has run the layers once
    for _ in range(3):
        layers, state, value = step(layers, state)

        def loss(weights: Any, known: Any = known) -> Any:
            y, after = by_hand(weights, known, X)
            return (y**2).mean(), after

        (wanted, known), gradient = jax.value_and_grad(loss, has_aux=True)(weights)
        weights -= 0.1 * gradient
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(layers.w, weights, rtol=1e-4, atol=1e-6)
    for collection, name, wanted in (("batch_stats", "mean", known[0]), ("cache", "last", known[1])):
        held = state[collection]
        found = held["layers"][name] if "layers" in held else jnp.stack([held[f"l{i}"][name] for i in range(4)])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
