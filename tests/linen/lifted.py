"""What tests of lifted modules share: four lifts that take the same modules, and ways to look at results.

The modules map `(x, None)` to `(x, y)`, so that each lift takes them: `scan` carries `x`, `vmap` maps over its rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import linen_like as nn
from tests.machine import assert_equal

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
X = jnp.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]])

OWN = {"variable_axes": {"params": 0, "state": 0}, "split_rngs": {"params": True, "dropout": True}}
"""Each element or iteration has parameters, a state and keys of its own."""

LIFTS: dict[str, Callable[..., Any]] = {
    "vmap": functools.partial(nn.vmap, **OWN),
    "scan": functools.partial(nn.scan, length=2, **OWN),
    "remat": nn.remat,
    "jit": nn.jit,
}

SHARED = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
SHARING: dict[str, Any] = {
    "vmap": functools.partial(nn.vmap, **SHARED),
    "scan": functools.partial(nn.scan, variable_broadcast="params", split_rngs={"params": False}, length=2),
    "remat": nn.remat,
    "jit": nn.jit,
}
"""The same, with parameters that all elements or iterations share."""


class Block(nn.Module):
    """A layer with a residual connection."""

    features: int = 3
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> tuple[Any, Any]:
        return x + self.scale * nn.relu(nn.Dense(self.features)(x)), x.sum()


def shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


def assert_same(ours: Any, theirs: Any) -> None:
    """Structure and values are the same, as exactly as the machine computes."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(assert_equal, ours, theirs)


def assert_close(ours: Any, theirs: Any) -> None:
    """Structure is the same, values up to rounding."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours, theirs)


def element(tree: Any, index: int, axis: int = 0) -> Any:
    """What one element or iteration has."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis), tree)


def dense_of(variables: Any, name: str) -> Any:
    """The layer of that name, as a function."""
    params = variables["params"][name]
    return functools.partial(nn.Dense(params["bias"].shape[-1]).apply, {"params": params})
