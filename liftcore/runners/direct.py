"""Direct calls of a compiled function, without the stages of a lift: they read at most one scope and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from .._compat import trace_state
from ..caches import watched
from ..pipeline.body import Body
from ..scopes.scope import Scope
from ..typing import PyTree
from .compiled import Compiled

__all__ = ["Direct"]

_NOTHING: PyTree = ((),)
"""One group without scopes."""

_NO_STREAMS: PyTree = (({},),)
"""One group of streams of one scope without streams."""


class Direct:
    """The compiled functions for such calls.

    The key contains all that may differ between calls and affects the compiled function: the parts of the outer tree
    that a body can see, the names that are taken there, and the settings around the call.

    Args:
        around: returns a key of the settings around a call, or a plain `object()` if there is no key.
    """

    def __init__(self, around: Callable[[], Hashable]) -> None:
        self._around = around
        self._found: dict[Any, Compiled] = {}
        watched(self)

    def cache_clear(self) -> None:
        """Forget all of them."""
        self._found.clear()

    def note(self, body: Body, around: Hashable, found: Compiled) -> None:
        """Record the compiled function for a call of the lift of all variables, if it only reads at most one scope."""
        if type(around) is object:  # it equals no other key
            return
        if len(self._found) >= _MOST:
            self._found.clear()
        if not body.outers:
            self._found[body.layout.scopes, around] = found
        elif len(body.given) == 1 and body.layout.scopes == _ONE and _only_reads(body.given[0]):
            self._found[body.layout.trees[0], body.layout.names[0], around] = found

    def find(self, scopes: PyTree) -> Callable[[dict[str, Any]], Any] | None:
        """Return the compiled function for a call, as a function of named arguments; None if the stages are needed."""
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
        found = self._found.get((scope.tree.surroundings(Scope, scope.path), scope.names(), self._around()))
        variables = scope.collections_below()
        if found is None or not all(variables.values()):  # an empty collection is in no group
            return None
        groups: PyTree = ((variables,),)

        def run(arguments: dict[str, Any]) -> Any:
            result, record = found.directly((groups, _NO_STREAMS, arguments))
            for names in record.names:  # it created, wrote and drew nothing, so names are its only effect
                scope.take_names(names)
            return result

        return run


_MOST = 256
"""The number of compiled functions that are found directly; if there are more, they are found again by and by."""

_ONE = jax.tree.structure(0)
"""The structure of one scope, which is a leaf."""


def _only_reads(scope: Scope) -> bool:
    """Whether nothing can be written, created or drawn in the tree of a scope, and it has no observer."""
    tree = scope.tree
    return (
        not tree.writes
        and not tree.given
        and tree.outer is None
        and tree.watch is None
        and scope.is_valid
        and tree.trace == trace_state()
    )
