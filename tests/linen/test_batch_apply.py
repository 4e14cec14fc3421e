from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from linen_like.batch_apply import BatchApply
from linen_like.errors import LiftArgumentError
from tests.layers.row import array

X, W = array(2, 3, 4), array(4)


def test_leading_dimensions_are_merged_and_split_again() -> None:
    seen = []

    def product(x: Any, w: Any, *, scale: Any, by: float) -> Any:
        seen.append((x.shape, w.shape, scale.shape, by))
        return x @ w, {"scaled": x * scale[:, None]}

    y, others = BatchApply(product)(X, W, scale=X[..., 0], by=2.0)
    assert seen == [((6, 4), (4,), (6,), 2.0)]
    np.testing.assert_allclose(y, X @ W, rtol=1e-6)
    np.testing.assert_array_equal(others["scaled"], X * X[..., :1])


@pytest.mark.parametrize(("shape", "num_dims"), [((0, 3, 4), 2), ((2, 0, 5, 4), 3), ((1, 1, 4), 2), ((3, 4), 1)])
def test_any_number_of_dimensions_of_any_size_is_merged(shape: tuple[int, ...], num_dims: int) -> None:
    y = BatchApply(lambda x: x.sum(-1), num_dims)(jnp.ones(shape))
    np.testing.assert_array_equal(y, np.full(shape[:-1], 4))


def test_with_one_dimension_arguments_may_differ_in_it() -> None:
    np.testing.assert_allclose(BatchApply(jnp.matmul, 1)(X[0], W), X[0] @ W, rtol=1e-6)


@pytest.mark.parametrize(
    ("fn", "num_dims", "args", "message"),
    [
        (len, 0, (), "a function, and a `num_dims` of 1 or more, given .* and 0"),
        (3, 2, (), "expected a function, .* given 3 and 2"),
        (len, 2, (), r"expected an array of 2 \(`num_dims`\) or more dimensions, given shapes \[\]. Pass `num_dims=1`"),
        (len, 2, (W, 1.0), r"or more dimensions, given shapes \[\(4,\), \(\)\]. Pass `num_dims=1`"),
        (
            jnp.add,
            2,
            (X, X.swapaxes(0, 1)),
            r"agree in the first 2, given shapes \[\(2, 3, 4\), \(3, 2, 4\)\]. Close over arrays that must not",
        ),
        (jnp.sum, 2, (X,), r"expected results of shape \(6, ...\), since \(2, 3\) was merged; found \(\). Ret"),
        (lambda x: x.T, 2, (X,), r"results of shape \(6, ...\).* found \(4, 6\)"),
    ],
)
def test_what_cannot_be_merged_is_refused(fn: Any, num_dims: int, args: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=f"BatchApply: .*{message}"):
        BatchApply(fn, num_dims)(*args)
