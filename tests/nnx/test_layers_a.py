from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from tests.machine import make_mesh

X = jnp.arange(6.0).reshape(2, 3)
IMAGE = jnp.ones((1, 4, 4, 2))


def rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


MADE: dict[str, tuple[Callable[[Any], nnx.Module], Any]] = {
    "Linear": (lambda r: nnx.Linear(3, 4, rngs=r), X),
    "LinearGeneral": (lambda r: nnx.LinearGeneral(3, (2, 2), batch_axis={0: 2}, rngs=r), X),
    "Einsum": (lambda r: nnx.Einsum("ab,bc->ac", (3, 4), (4,), rngs=r), X),
    "Embed": (lambda r: nnx.Embed(5, 3, rngs=r), jnp.arange(3)),
    "Conv": (lambda r: nnx.Conv(2, 4, (2, 2), mask=jnp.ones((2, 2, 2, 4)), rngs=r), IMAGE),
    "ConvTranspose": (lambda r: nnx.ConvTranspose(2, 4, (2, 2), 2, rngs=r), IMAGE),
    "PReLU": (lambda r: nnx.PReLU(), X),
    "Dropout": (lambda r: nnx.Dropout(0.5, rngs=r), X),
    "LoRA": (lambda r: nnx.LoRA(3, 2, 4, base_module=nnx.Linear(3, 4, rngs=r), rngs=r), X),
    "LoRALinear": (lambda r: nnx.LoRALinear(3, 4, lora_rank=2, rngs=r), X),
}


@pytest.mark.parametrize("name", MADE)
def test_layer_is_split_copied_pickled_and_traced_as_itself(name: str) -> None:
    make, x = MADE[name]
    layer = make(rngs())
    others = [
        nnx.merge(*nnx.split(layer), copy=True), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)),
        nnx.merge(*pickle.loads(pickle.dumps(nnx.split(layer)))),
        jax.tree.map(lambda leaf: leaf, layer), nnx.clone(layer),
    ]  # fmt: skip
    expected = layer(x)
    for other in others:
        np.testing.assert_array_equal(other(x), expected)
    shape = jax.eval_shape(lambda layer, x: layer(x), others[-1], x)
    assert (shape.shape, shape.dtype) == (expected.shape, expected.dtype)
    assert nnx.graphdef(make(nnx.Rngs(1))) == nnx.graphdef(layer)  # no initializer, no key and no value in it


