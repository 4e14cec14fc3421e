"""`RoPE`, and attention with it: positions in batches, and in a cache."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from liftcore.nn import rotary_embedding
from tests.layers.row import array

X = jnp.asarray(array(2, 6, 8))
HEADS = jnp.asarray(array(2, 6, 2, 4))
POSITIONS = jnp.array([[0, 1, 2, 3, 4, 5], [3, 1, 4, 1, 5, 9]])
TABLE = {"embedding_size": 4, "max_seq_len": 7}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("options", [{}, {"theta": 100.0}, TABLE], ids=str)
def test_it_is_the_rotary_embedding_of_two_halves(options: dict[str, Any], dtype: Any) -> None:
    rope, base = nnx.RoPE(**options), options.get("theta", 10_000.0)
    turn = functools.partial(rotary_embedding, HEADS.astype(dtype), base=base, interleaved=False)
    each = [rope(HEADS.astype(dtype)[:, :, head]) for head in range(2)]
    assert_same(jnp.stack(each, 2), turn(positions=jnp.arange(6)))
    each = [rope(HEADS.astype(dtype)[:, :, head], POSITIONS) for head in range(2)]
    assert_same(jnp.stack(each, 2), turn(positions=POSITIONS))


def test_integers_become_floating() -> None:
    assert_same(nnx.RoPE()(jnp.arange(8).reshape(2, 4)), nnx.RoPE()(jnp.arange(8.0).reshape(2, 4)))


def assert_same(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def attention(**options: Any) -> Any:
    attend = functools.partial(nnx.dot_product_attention_with_rope, rope=nnx.RoPE(**options))
    return nnx.MultiHeadAttention(2, 8, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("options", [{}, TABLE], ids=str)
@pytest.mark.parametrize("ragged", [False, True])
def test_chunks_in_a_cache_are_one_forward_pass(options: dict[str, Any], ragged: bool) -> None:
    layer = attention(**options)
    expected = layer(X, is_causal=True)
    layer.decode = True
    layer.init_cache(X.shape, ragged=ragged)

    @nnx.jit
    def step(layer: Any, chunk: Any) -> Any:
        return layer(chunk, input_positions=layer.cache_index[..., None] + jnp.arange(chunk.shape[1]))

    found = [step(layer, chunk) for chunk in jnp.split(X, [3, 4], 1)]
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, rtol=1e-5, atol=1e-6)


def test_attention_depends_on_distances_only() -> None:
    rope = nnx.RoPE()
    attend = functools.partial(nnx.dot_product_attention_with_rope, HEADS, HEADS, HEADS, rope=rope)
    np.testing.assert_allclose(attend(input_positions=jnp.arange(6) + 7), attend(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(attend(input_positions=POSITIONS)[1], attend()[1])
    assert not jax.tree.leaves(nnx.state(rope))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: nnx.RoPE(embedding_size=4), "max_seq_len is None"),
        (lambda: nnx.RoPE(embedding_size=3, max_seq_len=2), "3 is not a positive even number"),
        (lambda: nnx.RoPE()(X[..., :3]), "3 is not a positive even number"),
        (lambda: nnx.RoPE()(X, POSITIONS[:, :2]), r"positions have shape \(2, 2\), .* = \(2, 6\)"),
        (lambda: nnx.RoPE()(X[0, 0]), "of shape .*length, features"),
        (
            lambda: nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))(X, input_positions=POSITIONS),
            "takes no positions",
        ),
        (lambda: nnx.RoPE(**{**TABLE, "max_seq_len": 5})(X[..., :4]), r"up to \(5, 4\); the inputs have \(6, 4\)"),
        (lambda: nnx.RoPE(**TABLE)(X), r"nnx.RoPE\(embedding_size=8, max_seq_len=6\)"),
        (
            lambda: nnx.dot_product_attention_with_rope(HEADS[:, :1], HEADS, HEADS, rope=nnx.RoPE()),
            "1 queries and 6 keys",
        ),
    ],
)
def test_wrong_sizes(call: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=text):
        call()
