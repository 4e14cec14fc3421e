"""Values taken apart: scopes, arrays, and the rest, which is static.

Every filtered transformation does the same. What it is called with, the function too, is taken apart; the lift of
`liftcore` of the same name, over the scopes that were found (often none), is given the arrays; inside, all is put
together again for the function, and the result is taken apart in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from liftcore import Scope, is_array, is_scoped, split_scoped
from liftcore.errors import LiftArgumentError

__all__ = ["SplitResult", "SplitTree", "check_no_scopes", "is_dynamic"]

_STATIC, _ARRAY, _SCOPED = range(3)


def is_dynamic(leaf: Any) -> bool:
    """Whether a leaf is an array, or stands on scopes, which transformations see; all else is static."""
    return is_array(leaf) or is_scoped(leaf)


class SplitTree:
    """A pytree of any objects, taken apart.

    Args:
        tree: the pytree.
        is_traced: which leaves are arrays for the transformation; it is asked for each leaf, in order.

    Attributes:
        scopes: the scopes in it, and those that modules and variables in it stand on.
        arrays: what is traced.
        structure: that of the pytree.
    """

    def __init__(self, tree: Any, is_traced: Callable[[Any], bool] = is_array) -> None:
        self.scopes: list[Scope] = []
        self.arrays: list[Any] = []
        self._static: list[Any] = []
        self._kinds = bytearray()
        self._makers: list[tuple[int, Callable[..., Any]]] = []
        self.structure: Any
        leaves, self.structure = jax.tree.flatten(tree)
        for leaf in leaves:
            kind = _ARRAY if is_traced(leaf) else _SCOPED if is_scoped(leaf) else _STATIC
            self._kinds.append(kind)
            if kind == _SCOPED:
                found, make = split_scoped(leaf)
                self.scopes += found
                self._makers.append((len(found), make))
            else:
                (self.arrays if kind == _ARRAY else self._static).append(leaf)

    def join(self, arrays: Iterable[Any], scopes: Sequence[Scope] = ()) -> Any:
        """The pytree again, with other arrays and scopes."""
        now = iter(scopes)
        scoped = (make(list(itertools.islice(now, count))) for count, make in self._makers)
        sources: tuple[Any, ...] = iter(self._static), iter(arrays), scoped
        return self.structure.unflatten([next(sources[kind]) for kind in self._kinds])

    def is_like(self, other: SplitTree) -> bool:
        """Whether another pytree has the same structure, arrays in the same places, and equal static leaves."""
        if (self.structure, self._kinds) != (other.structure, other._kinds):
            return False
        return all(
            one is two or (type(one) is type(two) and one == two)
            for one, two in zip(self._static, other._static, strict=True)
        )

    def fill(self, values: Iterable[Any], others: Any = None) -> Any:
        """A pytree of the same structure with values in the places of arrays, and something else in all others."""
        now = iter(values)
        return self.structure.unflatten([next(now) if kind == _ARRAY else others for kind in self._kinds])

    def forget_arrays(self) -> None:
        """Keeps the structure only: a result is taken apart while it is traced, and this outlives the trace."""
        self.arrays = []
        self._static = [None if is_array(leaf) else leaf for leaf in self._static]

    def take(self, tree: Any) -> list[Any]:
        """What such a pytree has in the places of arrays."""
        values = self.structure.flatten_up_to(tree)
        return [value for value, kind in zip(values, self._kinds, strict=True) if kind == _ARRAY]


class SplitResult:
    """What a function returned within a transformation, which traces it: its static leaves, for outside.

    Args:
        where: the transformation, for the text of errors.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.parts: SplitTree

    def arrays(self, result: Any, is_traced: Callable[[Any], bool] = is_array) -> list[Any]:
        """What is traced of the result.

        Raises:
            LiftArgumentError: where it has a scope.
        """
        self.parts = SplitTree(result, is_traced)
        check_no_scopes(self.where, self.parts.scopes)
        arrays = self.parts.arrays
        self.parts.forget_arrays()
        return arrays

    def join(self, arrays: Iterable[Any]) -> Any:
        """The result, outside."""
        return self.parts.join(arrays)


def check_no_scopes(where: str, scopes: Sequence[Scope]) -> None:
    """Checks that a result has no scopes."""
    if scopes:
        raise LiftArgumentError(
            where,
            f"it returned the scope {scopes[0].path_text}, which ends with the transformation.",
            "Return what was read from it: the value of a variable.",
        )
