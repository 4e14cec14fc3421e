"""Split values into scopes, arrays, and the static rest.

Every filtered transformation works the same way. It splits the function and its arguments. It passes the arrays to the
lift of the same name in `liftcore`, over the scopes that it found (often none). Inside, it rebuilds the function and
the arguments, calls the function, and splits the result in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from liftcore import Scope, is_scoped, is_traceable, split_scoped
from liftcore.cycles import check_finite
from liftcore.errors import LiftArgumentError
from liftcore.leaves import split_leaves

__all__ = ["SplitResult", "SplitTree", "check_no_scopes", "is_dynamic"]


def is_dynamic(leaf: Any) -> bool:
    """Return whether a leaf is an array or holds scopes; transformations treat all other leaves as static."""
    return is_traceable(leaf) or is_scoped(leaf)


class SplitTree:
    """A pytree of any objects, split into its parts.

    Args:
        tree: the pytree.
        is_traced: a function that returns whether the transformation traces a leaf; it is called for each leaf, in
            order.

    Attributes:
        scopes: the scopes in the pytree, including those of bound modules and variables.
        arrays: the traced leaves.
        structure: the structure of the pytree.
    """

    def __init__(self, tree: Any, is_traced: Callable[[Any], bool] = is_traceable) -> None:
        check_finite(tree)
        self.arrays, self._others = split_leaves(tree, is_traced)
        self.structure = self._others.treedef
        scoped, self._static = split_leaves(self._others.leaves, is_scoped)
        found = [split_scoped(leaf) for leaf in scoped]
        self.scopes: list[Scope] = [scope for scopes, _ in found for scope in scopes]
        self._makers = [(len(scopes), make) for scopes, make in found]

    def join(self, arrays: Iterable[Any], scopes: Sequence[Scope] = ()) -> Any:
        """Rebuild the pytree with other arrays and scopes."""
        now = iter(scopes)
        scoped = [make(list(itertools.islice(now, count))) for count, make in self._makers]
        return self._others.join(arrays, self._static.join(scoped))

    def array_paths(self) -> list[Any]:
        """Return the paths of the traced leaves."""
        numbers = self.structure.unflatten(range(self.structure.num_leaves))
        paths = [keys for keys, _ in jax.tree.leaves_with_path(numbers)]
        return list(itertools.compress(paths, self._others.chosen))

    def is_like(self, other: SplitTree) -> bool:
        """Return whether another pytree has the same structure, arrays in the same places, and equal static leaves."""
        if (self.structure, self._others.chosen) != (other.structure, other._others.chosen):
            return False
        return self._static.chosen == other._static.chosen and all(
            one is two or (type(one) is type(two) and one == two)
            for one, two in zip(self._static.leaves, other._static.leaves, strict=True)
        )

    def fill(self, values: Iterable[Any], others: Any = None) -> Any:
        """Return a pytree of the same structure with a value for each array, and `others` for every other leaf."""
        return self._others.join(values, itertools.repeat(others))

    def forget_arrays(self) -> None:
        """Keep only the structure: a result is split while it is traced, and this object outlives the trace."""
        self.arrays = []
        static = [None if is_traceable(leaf) else leaf for leaf in self._static.leaves]
        self._static, self._others = self._static._replace(leaves=static), self._others._replace(leaves=[])

    def take(self, tree: Any) -> list[Any]:
        """Return the values that a pytree of the same structure has in the places of the arrays."""
        return list(itertools.compress(self.structure.flatten_up_to(tree), self._others.chosen))


class SplitResult:
    """The static part of the result of a function that a transformation traces, to rebuild the result outside.

    Args:
        where: the name of the transformation, for errors.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.parts: SplitTree

    def arrays(self, result: Any, is_traced: Callable[[Any], bool] = is_traceable) -> list[Any]:
        """Split a result, keep its static part, and return its traced leaves.

        Raises:
            LiftArgumentError: if the result has a scope.
        """
        self.parts = SplitTree(result, is_traced)
        check_no_scopes(self.where, self.parts.scopes)
        arrays = self.parts.arrays
        self.parts.forget_arrays()
        return arrays

    def join(self, arrays: Iterable[Any]) -> Any:
        """Rebuild the result outside of the transformation."""
        return self.parts.join(arrays)


def check_no_scopes(where: str, scopes: Sequence[Scope]) -> None:
    """Check that a result has no scopes."""
    if scopes:
        raise LiftArgumentError(
            where,
            f"it returned the scope {scopes[0].path_text}, which ends with the transformation.",
            "Return the value of a variable instead.",
        )
