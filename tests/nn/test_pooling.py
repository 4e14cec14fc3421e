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
        (
            ((2, 2, 2),),
            "expected inputs of 3 spatial dimensions, as `window_shape` has, and one of features, given (2, 6, 3)",
        ),
        (
            ((2,), (1, 1)),
            "expected a stride for each spatial dimension as `strides`, given (1, 1). Pass `strides=(2,)`",
        ),
        (((2,), None, "FULL"), "given 'FULL'. Pass `padding=\"SAME\"` or `padding=[(1, 1)]`"),
        (((2,), None, [(1, 1), (1, 1)]), "1 pairs (low, high), given [(1, 1), (1, 1)]"),
        (((2,), None, [(1,)]), "given [(1,)]"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"pooling with window_shape=\(.*: .*" + re.escape(message)):
        nn.max_pool(X, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2,), "pooling: expected a positive size for each spatial dimension of the inputs as `window_shape`, given 2"),
        (((),), "as `window_shape`, given ()"),
        (((2, 0),), "as `window_shape`, given (2, 0)"),
        (((2, 2), (0, 1)), "as `strides`, given (0, 1)"),
        (((2, 2), 2), "as `strides`, given 2"),
    ],
)
def test_sizes_are_positive(arguments: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        nn.avg_pool(array(1, 4, 4, 1), *arguments)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.float16])
def test_padding_is_never_an_extreme(dtype: Any) -> None:
    x = np.array([5, 100, 3]).astype(dtype).reshape(1, 3, 1)
    padding = [(1, 1)]
    np.testing.assert_array_equal(nn.max_pool(x, (2,), padding=padding)[0, :, 0], [5, 100, 100, 3])
    np.testing.assert_array_equal(nn.min_pool(x, (2,), padding=padding)[0, :, 0], [5, 5, 3, 3])
    assert nn.max_pool(x, (2,)).dtype == dtype


def test_window_that_does_not_fit_leaves_nothing() -> None:
    assert nn.max_pool(X, (7,)).shape == nn.avg_pool(X, (7,)).shape == (2, 0, 3)


def test_pool_combines_by_any_function() -> None:
    np.testing.assert_allclose(nn.pool(X, 1.0, jax.lax.mul, [2], [2], "VALID"), PAIRS.prod(2), rtol=1e-6)
