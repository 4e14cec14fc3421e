"""The models in Equinox, where a model is a pytree that holds its own arrays."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from .pure import HIDDEN, WIDTH, affine, attend, kernel_init, normalize


class Dense(eqx.Module):
    """A dense layer."""

    kernel: jax.Array
    bias: jax.Array

    def __init__(self, inputs: int, features: int, key: jax.Array) -> None:
        self.kernel, self.bias = kernel_init(key, (inputs, features)), jnp.zeros(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        return affine(x, self.kernel, self.bias)


class Norm(eqx.Module):
    """A layer norm."""

    scale: jax.Array
    bias: jax.Array

    def __init__(self) -> None:
        self.scale, self.bias = jnp.ones(WIDTH), jnp.zeros(WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        return normalize(x, self.scale, self.bias)


class Block(eqx.Module):
    """A transformer block."""

    norms: tuple[Norm, Norm]
    query: Dense
    key: Dense
    value: Dense
    out: Dense
    up: Dense
    down: Dense

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 6)
        self.norms = (Norm(), Norm())
        self.query, self.key, self.value, self.out = (Dense(WIDTH, WIDTH, one) for one in keys[:4])
        self.up, self.down = Dense(WIDTH, HIDDEN, keys[4]), Dense(HIDDEN, WIDTH, keys[5])

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.norms[0](x)
        x = x + self.out(attend(self.query(h), self.key(h), self.value(h)))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Transformer(eqx.Module):
    """Blocks one after the other."""

    blocks: list[Block]

    def __init__(self, key: jax.Array, layers: int) -> None:
        self.blocks = [Block(one) for one in jax.random.split(key, layers)]

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


class MLP(eqx.Module):
    """Dense layers with rectifiers."""

    layers: list[Dense]

    def __init__(self, key: jax.Array, layers: int) -> None:
        self.layers = [Dense(WIDTH, WIDTH, one) for one in jax.random.split(key, layers)]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jnp.maximum(layer(x), 0)
        return x
