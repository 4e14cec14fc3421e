"""What the scopes of one tree share: places, counts of draws, the thread that may change them, a view of new values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self, cast

from ..typing import Path

if TYPE_CHECKING:
    from .scope import Scope
    from .tree import Counter, Node, Tree

__all__ = ["Sharing"]


class Sharing:
    """Answers what styles need to know about the tree of a scope."""

    __slots__ = ()

    tree: Tree
    node: Node
    counter: Counter
    path: Path

    # -- places --------------------------------------------------------------------------------------------------------

    @property
    def path_text(self) -> str:
        """The path as errors show it, with the names of lifts: `/encoder/vmap(block)/dense`."""
        return "/".join((self.tree.above, *self.relative_path)) or "/"

    @property
    def relative_path(self) -> Path:
        """The path from the entry of the innermost lift, or from the root."""
        return self.path[len(self.tree.base) :]

    @property
    def place(self) -> Hashable:
        """An object that stands for the place of the scope: scopes at one place of one tree have the same."""
        return self.node

    @property
    def entry(self) -> Scope:
        """The scope at the entry of the innermost lift, or at the root."""
        scope = cast("Scope", self)
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def holds(self, other: Scope) -> bool:
        """Whether another scope is at the place of this one or below it, in the same tree.

        Args:
            other: the other scope.
        """
        return self.tree is other.tree and self.path == other.path[: len(self.path)]

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> dict[str, int]:
        """How many keys of each stream were drawn at this place, without those below."""
        return dict(self.counter.counts)

    @property
    def given_rngs(self) -> tuple[str, ...]:
        """The names of the streams that `init` or `apply` was given; lifts may pass in fewer."""
        return self.tree.given

    def can_draw(self, name: str) -> bool:
        """Whether `make_rng(name)` finds a stream here: one of that name, or `params` in its place.

        Args:
            name: the name of the stream.
        """
        return self.tree.stream(name) is not None

    # -- threads -------------------------------------------------------------------------------------------------------

    @property
    def is_claimed(self) -> bool:
        """Whether this thread owns the tree, as while its `init`, `apply` or `claim` lasts."""
        return self.tree.thread == get_ident()

    def claim(self) -> bool:
        """Give the tree to this thread, until `release` is called. Return False if a thread already owns it."""
        return self.tree.claim()

    def release(self) -> None:
        """Let any thread use the tree from now on, one at a time."""
        self.tree.open()

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Self]:
        """A context that returns the scope itself and ends it on exit; until then, this thread alone may change it."""
        self.claim()
        try:
            yield self
        finally:
            cast("Scope", self).invalidate()

    def reader(self) -> Scope:
        """Return a scope at `entry` in a tree with the same variables, which this thread may read but not change."""
        return type(cast("Scope", self)).at(self.tree.reader())

    @contextlib.contextmanager
    def outside_lift(self) -> Iterator[None]:
        """A context in which this thread may change scopes of the tree while a lift over them runs.

        It is for functions that a lift calls outside its body, such as `map_out` of `map_variables`.
        """
        with self.tree.outside():
            yield

    # -- new variables -------------------------------------------------------------------------------------------------

    @property
    def has_view(self) -> bool:
        """Whether code in this tree sees other values of new variables than are stored; see `view`."""
        return self.tree.sight is not None

    def view(self, view: Callable[[Path, Any], Any]) -> None:
        """Let the code in this tree see other values of the variables that it creates from now on.

        Args:
            view: called with the path of the new variable, `(collection, *modules, name)`, and the value that a view
                before it gave, or the value that will be stored; returns the value that the code sees.
        """
        before = self.tree.sight
        self.tree.sight = view if before is None else lambda path, value: view(path, before(path, value))
