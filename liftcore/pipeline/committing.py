"""The last stage of a lift: it applies the changes of the body to the scopes outside, all of them or none."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import filters
from ..scopes.scope import Scope
from ..scopes.tree import Sown
from ..typing import Path, PyTree
from ..values import unwrapped

if TYPE_CHECKING:
    from .body import Body

__all__ = ["commit"]

_MISSING: Any = object()


def commit(body: Body, groups: Sequence[PyTree]) -> None:
    """Write output groups to the scopes outside, and continue their names and draw counts where the body ended.

    All or nothing: every check and user function that can raise has run before anything outside changes.
    """
    _check_draws(body)
    _check_owners(body)
    if groups is not body.unchanged:
        changes = _changes(body, groups)
        sown = _reduced(body, groups, changes)
        _put_back(body, changes)
        for scope, one, value in sown:
            scope.sow(one.collection, one.name, value, one.init_fn, one.reduce_fn)
    _go_on(body)


def _check_draws(body: Body) -> None:
    """Check that draws inside may be counted outside: the scopes there may belong to another thread."""
    here = get_ident()
    for record in body.records:
        for (index, path, name), _ in record.draws:
            if body.outers[index].tree.thread != here:
                body.outers[index].below(path).check_live("drawing from", name)


def _check_owners(body: Body) -> None:
    """Check that names which adopted values use inside have no other owner outside."""
    for record in body.records:
        for scope, names in zip(body.given, record.names, strict=bool(record.names)):
            for (*path, name, collection), owner in names.owners:
                scope.below(tuple(path)).check_owner(name, collection, owner)


class _Change(NamedTuple):
    """The changes to one scope outside.

    Attributes:
        scope: the scope.
        created: the first values of created variables, by `(collection, *modules below the scope, name)`.
        written: the last values of written variables, by collection: `{module: {name: value}}`.
    """

    scope: Scope
    created: dict[Path, Any]
    written: dict[str, Any]

    def now(self) -> dict[Path, Any]:
        """Return the values that the scope will hold after the changes, by path."""
        return {**self.created, **dict(filters.leaves_of(self.written))}


def _changes(body: Body, groups: Sequence[PyTree]) -> list[_Change]:
    """Return the changes to each scope outside, checked."""
    tables = groups[: len(body.layout.lift.out)]
    changes = []
    for index, outer in enumerate(body.outers):
        created = dict(filters.leaves_of(filters.merge(*[group.created[index] for group in tables])))
        written = filters.merge(*[group.values[index] for group in tables])
        paths = itertools.chain(created, (path for path, _ in filters.leaves_of(written)))
        for path in itertools.islice(paths, 1):  # the check is the same for all paths, so one is enough
            outer.check_live("creating" if created else "writing", *path)
        for path, value in created.items():
            if outer.tree.writable(path[0]) is not True:
                outer.below(path[1:-1]).check_writable(path[0], path[-1], value, "created")
        partly = {name: tree for name, tree in written.items() if outer.tree.writable(name) is not True}
        for path, value in filters.leaves_of(partly):
            outer.below(path[1:-1]).check_put(path[0], path[-1], value)
        changes.append(_Change(outer, created, written))
    return changes


def _reduced(body: Body, groups: Sequence[PyTree], changes: Sequence[_Change]) -> list[tuple[Scope, Sown, Any]]:
    """Return the captured values, each with the scope outside that sows it, after running the user's functions."""
    if not body.layout.lift.captures or not body.records:
        return []
    found = []
    # The last record belongs to the group: it is of the one body that ran, or from `Body.capture` for several bodies.
    for change, sown, values in zip(changes, body.records[-1].sown, groups[-1], strict=True):
        now = change.now() if sown else {}
        for one, value in zip(sown, values, strict=True):
            scope = change.scope.below(one.path)
            scope.check_live("sowing", one.collection, one.name)
            path, place = (one.collection, *one.path, one.name), (one.collection, *scope.path, one.name)
            if not scope.tree.captures(place, value) and scope.is_mutable_collection(one.collection):
                new = now[path] = _sum(scope, one, now.get(path, _MISSING), value)
                one = one._replace(init_fn=tuple, reduce_fn=functools.partial(_first, new))
            found.append((scope, one, value))
    return found


def _sum(scope: Scope, one: Sown, current: Any, value: Any) -> Any:
    """Return the value that the variable has after a value is sown, checked."""
    if current is _MISSING:
        current = scope.value_at((one.collection,)).get(one.name, _MISSING)
    if current is _MISSING:
        scope.check_free(one.name, one.collection)
        current = one.init_fn()
    new = one.reduce_fn(unwrapped(current), value)
    scope.check_put(one.collection, one.name, new)
    return new


def _first(first: Any, *_: Any) -> Any:
    return first


def _put_back(body: Body, changes: Sequence[_Change]) -> None:
    """Create and write outside the variables that the body created and wrote inside."""
    for outer, created, written in changes:
        for path, value in created.items():
            outer.below(path[1:-1]).create_variable(path[0], path[-1], value, bound=body.is_bound(value))
        for collection, tree in written.items():
            _write(outer, collection, tree)
        if body.nested:
            unsplit = [path for path, value in created.items() if not body.is_bound(value)]
            outer.tree.unsplit |= {(path[0], *outer.relative_path, *path[1:]) for path in unsplit}


def _write(scope: Scope, collection: str, tree: Mapping[str, Any]) -> None:
    """Write the values of a collection at and below a scope at once; they have been checked."""
    values = {}
    for name, below in tree.items():
        if isinstance(below, Mapping):
            _write(scope.below((name,)), collection, below)
        else:
            values[name] = below
    if values:
        scope.put_checked(collection, values)


def _go_on(body: Body) -> None:
    """Take over the names of the body, and count its draws; of several bodies, the highest counts apply."""
    draws: dict[tuple[int, Path, str], int] = {}
    for record in body.records:
        draws |= {place: max(count, draws.get(place, 0)) for place, count in record.draws}
        for scope, names in zip(body.given, record.names, strict=bool(record.names)):
            scope.take_names(names)
        for index, path in record.unsplit:
            outer = body.outers[index]
            outer.tree.unsplit.add((path[0], *outer.relative_path, *path[1:]))
        for index, path in record.redrawn:
            outer = body.outers[index]
            outer.tree.made_again.add((path[0], *outer.path, *path[1:]))
    for (index, path, name), count in draws.items():
        counts = body.outers[index].below(path).counter.counts
        counts[name] = counts.get(name, 0) + count
