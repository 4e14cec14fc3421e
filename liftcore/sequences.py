"""PRNG sequences across a lift: which group each of them is in, and what names that were never given draw from.

A sequence that was never given draws from `params`, treated by the rule of the sequence's own name. So besides the
sequences that its filter takes, a group holds the root of `params` under an alias, wherever a rule other than that of
`params` itself may come to name such a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import filters, rng
from .tree import Tree
from .typing import Predicate

__all__ = ["group_sequences", "inner_sequences"]

_ALIAS = "params of rule "


def group_sequences(tree: Tree, rng_filters: Sequence[Predicate], index: int) -> Iterator[tuple[str, rng.Sequence]]:
    """The sequences of one group, aliases included."""
    rules = {name: _rule(rng_filters, name) for name in tree.rngs}
    for name, sequence in tree.rngs.items():
        if rules[name] == index:
            yield name, sequence
    beyond = filters.subtract(rng_filters[index], tree.given_sequences())
    if beyond != filters.Nothing() and rules.get(rng.DEFAULT) != index:
        for number, (_, sequence) in enumerate(tree.fallbacks):
            yield f"{_ALIAS}{number}", sequence


def _rule(rng_filters: Sequence[Predicate], name: str) -> int | None:
    return next((index for index, matches in enumerate(rng_filters) if matches((name,), None)), None)


def inner_sequences(
    tree: Tree, rng_filters: Sequence[Predicate], groups: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, rng.Sequence], list[tuple[Predicate, rng.Sequence]]]:
    """The sequences inside, from the root keys of the groups, and what names that were never given draw from."""
    rngs = {
        name: rng.Sequence(root, tree.rngs[name].since)
        for group in groups
        for name, root in group.items()
        if not name.startswith(_ALIAS)
    }
    fallbacks: list[tuple[Predicate, rng.Sequence]] = []
    for rule, group in zip(rng_filters, groups, strict=True):
        for number, (matches, sequence) in enumerate(tree.fallbacks):
            root = group.get(f"{_ALIAS}{number}", group.get(rng.DEFAULT))
            if root is not None:
                fallbacks.append((filters.All(rule, matches), rng.Sequence(root, sequence.since)))
    if rng.DEFAULT in rngs:
        fallbacks.append((filters.Everything(), rngs[rng.DEFAULT]))
    return rngs, fallbacks
