"""The models as functions of a `liftcore.Scope`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore import Scope

from . import pure
from .pure import HIDDEN, WIDTH, affine, attend, kernel_init, normalize, ones, zeros


def dense(scope: Scope, x: jax.Array, features: int) -> jax.Array:
    """A dense layer."""
    kernel = scope.param("kernel", kernel_init, (x.shape[-1], features))
    return affine(x, kernel, scope.param("bias", zeros, (features,)))


def norm(scope: Scope, x: jax.Array) -> jax.Array:
    """A layer norm."""
    return normalize(x, scope.param("scale", ones, x.shape[-1:]), scope.param("bias", zeros, x.shape[-1:]))


def block(scope: Scope, x: jax.Array) -> jax.Array:
    """A transformer block."""
    h = scope.child(norm, "norm_1")(x)
    query, key, value = (scope.child(dense, name)(h, WIDTH) for name in ("query", "key", "value"))
    x = x + scope.child(dense, "out")(attend(query, key, value), WIDTH)
    h = scope.child(dense, "up")(scope.child(norm, "norm_2")(x), HIDDEN)
    return x + scope.child(dense, "down")(jax.nn.gelu(h), WIDTH)


def transformer(scope: Scope, x: jax.Array, layers: int) -> jax.Array:
    """Blocks one after the other."""
    for i in range(layers):
        x = scope.child(block, f"block_{i}")(x)
    return x


def mlp(scope: Scope, x: jax.Array, layers: int) -> jax.Array:
    """Dense layers with rectifiers."""
    for i in range(layers):
        x = jnp.maximum(scope.child(dense, f"dense_{i}")(x, WIDTH), 0)
    return x


# --- transformed models -----------------------------------------------------------------------------------------------


def cell(scope: Scope, x: jax.Array) -> jax.Array:
    """What the innermost of several transformations runs."""
    return pure.cell(scope.param("kernel", kernel_init, (WIDTH, WIDTH)), x)


def loops(depth: int) -> Any:
    """Loops in loops, each over kernels of its own; the functions are new each time."""

    def step(scope: Scope, x: jax.Array) -> tuple[jax.Array, None]:
        return cell(scope, x), None

    body: Any = step
    for _ in range(depth):
        body = liftcore.scan(body, pure.TWICE, variable_axes={"params": 0}, split_rngs={"params": True})
    return lambda scope, x: body(scope, x)[0]


def remat_loops(depth: int) -> Any:
    """`loops` with nothing kept for the gradient."""
    return liftcore.remat_scan(cell, (pure.TWICE,) * depth)


def nest(transformation: str, depth: int) -> Any:
    """The cell under one transformation, several times; the functions are new each time."""
    shared: dict[str, Any] = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
    once: Any = {
        "jit": liftcore.jit,
        "remat": liftcore.remat,
        "vmap": lambda fn: liftcore.vmap(fn, in_axes=None, axis_size=pure.TWICE, **shared),
    }[transformation]

    def innermost(scope: Scope, x: jax.Array) -> jax.Array:
        return cell(scope, x)

    fn: Any = innermost
    for _ in range(depth):
        fn = once(fn)
    return fn


def stack(layers: int, remat: bool = False) -> Any:
    """Equal blocks in a loop, with nothing kept for the gradient on demand; the functions are new each time."""

    def step(scope: Scope, x: jax.Array) -> tuple[jax.Array, None]:
        return block(scope, x), None

    body: Any = liftcore.remat(step) if remat else step
    looped = liftcore.scan(body, layers, variable_axes={"params": 0}, split_rngs={"params": True})
    return lambda scope, x: looped(scope, x)[0]


def scale(scope: Scope, x: jax.Array) -> jax.Array:
    """A small layer."""
    return x * scope.param("scale", ones, x.shape) + scope.param("bias", zeros, x.shape)


def wide(scope: Scope, x: jax.Array, layers: int) -> jax.Array:
    """Many small layers."""
    for i in range(layers):
        x = scope.child(scale, f"scale_{i}")(x)
    return x


def first_of_many(scope: Scope, x: jax.Array) -> jax.Array:
    """Read one variable of many."""
    return scope.get_variable("params", "w0") * x
