"""Weights that are rescaled before use: to length 1, or to a largest singular value of 1."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from ..typing import Array, Dtype
from .layer import canonicalize_dtype, checks_options
from .sharding import on_auto_axes, sharding_entries, to_spec

__all__ = ["spectral_normalize", "unit_norm"]


@checks_options
def unit_norm(x: Array, axes: int | Sequence[int] | None = None, epsilon: float = 1e-12) -> Array:
    """Scale vectors along axes to length 1: `x / √(Σ x² + epsilon)`.

    Example:
        >>> unit_norm(jnp.array([[3.0, 4.0], [0.0, 0.0]]), axes=-1).round(3)
        Array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)

    Args:
        x: the array.
        axes: the axes that form one vector; None means all.
        epsilon: added to the squared length, so that zeros stay zeros.
    """
    axes = tuple(axes) if isinstance(axes, Sequence) else axes
    return x * lax.rsqrt((x * x).sum(axes, keepdims=True) + epsilon)


@checks_options
def spectral_normalize(
    weights: Array, u: Array, n_steps: int = 1, epsilon: float = 1e-12, dtype: Dtype | None = None
) -> tuple[Array, Array, Array]:
    """Divide weights by their largest singular value `σ = v W uᵀ`, which a power iteration finds.

    All axes but the last are merged. The gradient treats the singular vectors `u` and `v` as constants.
    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", https://arxiv.org/abs/1802.05957.

    Example:
        >>> weights, u, sigma = spectral_normalize(jnp.diag(jnp.array([4.0, 2.0])), jnp.ones((1, 2)), n_steps=20)
        >>> weights, sigma.round(3)
        (Array([[1. , 0. ],
               [0. , 0.5]], dtype=float32), Array(4., dtype=float32))

    Args:
        weights: `(..., features)`, of at least two axes.
        u: the start of the power iteration, `(1, features)`.
        n_steps: the number of its steps, at least one.
        epsilon: added to the squared length of a vector before dividing by it.
        dtype: the dtype of the divided weights; by default what they and `u` promote to.

    Returns:
        The weights; the singular vector that was found, to start from next time; and the singular value.
    """

    def divide(weights: Array, u: Array) -> tuple[Array, Array, Array]:
        matrix, v = jnp.reshape(weights, (-1, weights.shape[-1])), u
        for _ in range(n_steps):
            v = unit_norm(jnp.matmul(u, matrix.T), epsilon=epsilon)
            u = unit_norm(jnp.matmul(v, matrix), epsilon=epsilon)
        u, v = lax.stop_gradient(u), lax.stop_gradient(v)
        sigma = jnp.matmul(jnp.matmul(v, matrix), u.T)[0, 0]
        divided = jnp.reshape(matrix / jnp.where(sigma != 0, sigma, 1), weights.shape)
        return jnp.asarray(divided, canonicalize_dtype(weights, u, v, sigma, dtype=dtype)), u, sigma

    specs = to_spec(*sharding_entries(weights)), to_spec(*sharding_entries(u)), to_spec()
    return on_auto_axes(divide, specs, weights, u)
