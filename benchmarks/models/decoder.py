"""A decoder of text at a size that fills an accelerator: by hand, as a Linen module, and as an object.

All sides have the same parameters and the same operations, in `bfloat16` over `float32` parameters. The layers are
scanned and rematerialized. `of_layers` is the same model from the layers of a library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

__all__ = ["HALF", "LARGE", "OPTIMIZER", "SMALL", "Size", "linen", "loss", "objects", "of_layers", "pure"]

HALF = jnp.bfloat16
OPTIMIZER = optax.adamw(1e-4)


class Size(NamedTuple):
    """How large the model and its inputs are.

    Attributes:
        layers: the number of layers.
        width: the number of features.
        heads: the number of heads of attention.
        words: the size of the vocabulary.
        batch: the number of examples.
        length: the number of tokens of an example.
        new: the number of tokens that are generated.
        kernel: the implementation of `jax.nn.dot_product_attention`.
        dropout: the rate of dropout.
    """

    layers: int
    width: int
    heads: int
    words: int
    batch: int
    length: int
    new: int
    kernel: Any = "xla"
    dropout: float = 0.0

    @property
    def depth(self) -> int:
        """The features of a head."""
        return self.width // self.heads

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes of the matrices of a layer."""
        square = (self.width, self.width)
        names = ("query", "key", "value", "out")
        return dict.fromkeys(names, square) | {"up": (self.width, 4 * self.width), "down": (4 * self.width, self.width)}


LARGE = Size(12, 1024, 16, 32_000, 8, 1024, 256)
SMALL = Size(2, 64, 2, 64, 2, 32, 8)


# -- the operations of all sides ---------------------------------------------------------------------------------------

initial = jax.nn.initializers.lecun_normal()


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiply in half precision."""
    return x.astype(HALF) @ kernel.astype(HALF)


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide by the root of the mean square, in `float32`."""
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale).astype(HALF)


