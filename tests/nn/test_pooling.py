from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore import nn
from liftcore.errors import LiftArgumentError
from tests.layers.row import array

X = array(2, 6, 3)
PAIRS = X.reshape(2, 3, 2, 3)


def test_pooling_takes_the_extreme_or_the_mean_of_each_window() -> None:
    np.testing.assert_array_equal(nn.max_pool(X, (2,), (2,)), PAIRS.max(2))
    np.testing.assert_array_equal(nn.min_pool(X, (2,), (2,)), PAIRS.min(2))
    np.testing.assert_allclose(nn.avg_pool(X, (2,), (2,)), PAIRS.mean(2), rtol=1e-6)


def test_padding_counts_in_the_mean_only_if_it_is_to() -> None:
    ones = jnp.ones((1, 3, 1))
    np.testing.assert_allclose(nn.avg_pool(ones, (3,), padding=[(2, 0)])[0, :, 0], [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(nn.avg_pool(ones, (3,), padding=[(2, 0)], count_include_pad=False), ones)


@pytest.mark.parametrize("batch", [(), (0,), (2, 3)])
def test_batch_may_be_of_any_shape(batch: tuple[int, ...]) -> None:
    for pooled in (nn.max_pool, nn.avg_pool):
        made = jax.eval_shape(lambda x, pooled=pooled: pooled(x, (2, 2), (2, 1), "SAME"), array(*batch, 5, 4, 3))
        assert made.shape == (*batch, 3, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 2, 2),), "expected inputs of 3 spatial dimensions and one of features, given shape (2, 6, 3)"),
        (((2,), (1, 1)), "expected 1 strides, given (1, 1). Pass `strides=(2,)`"),
        (((2,), None, "FULL"), "given 'FULL'. Pass `padding=\"SAME\"` or `padding=[(1, 1)]`"),
        (((2,), None, [(1, 1), (1, 1)]), "1 pairs (low, high), given [(1, 1), (1, 1)]"),
        (((2,), None, [(1,)]), "given [(1,)]"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"pooling with window_shape=\(.*: .*" + re.escape(message)):
        nn.max_pool(X, *arguments)
