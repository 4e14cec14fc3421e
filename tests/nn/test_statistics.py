from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.nn import averager, moments, standardize, to_reduction_dtype
from tests.layers.row import array

X = array(3, 4, 2)


@pytest.mark.parametrize("fast", [True, False])
def test_moments_are_mean_and_variance(fast: bool) -> None:
    mean, var = moments(jnp.asarray(X), (0, 2), averager((0, 2)), fast)
    np.testing.assert_allclose(mean, X.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(var, X.var((0, 2)), rtol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_masked_moments_are_those_of_what_is_left(fast: bool) -> None:
    mask = np.arange(12).reshape(3, 4, 1) % 3 > 0
    mean, var = moments(jnp.asarray(X), (0, 1, 2), averager((0, 1, 2), mask), fast)
    left = X[np.broadcast_to(mask, X.shape)]
    np.testing.assert_allclose((mean, var), (left.mean(), left.var()), rtol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_moments_over_elements_are_those_of_all_of_them(fast: bool) -> None:
    def element(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return moments(x, (0,), averager((0,), axis_name="elements"), fast)

    mean, var = jax.vmap(element, axis_name="elements")(X)
    np.testing.assert_allclose(mean, [X.mean((0, 1))] * 3, rtol=1e-5)
    np.testing.assert_allclose(var, [X.var((0, 1))] * 3, rtol=1e-5)


def test_variance_of_complex_numbers_is_real() -> None:
    x = X[..., 0] + 1j * X[..., 1]
    mean, var = moments(jnp.asarray(x), (0, 1), averager((0, 1)))
    assert var.dtype == jnp.float32
    np.testing.assert_allclose(var, x.var(), rtol=1e-5)
    np.testing.assert_allclose(mean, x.mean(), rtol=1e-5)


def test_fast_variance_never_falls_below_zero_and_the_slow_one_is_more_exact() -> None:
    x = jnp.asarray(X[:, :, 0] + 10_000)
    fast, slow = (moments(x, (0, 1), averager((0, 1)), use_fast_variance=fast)[1] for fast in (True, False))
    assert fast >= 0
    np.testing.assert_allclose(slow, X[:, :, 0].var(), rtol=1e-3)


def test_statistics_of_half_precision_are_taken_in_single() -> None:
    x = X.astype(np.float16)
    assert to_reduction_dtype(x).dtype == jnp.float32
    assert to_reduction_dtype(x, force_float32=False).dtype == jnp.float16
    assert to_reduction_dtype(X, jnp.bfloat16, force_float32=False).dtype == jnp.bfloat16


def test_constant_inputs_give_the_bias_and_finite_gradients() -> None:
    def total(x: jax.Array) -> jax.Array:
        mean, var = moments(x, (0,), averager((0,)))
        return standardize(x, mean, var, bias=jnp.float32(3), epsilon=1e-5).sum()

    value, grad = jax.value_and_grad(total)(jnp.ones(2))
    assert value == 6
    np.testing.assert_array_equal(grad, 0)
