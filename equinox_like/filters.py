"""Which leaves are arrays; and pytrees parted by that, and put together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import is_array
from liftcore.errors import LiftArgumentError, shown

from .prefixes import is_prefix

__all__ = [
    "combine",
    "filter",
    "is_array",
    "is_array_like",
    "is_inexact_array",
    "is_inexact_array_like",
    "partition",
]

_NUMBERS = (bool, int, float, complex, np.generic)


def is_array_like(element: Any) -> bool:
    """Whether a leaf is an array or a number.

    Example:
        >>> [is_array_like(leaf) for leaf in (jax.numpy.ones(2), 1.0, True, "text")]
        [True, True, True, False]

    Args:
        element: the leaf.
    """
    return is_array(element) or isinstance(element, _NUMBERS)


def is_inexact_array(element: Any) -> bool:
    """Whether a leaf is an array of floating-point or complex numbers.

    Example:
        >>> [is_inexact_array(leaf) for leaf in (jax.numpy.ones(2), jax.numpy.arange(2), 1.0)]
        [True, False, False]

    Args:
        element: the leaf.
    """
    return is_array(element) and bool(jnp.issubdtype(element.dtype, jnp.inexact))


def is_inexact_array_like(element: Any) -> bool:
    """Whether a leaf is an array of floating-point or complex numbers, or such a number.

    Example:
        >>> [is_inexact_array_like(leaf) for leaf in (jax.numpy.ones(2), 1.0, 1, True)]
        [True, True, False, False]

    Args:
        element: the leaf.
    """
    return is_inexact_array(element) or isinstance(element, float | complex)


def filter(
    pytree: Any,
    filter_spec: Any,
    inverse: bool = False,
    replace: Any = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """The same pytree, with something else in the place of each leaf that is not chosen.

    Example:
        >>> import jax, equinox_like as eqx
        >>> eqx.filter({"w": jax.numpy.ones(2), "act": jax.nn.relu}, eqx.is_array)
        {'act': None, 'w': Array([1., 1.], dtype=float32)}

    Args:
        pytree: the pytree.
        filter_spec: a pytree prefix of bools, and of functions from a leaf to a bool: whether leaves are chosen.
        inverse: whether the other leaves are chosen instead.
        replace: what is in the place of those that are not chosen.
        is_leaf: which nodes of the pytree are leaves, see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: where `filter_spec` is no prefix, or holds something else.
    """
    return _map_chosen(lambda leaf, answer: leaf if answer != bool(inverse) else replace, filter_spec, pytree, is_leaf)


def partition(
    pytree: Any, filter_spec: Any, replace: Any = None, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[Any, Any]:
    """Two pytrees of the same structure: one with the leaves that are chosen, the other with all other leaves.

    Example:
        >>> import jax, equinox_like as eqx
        >>> arrays, others = eqx.partition({"w": jax.numpy.ones(2), "steps": 5}, eqx.is_array)
        >>> arrays, others
        ({'steps': None, 'w': Array([1., 1.], dtype=float32)}, {'steps': 5, 'w': None})

    Args:
        pytree: the pytree.
        filter_spec: a pytree prefix of bools, and of functions from a leaf to a bool: whether leaves are chosen.
        replace: what is in the place of the others.
        is_leaf: which nodes of the pytree are leaves, see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: where `filter_spec` is no prefix, or holds something else.
    """
    chosen = filter(pytree, filter_spec, replace=replace, is_leaf=is_leaf)
    return chosen, filter(pytree, filter_spec, inverse=True, replace=replace, is_leaf=is_leaf)


def combine(*pytrees: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """One pytree of several: each leaf is the first that is not None. The inverse of `partition`.

    Example:
        >>> import equinox_like as eqx
        >>> eqx.combine({"w": 1, "steps": None}, {"w": None, "steps": 5})
        {'steps': 5, 'w': 1}

    Args:
        *pytrees: pytrees of one structure, but for None in the place of a leaf.
        is_leaf: which nodes of the pytrees are leaves, see `jax.tree.flatten`.

    Raises:
        ValueError: that of JAX, where they have other structures.
    """

    def first(*leaves: Any) -> Any:
        return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(first, *pytrees, is_leaf=lambda node: node is None or (is_leaf is not None and is_leaf(node)))


def _map_chosen(fn: Callable[[Any, bool], Any], spec: Any, tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    """The same pytree with `fn(leaf, whether it is chosen)` in the place of each leaf."""

    def below(answer: Any, subtree: Any) -> Any:
        return jax.tree.map(lambda leaf: fn(leaf, _answer(answer, leaf)), subtree, is_leaf=is_leaf)

    try:
        return jax.tree.map(below, spec, tree, is_leaf=lambda node: node is None)
    except (ValueError, TypeError) as error:
        if isinstance(error, LiftArgumentError) or is_prefix(spec, tree):
            raise
        raise LiftArgumentError(
            "filter_spec",
            f"expected a pytree prefix of {jax.tree.structure(tree)}, given {jax.tree.structure(spec)}.",
            "Write `eqx.filter(tree, eqx.is_array)`.",
        ) from error


def _answer(answer: Any, leaf: Any) -> bool:
    found = answer(leaf) if callable(answer) else answer
    if not isinstance(found, bool | np.bool_):
        raise LiftArgumentError(
            "filter_spec",
            f"expected bools, and functions from a leaf to a bool, given {shown(found)}.",
            "Write `eqx.filter(tree, eqx.is_array)`.",
        )
    return bool(found)
