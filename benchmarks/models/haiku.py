"""The models in Haiku."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from .pure import HIDDEN, WIDTH, affine, attend, kernel_init, normalize


def _kernel(shape: Sequence[int], dtype: Any) -> jax.Array:
    return kernel_init(hk.next_rng_key(), tuple(shape), dtype)


class Dense(hk.Module):
    """A dense layer."""

    def __init__(self, features: int, name: str) -> None:
        super().__init__(name)
        self.features = features

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = hk.get_parameter("kernel", (x.shape[-1], self.features), x.dtype, _kernel)
        return affine(x, kernel, hk.get_parameter("bias", (self.features,), x.dtype, jnp.zeros))


class Norm(hk.Module):
    """A layer norm."""

    def __call__(self, x: jax.Array) -> jax.Array:
        scale = hk.get_parameter("scale", x.shape[-1:], x.dtype, jnp.ones)
        return normalize(x, scale, hk.get_parameter("bias", x.shape[-1:], x.dtype, jnp.zeros))


class Block(hk.Module):
    """A transformer block."""

    def __call__(self, x: jax.Array) -> jax.Array:
        h = Norm("norm_1")(x)
        query, key, value = (Dense(WIDTH, name)(h) for name in ("query", "key", "value"))
        x = x + Dense(WIDTH, "out")(attend(query, key, value))
        h = Dense(HIDDEN, "up")(Norm("norm_2")(x))
        return x + Dense(WIDTH, "down")(jax.nn.gelu(h))


def transformer(x: jax.Array, layers: int) -> jax.Array:
    """Blocks one after the other."""
    for i in range(layers):
        x = Block(f"block_{i}")(x)
    return x


def mlp(x: jax.Array, layers: int) -> jax.Array:
    """Dense layers with rectifiers."""
    for i in range(layers):
        x = jnp.maximum(Dense(WIDTH, f"dense_{i}")(x), 0)
    return x
