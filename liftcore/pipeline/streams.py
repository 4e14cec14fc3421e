"""RNG streams across a lift: the group of each stream, and the streams that names without a stream draw from.

A stream that was never given draws from `params`, under the rule for the name of that stream. So besides the streams
that its filter takes, a group may hold the root key of `params` under an alias. It does so if a rule other than the one
for `params` may match such a name.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from .. import filters, rng
from ..scopes.tree import Tree
from ..typing import Predicate

__all__ = ["group_streams", "inner_streams"]

_ALIAS = "params of rule "


def group_streams(tree: Tree, rng_filters: Sequence[Predicate], index: int) -> Iterator[tuple[str, Any]]:
    """Yield the names and root keys of one group, aliases included."""
    if not tree.rngs and not tree.fallbacks:
        return
    rules = {name: _rule(rng_filters, name) for name in tree.rngs}
    for name, root in tree.rngs.items():
        if rules[name] == index:
            yield name, root
    holds_params = rules.get(rng.DEFAULT) == index
    if holds_params or filters.subtract(rng_filters[index], tree.given) != filters.Nothing():
        for number, (_, root) in enumerate(tree.fallbacks):
            if not (holds_params and _is_params(tree, root)):
                yield f"{_ALIAS}{number}", root


def _is_params(tree: Tree, root: Any) -> bool:
    return rng.DEFAULT in tree.rngs and root is tree.rngs[rng.DEFAULT]


def _rule(rng_filters: Sequence[Predicate], name: str) -> int | None:
    return next((index for index, matches in enumerate(rng_filters) if matches((name,), None)), None)


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
    fallbacks = _without_given(tree, fallbacks)
    return rngs, _reachable(tree, fallbacks) if len(fallbacks) > 1 else fallbacks


def _without_given(tree: Tree, fallbacks: list[tuple[Predicate, Any]]) -> list[tuple[Predicate, Any]]:
    """Remove from the fallbacks the streams that an outer lift gave: to draw from an unlifted one is an error."""
    given = tuple(name for name in tree.rngs if name not in tree.given)
    return [(filters.subtract(matches, given), root) for matches, root in fallbacks] if given else fallbacks


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
        name = rng.DEFAULT if rng.DEFAULT in group and _is_params(tree, root) else f"{_ALIAS}{number}"
        if name in group:
            yield matches, group[name]
