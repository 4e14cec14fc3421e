"""The effects of a body: its output groups, all effects that are not arrays, and `commit`, which applies them outside.

A body returns one `Changes` for each output filter, through the JAX transformation. A `Record` has what cannot pass
through one: draws, names and sown values. The last stage of a lift applies both to the scopes outside, all or nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from ..errors import LiftArgumentError
from ..filters.trees import Place, by_place, under
from ..scopes.scope import Scope
from ..scopes.tree import Names, Sown
from ..typing import Path, PyTree
from ..values import unwrapped

if TYPE_CHECKING:
    from .body import Body

__all__ = ["Changes", "Record", "checked_output", "commit", "record_of", "with_created", "without_created"]

_MISSING: Any = object()


class Changes(NamedTuple):
    """One output group: the changes that a body made to the variables of one filter.

    Attributes:
        values: the last value of each variable that was written.
        created: the first value of each variable that was created.
    """

    values: PyTree
    created: PyTree


@dataclasses.dataclass(frozen=True)
class Record:
    """The effects of a body that are not arrays, stored so that they can be repeated when a compiled body is not run.

    Attributes:
        draws: how many keys were drawn, as `((index of the scope, relative path, stream), count)`.
        names: the names in each given scope after the body ran.
        sown: the captured values of each outermost scope.
        unsplit: the variables that a lift created without separating the first value from later computation, for
            example with `pack` around a raw transformation. An outer loop cannot carry them: `carry.check_separate`.
        redrawn: the variables whose draws were counted again; see `Tree.must_redraw`.
    """

    draws: tuple[tuple[tuple[int, Path, str], int], ...] = ()
    names: tuple[Names, ...] = ()
    sown: tuple[tuple[Sown, ...], ...] = ()
    unsplit: frozenset[tuple[int, Path]] = frozenset()
    redrawn: frozenset[tuple[int, Path]] = frozenset()


def record_of(
    roots: Sequence[Scope], scopes: Sequence[Scope], sown: tuple[tuple[Sown, ...], ...], restarted: frozenset[str]
) -> Record:
    """Return the record of a body that has run.

    Args:
        roots: the outermost scopes that were created inside.
        scopes: the scopes inside that correspond to the given ones.
        sown: the captured values of each outermost scope.
        restarted: the streams that started again for the body; draws from them do not count outside.
    """
    draws = {
        (index, path, name): count
        for index, root in enumerate(roots)
        for path, name, count in root.counter.drawn()
        if name not in restarted
    }
    unsplit = frozenset([(index, path) for index, root in enumerate(roots) for path in root.tree.unsplit])
    redrawn = [
        (index, (path[0], *path[len(root.path) + 1 :]))
        for index, root in enumerate(roots)
        for path in root.tree.made_again
    ]
    names = tuple([inner.names() for inner in scopes])
    return Record(tuple(draws.items()), names, sown, unsplit, frozenset(redrawn))


def without_created(result: Any, groups: Sequence[Any]) -> tuple[list[Any], tuple[Any, list[Any]]]:
    """Separate the outputs of a body into its initial values and the rest.

    Args:
        result: what the body returned.
        groups: its output groups.
    """
    created = [group.created if isinstance(group, Changes) else [] for group in groups]
    return created, (result, [group.values if isinstance(group, Changes) else group for group in groups])


def with_created(created: Sequence[Any], result: Any, values: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The inverse of `without_created`.

    Args:
        created: the initial values, one pytree for each output group.
        result: what the body returned.
        values: the last values, one pytree for each output group.
    """
    # A group of captured values has an empty list as its initial values; a group of variables has a tuple of trees.
    groups = (value if made == [] else Changes(value, made) for value, made in zip(values, created, strict=True))
    return result, tuple(groups)


