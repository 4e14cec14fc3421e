"""A decoder of 70 billion parameters whose axes have names: by hand, as a Linen module, and as an object.

All sides have the same parameters and the same operations, in `bfloat16` over `float32` parameters. The layers are
scanned and rematerialized. No array of the model is made: `abstract` returns shapes with shardings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import linen_like as nn
import nnx_like as nnx

from ..sides import PURE
from .decoder import HALF, OPTIMIZER, initial

__all__ = ["RULES", "SEVENTY_BILLION", "SIDES", "SMALL", "Size", "Step", "stepped"]

SIDES = (PURE, "linen_like", "nnx_like")
RULES = (
    ("batch", "data"),
    ("embed", "data"),
    ("heads", "model"),
    ("mlp", "model"),
    ("words", "model"),
    ("layers", None),
)


class Size(NamedTuple):
    """How large the model and its inputs are.

    Attributes:
        layers: the number of layers.
        width: the number of features.
        heads: the number of heads of the queries.
        groups: the number of heads of keys and values.
        hidden: the features between the two matrices of a layer.
        words: the size of the vocabulary.
        batch: the examples for each index of the axis `data`.
        length: the number of tokens of an example.
        model: the size of the axis `model`.
    """

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    words: int
    batch: int
    length: int
    model: int

    @property
    def depth(self) -> int:
        """The features of a head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        attention = 2 * self.width * (self.heads + self.groups) * self.depth
        layer = attention + 2 * self.width * self.hidden + 2 * self.width
        return self.layers * layer + 2 * self.words * self.width + self.width


SEVENTY_BILLION = Size(80, 8192, 64, 8, 43_008, 32_768, 1, 4096, 8)
SMALL = Size(4, 64, 8, 2, 256, 128, 2, 16, 2)


class Step(NamedTuple):
    """A step of training, and what it is compiled for.

    Attributes:
        fn: `fn(state, tokens) -> (state, loss)`.
        state: the shapes of the state, with shardings.
        tokens: those of the tokens.
    """

    fn: Callable[[Any, Any], Any]
    state: Any
    tokens: Any


def stepped(side: str, size: Size, mesh: Mesh) -> Step:
    """Return the step of training of a side.

    Args:
        side: one of `SIDES`.
        size: the sizes.
        mesh: a mesh with the axes `data` and `model`.
    """
    shape = (size.batch * mesh.shape["data"], size.length + 1)
    tokens = _placed(jax.ShapeDtypeStruct(shape, jnp.int32), mesh, "batch", None)
    loss, params = {PURE: _by_hand, "linen_like": _linen, "nnx_like": _objects}[side](size, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)

    def like(tree: Any) -> Any:
        """Give each moment of the optimizer the sharding of its parameter."""
        return optax.tree_map_params(
            OPTIMIZER,
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            tree,
            shardings,
            transform_non_params=lambda leaf: _placed(leaf, mesh),
        )

    def step(state: Any, tokens: Any) -> Any:
        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, moments = OPTIMIZER.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return Step(step, (params, like(jax.eval_shape(OPTIMIZER.init, params))), tokens)


def _spec(*names: str | None) -> PartitionSpec:
    rules = dict(RULES)
    return PartitionSpec(*(None if name is None else rules[name] for name in names))


def _placed(leaf: Any, mesh: Mesh, *names: str | None) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, _spec(*names)))


