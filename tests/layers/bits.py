"""Comparing two computations bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def assert_same_bits(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, mine), other in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        place = jax.tree_util.keystr(path)
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype), place
        assert np.asarray(mine).tobytes() == np.asarray(other).tobytes(), place


def quick(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program, compiled in little time rather than well."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})
