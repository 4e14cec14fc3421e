"""Donation: the arguments and variables whose memory a compiled function may reuse for its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from .. import filters
from .._compat import is_eager
from ..filters.trees import by_place, merged
from ..pipeline.body import Body
from ..typing import Predicate, PyTree

__all__ = ["DONATED", "NOTHING", "Donated", "donate"]

DONATED = "gone"
"""The name of the argument of all compiled functions that contains the donated values."""


class Donated(NamedTuple):
    """The donated values; both fields are empty if there are none.

    Attributes:
        variables: parts of the groups of variables.
        arguments: arguments by name.
    """

    variables: tuple[PyTree, ...]
    arguments: dict[str, Any]

    def joined(self, variable_groups: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        """Return the groups of variables together with the donated ones."""
        if not self.variables:
            return variable_groups
        return tuple(map(merged, variable_groups, self.variables))

    def write(self, body: Body, scopes: PyTree) -> None:
        """Write each donated variable with its own value, so that it comes back even if the body does not write it."""
        routes = zip(body.layout.routes, jax.tree.leaves(scopes), strict=True)
        outermost = {index: scope for (index, route), scope in routes if not route}
        for group in self.variables:
            for (index, path), value in by_place(group).items():
                outermost[index].below(path[1:-1]).put_variable(path[0], path[-1], value)


NOTHING = Donated((), {})
"""The value for a call that donates nothing, which is the most common one."""


def donate(
    matches: Predicate, variable_groups: tuple[PyTree, ...], body: Body
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
    """Separate the donated variables from the groups of variables.

    Only mutable variables are donated, because a new value must replace the deleted one. Under a transformation,
    nothing is donated, because the buffers belong to the enclosing compiled call.

    Returns:
        The groups of donated variables (no groups if there are none), and the groups of the others.
    """
    if matches == filters.Nothing() or not body.writes or not is_eager():
        return (), variable_groups
    which = [filters.intersect(matches, outer.tree.mutable) for outer in body.outers]
    gone, kept = [], []
    for group in variable_groups:
        parts = [
            filters.partition(tree, [one], outer.path, empty=True)
            for tree, one, outer in zip(group, which, body.outers, strict=True)
        ]
        gone.append(tuple(taken for (taken,), _ in parts))
        kept.append(tuple(rest for _, rest in parts))
    return (tuple(gone), tuple(kept)) if jax.tree.leaves(gone) else ((), variable_groups)