def test_a_layer_shows_its_sizes_before_how_it_computes() -> None:
    how = ["dtype", "param_dtype", "precision"]
    sizes = ["in_features", "out_features"]
    for name, between in {
        "Linear": ["use_bias"],
        "Conv": [
            "strides", "padding", "input_dilation", "kernel_dilation", "feature_group_count", "use_bias", "mask"
        ],
        "ConvTranspose": ["strides", "padding", "kernel_dilation", "use_bias", "mask"],
    }.items():  # fmt: skip
        lines = re.findall(r"(?m)^  (\w+)=", repr(MADE[name][0](rngs())))
        begin = lines.index("bias") + 1
        assert lines[begin : begin + len(sizes + between + how)] == [*sizes, *between, *how]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nnx.Linear(3, 4, rngs=0), "Linear(rngs=...): expected an Rngs"),  # type: ignore[arg-type]
        (lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(dropout=0)), "stream 'params'"),
        (lambda: nnx.LinearGeneral((2, 3), 4, rngs=rngs()), "given (2, 3) and (-1,)"),
        (lambda: nnx.LinearGeneral((2, 2), 4, axis=(1, 1), rngs=rngs()), "is given twice"),
        (lambda: nnx.LinearGeneral(3, 4, batch_axis={1: 2}, rngs=rngs()), "consecutive leading dimensions"),
        (lambda: nnx.Einsum("ab->a", (3, 4), rngs=rngs()), "must have two operands"),
        (lambda: nnx.Einsum("ab,bc", (3, 4), rngs=rngs()), "an output after `->`"),
        (lambda: nnx.Conv(3, 4, 2, feature_group_count=2, rngs=rngs()), "in_features is 3, which does not divide"),
        (
            lambda: nnx.Conv(3, 4, 2, mask=jnp.ones(3), rngs=rngs()),
            "an array of the kernel's shape (2, 3, 4) as `mask`, given (3,)",
        ),
        (lambda: nnx.ConvTranspose(3, 4, 2, mask=jnp.ones(3), rngs=rngs()), "as `mask`, given (3,)"),
        (lambda: nnx.LoRA(3, 0, 4, rngs=rngs()), "expected 1 or more as `lora_rank`, given 0"),
        (lambda: nnx.LoRA(3, 2, 4, base_module=5, rngs=rngs()), "expected a function as `base_module`, given 5"),  # type: ignore[arg-type]
        (lambda: nnx.Dropout(0.5, rngs=3), "expected an Rngs, an RngStream or None"),  # type: ignore[arg-type]
        (lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(params=0)), "stream 'dropout'"),
    ],
)
def test_layer_that_cannot_be_made_says_why(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda r: nnx.Linear(4, 2, rngs=r)(X),
            "a kernel of shape (3, …) for inputs of shape (2, 3)",
        ),
        (lambda r: nnx.Linear(3, 2, rngs=r)(1.0), "axis is (-1,), but the inputs have 0 dimensions"),
        (
            lambda r: nnx.LinearGeneral(4, 2, rngs=r)(X),
            "kernel of shape (3, …) for inputs of shape (2, 3), given (4, 2)",
        ),
        (lambda r: nnx.LinearGeneral(3, 2, axis=1, batch_axis={0: 4}, rngs=r)(X), "kernel of shape (2, 3, …)"),
        (lambda r: nnx.Einsum("ab,bc->ac", (4, 2), rngs=r)(X), '"b" has sizes 3 and 4'),
        (lambda r: nnx.Einsum("ab,bc->ac", (3, 2), (3,), rngs=r)(X), "a bias that can be reshaped to (1, 2)"),
        (lambda r: nnx.Einsum(None, (3, 2), rngs=r)(X), "is None both in the layer and in the call"),
        (lambda r: nnx.Embed(3, 2, rngs=r)(X), "expected indices of an integer dtype"),
        (lambda r: nnx.Embed(3, 2, rngs=r).attend(X), "expected a query of shape (..., 2)"),
        (lambda r: nnx.Conv(3, 4, 2, rngs=r)(IMAGE), "the inputs have 2 features, but the kernel is for 3"),
        (lambda r: nnx.Conv(2, 4, (2, 2), rngs=r)(X), "expected inputs of shape (*batch, 2 spatial sizes, features)"),
        (lambda r: nnx.Conv(2, 4, 2, padding="FULL", rngs=r)(IMAGE), "expected SAME"),
        (lambda r: nnx.Conv(2, 4, (2, 2), padding="CAUSAL", rngs=r)(IMAGE), "needs one spatial dimension"),
        (lambda r: nnx.ConvTranspose(2, 4, 2, padding="CAUSAL", rngs=r)(IMAGE), "expected SAME, VALID"),
        (lambda r: nnx.PReLU()(jnp.arange(3)), "expected inputs of a floating dtype, given int32"),
        (lambda r: nnx.LoRA(4, 2, 4, rngs=r)(X), "the layer expects 4 features"),
        (lambda r: nnx.Dropout(1.5, rngs=r)(X), "from 0 to 1 as `rate`, given 1.5"),
        (
            lambda r: nnx.Dropout(0.5, deterministic=None, rngs=r)(X),
            "`deterministic` is None both in the layer and in the call",
        ),
        (
            lambda r: nnx.Dropout(0.5)(X),
            "`deterministic` is False, but `rngs` was given neither to the constructor nor in the call",
        ),
        (lambda r: nnx.Dropout(0.5)(X, rngs=7), "expected an Rngs, an RngStream or a key"),
        (lambda r: nnx.Dropout(0.5, rngs=r)(jnp.arange(3)), "inputs of a floating or complex dtype"),
        (lambda r: nnx.Dropout(0.5, broadcast_dims=(4,), rngs=r)(X), "broadcast_dims is (4,)"),
    ],
)
def test_call_that_does_not_fit_says_why(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        call(rngs())


def test_batch_axes_may_be_named_in_any_order() -> None:
    x = jnp.ones((2, 3, 4))
    ours = nnx.LinearGeneral(4, 5, batch_axis={1: 3, 0: 2}, rngs=rngs())
    assert ours.kernel.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(ours(x), jnp.einsum("abi,abio->abo", x, ours.kernel[...]), rtol=1e-6)


def test_layers_without_features_have_parameters_without_elements() -> None:
    layer = nnx.Linear(0, 2, rngs=rngs())
    np.testing.assert_array_equal(layer(jnp.ones((3, 0))), np.zeros((3, 2)))


def test_functions_put_in_need_not_know_what_was_not_given() -> None:
    def dot_general(x: Any, y: Any, dimensions: Any, precision: Any) -> Any:
        return jax.lax.dot_general(x, y, dimensions, precision)

    assert nnx.Linear(3, 4, dot_general=dot_general, rngs=rngs())(X).shape == (2, 4)
    assert nnx.LinearGeneral(3, 4, dot_general=dot_general, rngs=rngs())(X).shape == (2, 4)


def test_arrays_may_take_the_place_of_parameters() -> None:
    layer = nnx.Linear(3, 2, rngs=rngs())
    layer.kernel = jnp.ones((3, 2))
    np.testing.assert_array_equal(layer(X), X @ np.ones((3, 2)))


def test_hooks_see_what_a_layer_reads() -> None:
    twice = {"on_get_value": lambda variable, value: 2 * value}
    layer = nnx.Linear(3, 2, use_bias=False, kernel_metadata=twice, rngs=rngs())
    np.testing.assert_array_equal(layer(X), 2 * nnx.Linear(3, 2, use_bias=False, rngs=rngs())(X))


def test_dropout_draws_from_a_stream_of_its_own() -> None:
    streams = nnx.Rngs(dropout=0)
    drop = nnx.Dropout(0.5, rngs=streams)
    one, two = drop(jnp.ones(64)), drop(jnp.ones(64))
    assert (one != two).any()
    assert drop.rngs is not None
    assert (int(drop.rngs.count[...]), int(streams.dropout.count[...])) == (2, 1)


def test_dropout_follows_train_eval_and_views() -> None:
    drop = nnx.Dropout(0.5, rngs=rngs())
    x = jnp.ones(64)
    drop.eval()
    np.testing.assert_array_equal(drop(x), x)
    np.testing.assert_array_equal(nnx.view(drop, deterministic=True)(x), x)
    assert (nnx.view(drop, deterministic=False)(x) != x).any()
    drop.train()
    assert (drop(x) != x).any()


def test_dropout_draws_nothing_where_nothing_is_random() -> None:
    for rate, factor in [(0.0, 1), (1.0, 0)]:
        np.testing.assert_array_equal(nnx.Dropout(rate)(X), factor * X)


def test_update_of_linear_fits_what_is_adapted() -> None:
    linear, adapted = nnx.Linear(3, 4, rngs=nnx.Rngs(1)), nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs())
    nnx.update(adapted, nnx.state(linear))
    np.testing.assert_array_equal(adapted(X), linear(X))
    lora, rest = nnx.state(adapted, nnx.LoRAParam, ...)
    assert sorted(nnx.to_flat_state(lora).paths) == [("lora", "lora_a"), ("lora", "lora_b")]
    assert sorted(nnx.to_flat_state(rest).paths) == [("bias",), ("kernel",)]


