"""Attention layers that decode: prompts in chunks of any sizes, of different lengths, in models of scanned layers."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import LiftArgumentError
from tests.layers.bits import quick
from tests.layers.row import array

X = array(3, 6, 16)  # normalized heads of width 2 would lose half of the digits
KEY = jax.random.key(0)
LENGTHS = np.array([4, 1, 3])
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"num_kv_heads": 2, "rotary": nn.rotary_embedding, "normalize_qk": True},
    "plain": {},
    "rotary halves": {"rotary": functools.partial(nn.rotary_embedding, interleaved=False)},
    "one head of keys": {"num_kv_heads": 1},
    "fused": {"implementation": "xla", "rotary": nn.rotary_embedding},
}


class Model(nn.Module):
    """Layers under `scan` and `remat`, or in a row."""

    options: Any
    scanned: bool = True
    decode: bool = False
    ragged: bool = False
    cache_dtype: Any = None

    @nn.compact
    def __call__(self, x: Any, lengths: Any = None) -> Any:
        def body(layer: Any, x: Any) -> Any:
            return x + layer(x, lengths=lengths), None

        attention = functools.partial(
            nn.MultiHeadAttention,
            num_heads=4,
            is_causal=True,
            decode=self.decode,
            ragged_cache=self.ragged,
            cache_dtype=self.cache_dtype,
            **dict(self.options),
        )
        if not self.scanned:
            return body(attention(name="second"), body(attention(name="first"), x)[0])[0]
        run = nn.scan(nn.remat(body), variable_axes={"params": 0, "cache": 0}, split_rngs={"params": True}, length=2)
        return run(attention(name="layer"), x)[0]


def model(name: str, **fields: Any) -> Model:
    return Model(tuple(OPTIONS[name].items()), **fields)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_chunks_and_steps_are_one_forward_pass(name: str, scanned: bool, ragged: bool) -> None:
    plain = model(name, scanned=scanned)
    decoder = plain.clone(decode=True, ragged=ragged)

    @quick
    def both(x: Any) -> Any:
        expected, variables = plain.init_with_output(KEY, x)
        found = []
        for sizes in [(6,), (3, 2, 1), (2, 4)]:
            state = {**variables, "cache": decoder.init(KEY, x)["cache"]}
            for chunk in jnp.split(x, np.cumsum(sizes)[:-1], 1):
                y, cache = decoder.apply(state, chunk, mutable=["cache"])
                state, found = {**state, **cache}, [*found, y]
        return expected, jnp.split(jnp.concatenate(found, 1), 3, 1)

    expected, found = both(X)
    for y in found:
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_ragged_batch_is_one_example_after_the_other(name: str, scanned: bool) -> None:
    plain = model(name, scanned=scanned)
    decoder = plain.clone(decode=True, ragged=True)

    @quick
    def both(x: Any) -> Any:
        expected, variables = plain.init_with_output(KEY, x)
        state = {**variables, "cache": decoder.init(KEY, x)["cache"]}
        prompt, cache = decoder.apply(state, x[:, :4], LENGTHS, mutable=["cache"])
        following = jnp.stack([x[i, length : length + 2] for i, length in enumerate(LENGTHS)])
        chunk, cache = decoder.apply({**state, **cache}, following, mutable=["cache"])
        return expected, prompt, chunk, jax.tree.leaves(cache)

    expected, prompt, chunk, cache = both(X)
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(prompt[i, :length], expected[i, :length], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(chunk[i], expected[i, length : length + 2], rtol=1e-5, atol=1e-5)
    indices = [leaf for leaf in cache if leaf.dtype == jnp.int32]
    for leaf in indices:
        np.testing.assert_array_equal(leaf, np.broadcast_to(LENGTHS + 2, leaf.shape))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_cache_has_a_dtype_of_its_own(dtype: Any) -> None:
    layer = nn.MultiHeadAttention(4, dtype=jnp.bfloat16, decode=True, cache_dtype=dtype)
    variables = layer.init(KEY, X)
    y, after = layer.apply(variables, X[:, :2], mutable=["cache"])
    kept = {name: leaf.dtype for name, leaf in after["cache"].items()}
    assert (y.dtype, kept["cached_key"], kept["cached_value"]) == (jnp.bfloat16, dtype, dtype)


@pytest.mark.parametrize("fields", [{}, {"decode": True}, {"ragged_cache": True}])
def test_lengths_need_a_ragged_cache(fields: Any) -> None:
    layer = nn.MultiHeadAttention(4, **fields)
    with pytest.raises(LiftArgumentError, match=re.escape("Make it with `decode=True, ragged_cache=True`")):
        layer.init(KEY, X, lengths=LENGTHS)