def _cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the mean over all tokens but the first; it sums over the words, which are sharded."""
    logits = logits.astype(jnp.float32)
    is_target = tokens[:, 1:, None] == jnp.arange(logits.shape[-1])
    return (jax.nn.logsumexp(logits, -1) - jnp.where(is_target, logits, 0).sum(-1)).mean()


# -- by hand -----------------------------------------------------------------------------------------------------------


def _by_hand(size: Size, mesh: Mesh) -> tuple[Callable[..., Any], Any]:
    matrices = {
        "query": ((size.width, size.heads, size.depth), ("embed", "heads", None)),
        "key": ((size.width, size.groups, size.depth), ("embed", "heads", None)),
        "value": ((size.width, size.groups, size.depth), ("embed", "heads", None)),
        "out": ((size.heads, size.depth, size.width), ("heads", None, "embed")),
        "up": ((size.width, size.hidden), ("embed", "mlp")),
        "down": ((size.hidden, size.width), ("mlp", "embed")),
        "norm_1": ((size.width,), (None,)),
        "norm_2": ((size.width,), (None,)),
    }
    whole = {
        "words": ((size.words, size.width), ("words", "embed")),
        "head": ((size.width, size.words), ("embed", "words")),
        "norm": ((size.width,), (None,)),
    }

    def shape(shape: tuple[int, ...], *names: str | None) -> Any:
        return _placed(jax.ShapeDtypeStruct(shape, jnp.float32), mesh, *names)

    params = {name: shape(given, *names) for name, (given, names) in whole.items()}
    params["layers"] = {
        name: shape((size.layers, *given), "layers", *names) for name, (given, names) in matrices.items()
    }

    def product(equation: str, x: jax.Array, name: str, kernel: jax.Array) -> jax.Array:
        names = (matrices | whole)[name][1]
        kernel = kernel.astype(HALF)
        if not _is_explicit(mesh):
            return jnp.einsum(equation, x, kernel)
        operands, _, result = equation.partition("->")
        known = dict(zip(operands.partition(",")[2], names, strict=True)) | {"b": "batch", "f": None}
        sharding = NamedSharding(mesh, _spec(*(known.get(letter) for letter in result)))
        return jnp.einsum(equation, x, kernel, out_sharding=sharding)

    def layer(x: jax.Array, params: Any) -> Any:
        h = _normalized(x, params["norm_1"])
        query, key, value = (product("blf,fhd->blhd", h, name, params[name]) for name in ("query", "key", "value"))
        y = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="xla")
        x = x + product("blhd,hdf->blf", y, "out", params["out"])
        h = product("blf,fm->blm", _normalized(x, params["norm_2"]), "up", params["up"])
        x = x + product("blm,mf->blf", jax.nn.gelu(h), "down", params["down"])
        return _constrained(mesh, x, "batch", None, None), None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        look_up = functools.partial(jnp.take, axis=0)
        if _is_explicit(mesh):
            look_up = jax.sharding.auto_axes(look_up, out_sharding=NamedSharding(mesh, _spec("batch", None, None)))
        x = look_up(params["words"].astype(HALF), tokens[:, :-1])
        x = _constrained(mesh, x, "batch", None, None)
        x, _ = jax.lax.scan(jax.checkpoint(layer, prevent_cse=False), x, params["layers"])
        return _cross_entropy(product("blf,fw->blw", _normalized(x, params["norm"]), "head", params["head"]), tokens)

    return loss, params


def _is_explicit(mesh: Mesh) -> bool:
    return jax.sharding.AxisType.Explicit in mesh.axis_types


def _constrained(mesh: Mesh, x: jax.Array, *names: str | None) -> jax.Array:
    sharding = NamedSharding(mesh, _spec(*names))
    return jax.sharding.reshard(x, sharding) if _is_explicit(mesh) else jax.lax.with_sharding_constraint(x, sharding)


def _normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    return (x * (jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale)).astype(HALF)


# -- a Linen module ----------------------------------------------------------------------------------------------------


def _named(*names: str | None) -> Any:
    return nn.with_logical_partitioning(initial, names)


def _linen(size: Size, mesh: Mesh) -> tuple[Callable[..., Any], Any]:
    dense = functools.partial(nn.Dense, dtype=HALF, use_bias=False)
    norm = functools.partial(nn.RMSNorm, dtype=HALF)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> Any:
            attend = nn.MultiHeadAttention(
                size.heads,
                num_kv_heads=size.groups,
                dtype=HALF,
                use_bias=False,
                is_causal=True,
                implementation="xla",
                kernel_init=_named("embed", "heads", None),
                out_kernel_init=_named("heads", None, "embed"),
                name="attention",
            )
            x = x + attend(norm(name="norm_1")(x))
            up = dense(size.hidden, kernel_init=_named("embed", "mlp"), name="up")
            down = dense(size.width, kernel_init=_named("mlp", "embed"), name="down")
            x = x + down(nn.gelu(up(norm(name="norm_2")(x))))
            return nn.with_logical_constraint(x, ("batch", None, None)), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            words = nn.Embed(size.words, size.width, dtype=HALF, embedding_init=_named("words", "embed"), name="words")
            x = nn.with_logical_constraint(words(tokens), ("batch", None, None))
            layers = nn.scan(
                nn.remat(Layer, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=size.layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x, _ = layers(name="layers")(x, None)
            head = dense(size.words, kernel_init=_named("embed", "words"), name="head")
            logits: jax.Array = head(norm(name="norm")(x))
            return logits

    model = Decoder()
    tokens = jax.ShapeDtypeStruct((mesh.shape["data"], size.length), jnp.int32)
    params = nn.init_sharded(model, mesh, RULES).eval_shape(jax.random.key(0), tokens)["params"]

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        with nn.logical_axis_rules(RULES):
            return _cross_entropy(model.apply({"params": params}, tokens[:, :-1]), tokens)

    return loss, params


# -- an object ---------------------------------------------------------------------------------------------------------


def _objects(size: Size, mesh: Mesh) -> tuple[Callable[..., Any], Any]:
    linear = functools.partial(nnx.Linear, use_bias=False, dtype=HALF)

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention = nnx.MultiHeadAttention(
                size.heads,
                size.width,
                num_kv_heads=size.groups,
                dtype=HALF,
                use_bias=False,
                decode=False,
                attention_fn=functools.partial(nnx.dot_product_attention, is_causal=True),
                kernel_metadata={"sharding": ("embed", "heads", None)},
                out_kernel_metadata={"sharding": ("heads", None, "embed")},
                rngs=rngs,
            )
            self.up = linear(size.width, size.hidden, kernel_metadata={"sharding": ("embed", "mlp")}, rngs=rngs)
            self.down = linear(size.hidden, size.width, kernel_metadata={"sharding": ("mlp", "embed")}, rngs=rngs)
            self.norm_1, self.norm_2 = (nnx.RMSNorm(size.width, dtype=HALF, rngs=rngs) for _ in range(2))

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(self.norm_1(x))
            x = x + self.down(jax.nn.gelu(self.up(self.norm_2(x))))
            return _constrained(mesh, x, "batch", None, None)

    class Decoder(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            named: Any = {"embedding_metadata": {"sharding": ("words", "embed")}}
            self.words = nnx.Embed(size.words, size.width, dtype=HALF, rngs=rngs, **named)
            self.norm = nnx.RMSNorm(size.width, dtype=HALF, rngs=rngs)
            self.head = linear(size.width, size.words, kernel_metadata={"sharding": ("embed", "words")}, rngs=rngs)
            made = nnx.vmap(Layer, transform_metadata={nnx.PARTITION_NAME: "layers"})
            self.layers = made(rngs.fork(split=size.layers))

        def __call__(self, tokens: jax.Array) -> jax.Array:
            over = nnx.scan(
                lambda x, layer: nnx.remat(lambda layer, x: layer(x), prevent_cse=False)(layer, x),
                in_axes=(nnx.Carry, 0),
                out_axes=nnx.Carry,
            )
            x = over(_constrained(mesh, self.words(tokens), "batch", None, None), self.layers)
            logits: jax.Array = self.head(self.norm(x))
            return logits

    with nnx.logical_axis_rules(RULES):
        abstract = nnx.eval_shape(lambda: Decoder(nnx.Rngs(0)))
        graphdef, shapes, rest = nnx.split(abstract, nnx.Param, ...)
        params = nnx.as_abstract(shapes, mesh)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        model = nnx.merge(graphdef, params, rest)
        return _cross_entropy(model(tokens[:, :-1]), tokens)

    return loss, params
