"""The names that are taken in one scope, and the counters for automatic names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..statics import Undescribed
from ..typing import Path
from . import problems
from .tree import Counter, Names, Tree

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["Naming"]

_NO_NAMES = Names()


class Naming:
    """Manages the names in a scope: the names of its child scopes and of its variables."""

    __slots__ = ("_adopted", "_first_free", "_numbers", "_outside", "_reserved", "_shared")

    _adopted: tuple[Names, ...]
    _reserved: dict[str, set[str | None]]
    _outside: set[tuple[str, str | None]]  # names taken outside the lift, less the variables declared inside as well
    _numbers: dict[str, int]
    _shared: bool
    tree: Tree
    counter: Counter
    path: Path
    _first_free: dict[str, int] | None  # by prefix of `default_name`: a number below which all are taken

    def __static_fields__(self) -> dict[str, Any]:
        """Refuse to be compared (see `liftcore.static_key`): a scope holds variables, and changes."""
        raise Undescribed(self)

    def name_reserved(self, name: str, collection: str | None = None) -> bool:
        """Whether a name is taken by a scope, or by a variable of the given collection (any, if it is None).

        Args:
            name: the name.
            collection: the collection to look in; by default, all of them. Names of scopes always count.
        """
        if self._adopted:
            self._unpack()
        held = self._reserved.get(name)
        return held is not None and (collection is None or collection in held or None in held)

    def reserve(self, name: str, collection: str | None = None) -> None:
        """Reserve a name for a scope, or for a variable of a collection.

        The body of a lift may declare a variable again that was declared outside: both are the same variable.

        Args:
            name: the name.
            collection: the collection of the variable; None for a scope.

        Raises:
            NameInUseError: if the name is taken.
        """
        self.check_name(name, collection)
        if self._adopted:
            self._unpack()
        if self.tree.owners:
            cast("Scope", self).check_unowned(name, collection)
        held = self._reserved.get(name)
        if held is None:
            self._reserved[name] = {collection}
        elif collection is not None and (name, collection) in self._outside:
            self._outside.discard((name, collection))
        else:
            self.check_free(name, collection)
            held.add(collection)

    def check_free(self, name: str, collection: str | None = None) -> None:
        """Check that a name is free; see `reserve`."""
        if self.name_reserved(name, collection):
            cast("Scope", self).check_valid()
            held = sorted(filter(None, self._reserved[name]))
            outside = collection is None and (name, None) in self._outside
            raise problems.name_taken(cast("Scope", self), name, collection, held, outside)

    def check_name(self, name: str, collection: str | None = None) -> None:
        """Check that a name can be one part of a path, and the same for the collection of a variable.

        Only a variable may have a `/` in its name, because some Linen layers use such names.

        Raises:
            LiftArgumentError: if the name is not a string, is empty or, unless it is of a variable, contains a `/`.
        """
        if not isinstance(name, str) or not name or (collection is None and "/" in name):
            raise problems.no_name(cast("Scope", self), name, collection)
        if collection is not None and (not isinstance(collection, str) or not collection or "/" in collection):
            raise problems.no_collection(cast("Scope", self), name, collection)

    def free(self, name: str, collection: str | None = None) -> None:
        """Release a name that `reserve` took."""
        self._unpack()
        self._first_free = None
        self._reserved.get(name, set()).discard(collection)
        self._outside.discard((name, collection))
        if not self._reserved.get(name, True):
            del self._reserved[name]

    def free_all(self, numbers: bool = True) -> None:
        """Release all names; if `numbers` is True, `number` begins from 0 again too."""
        self._unpack()
        self._reserved, self._outside = {}, set()
        self._first_free = None
        if numbers:
            self._numbers = {}

    def names(self) -> Names:
        """Return the names that are taken, the counters of automatic names, and the owners of names."""
        owners = tuple(self._owners()) if self.tree.owners else ()
        if not self._reserved and not self._numbers and not owners and len(self._adopted) < 2:
            return self._adopted[0] if self._adopted else _NO_NAMES
        self._unpack()
        taken = frozenset((name, collection) for name, held in self._reserved.items() for collection in held)
        return Names(taken, tuple(self._numbers.items()), owners)

    def _owners(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield the names that adopted values use here and below, with the owner of each; see `Names`."""
        depth = len(self.path)
        for path, held in dict(self.tree.owners).items():
            if path[:depth] == self.path:
                yield from [((*path[depth:], *name), owner) for name, owner in held.items()]

    def take_names(self, names: Names) -> None:
        """Add the names of another scope at the same place, and continue after the highest of their numbers.

        A name may come with several owners, from branches or runs of one body: the last one keeps it.
        """
        if names is _NO_NAMES:
            return
        self._adopted = (*self._adopted, names)  # unpacked only if needed: after most lifts, it never is
        if self._shared:  # another scope uses the same dict of names, and must see these
            self._unpack()
        for (*path, name, collection), owner in names.owners:
            self.tree.owners.setdefault((*self.path, *path), {})[name, collection] = owner

    @contextlib.contextmanager
    def again(self, drawn: Mapping[str, int]) -> Iterator[None]:
        """A context to run definitions a second time, with the names and the keys of the first run.

        Args:
            drawn: how many keys of each stream were drawn here since the first run began.
        """
        self._unpack()
        taken, self._reserved, self._first_free = self._reserved, {}, None
        counts = dict(self.counter.counts)
        self.counter.counts.update({name: counts[name] - number for name, number in drawn.items()})
        try:
            yield
        finally:
            self._unpack()
            self._outside -= {(name, one) for name, held in self._reserved.items() for one in held}
            for name, held in taken.items():
                self._reserved.setdefault(name, set()).update(held)
            for name, count in counts.items():
                self.counter.counts[name] = max(count, self.counter.counts.get(name, 0))

    def enter_names(self, names: Names) -> None:
        """Begin inside a lift, with the names of the scope outside.

        The names of scopes stay taken. A variable may be declared once more: it is the same variable as outside.
        """
        if names is not _NO_NAMES:
            self._outside = set(names.taken)
            self.take_names(names)

    def stand_for(self, other: Naming) -> None:
        """Begin in place of another scope, with the names that are taken there."""
        self.take_names(other.names())
        self._outside = other._outside

    def _unpack(self) -> None:
        adopted, self._adopted = self._adopted, ()
        for names in adopted:
            for name, collection in names.taken:
                self._reserved.setdefault(name, set()).add(collection)
            for prefix, number in names.numbers:
                self._numbers[prefix] = max(number, self._numbers.get(prefix, 0))

    def number(self, prefix: str) -> int:
        """Return the next number of a prefix, from 0, to form automatic names such as `Dense_0`, `Dense_1`."""
        if self._adopted:
            self._unpack()
        number = self._numbers.get(prefix, 0)
        self._numbers[prefix] = number + 1
        return number

    def default_name(self, prefix: str) -> str:
        """Return the first of `{prefix}0`, `{prefix}1`, … that is free.

        Args:
            prefix: the text before the number.
        """
        if self._first_free is None or self._shared:  # a scope that shares the names may have released some
            self._first_free = {}
        index = self._first_free.get(prefix, 0)
        while self.name_reserved(f"{prefix}{index}"):
            index += 1
        self._first_free[prefix] = index
        return f"{prefix}{index}"
