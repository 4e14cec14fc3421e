"""The models as modules, of `linen_like` or of the peer that has its API: `models(nn)` makes the classes."""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from . import pure
from .pure import HIDDEN, WIDTH, affine, attend, kernel_init, normalize, ones, zeros


@functools.cache
def models(nn: ModuleType | Any) -> SimpleNamespace:
    """The classes `Dense`, `Norm`, `Block`, `Transformer` and `MLP`."""

    class Dense(nn.Module):
        features: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features))
            return affine(x, kernel, self.param("bias", zeros, (self.features,)))

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return normalize(x, self.param("scale", ones, x.shape[-1:]), self.param("bias", zeros, x.shape[-1:]))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            h = Norm(name="norm_1")(x)
            query, key, value = (Dense(WIDTH, name=name)(h) for name in ("query", "key", "value"))
            x = x + Dense(WIDTH, name="out")(attend(query, key, value))
            h = Dense(HIDDEN, name="up")(Norm(name="norm_2")(x))
            return x + Dense(WIDTH, name="down")(jax.nn.gelu(h))

    class Transformer(nn.Module):
        layers: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for i in range(self.layers):
                x = Block(name=f"block_{i}")(x)
            return x

    class MLP(nn.Module):
        layers: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for i in range(self.layers):
                x = jnp.maximum(Dense(WIDTH, name=f"dense_{i}")(x), 0)
            return x

    return SimpleNamespace(Dense=Dense, Norm=Norm, Block=Block, Transformer=Transformer, MLP=MLP)


_STACKED: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}


def new_lifted(nn: ModuleType | Any) -> SimpleNamespace:
    """What makes transformed models, of new classes: `FirstOfMany`, `Wide`, `loops`, `nest`, `remat_loops`, `stack`."""
    block = models(nn).Block

    class Cell(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return pure.cell(self.param("kernel", kernel_init, (WIDTH, WIDTH)), x)

    class LoopedCell(Cell):
        @nn.compact
        def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
            return super().__call__(x), None

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
            return block.__call__(self, x), None

    class Scale(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.param("scale", ones, x.shape) + self.param("bias", zeros, x.shape)

    class Wide(nn.Module):
        layers: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for i in range(self.layers):
                x = Scale(name=f"scale_{i}")(x)
            return x

    class FirstOfMany(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return self.get_variable("params", "w0") * x

    def loops(depth: int) -> Any:
        """Loops in loops, each over kernels of its own."""
        cls = LoopedCell
        for _ in range(depth):
            cls = nn.scan(cls, length=pure.TWICE, **_STACKED)
        return cls()

    def nest(transformation: str, depth: int) -> Any:
        """The cell under one transformation, several times."""
        shared: dict[str, Any] = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
        options = {"vmap": {"in_axes": None, "axis_size": pure.TWICE, **shared}}.get(transformation, {})
        cls = Cell
        for _ in range(depth):
            cls = getattr(nn, transformation)(cls, **options)
        return cls()

    def remat_loops(depth: int) -> Any:
        """`loops` with nothing kept for the gradient."""
        return nn.remat_scan(Cell, lengths=(pure.TWICE,) * depth)()

    def stack(layers: int, remat: bool = False) -> Any:
        """Equal blocks in a loop."""
        return nn.scan(nn.remat(Step) if remat else Step, length=layers, **_STACKED)()

    return SimpleNamespace(
        Cell=Cell, FirstOfMany=FirstOfMany, Wide=Wide, loops=loops, nest=nest, remat_loops=remat_loops, stack=stack
    )


lifted = functools.cache(new_lifted)
"""The same, of the same classes each time."""
