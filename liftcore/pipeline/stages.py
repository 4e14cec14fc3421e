"""The stages of a call of a lifted function: five of the six, each a function of plain values.

    dedupe       the given scopes -> the outermost distinct scopes, and the route from these to each given scope
    filter_      their variables and RNG streams -> groups; the first filter that matches takes a variable or stream
    (transform)  the caller's JAX transformation, over pure functions of the groups
    reconstruct  inside: groups -> live scopes at the same paths
    repack       inside: variables that those scopes created or wrote -> output groups
    commit       outside: output groups and records -> the original scopes, all or nothing

A *group* is a tuple with one tree of variables `{collection: {module: {name: value}}}` for each outermost scope, or for
RNG streams, one dict from names to root keys. So a transformation may map over a group as over any pytree.
An output group is a `Changes`. A `Record` has the effects that cannot pass through a transformation: draws, names and
sown values.

A stream that was never given draws from `params`, under the rule for the name of that stream. So besides the streams
that its filter takes, a group may hold the root key of `params` under an alias. It does so if a rule other than the one
for `params` may match such a name.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from .. import filters, rng
from ..errors import Expected, LiftArgumentError, UnliftedCollectionError
from ..filters.trees import Place, by_place, flat, names_of, nested, under
from ..pytrees import check_acyclic
from ..scopes.lifts import Lift
from ..scopes.scope import Scope
from ..scopes.scoped import as_node, is_scoped, without_nodes
from ..scopes.tree import Counter, Names, Sown, Surroundings, Tree
from ..typing import Filter, Path, Predicate, PyTree
from ..values import unwrapped

if TYPE_CHECKING:
    from .body import Body

__all__ = [
    "Changes",
    "Layout",
    "Record",
    "checked_output",
    "commit",
    "dedupe",
    "filter_",
    "group_streams",
    "inner_streams",
    "reconstruct",
    "record_of",
    "repack",
    "with_created",
    "without_created",
]

_MISSING: Any = object()
_ALIAS = "params of rule "
_ONE_SCOPE = jax.tree.structure(0)


class Layout(NamedTuple):
    """Everything that is static about one call of a lifted function, except the paths of its scopes and the draws.

    Equal layouts give equal traces.

    Attributes:
        lift: the lift.
        scopes: the pytree structure of the given scopes.
        routes: for each given scope, the index of its outermost scope and the path from there.
        surroundings: for each outermost scope, the parts of its surroundings that a body can see.
        names: the names in each given scope.
        unlifted: for each outermost scope, the paths of the variables that are not lifted, for error messages.
    """

    lift: Lift
    scopes: Any
    routes: tuple[tuple[int, Path], ...]
    surroundings: tuple[Surroundings, ...]
    names: tuple[Names, ...]
    unlifted: tuple[tuple[Path, ...], ...]

    @property
    def bare_scopes(self) -> Any:
        """As `scopes`, with the scopes of a value that holds some in its place: one alone, or a tuple of several."""
        return without_nodes(self.scopes)


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


def dedupe(scopes: PyTree) -> tuple[list[Scope], list[Scope], tuple[tuple[int, Path], ...], Any]:
    """Find the outermost distinct scopes.

    Returns:
        The outermost distinct scopes; the given scopes as a list; for each given scope, the index of its outermost
        scope and the route from there; and the pytree structure of the given scopes.
    """
    if isinstance(scopes, Scope):  # the most common case
        scopes.check_valid()
        return [scopes], [scopes], ((0, ()),), _ONE_SCOPE
    if type(scopes) is not list or not all(map(_is_scope, scopes)):
        check_acyclic(scopes)
    given, structure = jax.tree.flatten(scopes, is_leaf=_is_scope)
    if not all(map(_is_scope, given)):
        opened = jax.tree.map(lambda leaf: leaf if _is_scope(leaf) else as_node(leaf), scopes, is_leaf=is_scoped)
        given, structure = jax.tree.flatten(opened, is_leaf=_is_scope)
    for scope in given:
        if not isinstance(scope, Scope):
            raise LiftArgumentError(
                "the first argument of a lifted function",
                Expected("a scope, or a pytree of scopes", given=scope),
                "Pass the scope whose variables are lifted, or `()` if there are none; modules have lifts of their "
                "own, with the same names.",
            )
        scope.check_valid()
    outers: list[Scope] = []
    routes: list[tuple[int, Path]] = []
    for scope in given:
        outermost = min((other for other in given if other.holds(scope)), key=lambda other: len(other.path))
        same = (index for index, outer in enumerate(outers) if outer.holds(outermost))
        index = next(same, len(outers))
        if index == len(outers):
            outers.append(outermost)
        if scope.counter.origin is not outers[index].counter.origin:
            raise LiftArgumentError(
                f"the scope at {scope.path_text}, given to a lifted function",
                f"it counts its draws apart from the scope at {outers[index].path_text}, which is given too: one of "
                "them was rewound with `rewind_rngs=True`.",
                "Rewind in the function instead: `scope = scope.rewound(rewind_rngs=True)`.",
                option="rewind_rngs",
            )
        routes.append((index, scope.path[len(outers[index].path) :]))
    return outers, given, tuple(routes), structure


def _is_scope(value: Any) -> bool:
    """Whether a leaf is a scope."""
    return isinstance(value, Scope)


def filter_(
    outers: Sequence[Scope], in_filters: Sequence[Predicate], rng_filters: Sequence[Predicate]
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...], tuple[tuple[Path, ...], ...]]:
    """Group the variables and the RNG streams of scopes; those that no filter takes are in no group.

    Returns:
        The groups of variables, the groups of streams and, for each scope, the paths of the variables in no group.
    """
    parts = [filters.partition(outer.collections_below(), in_filters, outer.path, empty=True) for outer in outers]
    keys = [group_streams(outer.tree, rng_filters) for outer in outers]
    left = tuple([tuple(flat(rest)) if rest else () for _, rest in parts])
    variable_groups = tuple([tuple([taken[i] for taken, _ in parts]) for i in range(len(in_filters))])
    return variable_groups, tuple([tuple([each[i] for each in keys]) for i in range(len(rng_filters))]), left


def reconstruct(
    layout: Layout,
    outers: Sequence[Scope],
    variable_groups: Sequence[PyTree],
    rng_groups: Sequence[PyTree],
    mutable: Filter = True,
    tags: bool = False,
    restarted: Container[str] = (),
    counters: Sequence[Counter] | None = None,
    local: Predicate | None = None,
) -> list[Scope]:
    """Create live scopes inside, at the paths of the scopes outside; they count on from `counters`, or from there.

    Variables that `local` matches may be written even if they are immutable outside; see `Body.writing_locally`.
    """
    roots = []
    for index, outer in enumerate(outers):
        variables = filters.merge(*[group[index] for group in variable_groups])
        keys = [group[index] for group in rng_groups]
        rngs, fallbacks = inner_streams(outer.tree, layout.lift.rngs, keys, restarted)
        writable, taken = outer.tree.mutable, layout.lift.taken
        if type(writable) is filters.Everything:
            writable = taken
        elif type(writable) is not filters.Nothing and (type(writable), writable) != (type(taken), taken):
            writable = filters.intersect(writable, taken)  # inside an equal lift, they are the same already
        writable = writable if mutable is True else filters.intersect(writable, mutable)
        tree = Tree(
            variables,
            rngs,
            writable if local is None else filters.union(writable, local),
            base=outer.path,
            counter=(outer.counter if counters is None else counters[index]).copy(restarted),
            fallbacks=fallbacks,
            initializing=outer.tree.initializing,
            lift=layout.lift,
            outer=outer,
            tags=tags,
            unlifted=(*layout.unlifted[index], *outer.tree.unlifted),
            fold_in_data=functools.partial(_restarted_data, outer, restarted) if restarted else outer.tree.fold_in_data,
        )
        roots.append(outer.at(tree))
    return roots


def repack(
    layout: Layout, roots: Sequence[Scope], local: Predicate | None = None
) -> tuple[tuple[PyTree, ...], tuple[tuple[Sown, ...], ...]]:
    """Group the variables that scopes inside created or wrote, without those that they only read or wrote locally.

    Returns:
        The output groups, and the static data of the captured values in the last group.
    """
    values, created = [], []
    for root in roots:
        tree = root.tree
        written = {path: root.value_at(path) for path in tree.written}
        if local is not None:
            written = {path: value for path, value in written.items() if not local(under(root.path, path), value)}
        values.append(_classed(layout, root, written))
        created.append(_classed(layout, root, tree.created))
    groups: list[Any] = [
        Changes(tuple([trees[i] for trees in values]), tuple([trees[i] for trees in created]))
        for i in range(len(layout.lift.out))
    ]
    if layout.lift.captures:
        groups.append(tuple([value for _, value in root.tree.sown] for root in roots))
    return tuple(groups), tuple(tuple(sown for sown, _ in root.tree.sown) for root in roots)


def _classed(layout: Layout, root: Scope, changed: Mapping[Path, Any]) -> list[PyTree]:
    """Return the trees of changed variables, one for each output filter."""
    if not changed:
        return [{} for _ in layout.lift.out]
    parts, rest = filters.partition(nested(changed), layout.lift.out, root.path)
    if rest:
        raise UnliftedCollectionError(
            root.path_text,
            f"{names_of([rest])} was written, but no output group takes it.",
            "Add a filter for it to the output filters of the lift.",
            variable=names_of([rest])[0],
        )
    return parts


def _restarted_data(outer: Scope, restarted: Container[str], path: Path, name: str, count: int, origin: object) -> Any:
    """Return the fold-in data of a draw; for a restarted stream, it depends only on the path below that scope."""
    if name in restarted:
        return rng.fold_in_data((*path[len(outer.path) :], count))
    return outer.tree.fold_in_data(path, name, count, origin)


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


# --- RNG streams ----------------------------------------------------------------------------------------------------


def group_streams(tree: Tree, rng_filters: Sequence[Predicate]) -> list[dict[str, Any]]:
    """Return the names and root keys of each group, aliases included."""
    groups: list[dict[str, Any]] = [{} for _ in rng_filters]
    for name, root in tree.rngs.items():
        index = next((index for index, matches in enumerate(rng_filters) if matches((name,), None)), None)
        if index is not None:
            groups[index][name] = root
    for matches, group in zip(rng_filters, groups, strict=True) if tree.fallbacks else ():
        if rng.DEFAULT in group or filters.subtract(matches, tree.given) != filters.Nothing():
            for number, (_, root) in enumerate(tree.fallbacks):
                if not (rng.DEFAULT in group and root is tree.rngs.get(rng.DEFAULT)):
                    group[f"{_ALIAS}{number}"] = root
    return groups


def inner_streams(
    tree: Tree,
    rng_filters: Sequence[Predicate],
    groups: Sequence[Mapping[str, Any]],
    restarted: Container[str] = (),
) -> tuple[dict[str, Any], list[tuple[Predicate, Any]]]:
    """Return the streams inside, from the root keys of the groups, and the fallbacks of names that were never given.

    Args:
        tree: the tree of the scope outside.
        rng_filters: the filters of the groups.
        groups: for each filter, the root keys of its streams.
        restarted: the names of streams that start again; some of them may be given here for the first time.
    """
    if not any(groups):
        return {}, []
    rngs = {name: root for group in groups for name, root in group.items() if not name.startswith(_ALIAS)}
    fallbacks: list[tuple[Predicate, Any]] = []
    if len(groups) > 1 or rng.DEFAULT not in groups[0]:  # a single group with `params` takes all names below
        for rule, group in zip(rng_filters, groups, strict=True):
            fallbacks += [(filters.intersect(rule, matches), root) for matches, root in _fallbacks(tree, group)]
    for group in groups:
        if rng.DEFAULT in group:  # a name that no rule matches follows the rule of `params`
            fallbacks += _fallbacks(tree, group)
    if rng.DEFAULT in restarted and rng.DEFAULT in rngs:
        fallbacks.append((filters.Everything(), rngs[rng.DEFAULT]))
    given = tuple([name for name in tree.rngs if name not in tree.given])
    if given:  # by an outer lift: to draw from one that is not lifted is an error
        fallbacks = [(filters.subtract(matches, given), root) for matches, root in fallbacks]
    return rngs, _reachable(tree, fallbacks) if len(fallbacks) > 1 else fallbacks


def _reachable(tree: Tree, fallbacks: list[tuple[Predicate, Any]]) -> list[tuple[Predicate, Any]]:
    """Return the fallbacks that a name can reach: a name without a stream draws from the first one that matches.

    If the others were kept, each level of nested lifts would have several times as many as the level outside.
    """
    found: list[tuple[Predicate, Any]] = []
    named = filters.to_predicate(tree.given)
    for matches, root in fallbacks:
        parts = _parts(matches)
        narrower = any(all(part in parts for part in _parts(before)) for before, _ in found)
        if narrower or filters.subtract(matches, named) == filters.Nothing():
            continue
        found.append((matches, root))
        if filters.names_collections(matches):
            named = filters.union(named, matches)
    return found


def _parts(matches: Predicate) -> list[Predicate]:
    """Return the filters that must all match for the predicate to match."""
    if isinstance(matches, filters.All):
        return [part for one in matches.filters for part in _parts(one)]
    return [] if isinstance(matches, filters.Everything) else [matches]


def _fallbacks(tree: Tree, group: Mapping[str, Any]) -> Iterator[tuple[Predicate, Any]]:
    """Yield the fallbacks whose root keys are in a group."""
    for number, (matches, root) in enumerate(tree.fallbacks):
        is_params = rng.DEFAULT in group and root is tree.rngs.get(rng.DEFAULT)
        name = rng.DEFAULT if is_params else f"{_ALIAS}{number}"
        if name in group:
            yield matches, group[name]
