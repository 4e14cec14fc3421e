"""The last stage of a lift: it applies the changes of the body to the scopes outside, all of them or none."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from ..filters.trees import by_place, merged, under
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


class _Changed(NamedTuple):
    """The changes to the scopes outside: values of variables by the index of the scope and the path below it.

    Attributes:
        created: the first values of created variables.
        written: the last values of written variables.
    """

    created: dict[tuple[int, Path], Any]
    written: dict[tuple[int, Path], Any]


def _changes(body: Body, groups: Sequence[PyTree]) -> _Changed:
    """Return the changes, checked."""
    tables = groups[: len(body.layout.lift.out)]
    created = by_place(merged(*[group.created for group in tables]))
    written = by_place(merged(*[group.values for group in tables]))
    for index, outer in enumerate(body.outers):
        # The check is the same for all variables of a scope, so one is enough.
        first = next((place for place in itertools.chain(created, written) if place[0] == index), None)
        if first is not None:
            outer.check_live("creating" if first in created else "writing", *first[1])
    for (index, path), value in created.items():
        if body.outers[index].tree.writable(path[0]) is not True:
            body.outers[index].below(path[1:-1]).check_writable(path[0], path[-1], value, "created")
    for (index, path), value in written.items():
        if body.outers[index].tree.writable(path[0]) is not True:
            body.outers[index].below(path[1:-1]).check_put(path[0], path[-1], value)
    return _Changed(created, written)


def _reduced(body: Body, groups: Sequence[PyTree], changes: _Changed) -> list[tuple[Scope, Sown, Any]]:
    """Return the captured values, each with the scope outside that sows it, after running the user's functions."""
    if not body.layout.lift.captures or not body.records or not any(body.records[-1].sown):
        return []
    found = []
    now = {**changes.created, **changes.written}
    # The last record belongs to the group: it is of the one body that ran, or from `Body.capture` for several bodies.
    for index, (outer, sown, values) in enumerate(zip(body.outers, body.records[-1].sown, groups[-1], strict=True)):
        for one, value in zip(sown, values, strict=True):
            scope = outer.below(one.path)
            scope.check_live("sowing", one.collection, one.name)
            path = one.collection, *one.path, one.name
            captured = scope.tree.captures(body.from_root(index, path), value)
            if not captured and scope.is_mutable_collection(one.collection):
                new = now[index, path] = _sum(scope, one, now.get((index, path), _MISSING), value)
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


def _put_back(body: Body, changes: _Changed) -> None:
    """Create and write outside the variables that the body created and wrote inside."""
    nested = body.nested
    for (index, path), value in changes.created.items():
        outer, bound = body.outers[index], body.is_bound(value)
        outer.below(path[1:-1]).create_variable(path[0], path[-1], value, bound=bound)
        if nested and not bound:
            outer.tree.unsplit.add(under(outer.relative_path, path))
    written: dict[tuple[int, Path], dict[str, Any]] = {}  # of each scope and collection at once
    for (index, path), value in changes.written.items():
        written.setdefault((index, path[:-1]), {})[path[-1]] = value
    for (index, (collection, *names)), values in written.items():
        body.outers[index].below(tuple(names)).put_checked(collection, values)


def _go_on(body: Body) -> None:
    """Take over the names of the body, and count its draws; of several bodies, the highest counts apply."""
    draws: dict[tuple[int, Path, str], int] = {}
    for record in body.records:
        draws |= {place: max(count, draws.get(place, 0)) for place, count in record.draws}
        for scope, names in zip(body.given, record.names, strict=bool(record.names)):
            scope.take_names(names)
        for index, path in record.unsplit:
            outer = body.outers[index]
            outer.tree.unsplit.add(under(outer.relative_path, path))
        for index, path in record.redrawn:
            body.outers[index].tree.made_again.add(body.from_root(index, path))
    if draws:
        body.end_draws()
    for (index, path, name), count in draws.items():
        counts = body.outers[index].below(path).counter.counts
        counts[name] = counts.get(name, 0) + count
