"""The algebra of filters. Filters that only name collections are simplified to their shortest form."""

from __future__ import annotations

import functools
import operator
import typing

from ..typing import Filter, Predicate
from .predicates import All, Any, DenyList, Everything, Not, Nothing, WithTag, to_predicate

__all__ = ["intersect", "names_collections", "subtract", "union"]


class _Names(typing.NamedTuple):
    """A set of collections by name: the named ones or, if inverted, all others."""

    names: frozenset[str]
    inverted: bool = False

    def __invert__(self) -> _Names:
        return _Names(self.names, not self.inverted)

    def __and__(self, other: _Names) -> _Names:
        if not self.inverted:
            return _Names(self.names - other.names if other.inverted else self.names & other.names)
        return _Names(self.names | other.names, inverted=True) if other.inverted else other & self

    def __or__(self, other: _Names) -> _Names:
        return ~(~self & ~other) if self.inverted or other.inverted else _Names(self.names | other.names)

    def filter(self) -> Predicate:
        if not self.names:
            return Everything() if self.inverted else Nothing()
        chosen = self.names if len(self.names) > 1 else next(iter(self.names))
        return DenyList(chosen) if self.inverted else to_predicate(chosen)


_SHORTEST = (Everything, Nothing, WithTag)
"""Filters that are in their shortest form already."""

_ALL, _NONE = _Names(frozenset(), inverted=True), _Names(frozenset())


def names_collections(filter: Filter) -> bool:
    """Return whether a filter depends only on the name of the collection.

    Example:
        >>> from liftcore.filters import PathContains
        >>> names_collections(DenyList(("params", "cache"))), names_collections(PathContains("lora"))
        (True, False)

    Args:
        filter: the filter, or a short form of one.
    """
    return _names(to_predicate(filter)) is not None


def _names(predicate: typing.Any) -> _Names | None:
    """Return the collections that `predicate` takes, or `None` if it depends on more than their names.

    Only the exact classes count, because a subclass may match other collections.
    """
    kind = type(predicate)
    if kind is WithTag:
        return _Names(frozenset({predicate.tag}))
    if kind is Everything:
        return _ALL
    if kind is Nothing:
        return _NONE
    if kind is Not or kind is DenyList:
        denied = _names(predicate.filter)
        return None if denied is None else ~denied
    if kind is not All and kind is not Any:
        return None
    parts = [names for names in map(_names, predicate.filters) if names is not None]
    if len(parts) < len(predicate.filters):
        return None
    join, none = (operator.and_, _ALL) if kind is All else (operator.or_, _NONE)
    return functools.reduce(join, parts, none)


def intersect(a: Filter, b: Filter) -> Predicate:
    """Return the filter that takes what `a` and `b` both take.

    If both only name collections, so does the result, in its shortest form.

    Example:
        >>> intersect(("params", "cache"), DenyList("cache"))
        WithTag('params')

    Args:
        a: the filter, or a short form of one.
        b: another one.
    """
    left, right = to_predicate(a), to_predicate(b)
    for one, other in ((left, right), (right, left)):  # most often there is nothing to simplify
        if type(one) in _SHORTEST and (type(other) is Everything or (type(one), one) == (type(other), other)):
            return one
        if type(other) is Nothing:
            return other
    names, others = _names(left), _names(right)
    if names is not None and others is not None:
        return (names & others).filter()
    if left == right or others == _ALL or names == _NONE:
        return left
    if names == _ALL or others == _NONE:
        return right
    return All(left, right)


def union(a: Filter, b: Filter) -> Predicate:
    """Return the filter that takes what `a` or `b` takes; see `intersect`.

    Example:
        >>> union("params", DenyList(("params", "cache")))
        DenyList('cache')

    Args:
        a: the filter, or a short form of one.
        b: another one.
    """
    left, right = to_predicate(a), to_predicate(b)
    for one, other in ((left, right), (right, left)):
        if type(one) in _SHORTEST and (type(other) is Nothing or (type(one), one) == (type(other), other)):
            return one
    names, others = _names(left), _names(right)
    if names is not None and others is not None:
        return (names | others).filter()
    return _complement(intersect(_complement(left), _complement(right)))


def subtract(a: Filter, b: Filter) -> Predicate:
    """Return the filter that takes what `a` takes and `b` does not; see `intersect`.

    Example:
        >>> subtract(True, "intermediates")
        DenyList('intermediates')

    Args:
        a: the filter, or a short form of one.
        b: another one.
    """
    return intersect(a, _complement(to_predicate(b)))


def _complement(predicate: typing.Any) -> Predicate:
    """Return `Not(predicate)`, without stacking negations (De Morgan)."""
    names = _names(predicate)
    if names is not None:
        return (~names).filter()
    kind = type(predicate)
    if kind is Not or kind is DenyList:
        inner: Predicate = predicate.filter
        return inner
    if kind is All:
        return Any(*map(_complement, predicate.filters))
    if kind is Any:
        return All(*map(_complement, predicate.filters))
    return Not(predicate)
