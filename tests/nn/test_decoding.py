"""The cache of attention: chunks of any sizes, a position for each example, and its own dtype."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError
from tests.layers.bits import quick
from tests.layers.row import array
from tests.machine import make_mesh

INPUTS = array(2, 6, 3, 4)
LENGTHS = np.array([4, 1])


def attend(scope: liftcore.Scope, x: Any, lengths: Any = None, *, ragged: bool = False, dtype: Any = None) -> Any:
    cache = nn.decode_cache(scope, x, 2 * x, ragged=ragged, dtype=dtype)
    if cache is None:
        return nn.dot_product_attention(x, x, 2 * x, is_causal=True)
    query, keys, values, mask = cache.append(x, x, 2 * x, lengths=lengths)
    return nn.dot_product_attention(query, keys, values, mask=mask)


STEP = liftcore.apply(attend, mutable=["cache"])
EXPECTED = nn.dot_product_attention(INPUTS, INPUTS, 2 * INPUTS, is_causal=True)


def empty(x: Any = INPUTS, **options: Any) -> Any:
    return liftcore.init(attend)({}, x, **options)[1]


def index(variables: Any) -> list[int]:
    return np.asarray(variables["cache"]["cache_index"]).tolist()


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("sizes", [(6,), (1, 5), (3, 2, 1), (5, 1), (2, 2, 2)])
@pytest.mark.parametrize("batch", [2, 0])
def test_chunks_of_any_sizes_are_all_at_once(sizes: tuple[int, ...], ragged: bool, batch: int) -> None:
    x, expected = (INPUTS, EXPECTED) if batch else (INPUTS[0], EXPECTED[0])  # and without a batch at all
    variables, start = empty(x, ragged=ragged), 0
    for size in sizes:
        y, variables = quick(STEP)(variables, x[..., start : start + size, :, :])
        np.testing.assert_allclose(y, expected[..., start : start + size, :, :], rtol=1e-5, atol=1e-6)
        start += size
    np.testing.assert_array_equal(variables["cache"]["cached_value"], 2 * x)
    assert index(variables) == ([6] * batch if ragged and batch else 6)


@pytest.mark.parametrize("traced", [False, True])
def test_padding_is_neither_kept_nor_seen_and_examples_go_on_at_their_own_length(traced: bool) -> None:
    step = quick(STEP) if traced else STEP
    y, variables = step(empty(ragged=True), INPUTS[:, :4], LENGTHS)
    assert index(variables) == [4, 1]
    assert not variables["cache"]["cached_key"][1, 1:].any()
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(y[i, :length], EXPECTED[i, :length], rtol=1e-5, atol=1e-6)
    assert np.isfinite(y).all()
    chunk = np.stack([INPUTS[i, length : length + 2] for i, length in enumerate(LENGTHS)])
    y, variables = step(variables, chunk, np.array([2, 0]))
    np.testing.assert_allclose(y[0], EXPECTED[0, 4:6], rtol=1e-5, atol=1e-6)
    assert index(variables) == [6, 1]
    y, variables = step(variables, INPUTS[:, 1:3], np.array([-1, 9]))  # none, and all that there are
    np.testing.assert_allclose(y[1], EXPECTED[1, 1:3], rtol=1e-5, atol=1e-6)
    assert index(variables) == [6, 3]


def test_batches_may_have_several_axes() -> None:
    x = jnp.stack([INPUTS, INPUTS[::-1]])
    variables = empty(x, ragged=True)
    y, variables = STEP(variables, x[:, :, :4], np.stack([LENGTHS, LENGTHS[::-1]]))
    assert index(variables) == [[4, 1], [1, 4]]
    np.testing.assert_allclose(y[1, 1], EXPECTED[0, :4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("of", ["float32", "bfloat16"])
def test_the_dtype_of_the_cache_is_independent_of_the_computation(dtype: str, of: str) -> None:
    x = INPUTS.astype(of)
    y, variables = STEP(empty(x, dtype=dtype), x, dtype=dtype)
    assert (y.dtype, variables["cache"]["cached_key"].dtype, variables["cache"]["cached_value"].dtype) == (
        of,
        dtype,
        dtype,
    )
    np.testing.assert_allclose(y.astype(np.float32), EXPECTED, rtol=2e-2, atol=3e-2)


def test_what_is_beyond_the_room_is_nan_per_example_and_dropped() -> None:
    variables = empty(INPUTS[:, :3], ragged=True)
    y, variables = STEP(variables, INPUTS[:, :3], np.array([2, 1]))
    kept = variables["cache"]["cached_key"]
    y, after = quick(STEP)(variables, INPUTS[:, 3:5])
    assert np.isnan(y).all((-1, -2)).tolist() == [[False, True], [False, False]]
    assert index(after) == [4, 3]
    np.testing.assert_array_equal(after["cache"]["cached_key"][0, 2], INPUTS[0, 3])
    np.testing.assert_array_equal(after["cache"]["cached_key"][:, :1], kept[:, :1])
    with pytest.raises(
        LiftArgumentError, match=re.escape("room for 3 positions, but this would be number 4 of example (0,)")
    ):
        STEP(variables, INPUTS[:, 3:5])
    y, after = STEP(variables, INPUTS[:, 3:5], np.array([1, 2]))  # padding needs no room
    assert np.isfinite(y).all()
    assert index(after) == [3, 3]


def test_a_chunk_beyond_the_room_is_what_steps_are() -> None:
    variables = empty(INPUTS[:, :3])
    y, chunk = quick(STEP)(variables, INPUTS[:, :5])
    steps = variables
    for i in range(5):
        one, steps = quick(STEP)(steps, INPUTS[:, i : i + 1])
        np.testing.assert_allclose(y[:, i : i + 1], one, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, chunk, steps)
    with pytest.raises(LiftArgumentError, match="room for 3 positions, but this would be number 5"):
        STEP(variables, INPUTS[:, :5])


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P("data", None, None, "model")])
def test_a_cache_on_a_mesh_of_explicit_axes_follows_its_inputs(spec: Any, ragged: bool) -> None:
    with jax.set_mesh(make_mesh((2, 2), "data", "model", kind=AxisType.Explicit)):
        variables = empty(jax.device_put(INPUTS, spec), ragged=ragged)
        types = jax.tree.map(jax.typeof, variables)
        for start, stop in ((0, 4), (4, 6)):
            y, variables = quick(STEP)(variables, jax.device_put(INPUTS[:, start:stop], spec))
            np.testing.assert_allclose(y, EXPECTED[:, start:stop], rtol=1e-5, atol=1e-6)
        assert jax.tree.map(jax.typeof, variables) == types  # so a loop can carry them
    assert index(variables) == ([6, 6] if ragged else 6)


@pytest.mark.parametrize(
    ("ragged", "lengths", "message"),
    [
        (False, LENGTHS, "lengths, int32 of shape (2,), need a batch of that shape and an index of the cache for each"),
        (True, np.array([1]), "lengths, int32 of shape (1,), need"),
        (True, np.array([1.0, 2.0]), "lengths, float32 of shape (2,), need"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(ragged: bool, lengths: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        STEP(empty(ragged=ragged), INPUTS, lengths)


def test_an_index_of_another_batch_is_refused() -> None:
    variables = empty()
    variables["cache"]["cache_index"] = jnp.zeros(3, jnp.int32)
    with pytest.raises(LiftArgumentError, match=re.escape("an index of shape (3,), but a batch of shape (2,)")):
        STEP(variables, INPUTS)
