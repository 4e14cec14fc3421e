"""Comparing two computations: bit for bit, or up to the order in which something is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.machine import assert_equal, tolerance


def assert_same_bits(ours: Any, theirs: Any) -> None:
    """Bit for bit on the CPU; elsewhere, floats up to the rounding of their dtype."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, mine), other in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        place = jax.tree_util.keystr(path)
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), place
        if tolerance(mine.dtype):
            assert_equal(mine, other, place)
        else:
            assert np.asarray(mine).tobytes() == np.asarray(other).tobytes(), place


def assert_close(ours: Any, theirs: Any, what: str) -> None:
    """All but the last places agree, counted from the largest number and in the coarsest dtype of the two trees.

    The last 6 bits of a `float32` or `float64` may differ, and the last 2 of what is coarser; integers may not.
    """
    assert jax.tree.structure(ours) == jax.tree.structure(theirs), what
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    inexact = [leaf for pair in pairs for leaf in pair if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finest = max((float(jnp.finfo(leaf.dtype).eps) for leaf in inexact), default=0.0)
    sizes = [np.abs(_wide(leaf)) for leaf in inexact]
    largest = max((float(size.max(initial=0, where=np.isfinite(size))) for size in sizes), default=0.0)
    tolerance = largest * finest * (4 if finest > 1e-4 else 64)
    for (path, mine), other in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        place = f"{what}{jax.tree_util.keystr(path)}"
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), place
        np.testing.assert_allclose(_wide(mine), _wide(other), 0, tolerance, err_msg=place)


def _wide(leaf: Any) -> Any:
    """Numbers in a dtype that NumPy can compare."""
    array = np.asarray(leaf)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array


def quick(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program, compiled in little time rather than well."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})
