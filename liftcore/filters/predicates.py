"""Predicates: the classes of filters, functions that evaluate them, and their algebra."""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
import typing
from collections.abc import Set as AbstractSet

from ..errors import InvalidFilterError
from ..typing import Filter, Path, Predicate

__all__ = [
    "All",
    "Any",
    "DenyList",
    "Everything",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "SubtreePredicate",
    "WithTag",
    "asking_further",
    "decide",
    "intersect",
    "matches_collection",
    "matches_stream",
    "may_be_empty",
    "names_collections",
    "names_in",
    "parts_with_names",
    "short_form",
    "subtract",
    "to_predicate",
    "union",
]

_ACCEPTED = (
    "..., True, None, False, a collection name, a type, a tuple, list or set of filters, "
    "a callable `(path, value) -> bool`, or a predicate such as All, Any, Not, DenyList, OfType, PathContains, WithTag"
)


class SubtreePredicate(abc.ABC):
    """A predicate that can decide for a whole subtree. Every predicate class of this file is one."""

    @abc.abstractmethod
    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Return whether the value at `path` matches."""

    @abc.abstractmethod
    def decide(self, prefix: Path) -> bool | None:
        """Return `True` if all values under `prefix` match, `False` if none do, or `None` if they must be visited.

        Args:
            prefix: the first parts of the paths of these values, beginning with the collection.
        """

    def asked_names(self) -> list[str]:
        """Return the names that the predicate asks for, such as those of modules; most predicates ask for none."""
        return []


# --- the classes ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Everything(SubtreePredicate):
    """Matches everything."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return True

    def decide(self, prefix: Path) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class Nothing(SubtreePredicate):
    """Matches nothing."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return False

    def decide(self, prefix: Path) -> bool:
        return False


@dataclasses.dataclass(frozen=True, repr=False)
class WithTag(SubtreePredicate):
    """Matches the collection or stream `tag`, and values whose attribute `tag` is equal to it.

    For a whole collection, the name decides; see the top of `liftcore.filters`.

    Args:
        tag: the name of a collection or stream, or a tag.
    """

    tag: str

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return path[:1] == (self.tag,) or bool(getattr(value, "tag", None) == self.tag)

    def decide(self, prefix: Path) -> bool | None:
        return prefix[0] == self.tag if prefix else None

    def asked_names(self) -> list[str]:
        return [self.tag]

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class OfType(SubtreePredicate):
    """Matches values that are a `type`, or whose attribute `type` is a subclass of it.

    Args:
        type: a class.
    """

    type: type

    def __call__(self, path: Path, value: typing.Any) -> bool:
        if isinstance(value, self.type):
            return True
        declared = getattr(value, "type", None)
        return isinstance(declared, type) and issubclass(declared, self.type)

    def decide(self, prefix: Path) -> None:
        return None

    def __repr__(self) -> str:
        return f"OfType({self.type.__qualname__})"


@dataclasses.dataclass(frozen=True, repr=False)
class PathContains(SubtreePredicate):
    """Matches values with `key` somewhere in their path: the collection, a module or the name.

    Example:
        >>> path = ("params", "lora_1", "kernel")
        >>> PathContains("lora")(path, None), PathContains("lora", exact=False)(path, None)
        (False, True)

    Attributes:
        key: the text to look for, or an index: `0` and `"0"` match the same, as an index is text in files.
        exact: whether a name must equal `key`; if false, it is enough that a name contains it.
    """

    key: str | int
    exact: bool = True

    def __call__(self, path: Path, value: typing.Any) -> bool:
        key = str(self.key)
        return any(key == str(name) for name in path) if self.exact else any(key in str(name) for name in path)

    def decide(self, prefix: Path) -> bool | None:
        return self(prefix, None) or None  # names below the prefix may still match

    def asked_names(self) -> list[str]:
        return [str(self.key)]

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}{'' if self.exact else ', exact=False'})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class _Several(SubtreePredicate):
    """A predicate made of others, in which a single `decisive` answer settles the result."""

    decisive: typing.ClassVar[bool]
    filters: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", tuple(map(to_predicate, filters)))

    def decide(self, prefix: Path) -> bool | None:
        answers = [decide(f, prefix) for f in self.filters]
        return self.decisive if self.decisive in answers else None if None in answers else not self.decisive

    def asked_names(self) -> list[str]:
        return [name for one in self.filters for name in names_in(one)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(short_form, self.filters))})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class Any(_Several):
    """Matches what any of the filters matches; without filters, nothing.

    Args:
        *filters: filters, or short forms of them.
    """

    decisive = True

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return any(matches(path, value) for matches in self.filters)


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class All(_Several):
    """Matches what all of the filters match; without filters, everything.

    Args:
        *filters: filters, or short forms of them.
    """

    decisive = False

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return all(matches(path, value) for matches in self.filters)


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class Not(SubtreePredicate):
    """Matches what the filter does not match.

    Args:
        filter: the filter, or a short form of one.
    """

    filter: Predicate

    def __init__(self, filter: Filter) -> None:
        object.__setattr__(self, "filter", to_predicate(filter))

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return not self.filter(path, value)

    def decide(self, prefix: Path) -> bool | None:
        answer = decide(self.filter, prefix)
        return None if answer is None else not answer

    def asked_names(self) -> list[str]:
        return names_in(self.filter)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({short_form(self.filter)})"


class DenyList(Not):
    """Matches what the filter does not match: `Not` under a name that reads well in `mutable=`.

    Example:
        >>> matches_collection(DenyList("intermediates"), "params")
        True

    Args:
        filter: the filter, or a short form of one.
    """

    @property
    def deny(self) -> Predicate:
        """The filter that is denied."""
        return self.filter


def short_form(predicate: Predicate) -> str:
    """Return the shortest source text of `predicate` inside another filter.

    Example:
        >>> short_form(Any("params", DenyList("cache")))
        "('params', DenyList('cache'))"

    Args:
        predicate: a predicate.
    """
    match predicate:
        case Everything():
            return "..."
        case Nothing():
            return "None"
        case WithTag(tag=tag):
            return repr(tag)
        case OfType(type=cls):
            return cls.__qualname__
        case Any(filters=filters) if len(filters) > 1:
            return f"({', '.join(map(short_form, filters))})"
    return getattr(predicate, "__qualname__", None) or repr(predicate)


def names_in(filter: Filter) -> list[str]:
    """Return the names that a filter asks for, in `PathContains` or as a string, at any depth.

    Example:
        >>> names_in(All("params", DenyList(PathContains("bias"))))
        ['params', 'bias']

    Args:
        filter: the filter, or a short form of one.
    """
    predicate = to_predicate(filter)
    return predicate.asked_names() if isinstance(predicate, SubtreePredicate) else []


def may_be_empty(predicate: Predicate) -> bool:
    """Return whether a filter says that it may match nothing: `None` is the filter, or an alternative in it.

    Example:
        >>> may_be_empty(to_predicate(("batch_stats", None))), may_be_empty(to_predicate("batch_stats"))
        (True, False)

    Args:
        predicate: a predicate.
    """
    return isinstance(predicate, Nothing) or (isinstance(predicate, Any) and any(map(may_be_empty, predicate.filters)))


def parts_with_names(predicate: Predicate) -> list[Predicate]:
    """Return the parts of a filter that ask for a name, and so must match something.

    Example:
        >>> parts_with_names(All(float, PathContains("head"), DenyList(PathContains("bias"))))
        [PathContains('head')]

    Args:
        predicate: a predicate.
    """
    if may_be_empty(predicate) or isinstance(predicate, Not):
        return []
    if isinstance(predicate, _Several):
        return [part for one in predicate.filters for part in parts_with_names(one)]
    return [predicate] if names_in(predicate) else []


# --- functions --------------------------------------------------------------------------------------------------------


def to_predicate(filter: Filter) -> Predicate:
    """Return the predicate that a filter or one of its short forms stands for.

    Example:
        >>> to_predicate(("params", PathContains("lora")))
        Any('params', PathContains('lora'))

    Args:
        filter: the filter, or a short form of one.

    Raises:
        InvalidFilterError: if `filter` has none of the forms listed at the top of `liftcore.filters`.
    """
    if isinstance(filter, SubtreePredicate):
        return filter
    if filter is ... or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, type):
        if issubclass(filter, SubtreePredicate):
            name = filter.__name__
            what = f"{name} is the class of a predicate."
            raise InvalidFilterError("filter", what, f"Call it: {name}(...).", given=name, expected="a predicate")
        return OfType(filter)
    if isinstance(filter, tuple | list):
        return Any(*filter)
    if isinstance(filter, AbstractSet):
        return Any(*sorted(filter, key=repr))  # equal sets must give equal predicates
    if callable(filter):
        return filter
    from ..problems import no_filter  # imported here: needed only for this error

    raise no_filter(filter, _ACCEPTED)


def decide(predicate: Predicate, prefix: Path) -> bool | None:
    """Return the answer of `predicate` for all values under `prefix`, or `None` if they must be visited.

    Args:
        predicate: a predicate.
        prefix: the first parts of the paths of these values, beginning with the collection.
    """
    return predicate.decide(prefix) if isinstance(predicate, SubtreePredicate) else None


def matches_collection(filter: Filter, collection: str, prefix: Path = ()) -> bool | None:
    """Return whether a filter takes a whole collection, without visiting its values.

    Example:
        >>> [matches_collection(f, "params") for f in ("params", "cache", All("params", PathContains("lora")))]
        [True, False, None]

    Args:
        filter: the filter.
        collection: the name of the collection.
        prefix: the path of modules to restrict the question to; by default, the whole collection.

    Returns:
        `True` if all values in it match, `False` if none can match, `None` if it depends on their paths or values.
    """
    return decide(to_predicate(filter), (collection, *prefix))


def asking_further(filter: Filter) -> Predicate | None:
    """Return the part of a filter that asks about paths or values, which RNG streams lack; None if there is none.

    Example:
        >>> asking_further(("params", DenyList(PathContains("head"))))
        PathContains('head')

    Args:
        filter: the filter, or a short form of one. Your own predicates may ask about the name alone.
    """
    predicate = to_predicate(filter)
    if isinstance(predicate, OfType | PathContains):
        return predicate
    parts: tuple[Predicate, ...] = ()
    if isinstance(predicate, Not):
        parts = (predicate.filter,)
    elif isinstance(predicate, _Several):
        parts = predicate.filters
    return next((found for found in map(asking_further, parts) if found is not None), None)


def matches_stream(filter: Filter, name: str) -> bool:
    """Return whether a filter takes the RNG stream `name`; a stream has the path `(name,)` and the value `None`.

    Args:
        filter: the filter, or a short form of one.
        name: the name of a stream.
    """
    return bool(to_predicate(filter)((name,), None))


# --- algebra: filters that only name collections are simplified to their shortest form --------------------------------


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
