"""Tests for leaves that are arrays, and functions that select leaves of pytrees, split pytrees and combine them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.cycles import check_finite
from liftcore.errors import Expected, LiftArgumentError
from liftcore.leaves import is_array, is_array_like, number_type

from .split import map_prefix

__all__ = [
    "combine",
    "filter",
    "is_array",
    "is_array_like",
    "is_inexact_array",
    "is_inexact_array_like",
    "partition",
]


def is_inexact_array(element: Any) -> bool:
    """Return whether a leaf is an array of floating-point or complex numbers.

    Example:
        >>> [is_inexact_array(leaf) for leaf in (jax.numpy.ones(2), jax.numpy.arange(2), 1.0)]
        [True, False, False]

    Args:
        element: the leaf.
    """
    return is_array(element) and bool(jnp.issubdtype(element.dtype, jnp.inexact))


def is_inexact_array_like(element: Any) -> bool:
    """Return whether a leaf is a floating-point or complex number, or an array of such numbers.

    Example:
        >>> [is_inexact_array_like(leaf) for leaf in (jax.numpy.ones(2), 1.0, 1, True)]
        [True, True, False, False]

    Args:
        element: the leaf.
    """
    return is_inexact_array(element) or number_type(element) in (float, complex)


def filter(
    pytree: Any,
    filter_spec: Any,
    inverse: bool = False,
    replace: Any = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Replace each leaf of a pytree that is not selected, by default with None.

    Example:
        >>> import jax, equinox_like as eqx
        >>> eqx.filter({"w": jax.numpy.ones(2), "act": jax.nn.relu}, eqx.is_array)
        {'act': None, 'w': Array([1., 1.], dtype=float32)}

    Args:
        pytree: the pytree.
        filter_spec: a pytree prefix of bools, or of functions from a leaf to a bool: whether to select a leaf.
        inverse: whether to select the other leaves instead.
        replace: the value that replaces the leaves that are not selected.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `filter_spec` is not such a prefix.
    """

    def kept(leaf: Any, is_chosen: Any) -> Any:
        if not isinstance(is_chosen, bool | np.bool_):
            what = Expected("bools, or functions from a leaf to a bool", is_chosen)
            raise LiftArgumentError("filter_spec", what, _FIX, option="filter_spec")
        return leaf if bool(is_chosen) != bool(inverse) else replace

    return map_prefix("filter_spec", kept, filter_spec, pytree, _FIX, is_leaf)


_FIX = "Write `eqx.filter(tree, eqx.is_array)`."


def partition(
    pytree: Any, filter_spec: Any, replace: Any = None, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[Any, Any]:
    """Split a pytree into two of the same structure: one with the selected leaves, one with all other leaves.

    Example:
        >>> import jax, equinox_like as eqx
        >>> arrays, others = eqx.partition({"w": jax.numpy.ones(2), "steps": 5}, eqx.is_array)
        >>> arrays, others
        ({'steps': None, 'w': Array([1., 1.], dtype=float32)}, {'steps': 5, 'w': None})

    Args:
        pytree: the pytree.
        filter_spec: a pytree prefix of bools, or of functions from a leaf to a bool: whether to select a leaf.
        replace: the value that takes the place of a leaf in the other pytree.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `filter_spec` is not such a prefix.
    """
    chosen = filter(pytree, filter_spec, replace=replace, is_leaf=is_leaf)
    return chosen, filter(pytree, filter_spec, inverse=True, replace=replace, is_leaf=is_leaf)


def combine(*pytrees: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Combine several pytrees into one: each leaf is the first one that is not None. The inverse of `partition`.

    Example:
        >>> import equinox_like as eqx
        >>> eqx.combine({"w": 1, "steps": None}, {"w": None, "steps": 5})
        {'steps': 5, 'w': 1}

    Args:
        *pytrees: pytrees of the same structure, except that any leaf may be None.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        ValueError: the error of JAX for pytrees of different structures.
    """
    if is_leaf is None:
        check_finite(pytrees)

    def first(*leaves: Any) -> Any:
        return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(first, *pytrees, is_leaf=lambda node: node is None or (is_leaf is not None and is_leaf(node)))
