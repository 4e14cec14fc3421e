"""Calls of a compiled function for which the stages of a lift have nothing to do: they only read one scope, or none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from .._compat import trace_state
from ..pipeline.use import Use
from ..scopes.scope import Scope
from ..typing import PyTree
from .compiled import Compiled

__all__ = ["Direct"]

_NOTHING: PyTree = ((),)
"""One group of no scopes."""

_NO_STREAMS: PyTree = (({},),)
"""One group of the streams of one scope, which has none."""


class Direct:
    """What a lifted `jit` compiled for such calls, so that they are made without the stages.

    What can differ from call to call, and is part of what is compiled, is the key: what a body can see of the tree
    outside, the names taken there, and what surrounds the call.

    Args:
        around: tells what surrounds a call; an object of no class of its own where nothing stands for it.
    """

    def __init__(self, around: Callable[[], Hashable]) -> None:
        self._around = around
        self._found: dict[Any, Compiled] = {}

    def note(self, use: Use, around: Hashable, found: Compiled) -> None:
        """Keeps what was compiled for a use of the lift of all variables, if it only reads one scope, or none."""
        if type(around) is object:  # that equals no other
            return
        if not use.outers:
            self._found[use.layout.scopes, around] = found
        elif len(use.given) == 1 and use.layout.scopes == _ONE and _only_reads(use.given[0]):
            self._found[use.layout.trees[0], use.layout.names[0], around] = found

    def find(self, scopes: PyTree) -> Callable[[dict[str, Any]], Any] | None:
        """What was compiled, as a function of named arguments; None where the stages have work, or nothing is known."""
        if not self._found:
            return None
        if type(scopes) is Scope:
            return self._over(scopes)
        if jax.tree.leaves(scopes):
            return None
        found = self._found.get((jax.tree.structure(scopes), self._around()))
        return None if found is None else lambda arguments: found.directly((_NOTHING, _NOTHING, arguments))[0]

    def _over(self, scope: Scope) -> Callable[[dict[str, Any]], Any] | None:
        if not _only_reads(scope):
            return None
        found = self._found.get((scope.tree.surroundings(Scope), scope.names(), self._around()))
        variables = scope.collections_below()
        if found is None or not all(variables.values()):  # an empty collection is in no group
            return None
        groups: PyTree = ((variables,),)

        def run(arguments: dict[str, Any]) -> Any:
            result, record = found.directly((groups, _NO_STREAMS, arguments))
            for names in record.names:  # it made, wrote and drew nothing: that is all that it can have done
                scope.take_names(names)
            return result

        return run


_ONE = jax.tree.structure(0)
"""The structure of one scope, which is a leaf."""


def _only_reads(scope: Scope) -> bool:
    """Whether nothing can be written, made or drawn in the tree of a scope, and nobody watches it."""
    tree = scope.tree
    return (
        not tree.writes
        and not tree.given
        and tree.outer is None
        and tree.watch is None
        and scope.is_valid
        and tree.trace == trace_state()
    )
