"""Pytree prefixes: one answer for each leaf of a pytree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from liftcore.cycles import check_finite
from liftcore.errors import LiftArgumentError

__all__ = ["is_prefix", "leafwise"]


def leafwise(where: str, spec: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return one answer for each leaf of a pytree.

    Args:
        where: the name of the prefix, for errors.
        spec: a pytree prefix. A function in it is called with each leaf below; any other value is the answer itself.
        tree: the pytree.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `spec` is not a prefix.
    """
    answers: list[Any] = []
    if is_leaf is None:
        check_finite(tree)

    def below(answer: Any, subtree: Any) -> None:
        leaves = jax.tree.leaves(subtree, is_leaf=is_leaf)
        answers.extend(map(answer, leaves) if callable(answer) else [answer] * len(leaves))

    try:
        jax.tree.map(below, spec, tree, is_leaf=lambda value: value is None)
    except (ValueError, TypeError) as error:
        raise LiftArgumentError(
            where,
            f"expected a pytree prefix of {jax.tree.structure(tree)}, given {jax.tree.structure(spec)}.",
            "Pass one value for all, or a tuple with one for each argument.",
        ) from error
    return answers


def is_prefix(spec: Any, tree: Any) -> bool:
    """Return whether one pytree is a prefix of another one."""
    try:
        jax.tree.map(lambda *_: None, spec, tree, is_leaf=lambda value: value is None)
    except (ValueError, TypeError):
        return False
    return True