def checked_output(body: Body, output: Any, fix: str) -> tuple[Any, Sequence[PyTree]]:
    """Return the result and the output groups that a transformation returned, or raise if they have another form."""
    result, groups = output if isinstance(output, tuple) and len(output) == 2 else (None, None)
    if groups is body.unchanged:
        return result, groups
    wanted, captures = len(body.layout.lift.out), body.layout.lift.captures is not None
    right = isinstance(groups, tuple | list) and len(groups) == wanted + captures
    if groups is not None and right and all(isinstance(group, Changes) for group in groups[:wanted]):
        return result, groups
    given = str(jax.tree.structure(output))
    raise LiftArgumentError(
        body.where,
        f"a transformation must return the result and the output groups, one `Changes` for each of its {wanted} output "
        f"filters{' and the captured values' if captures else ''}; given {given}.",
        fix,
        given=given,
    )


# --- the last stage ---------------------------------------------------------------------------------------------------


def commit(body: Body, groups: Sequence[PyTree]) -> None:
    """Write output groups to the scopes outside, and continue their names and draw counts where the body ended.

    All or nothing: every check and user function that can raise has run before anything outside changes.
    """
    _check_records(body)
    if groups is not body.unchanged:
        created, written = _checked_changes(body, groups)
        sown = _reduced(body, groups, {**created, **written}) if body.records and any(body.records[-1].sown) else []
        _put_back(body, created, written)
        for scope, one, value in sown:
            scope.sow(one.collection, one.name, value, one.init_fn, one.reduce_fn)
    _apply_records(body)
    body.tagged.clear()  # they must not outlive their trace
    if body.observer is not None:
        body.observer.close(body)


def _check_records(body: Body) -> None:
    """Check that draws inside may be counted outside, and that names of adopted values have no other owner there."""
    here = get_ident()
    for record in body.records:
        for (index, path, name), _ in record.draws:
            if body.outers[index].tree.thread != here:  # the scopes outside may belong to another thread
                body.outers[index].below(path).check_live("drawing from", name)
        for scope, names in zip(body.given, record.names, strict=bool(record.names)):
            for (*modules, own, collection), owner in names.owners:
                scope.below(tuple(modules)).check_owner(own, collection, owner)


def _checked_changes(body: Body, groups: Sequence[PyTree]) -> tuple[dict[Place, Any], dict[Place, Any]]:
    """Return the first values of created variables, and the last values of written ones, by place, after checks."""
    changes = groups[: len(body.layout.lift.out)]
    created = by_place(*[group.created for group in changes])
    written = by_place(*[group.values for group in changes])
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
    return created, written


def _reduced(body: Body, groups: Sequence[PyTree], now: dict[Place, Any]) -> list[tuple[Scope, Sown, Any]]:
    """Return the captured values, each with the scope outside that sows it, after running the user's functions.

    Args:
        body: the body.
        groups: its output groups.
        now: the values of the variables that it changed; those that are sown are added.
    """
    found = []
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


def _put_back(body: Body, created: dict[Place, Any], written: dict[Place, Any]) -> None:
    """Create and write outside the variables that the body created and wrote inside."""
    nested = body.nested
    for (index, path), value in created.items():
        # Whether it consists of the very arrays that were tagged, not of arrays computed from them.
        outer, tagged = body.outers[index], all(id(leaf) in body.tagged for leaf in jax.tree.leaves(value))
        outer.below(path[1:-1]).create_variable(path[0], path[-1], value, tagged=tagged)
        if nested and not tagged:
            outer.tree.unsplit.add(under(outer.relative_path, path))
    collections: dict[Place, dict[str, Any]] = {}  # of each scope and collection at once
    for (index, path), value in written.items():
        collections.setdefault((index, path[:-1]), {})[path[-1]] = value
    for (index, (collection, *names)), values in collections.items():
        body.outers[index].below(tuple(names)).put_checked(collection, values)


def _apply_records(body: Body) -> None:
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
        body.counters[:] = [outer.counter.copy() for outer in body.outers]  # for bodies that run after the call
    for (index, path, name), count in draws.items():
        counts = body.outers[index].below(path).counter.counts
        counts[name] = counts.get(name, 0) + count
