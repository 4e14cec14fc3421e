"""What a call of a compiled function gives up, so that its results may take the memory: arguments, and variables."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from .. import filters
from .._compat import is_eager
from ..pipeline.use import Use
from ..typing import Predicate, PyTree

__all__ = ["DONATED", "NOTHING", "Donated", "donate"]

DONATED = "gone"
"""The argument of all compiled functions that holds what is donated."""


class Donated(NamedTuple):
    """What is given up; both are empty where nothing is.

    Attributes:
        variables: parts of the groups of variables.
        arguments: arguments by name.
    """

    variables: tuple[PyTree, ...]
    arguments: dict[str, Any]

    def joined(self, variable_groups: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """The groups of variables with what is given up of them."""
        if not self.variables:
            return variable_groups
        pairs = zip(variable_groups, self.variables, strict=True)
        return tuple(tuple(map(filters.merge, *pair)) for pair in pairs)

    def write(self, use: Use, scopes: PyTree) -> None:
        """Writes each variable with the value that it has, so that it comes back also where the body writes none."""
        routes = zip(use.layout.routes, jax.tree.leaves(scopes), strict=True)
        outermost = {index: scope for (index, route), scope in routes if not route}
        for group in self.variables:
            for index, tree in enumerate(group):
                for path, value in filters.leaves_of(tree):
                    outermost[index].below(path[1:-1]).put_variable(path[0], path[-1], value)


NOTHING = Donated((), {})
"""What most calls give up."""


def donate(
    matches: Predicate, variable_groups: tuple[PyTree, ...], use: Use
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
    """Parts what is given up of the groups of variables.

    Only what may be written is: the last value takes the place of the one that is gone. Under a transformation nothing
    is, since the buffers belong to the call that is compiled around.

    Returns:
        The groups of what is given up, none where it is nothing, and those of what is kept.
    """
    if matches == filters.Nothing() or not use.writes or not is_eager():
        return (), variable_groups
    which = [filters.intersect(matches, outer.tree.mutable) for outer in use.outers]
    gone, kept = [], []
    for group in variable_groups:
        parts = [
            filters.partition(tree, [one], outer.path, empty=True)
            for tree, one, outer in zip(group, which, use.outers, strict=True)
        ]
        gone.append(tuple(taken for (taken,), _ in parts))
        kept.append(tuple(rest for _, rest in parts))
    return (tuple(gone), tuple(kept)) if jax.tree.leaves(gone) else ((), variable_groups)
