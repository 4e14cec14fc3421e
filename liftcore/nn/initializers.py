"""JAX's initializers, called as `initializer(key, shape, dtype)`.

Example:
    >>> import jax
    >>> zeros_init()(jax.random.key(0), (2,))
    Array([0., 0.], dtype=float32)
"""

from __future__ import annotations

from jax.nn.initializers import *

from ..typing import Initializer

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "ones_init",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
    "zeros_init",
]


def zeros_init() -> Initializer:
    """Return the initializer `zeros`; call it like the other initializer factories."""
    return zeros


def ones_init() -> Initializer:
    """Return the initializer `ones`; call it like the other initializer factories."""
    return ones
