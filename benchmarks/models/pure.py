"""The models by hand: pure functions over explicit pytrees. All other sides use the same operations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

WIDTH, HEADS, HIDDEN = 64, 4, 128
"""The sizes of the transformer: features, heads, and features between the two dense layers of a block."""

kernel_init = jax.nn.initializers.lecun_normal()
zeros, ones = jax.nn.initializers.zeros, jax.nn.initializers.ones

Params = dict[str, Any]


# --- operations -------------------------------------------------------------------------------------------------------


def affine(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """What a dense layer computes."""
    return x @ kernel + bias


def normalize(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """What a layer norm computes."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * scale + bias


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attention with several heads over `(length, WIDTH)`."""
    query, key, value = (x.reshape(x.shape[0], HEADS, WIDTH // HEADS) for x in (query, key, value))
    weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", query, key) / (WIDTH // HEADS) ** 0.5)
    return jnp.einsum("hqk,khd->qhd", weights, value).reshape(query.shape[0], WIDTH)


# --- layers -----------------------------------------------------------------------------------------------------------


def init_dense(key: jax.Array, inputs: int, features: int) -> Params:
    """The parameters of a dense layer."""
    return {"kernel": kernel_init(key, (inputs, features)), "bias": jnp.zeros(features)}


def dense(params: Params, x: jax.Array) -> jax.Array:
    """A dense layer."""
    return affine(x, params["kernel"], params["bias"])


def init_norm() -> Params:
    """The parameters of a layer norm."""
    return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}


def norm(params: Params, x: jax.Array) -> jax.Array:
    """A layer norm."""
    return normalize(x, params["scale"], params["bias"])


def init_block(key: jax.Array) -> Params:
    """The parameters of a block."""
    keys = jax.random.split(key, 6)
    return {
        "norm_1": init_norm(),
        "query": init_dense(keys[0], WIDTH, WIDTH),
        "key": init_dense(keys[1], WIDTH, WIDTH),
        "value": init_dense(keys[2], WIDTH, WIDTH),
        "out": init_dense(keys[3], WIDTH, WIDTH),
        "norm_2": init_norm(),
        "up": init_dense(keys[4], WIDTH, HIDDEN),
        "down": init_dense(keys[5], HIDDEN, WIDTH),
    }


def block(params: Params, x: jax.Array) -> jax.Array:
    """A transformer block that normalizes first (Xiong et al., 2020)."""
    h = norm(params["norm_1"], x)
    h = attend(dense(params["query"], h), dense(params["key"], h), dense(params["value"], h))
    x = x + dense(params["out"], h)
    h = dense(params["up"], norm(params["norm_2"], x))
    return x + dense(params["down"], jax.nn.gelu(h))


# --- models -----------------------------------------------------------------------------------------------------------


def init_transformer(key: jax.Array, layers: int) -> Params:
    """The parameters of all blocks."""
    return {f"block_{i}": init_block(below) for i, below in enumerate(jax.random.split(key, layers))}


def transformer(params: Params, x: jax.Array, layers: int) -> jax.Array:
    """Blocks one after the other."""
    for i in range(layers):
        x = block(params[f"block_{i}"], x)
    return x


def init_mlp(key: jax.Array, layers: int) -> Params:
    """The parameters of all layers."""
    return {f"dense_{i}": init_dense(below, WIDTH, WIDTH) for i, below in enumerate(jax.random.split(key, layers))}


def mlp(params: Params, x: jax.Array, layers: int) -> jax.Array:
    """Dense layers with rectifiers."""
    for i in range(layers):
        x = jnp.maximum(dense(params[f"dense_{i}"], x), 0)
    return x


# --- transformed models -----------------------------------------------------------------------------------------------

TWICE = 2
"""How often each of several nested loops runs."""


def cell(kernel: jax.Array, x: jax.Array) -> jax.Array:
    """What the innermost of several transformations runs."""
    return jnp.tanh(x @ kernel)


def init_loops(key: jax.Array, depth: int) -> jax.Array:
    """The kernels of `loops`."""
    if depth == 0:
        return kernel_init(key, (WIDTH, WIDTH))
    return jax.vmap(lambda key: init_loops(key, depth - 1))(jax.random.split(key, TWICE))


def loops(kernels: jax.Array, x: jax.Array, depth: int) -> jax.Array:
    """Loops in loops, each over kernels of its own."""
    if depth == 0:
        return cell(kernels, x)
    return jax.lax.scan(lambda x, kernels: (loops(kernels, x, depth - 1), None), x, kernels)[0]


def nest(transformation: str, depth: int) -> Any:
    """The cell under one transformation, several times; the functions are new each time."""
    once: Any = {
        "jit": jax.jit,
        "remat": jax.checkpoint,
        "vmap": lambda fn: jax.vmap(fn, in_axes=(None, None), axis_size=TWICE),
    }[transformation]
    fn: Any = functools.partial(cell)
    for _ in range(depth):
        fn = once(fn)
    return fn


def init_stack(key: jax.Array, layers: int) -> Params:
    """The stacked parameters of equal blocks."""
    return jax.vmap(init_block)(jax.random.split(key, layers))


def stack(params: Params, x: jax.Array) -> jax.Array:
    """Equal blocks in a loop."""
    return jax.lax.scan(lambda x, params: (block(params, x), None), x, params)[0]


def remat_stack(params: Params, x: jax.Array) -> jax.Array:
    """The same, with nothing kept for the gradient."""
    return jax.lax.scan(lambda x, params: (jax.checkpoint(block)(params, x), None), x, params)[0]


def init_wide(layers: int) -> Params:
    """The parameters of `wide`."""
    return {f"scale_{i}": {"scale": jnp.ones(4), "bias": jnp.zeros(4)} for i in range(layers)}


def wide(params: Params, x: jax.Array) -> jax.Array:
    """Many small layers."""
    for below in params.values():
        x = x * below["scale"] + below["bias"]
    return x


# --- training ---------------------------------------------------------------------------------------------------------

RATE = 0.1
"""How far a step of training goes."""


def new_step(way: str) -> Any:
    """A step of training, `step(params, x) -> (loss, params)`; the functions are new each time.

    Args:
        way: how the blocks run one after the other: `plain`, each under `remat` or `jit`, as a `scan` of stacked
            parameters, or as a `scan of remat`.
    """

    def one(params: Params, x: jax.Array) -> jax.Array:
        return block(params, x)

    each: Any = {"plain": lambda fn: fn, "scan": lambda fn: fn, "jit": jax.jit}.get(way, jax.checkpoint)
    below: Any = each(one)

    def run(params: Params, x: jax.Array) -> jax.Array:
        if way.startswith("scan"):
            return jax.lax.scan(lambda x, params: (below(params, x), None), x, params)[0]
        return functools.reduce(lambda x, params: below(params, x), params.values(), x)

    def step(params: Params, x: jax.Array) -> tuple[jax.Array, Params]:
        value, grads = jax.value_and_grad(lambda params: jnp.mean(jnp.square(run(params, x))))(params)
        return value, jax.tree.map(lambda param, grad: param - RATE * grad, params, grads)

    return step
