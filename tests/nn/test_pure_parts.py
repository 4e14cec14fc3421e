from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError
from tests.layers.bits import assert_same_bits
from tests.layers.row import array
from tests.machine import make_mesh

LAYERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
    "dense": (lambda scope, x: nn.dense(scope, x, 5), nn.affine, (2, 3, 4)),
    "dense_general": (
        lambda scope, x: nn.dense_general(scope, x, (5, 2), (-1, 1), (0,)),
        functools.partial(nn.affine, axis=(-1, 1), batch_dims=(0,)),
        (2, 3, 6, 4),
    ),
    "einsum": (
        lambda scope, x: nn.einsum(scope, x, (4, 3, 5), "...a,abc->...cb"),
        functools.partial(nn.affine_einsum, "...a,abc->...cb"),
        (2, 4),
    ),
    "conv": (
        lambda scope, x: nn.conv(scope, x, 6, (3, 2), 2, "CIRCULAR", feature_group_count=2),
        functools.partial(nn.convolve, strides=2, padding="CIRCULAR", feature_group_count=2),
        (2, 3, 6, 5, 4),
    ),
    "conv_transpose": (
        lambda scope, x: nn.conv_transpose(scope, x, 3, 3, 2, "CIRCULAR", transpose_kernel=True),
        functools.partial(nn.convolve_transpose, strides=2, padding="CIRCULAR", transpose_kernel=True),
        (6, 4),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_its_pure_part_on_its_parameters(name: str) -> None:
    layer, part, shape = LAYERS[name]
    x = jnp.asarray(array(*shape))
    params = liftcore.init(layer)(jax.random.key(0), x)[1]["params"]
    params = {name: jnp.asarray(array(*value.shape)) for name, value in params.items()}
    expected = liftcore.apply(layer)({"params": params}, x)
    assert_same_bits(part(x, params["kernel"], params["bias"]), expected)


def test_dropout_is_drop_with_its_key() -> None:
    key, x = jax.random.key(3), jnp.ones((4, 5))
    y = liftcore.apply(nn.dropout)({}, x, 0.5, broadcast_dims=(0,), deterministic=False, key=key)
    assert_same_bits(nn.drop(key, x, 0.5, (0,)), y)


def test_drop_makes_a_key_only_where_it_decides() -> None:
    made = []

    def key() -> Any:
        made.append(0)
        return jax.random.key(0)

    for rate, factor in [(0.0, 1), (1.0, 0)]:
        np.testing.assert_array_equal(nn.drop(key, jnp.ones(3), rate), np.ones(3) * factor)
    assert made == []
    nn.drop(key, jnp.ones(3), 0.5)
    assert made == [0]


def test_functions_put_in_are_asked_for_what_was_given_only() -> None:
    asked: list[dict[str, Any]] = []

    def recording(fn: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **options: Any) -> Any:
            asked.append(options)
            return fn(*args, **options)

        return record

    x = jnp.ones((2, 4), jnp.bfloat16)
    kernel = jnp.ones((4, 4), jnp.bfloat16)
    for options in ({}, {"preferred_element_type": jnp.float32}):
        ys = (
            nn.affine(x, kernel, dot_general=recording(jax.lax.dot_general), **options),
            nn.affine_einsum("ab,bc->ac", x, kernel, einsum_op=recording(jnp.einsum), **options),
            nn.convolve(x, kernel[None], conv_general_dilated=recording(jax.lax.conv_general_dilated), **options),
        )
        assert {y.dtype for y in ys} == {jnp.dtype(options.get("preferred_element_type", x.dtype))}
    named = [options.keys() & {"precision", "preferred_element_type", "out_sharding"} for options in asked]
    assert named == [{"precision"}] * 3 + [{"precision", "preferred_element_type"}] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: nn.affine(x, jnp.ones((3, 2))),
            "expected a kernel of shape (4, …) for inputs of shape (2, 4), given (3, 2)",
        ),
        (lambda x: nn.affine(x, jnp.ones((4, 2)), jnp.ones(3)), "expected a bias of shape (2,), given (3,)"),
        (lambda x: nn.affine_einsum("ab,bc->ac", x, jnp.ones((4, 2)), jnp.ones(3)), "a bias that can be reshaped to"),
        (lambda x: nn.convolve(x, jnp.ones((3, 5, 2))), "inputs have 4 features, but the kernel is for 5"),
        (
            lambda x: nn.convolve_transpose(x, jnp.ones((3, 5, 2))),
            "inputs have 4 features, but the kernel is for 5",
        ),
        (lambda x: nn.drop(jax.random.key(0), x, 1.5), "as `rate`, given 1.5"),
        (lambda x: nn.drop(jax.random.key(0), x.astype(int), 0.5), "inputs of a floating or complex dtype"),
        (lambda x: nn.drop(None, x, 0.5), "expected a PRNG key as `key`, given None. Pass `key=`"),
        (lambda x: nn.drop(jax.random.split(jax.random.key(0)), x, 0.5), "given PRNG keys of shape"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        call(jnp.ones((2, 4)))


def test_explicit_axes_shard_what_comes_out() -> None:
    mesh = make_mesh((2,), "data", kind=jax.sharding.AxisType.Explicit)
    rows = jax.sharding.PartitionSpec("data")
    with jax.set_mesh(mesh):
        x, kernel = jax.device_put(jnp.ones((2, 4)), rows), jnp.ones((4, 4))
        assert_sharded(nn.drop(jax.random.key(0), x, 0.5), rows)
        assert_sharded(nn.affine(jnp.ones((2, 4)), kernel, jnp.ones(4), out_sharding=rows), rows)
        assert_sharded(nn.affine_einsum("ab,bc->ac", jnp.ones((2, 4)), kernel, out_sharding=rows), rows)
        table = nn.Embedding(kernel)
        assert_sharded(table.lookup(jnp.array([0, 1]), out_sharding=rows), rows)
        assert_sharded(table.attend(jnp.ones((2, 4)), out_sharding=rows), rows)


def assert_sharded(y: Any, spec: Any) -> None:
    assert tuple(jax.typeof(y).sharding.spec)[:1] == tuple(spec)
