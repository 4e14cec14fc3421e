from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.generation import filter_logits, sample_tokens

LOGITS = np.random.default_rng(0).normal(0, 2, (4, 9)).astype(np.float32)
LOGITS[2, 3:6] = LOGITS[2, 3]  # some are equal
KEYS = jax.random.split(jax.random.key(0), 4)


def by_hand(row: Any, top_k: int, top_p: float) -> Any:
    """The row with minus infinity for what is not kept, token by token."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:top_k]
    probabilities = np.exp(row[order].astype(np.float64))
    probabilities /= probabilities.sum()
    kept, total = np.full(len(row), -np.inf, np.float32), 0.0
    for token, probability in zip(order, probabilities, strict=True):
        if total < top_p:
            kept[token] = row[token]
        total += probability
    return kept


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 1e-6])
@pytest.mark.parametrize("top_k", [9, 100, 4, 1])
def test_limits_keep_the_tokens_that_numpy_keeps(top_k: int, top_p: float) -> None:
    expected = np.stack([by_hand(row, top_k, top_p) for row in LOGITS])
    np.testing.assert_array_equal(jax.jit(filter_logits)(LOGITS, top_k, top_p), expected)


def test_limits_may_differ_between_examples_and_be_left_out() -> None:
    ks, ps = np.array([1, 9, 3, 5]), np.array([1.0, 0.4, 0.7, 0.2])
    expected = np.stack([by_hand(*one) for one in zip(LOGITS, ks, ps, strict=True)])
    np.testing.assert_array_equal(filter_logits(LOGITS, ks, ps), expected)
    np.testing.assert_array_equal(filter_logits(LOGITS), LOGITS)


def test_tokens_that_sum_to_top_p_are_enough() -> None:
    np.testing.assert_array_equal(filter_logits(jnp.zeros(2), top_p=0.5), [0, -np.inf])


def test_a_sum_that_is_rounded_to_one_keeps_all_tokens() -> None:
    logits = jnp.concatenate([jnp.full(2000, 1.0), jnp.full(500, -30.0)])
    assert jnp.isfinite(filter_logits(logits, top_p=1.0)).all()


def test_draws_are_those_of_jax_and_have_its_frequencies() -> None:
    keys = jax.random.split(jax.random.key(1), 20_000)
    row = LOGITS[0]
    drawn = jax.jit(sample_tokens)(jnp.tile(row, (len(keys), 1)), keys, 0.7)
    expected = jax.vmap(jax.random.categorical, (0, None))(keys, row / np.float32(0.7))
    np.testing.assert_array_equal(drawn, expected)
    drawn = jax.jit(sample_tokens)(jnp.tile(row, (len(keys), 1)), keys, 1.5, 6, 0.9)
    probabilities = np.exp(by_hand(row / np.float32(1.5), 6, 0.9).astype(np.float64))
    probabilities /= probabilities.sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=9) / len(keys), probabilities, atol=0.015)


def test_temperature_zero_takes_the_most_probable_token_of_that_example() -> None:
    temperature = np.array([0.0, 1.0, 0.0, 1.0])
    found = sample_tokens(LOGITS, KEYS, temperature)
    every = sample_tokens(LOGITS, KEYS)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, np.where(temperature > 0, every, LOGITS.argmax(-1)))
    np.testing.assert_array_equal(sample_tokens(LOGITS, KEYS, top_k=1), LOGITS.argmax(-1))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("temperature", [1e-5, 1e-20, 2e-38, 1e-45])
def test_the_smallest_temperatures_take_the_most_probable_token(temperature: float, dtype: Any) -> None:
    logits = jnp.array([[10.0, 20.0, 5.0, 18.0]] * 4, dtype)
    for limits in ({}, {"top_k": 2}, {"top_p": 0.5}):
        assert (sample_tokens(logits, KEYS, temperature, **limits) == 1).all()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_probabilities_of_half_precision_are_summed_up_in_more(dtype: Any) -> None:
    logits = (3 * jax.random.normal(KEYS[0], (1, 20_000))).astype(dtype)
    kept = filter_logits(logits, top_p=0.99)
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, filter_logits(logits.astype(jnp.float32), top_p=0.99).astype(dtype))


def test_a_draw_does_not_depend_on_the_batch() -> None:
    every = sample_tokens(LOGITS, KEYS, 2.0, 5, 0.95)
    for i in range(4):
        one = slice(i, i + 1)
        np.testing.assert_array_equal(sample_tokens(LOGITS[one], KEYS[one], 2.0, 5, 0.95), every[one])


def test_logits_of_many_positions_are_refused() -> None:
    with pytest.raises(LiftArgumentError, match=r"\(batch, vocabulary\), given \(4, 1, 9\)"):
        sample_tokens(LOGITS[:, None], KEYS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "expected 1 or more as `top_k`, given 0"),
        ({"top_p": np.array([0.5, 0.0, 1.0, 1.0])}, "expected a number above 0 and at most 1 as `top_p`, given 0.0"),
        ({"top_p": 1.5}, "as `top_p`, given 1.5"),
        ({"top_p": "most"}, "as `top_p`, given 'most'"),
        ({"top_k": np.ones(3, int)}, r"expected one number or an array of shape \(4,\) as `top_k`, given a int64\[3\]"),
        ({"temperature": -1.0}, "expected 0 or a positive number as `temperature`, given -1.0"),
        ({"temperature": np.ones(3)}, "expected one number or an array of shape"),
        ({"temperature": None}, "expected 0 or a positive number as `temperature`, given None"),
    ],
)
def test_limits_out_of_range_are_refused(options: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=message):
        sample_tokens(LOGITS, KEYS, **options)
    if "temperature" not in options:
        with pytest.raises(LiftArgumentError, match=message):
            filter_logits(LOGITS, **options)


@pytest.mark.parametrize("keys", [KEYS[0], KEYS[:3]])
def test_a_key_for_each_example_is_required(keys: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"a key for each of 4 .* Pass `jax.random.split\(key, 4\)`"):
        sample_tokens(LOGITS, keys)


def test_traced_limits_keep_at_least_one_token() -> None:
    kept = jax.jit(filter_logits)(LOGITS, 0, 0.0)
    np.testing.assert_array_equal(jnp.isfinite(kept).sum(-1), 1)
    np.testing.assert_array_equal(kept.argmax(-1), LOGITS.argmax(-1))