def attended(size: Size, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attend to the earlier positions."""
    query, key, value = (x.reshape(*x.shape[:-1], size.heads, size.depth) for x in (query, key, value))
    y = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation=size.kernel)
    return y.reshape(*y.shape[:-2], size.width)


def layer(size: Size, get: Callable[[str], jax.Array], drop: Callable[[jax.Array], jax.Array], x: jax.Array) -> Any:
    """One layer: attention and two matrices, each added to its input."""
    h = normalized(x, get("norm_1"))
    x = x + drop(product(attended(size, *(product(h, get(name)) for name in ("query", "key", "value"))), get("out")))
    return x + drop(product(jax.nn.gelu(product(normalized(x, get("norm_2")), get("up"))), get("down")))


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets).mean()


# -- by hand -----------------------------------------------------------------------------------------------------------


def pure(size: Size) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `init(key, tokens) -> params` and `apply(params, tokens, key) -> logits`."""

    def init(key: jax.Array, tokens: jax.Array) -> Any:
        first, *keys = jax.random.split(key, 8)
        made = {
            name: jax.vmap(functools.partial(initial, shape=shape))(jax.random.split(one, size.layers))
            for one, (name, shape) in zip(keys, size.matrices.items(), strict=False)
        }
        norms = {name: jnp.ones((size.layers, size.width)) for name in ("norm_1", "norm_2")}
        return {
            "words": initial(first, (size.words, size.width)),
            "layers": made | norms,
            "norm": jnp.ones(size.width),
            "head": initial(keys[-1], (size.width, size.words)),
        }

    def drop(key: jax.Array, x: jax.Array) -> jax.Array:
        keep = 1 - size.dropout
        return jnp.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0).astype(x.dtype)

    @jax.checkpoint
    def block(x: jax.Array, given: Any) -> Any:
        params, key = given
        if not size.dropout:
            return layer(size, params.__getitem__, lambda x: x, x)
        keys = iter(jax.random.split(key))
        return layer(size, params.__getitem__, lambda x: drop(next(keys), x), x)

    def apply(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        x = params["words"][tokens].astype(HALF)
        over = (params["layers"], jax.random.split(key, size.layers))
        x, _ = jax.lax.scan(lambda x, given: (block(x, given), None), x, over)
        return product(normalized(x, params["norm"]), params["head"])

    return init, apply


# -- modules -----------------------------------------------------------------------------------------------------------


def linen(nn: Any, size: Size) -> Any:
    """Return the model as a Linen module, with its own parameters and the operations above.

    Args:
        nn: `linen_like` or `flax.linen`.
        size: the sizes.
    """

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> Any:
            def get(name: str) -> jax.Array:
                if name in size.matrices:
                    return self.param(name, initial, size.matrices[name])
                return self.param(name, nn.initializers.ones, (size.width,))

            def drop(x: jax.Array) -> jax.Array:
                return nn.Dropout(size.dropout, deterministic=not size.dropout)(x)

            return layer(size, get, drop, x), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = self.param("words", initial, (size.words, size.width))[tokens].astype(HALF)
            x = _scanned(nn, size, nn.remat(Layer, prevent_cse=False))(name="layers")(x, None)[0]
            head = self.param("head", initial, (size.width, size.words))
            return product(normalized(x, self.param("norm", nn.initializers.ones, (size.width,))), head)

    return Decoder()


def of_layers(nn: Any, size: Size, *, dtype: Any = jnp.float32, decode: bool = False, **options: Any) -> Any:
    """Return the model from the layers of a library.

    Args:
        nn: `linen_like` or `flax.linen`.
        size: the sizes.
        dtype: the dtype of parameters.
        decode: whether the model generates: it has a cache, and nothing is rematerialized.
        options: of attention.
    """
    dense = functools.partial(nn.Dense, dtype=HALF, param_dtype=dtype, use_bias=False)
    norm = functools.partial(nn.RMSNorm, dtype=HALF, param_dtype=dtype)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> Any:
            attend = nn.MultiHeadAttention(
                size.heads,
                dtype=HALF,
                param_dtype=dtype,
                use_bias=False,
                is_causal=True,
                decode=decode,
                name="attention",
                **options,
            )
            x = x + attend(norm(name="norm_1")(x))
            up, down = dense(4 * size.width, name="up"), dense(size.width, name="down")
            return x + down(nn.gelu(up(norm(name="norm_2")(x)))), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = nn.Embed(size.words, size.width, dtype=HALF, param_dtype=dtype, name="words")(tokens)
            block = Layer if decode else nn.remat(Layer, prevent_cse=False)
            x = _scanned(nn, size, block)(name="layers")(x, None)[0]
            logits: jax.Array = dense(size.words, name="head")(norm(name="norm")(x))
            return logits

    return Decoder()


def _scanned(nn: Any, size: Size, block: Any) -> Any:
    cache = nn.InPlace(0) if hasattr(nn, "InPlace") else 0
    axes, splits = {"params": 0, "cache": cache}, {"params": True, "dropout": True}
    return nn.scan(block, variable_axes=axes, split_rngs=splits, length=size.layers)


# -- objects -----------------------------------------------------------------------------------------------------------


def objects(nnx: Any, size: Size) -> Any:
    """Return the model as an object.

    Args:
        nnx: `nnx_like` or `flax.nnx`.
        size: the sizes.
    """

    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            for name, shape in size.matrices.items():
                setattr(self, name, nnx.Param(initial(rngs.params(), shape)))
            self.norm_1, self.norm_2 = (nnx.Param(jnp.ones(size.width)) for _ in range(2))

        def __call__(self, x: jax.Array) -> Any:
            return layer(size, lambda name: getattr(self, name)[...], lambda x: x, x)

    class Decoder(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.words = nnx.Param(initial(rngs.params(), (size.words, size.width)))
            self.norm = nnx.Param(jnp.ones(size.width))
            self.head = nnx.Param(initial(rngs.params(), (size.width, size.words)))
            self.layers = nnx.vmap(Layer, in_axes=0)(rngs.fork(split=size.layers))

        def __call__(self, tokens: jax.Array) -> jax.Array:
            run = nnx.remat(lambda layer, x: layer(x))
            over = nnx.scan(lambda x, layer: run(layer, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            x = over(self.words[...][tokens].astype(HALF), self.layers)
            return product(normalized(x, self.norm[...]), self.head[...])

    return nnx.jit(lambda: Decoder(nnx.Rngs(0)))()
