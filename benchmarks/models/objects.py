"""The models as objects, of `nnx_like` or of the peer that has its API: `models(nnx)` makes the classes."""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from . import pure
from .pure import HIDDEN, WIDTH, affine, attend, kernel_init, normalize


@functools.cache
def models(nnx: ModuleType | Any) -> SimpleNamespace:
    """The classes `Pair`, `Wide` and `Block`."""

    class Pair(nnx.Module):
        """Two variables, and attributes that are none, as layers have them."""

        def __init__(self) -> None:
            self.scale, self.bias = nnx.Param(jnp.ones(2)), nnx.Param(jnp.ones(2))
            self.features, self.axes, self.activation = 2, (1, 2), jnp.tanh

    class Wide(nnx.Module):
        def __init__(self, layers: int) -> None:
            self.layers = nnx.List([Pair() for _ in range(layers)])

    class Dense(nnx.Module):
        def __init__(self, inputs: int, features: int, key: jax.Array) -> None:
            self.kernel = nnx.Param(kernel_init(key, (inputs, features)))
            self.bias = nnx.Param(jnp.zeros(features))

        def __call__(self, x: jax.Array) -> jax.Array:
            return affine(x, self.kernel[...], self.bias[...])

    class Norm(nnx.Module):
        def __init__(self) -> None:
            self.scale, self.bias = nnx.Param(jnp.ones(WIDTH)), nnx.Param(jnp.zeros(WIDTH))

        def __call__(self, x: jax.Array) -> jax.Array:
            return normalize(x, self.scale[...], self.bias[...])

    class Block(nnx.Module):
        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 6)
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.query, self.key = Dense(WIDTH, WIDTH, keys[0]), Dense(WIDTH, WIDTH, keys[1])
            self.value, self.out = Dense(WIDTH, WIDTH, keys[2]), Dense(WIDTH, WIDTH, keys[3])
            self.up, self.down = Dense(WIDTH, HIDDEN, keys[4]), Dense(HIDDEN, WIDTH, keys[5])

        def __call__(self, x: jax.Array) -> jax.Array:
            h = self.norm_1(x)
            x = x + self.out(attend(self.query(h), self.key(h), self.value(h)))
            return x + self.down(jax.nn.gelu(self.up(self.norm_2(x))))

    return SimpleNamespace(Pair=Pair, Wide=Wide, Block=Block)


def transformer(nnx: ModuleType | Any, layers: int) -> Any:
    """A list of blocks."""
    return nnx.List([models(nnx).Block(key) for key in jax.random.split(jax.random.key(0), layers)])


def stacked(nnx: ModuleType | Any, layers: int) -> Any:
    """Blocks as one, whose variables have an axis more."""
    return nnx.vmap(models(nnx).Block)(jax.random.split(jax.random.key(0), layers))


def new_runs(nnx: ModuleType | Any) -> dict[str, Any]:
    """What runs the blocks one after the other, in several ways; the functions are new each time."""

    def one(block: Any, x: jax.Array) -> jax.Array:
        return block(x)

    def scanned(blocks: Any, x: jax.Array) -> Any:
        return nnx.scan(lambda x, block: (one(block, x), None), in_axes=(nnx.Carry, 0))(x, blocks)[0]

    def scanned_remat(blocks: Any, x: jax.Array) -> Any:
        return nnx.scan(lambda x, block: (nnx.remat(one)(block, x), None), in_axes=(nnx.Carry, 0))(x, blocks)[0]

    def each(fn: Any) -> Any:
        return lambda blocks, x: functools.reduce(lambda x, block: fn(block, x), blocks, x)

    return {
        "plain": each(one),
        "remat": each(nnx.remat(one)),
        "remat of jit": each(nnx.remat(nnx.jit(one))),
        "jit": each(nnx.jit(one)),
        "scan": scanned,
        "scan of remat": scanned_remat,
    }


def new_step(nnx: ModuleType | Any, way: str) -> Any:
    """A step of training, `step(model, x) -> loss`, which changes the parameters of the model in place."""
    run = new_runs(nnx)[way]

    def loss(model: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(run(model, x)))

    def step(model: Any, x: jax.Array) -> jax.Array:
        value, grads = nnx.value_and_grad(loss)(model, x)
        nnx.update(
            model, jax.tree.map(lambda param, grad: param - pure.RATE * grad, nnx.state(model, nnx.Param), grads)
        )
        return value

    return step