def test_lora_passes_keyword_arguments_to_the_module_that_it_wraps() -> None:
    layer = nnx.LoRA(3, 2, 3, base_module=lambda x, scale: scale * x, rngs=rngs())
    np.testing.assert_array_equal(layer(X, scale=2), 2 * X)


def test_explicit_axes_shard_what_comes_out() -> None:
    mesh = make_mesh((2,), "data", kind=jax.sharding.AxisType.Explicit)
    rows = jax.sharding.PartitionSpec("data")
    embed = nnx.Embed(4, 4, rngs=rngs())
    calls: dict[str, Callable[[Any], Any]] = {
        "Linear": lambda x: nnx.Linear(4, 4, rngs=rngs())(x, out_sharding=rows),
        "LinearGeneral": lambda x: nnx.LinearGeneral(4, 4, rngs=rngs())(x, out_sharding=rows),
        "Einsum": lambda x: nnx.Einsum("ab,bc->ac", (4, 4), rngs=rngs())(x, out_sharding=rows),
        "Embed": lambda x: embed(jnp.array([0, 1]), out_sharding=rows),
        "Embed.attend": lambda x: embed.attend(x, out_sharding=rows),
        "Dropout": lambda x: nnx.Dropout(0.5, rngs=rngs())(jax.device_put(x, rows)),
    }
    with jax.set_mesh(mesh):
        for name, call in calls.items():
            assert tuple(jax.typeof(call(jnp.ones((2, 4)))).sharding.spec)[:1] == ("data",), name
