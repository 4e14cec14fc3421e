"""The stages of a call of a lifted function. Four of the six are here, each a function of plain values.

    dedupe       the given scopes -> the outermost distinct scopes, and the route from these to each given scope
    filter_      their variables and RNG streams -> groups; the first filter that matches takes a variable or stream
    (transform)  the caller's JAX transformation, over pure functions of the groups
    reconstruct  inside: groups -> live scopes at the same paths
    repack       inside: variables that those scopes created or wrote -> output groups
    commit       outside: output groups -> the original scopes; see `effects`

A *group* is a tuple with one tree of variables `{collection: {module: {name: value}}}` for each outermost scope, or for
RNG streams, one dict from names to root keys. So a transformation may map over a group as over any pytree.

A stream that was never given draws from `params`, under the rule for the name of that stream. So besides the streams
that its filter takes, a group may hold the root key of `params` under an alias. It does so if a rule other than the one
for `params` may match such a name.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .. import filters, rng
from ..cycles import check_finite
from ..errors import Expected, LiftArgumentError, UnliftedCollectionError
from ..filters.trees import flat, names_of, nested, under
from ..rest import Rest
from ..scopes.lifts import Lift
from ..scopes.scope import Scope
from ..scopes.scoped import is_scoped, split_scoped
from ..scopes.tree import Counter, Names, Sown, Surroundings, Tree
from ..statics import Undescribed
from ..typing import Filter, Path, Predicate, PyTree
from .effects import Changes

__all__ = ["Layout", "dedupe", "filter_", "group_streams", "inner_streams", "is_scope", "reconstruct", "repack"]

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
        return _bare(self.scopes)


def dedupe(scopes: PyTree) -> tuple[list[Scope], list[Scope], tuple[tuple[int, Path], ...], Any]:
    """Find the outermost distinct scopes.

    Returns:
        The outermost distinct scopes; the given scopes as a list; for each given scope, the index of its outermost
        scope and the route from there; and the pytree structure of the given scopes.
    """
    if isinstance(scopes, Scope):  # the most common case
        scopes.check_valid()
        return [scopes], [scopes], ((0, ()),), _ONE_SCOPE
    if type(scopes) is not list or not all(map(is_scope, scopes)):
        check_finite(scopes)
    given, structure = jax.tree.flatten(scopes, is_leaf=is_scope)
    if not all(map(is_scope, given)):
        given, structure = jax.tree.flatten(jax.tree.map(_opened, scopes, is_leaf=is_scoped), is_leaf=is_scope)
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


def is_scope(value: Any) -> bool:
    """Whether a leaf is a scope."""
    return isinstance(value, Scope)


class _Held:
    """The scopes of a value that holds some, as a pytree node that is unflattened to the value on other scopes."""

    def __init__(self, scopes: Sequence[Scope], make: Rest | _Unshared) -> None:
        self.scopes, self.make = scopes, make


class _Unshared:
    """A function that cannot be compared with others, so a trace that depends on it is not used again."""

    def __init__(self, value: Any) -> None:
        self.value = value


jax.tree_util.register_pytree_node(
    _Held, lambda held: (held.scopes, held.make), lambda make, scopes: make.value(tuple(scopes))
)


def _opened(value: Any) -> Any:
    """Return a value that holds scopes, such as a child of a scope, as a node of these; other values unchanged."""
    if is_scope(value) or not is_scoped(value):
        return value
    scopes, make = split_scoped(value)
    if not scopes:
        return value
    try:
        return _Held(scopes, Rest(make))
    except Undescribed:
        return _Held(scopes, _Unshared(make))


def _bare(structure: Any) -> Any:
    """Return a pytree structure with the children of each `_Held` in its place."""
    data, children = structure.node_data(), list(map(_bare, structure.children()))
    if data is None:
        return structure
    if data[0] is _Held:
        return children[0] if len(children) == 1 else jax.tree_util.treedef_tuple(children)
    return type(structure).from_node_data_and_children(jax.tree_util.default_registry, data, children)


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
