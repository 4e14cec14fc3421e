from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.nn import spectral_normalize, unit_norm
from tests.layers.row import array

X = jnp.asarray(array(3, 4, 2))


@pytest.mark.parametrize("axes", [None, 0, (1, 2), -1])
def test_vectors_get_length_one(axes: Any) -> None:
    np.testing.assert_allclose((unit_norm(X, axes) ** 2).sum(axes), 1, rtol=1e-5)


def test_the_largest_singular_value_becomes_one_whatever_the_number_of_axes() -> None:
    weights, u, sigma = spectral_normalize(X, jnp.ones((1, 2)), n_steps=50)
    matrix = np.asarray(X).reshape(12, 2)
    np.testing.assert_allclose(sigma, np.linalg.svd(matrix, compute_uv=False)[0], rtol=1e-5)
    np.testing.assert_allclose(weights, X / sigma, rtol=1e-6)
    assert u.shape == (1, 2)


def test_zeros_are_divided_by_nothing_and_dtypes_are_as_told() -> None:
    weights, _, sigma = spectral_normalize(jnp.zeros((3, 2)), jnp.ones((1, 2)), dtype=jnp.bfloat16)
    assert (weights.dtype, sigma, weights.any()) == (jnp.bfloat16, 0, False)


def test_the_gradient_takes_singular_vectors_for_constants() -> None:
    _, u, _ = spectral_normalize(X, jnp.ones((1, 2)), n_steps=50)
    slope = jax.grad(lambda x: spectral_normalize(x, u, n_steps=50)[2])(X).reshape(12, 2)
    np.testing.assert_allclose(np.linalg.norm(slope), 1, rtol=1e-4)  # that of `v W uᵀ` is the outer product of both
