"""The number of scalars and of bytes in variables, by filter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..typing import Filter, PyTree
from .parts import taken

__all__ = ["count", "size_bytes"]


def count(variables: PyTree, filter: Filter = True) -> int:
    """Count the scalars in the variables that a filter matches.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> from liftcore.filters import PathContains
        >>> shapes = jax.eval_shape(lambda: {"params": {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}})
        >>> count(shapes), count(shapes, PathContains("kernel"))
        (16, 12)

    Args:
        variables: `{collection: {module: {name: value}}}`, or another pytree of parameters, such as a module. Values
            may be boxed, or be `jax.ShapeDtypeStruct`s.
        filter: a filter of variables; all by default.

    Raises:
        LiftArgumentError: if the filter matches no variable, unless it is `None`.
    """
    return sum(math.prod(np.shape(leaf)) for leaf in _leaves("count", variables, filter))


def size_bytes(variables: PyTree, filter: Filter = True) -> int:
    """Count the bytes of the variables that a filter matches, over all devices. A replicated array counts once.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> variables = {"params": {"w": jnp.ones((3, 4), jnp.bfloat16)}, "cache": {"k": jnp.ones(5)}}
        >>> size_bytes(variables), size_bytes(variables, "params")
        (44, 24)

    Args:
        variables: `{collection: {module: {name: value}}}`, or another pytree of parameters, such as a module. Values
            may be boxed, or be `jax.ShapeDtypeStruct`s.
        filter: a filter of variables; all by default.

    Raises:
        LiftArgumentError: if the filter matches no variable, unless it is `None`.
    """
    return sum(math.prod(np.shape(leaf)) * _itemsize(leaf) for leaf in _leaves("size_bytes", variables, filter))


def _itemsize(leaf: Any) -> int:
    return int(leaf.dtype.itemsize if hasattr(leaf, "dtype") else jax.dtypes.result_type(leaf).itemsize)


def _leaves(where: str, variables: PyTree, filter: Filter) -> Iterator[Any]:
    yield from jax.tree.leaves(taken(where, variables, filter))
