from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest

import linen_like
import nnx_like
from benchmarks.models import decoder
from benchmarks.sides import PURE

accelerator = importlib.import_module("benchmarks.items.accelerator")
SIZE = decoder.SMALL._replace(new=4)
TOKENS = jax.random.randint(jax.random.key(0), (2, 8), 0, SIZE.words)


def test_all_sides_are_the_same_model() -> None:
    init, apply = decoder.pure(SIZE)
    params = jax.jit(init)(jax.random.key(1), TOKENS)
    expected = jax.jit(apply)(params, TOKENS, jax.random.key(2))
    module = decoder.linen(linen_like, SIZE)
    logits = jax.jit(module.apply)({"params": params}, TOKENS)
    np.testing.assert_array_equal(logits.astype("float32"), expected.astype("float32"))
    objects = decoder.objects(nnx_like, SIZE)
    nnx_like.update(objects, params)
    logits = jax.jit(lambda tokens: objects(tokens))(TOKENS)
    np.testing.assert_array_equal(logits.astype("float32"), expected.astype("float32"))


@pytest.mark.parametrize("side", [PURE, "linen_like", "linen_like None", "nnx_like"])
def test_each_side_trains(side: str) -> None:
    step: Any = accelerator.training(side, SIZE)
    first, second = (float(step.run()) for _ in range(2))
    assert second < first
    assert step.memory > 0


def test_both_loops_generate_the_same_tokens() -> None:
    by_hand, ours = (np.asarray(run(SIZE.new)) for run in accelerator.generating(SIZE).values())
    assert by_hand.shape == (SIZE.batch, SIZE.new)
    np.testing.assert_array_equal(by_hand, ours)
