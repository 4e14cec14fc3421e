"""Layers of `nnx_like` against those of `flax.nnx`: arguments, initial values, metadata and results, bit for bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like
from nnx_like.layers import dtypes, initializers
from tests.layers.bits import assert_same_bits
from tests.layers.row import array

nnx = pytest.importorskip("flax.nnx")
flax_dtypes = pytest.importorskip("flax.nnx.nn.dtypes")

HALF = jnp.bfloat16


class Row(NamedTuple):
    """A layer, made by `make(library, rngs)`, and the arguments of one call."""

    make: Callable[[Any, Any], Any]
    inputs: tuple[Any, ...]
    call: Callable[..., Any] = lambda layer, *args: layer(*args)


class Product:
    """For `dot_general_cls`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return 2 * jax.lax.dot_general(*args, **options)


def double(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: 2 * fn(*args, **options)


def in_half(args: Any, /, *, dtype: Any = None, **_: Any) -> Any:
    """For `promote_dtype`."""
    return tuple(None if x is None else jnp.asarray(x, HALF) for x in args)


def tagged(n: Any) -> Any:
    return n.with_metadata(jax.nn.initializers.normal(), tag="a", role="kernel")


X, GRID = (jnp.asarray(array(*shape)) for shape in ((2, 3), (2, 6, 5, 4)))
BOTH = {"kernel_metadata": {"tag": "k"}, "bias_metadata": {"tag": "b", "seen": 1}}
HALVES = {"dtype": HALF, "param_dtype": jnp.float16, "preferred_element_type": jnp.float32}
OWN = {"kernel_init": jax.nn.initializers.normal(), "bias_init": jax.nn.initializers.uniform()}

TABLE: dict[str, Row] = {
    "Linear": Row(lambda n, r: n.Linear(3, 4, rngs=r), (X,)),
    "Linear, no bias": Row(lambda n, r: n.Linear(3, 4, use_bias=False, precision="highest", rngs=r), (X,)),
    "Linear, dtypes": Row(lambda n, r: n.Linear(3, 4, **HALVES, **BOTH, **OWN, rngs=r), (X,)),
    "Linear, own product": Row(
        lambda n, r: n.Linear(3, 4, dot_general=double(jax.lax.dot_general), promote_dtype=in_half, rngs=r), (X,)
    ),
    "Linear, integers": Row(lambda n, r: n.Linear(3, 4, rngs=r), (np.arange(6).reshape(2, 3),)),
    "Linear, metadata of initializer": Row(
        lambda n, r: n.Linear(3, 4, kernel_init=tagged(n), kernel_metadata={"role": "w", "other": 2}, rngs=r), (X,)
    ),
    "LinearGeneral": Row(
        lambda n, r: n.LinearGeneral((6, 4), (2, 3), axis=(-1, 1), batch_axis={0: 2}, **BOTH, **OWN, rngs=r), (GRID,)
    ),
    "LinearGeneral, no bias": Row(lambda n, r: n.LinearGeneral(4, 2, use_bias=False, rngs=r), (GRID,)),
    "LinearGeneral, dtypes": Row(
        lambda n, r: n.LinearGeneral(4, (2,), **HALVES, precision="highest", kernel_init=tagged(n), rngs=r), (GRID,)
    ),
    "LinearGeneral, dot_general": Row(
        lambda n, r: n.LinearGeneral(3, 2, dot_general=double(jax.lax.dot_general), promote_dtype=in_half, rngs=r), (X,)
    ),
    "LinearGeneral, dot_general_cls": Row(
        lambda n, r: n.LinearGeneral(3, 2, dot_general=jax.lax.dot_general, dot_general_cls=Product, rngs=r), (X,)
    ),
    "Einsum": Row(lambda n, r: n.Einsum("...ab,bcd->...acd", (4, 2, 3), (2, 3), **BOTH, **OWN, rngs=r), (GRID,)),
    "Einsum, dots": Row(lambda n, r: n.Einsum("d...ab,bc...->ad...c", (4, 3, 6), (6, 3), **HALVES, rngs=r), (GRID,)),
    "Einsum, own": Row(
        lambda n, r: n.Einsum("ab,bc->ac", (3, 4), einsum_op=double(jnp.einsum), promote_dtype=in_half, rngs=r), (X,)
    ),
    "Einsum, of the call": Row(
        lambda n, r: n.Einsum("ab,bc->ac", (3, 4), 4, precision="highest", rngs=r), (X, "ab, bc -> ca")
    ),
    "Embed": Row(
        lambda n, r: n.Embed(5, 3, embedding_metadata={"tag": "e"}, rngs=r), (np.array([[0, 4], [-1, 7]]),)
    ),
    "Embed, dtypes": Row(
        lambda n, r: n.Embed(5, 3, dtype=HALF, param_dtype=jnp.float16, promote_dtype=in_half, rngs=r), (np.arange(3),)
    ),
    "Embed, one": Row(
        lambda n, r: n.Embed(1, 3, embedding_init=jax.nn.initializers.ones, rngs=r), (np.array([2, 0], np.uint8),)
    ),
    "Embed.attend": Row(lambda n, r: n.Embed(5, 3, rngs=r), (X,), lambda layer, x: layer.attend(x)),
    "Conv": Row(lambda n, r: n.Conv(4, 6, (3, 2), **BOTH, **OWN, rngs=r), (GRID,)),
    "Conv, numbers": Row(
        lambda n, r: n.Conv(
            4, 6, [3, 2], (2, 1), padding=[1, (0, 2)], input_dilation=(1, 2), kernel_dilation=2, precision="highest",
            feature_group_count=2, use_bias=False, rngs=r,
        ),
        (GRID,),
    ),
    "Conv, circular, batches": Row(
        lambda n, r: n.Conv(4, 2, 3, None, padding="CIRCULAR", mask=array(3, 4, 2) > 0, **HALVES, rngs=r), (GRID,)
    ),
    "Conv, reflect, no batch": Row(
        lambda n, r: n.Conv(4, 2, 3, padding="REFLECT", promote_dtype=in_half, rngs=r), (GRID[0, 0],)
    ),
    "Conv, causal": Row(
        lambda n, r: n.Conv(
            4, 2, 3, padding="CAUSAL", conv_general_dilated=double(jax.lax.conv_general_dilated), rngs=r
        ),
        (GRID[0],),
    ),
    "ConvTranspose": Row(lambda n, r: n.ConvTranspose(4, 6, (3, 2), **BOTH, **OWN, rngs=r), (GRID,)),
    "ConvTranspose, strides": Row(
        lambda n, r: n.ConvTranspose(
            4, 2, 3, 2, padding=1, kernel_dilation=2, use_bias=False, transpose_kernel=True, precision="highest",
            mask=array(3, 2, 4), rngs=r,
        ),
        (GRID[0],),
    ),
    "ConvTranspose, circular": Row(
        lambda n, r: n.ConvTranspose(4, 2, (3, 3), (2, 3), padding="CIRCULAR", **HALVES, rngs=r), (GRID[0],)
    ),
    "PReLU": Row(lambda n, r: n.PReLU(), (X,)),
    "PReLU, of halves": Row(lambda n, r: n.PReLU(0.3, negative_slope_metadata={"tag": "s"}), (X.astype(HALF),)),
    "PReLU, dtypes": Row(
        lambda n, r: n.PReLU(0.3, dtype=HALF, param_dtype=jnp.float16, promote_dtype=in_half), (np.arange(-3, 3),)
    ),
    "Dropout": Row(lambda n, r: n.Dropout(0.4, rngs=r), (X,), lambda layer, x: (layer(x), layer(x))),
    "Dropout, of a stream": Row(
        lambda n, r: n.Dropout(0.4, broadcast_dims=(-1,), rng_collection="noise", rngs=r.noise), (X.astype(HALF),)
    ),
    "Dropout, of the call": Row(
        lambda n, r: n.Dropout(0.4, deterministic=None), (X,),
        lambda layer, x: [
            layer(x, deterministic=True),
            layer(x, deterministic=False, rngs=jax.random.key(4)),
        ],
    ),
    "Dropout, off": Row(lambda n, r: n.Dropout(0.4, deterministic=True), (X,)),
    "Dropout, all": Row(lambda n, r: n.Dropout(1.0), (X,)),
    "Dropout, none": Row(lambda n, r: n.Dropout(0.0), (X,)),
    "LoRA": Row(
        lambda n, r: n.LoRA(
            3, 2, 4, b_initializer=jax.nn.initializers.normal(), a_metadata={"tag": "a"}, b_metadata={"tag": "b"},
            rngs=r,
        ),
        (X,),
    ),
    "LoRA, of a module": Row(
        lambda n, r: n.LoRA(
            3, 2, 4, base_module=n.Linear(3, 4, rngs=r), dtype=HALF, param_dtype=jnp.float16,
            a_initializer=jax.nn.initializers.ones, lora_param_type=n.BatchStat, rngs=r,
        ),
        (X,),
    ),
    "LoRALinear": Row(
        lambda n, r: n.LoRALinear(3, 4, lora_rank=2, b_initializer=jax.nn.initializers.normal(), rngs=r), (X,)
    ),
    "LoRALinear, dtypes": Row(
        lambda n, r: n.LoRALinear(
            3, 4, lora_rank=2, lora_dtype=HALF, lora_param_dtype=jnp.float16, a_initializer=jax.nn.initializers.ones,
            lora_param_type=n.Param, lora_promote_dtype=in_half, dtype=jnp.float16, use_bias=False,
            a_metadata={"tag": "a"}, b_metadata={"tag": "b"}, rngs=r,
        ),
        (X,),
    ),
}  # fmt: skip


OF_NNX = ("eager_sharding", "hijax", "ref")
"""Switches that NNX keeps in the metadata of every variable."""


def variables(library: Any, layer: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Of each variable below a layer its type, metadata and value."""
    found = {}
    for name, value in sorted(vars(layer).items()):
        if isinstance(value, library.Variable):
            held = value.get_value()
            held = jax.random.key_data(held) if jnp.issubdtype(held.dtype, jax.dtypes.prng_key) else held
            metadata = {key: one for key, one in value.get_metadata().items() if key not in OF_NNX}
            found[(*path, name)] = type(value).__name__, metadata, held
        elif isinstance(value, library.Pytree):
            found.update(variables(library, value, (*path, name)))
    return found


@pytest.mark.parametrize("name", TABLE)
def test_layer_is_that_of_nnx(name: str) -> None:
    row = TABLE[name]
    ours, theirs = (row.make(n, n.Rngs(7, noise=3)) for n in (nnx_like, nnx))
    for _ in range(2):  # as it was made, and after the call
        mine, other = variables(nnx_like, ours), variables(nnx, theirs)
        assert {path: one[:2] for path, one in mine.items()} == {path: one[:2] for path, one in other.items()}
        assert_same_bits({path: one[2] for path, one in mine.items()}, {path: one[2] for path, one in other.items()})
        assert_same_bits(row.call(ours, *row.inputs), row.call(theirs, *row.inputs))


LAYERS = [
    "Conv", "ConvTranspose", "Dropout", "Einsum", "Embed", "Linear", "LinearGeneral", "LoRA", "LoRALinear", "PReLU",
]  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_arguments_defaults_and_attributes_are_those_of_nnx(name: str) -> None:
    def described(method: Any) -> list[Any]:
        def default(value: Any) -> Any:
            return "callable" if callable(value) else dict(value) if hasattr(value, "items") else value

        parameters = list(inspect.signature(method).parameters.values())[1:]
        return [(one.name.replace("inputs", "x"), one.kind, default(one.default)) for one in parameters]

    def attributes(n: Any) -> set[str]:
        row = next(row for key, row in TABLE.items() if key.split(",")[0] == name)
        return {key for key in vars(row.make(n, n.Rngs(0, noise=1))) if not key.startswith("_")}

    mine, other = getattr(nnx_like, name), getattr(nnx, name)
    assert described(mine.__init__) == described(other.__init__)
    assert described(mine.__call__) == described(other.__call__)
    assert {key for key in vars(mine) if key[0] != "_"} == {key for key in vars(other) if key[0] != "_"}
    assert attributes(nnx_like) == attributes(nnx)


def test_drawing_for_a_layer_leaves_the_streams_as_in_nnx() -> None:
    def after(n: Any) -> Any:
        rngs = n.Rngs(0, noise=1)
        for row in TABLE.values():
            row.make(n, rngs)
        return [np.asarray(stream.count.get_value()) for _, stream in sorted(rngs.items())]

    assert_same_bits(after(nnx_like), after(nnx))


def test_activations_are_those_of_nnx() -> None:
    from flax.nnx.nn import activations

    x = jnp.linspace(-3, 3, 8)
    for name in activations.__all__:
        assert hasattr(nnx_like, name), name
        if name not in ("PReLU", "one_hot"):
            assert_same_bits(getattr(nnx_like, name)(x), getattr(nnx, name)(x))
    assert_same_bits(nnx_like.one_hot(jnp.arange(3), 4), nnx.one_hot(jnp.arange(3), 4))


def test_initializers_are_those_of_nnx() -> None:
    names = {name for name in dir(nnx.initializers) if name[0] != "_" and callable(getattr(nnx.initializers, name))}
    assert names - {"DtypeLikeInexact"} == set(initializers.__all__)
    key, shape = jax.random.key(0), (3, 3, 4)
    for name in ("zeros_init", "ones_init", "lecun_normal", "orthogonal"):
        ours, theirs = (getattr(n, name)()(key, shape, jnp.float32) for n in (initializers, nnx.initializers))
        assert_same_bits(ours, theirs)


def test_pools_and_masks_are_those_of_nnx() -> None:
    def computed(n: Any) -> Any:
        words = jnp.array([[3, 1, 0], [2, 0, 0]]) > 0
        causal = n.make_causal_mask(words, extra_batch_dims=1, dtype=bool)
        padding = n.make_attention_mask(words, words, jnp.logical_and, dtype=HALF)
        return {
            "avg": n.avg_pool(GRID, (2, 3), (2, 1), "SAME", count_include_pad=False),
            "max": n.max_pool(GRID, (2, 3), padding=((1, 0), (0, 1))),
            "min": n.min_pool(GRID, (2,)),
            "pool": n.pool(GRID, 0.0, jax.lax.add, (2, 2), (2, 2), "VALID"),
            "causal": causal,
            "padding": padding,
            "both": n.combine_masks(causal, None, padding[None], dtype=jnp.float16),
        }

    assert_same_bits(computed(nnx_like), computed(nnx))
    assert nnx_like.combine_masks(None) is None is nnx.combine_masks(None)


@pytest.mark.parametrize("options", [{}, {"dtype": HALF}, {"inexact": False}], ids=str)
def test_dtypes_are_those_of_nnx(options: dict[str, Any]) -> None:
    args = (jnp.arange(3), None, np.arange(2, dtype=np.int16), 2)
    for some in (args, (*args, 1.5), (*args, jnp.ones(2, jnp.float16))):
        assert_same_bits(dtypes.promote_dtype(some, **options), flax_dtypes.promote_dtype(some, **options))
        assert dtypes.canonicalize_dtype(*some, **options) == flax_dtypes.canonicalize_dtype(*some, **options)
