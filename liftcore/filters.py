"""One filter language, for every place that chooses variables or PRNG sequences.

A filter is a predicate over `(path, value)`, where `path` is `(collection, *modules, name)`, or a short form of one:

    ...  True        Everything()        all
    None  False      Nothing()           none
    "params"         WithTag("params")   that collection or sequence, or values whose `tag` is that
    a type           OfType(T)           values that are a `T`, or whose `.type` is a subclass of it
    tuple list set   Any(*filters)       what one of them matches
                     All(*filters)       what all of them match
                     Not(f) DenyList(f)  what `f` does not match
                     PathContains(key)   values with that key in their path
    a callable       itself

Whatever can be decided for a whole collection, or a whole subtree, is decided once and no value below it is looked at.
So a string decides by the collection's name alone there, and a value's `tag` counts only where values are visited:
when the predicate is called, or beside filters that ask about values, as in `Any("lora", OfType(Box))`.

Example:
    >>> variables = {"params": {"dense": {"kernel": 1.0, "lora": 2.0}}, "cache": {"step": 3}}
    >>> lora, rest = split(variables, PathContains("lora"), ...)
    >>> lora
    {'params': {'dense': {'lora': 2.0}}}
    >>> rest
    {'params': {'dense': {'kernel': 1.0}}, 'cache': {'step': 3}}
"""

from __future__ import annotations

import abc
import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from .errors import InvalidFilterError, UnmatchedFilterError
from .typing import Filter, Path, Predicate, Variables

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
    "decide",
    "intersect",
    "leaves_of",
    "matches_collection",
    "matches_sequence",
    "merge",
    "names_collections",
    "partition",
    "short_form",
    "split",
    "subtract",
    "to_predicate",
    "union",
]

_ACCEPTED = (
    "..., True, None, False, a collection name, a type, a tuple, list or set of filters, "
    "a callable `(path, value) -> bool`, or a predicate such as All, Any, Not, DenyList, OfType, PathContains, WithTag"
)


class SubtreePredicate(abc.ABC):
    """A predicate that may know its answer for a whole subtree. Every predicate class of this file is one."""

    @abc.abstractmethod
    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Says whether the value at `path` matches."""

    @abc.abstractmethod
    def decide(self, prefix: Path) -> bool | None:
        """Answers for all values under `prefix`: all match, none match, or `None` where they must be visited."""


# --- predicates -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Everything(SubtreePredicate):
    """Matches all."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return True

    def decide(self, prefix: Path) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class Nothing(SubtreePredicate):
    """Matches none."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return False

    def decide(self, prefix: Path) -> bool:
        return False


@dataclasses.dataclass(frozen=True, repr=False)
class WithTag(SubtreePredicate):
    """Matches the collection or sequence `tag`, and a value whose own `tag` is that.

    A whole collection is decided by its name; see the top of this file.
    """

    tag: str

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return path[0] == self.tag or bool(getattr(value, "tag", None) == self.tag)

    def decide(self, prefix: Path) -> bool:
        return prefix[0] == self.tag

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class OfType(SubtreePredicate):
    """Matches values that are a `type`, or whose own `.type` is a subclass of it."""

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
    """Matches values with `key` somewhere in their path: the collection, a module or the name."""

    key: str

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return self.key in path

    def decide(self, prefix: Path) -> bool | None:
        return True if self.key in prefix else None

    def __repr__(self) -> str:
        return f"PathContains({self.key!r})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class Any(SubtreePredicate):
    """Matches what one of the filters matches; with none given, nothing."""

    filters: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", tuple(map(to_predicate, filters)))

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return any(matches(path, value) for matches in self.filters)

    def decide(self, prefix: Path) -> bool | None:
        answers = [decide(f, prefix) for f in self.filters]
        return True if True in answers else None if None in answers else False

    def __repr__(self) -> str:
        return f"Any({', '.join(map(short_form, self.filters))})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class All(SubtreePredicate):
    """Matches what all of the filters match; with none given, everything."""

    filters: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", tuple(map(to_predicate, filters)))

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return all(matches(path, value) for matches in self.filters)

    def decide(self, prefix: Path) -> bool | None:
        answers = [decide(f, prefix) for f in self.filters]
        return False if False in answers else None if None in answers else True

    def __repr__(self) -> str:
        return f"All({', '.join(map(short_form, self.filters))})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class Not(SubtreePredicate):
    """Matches what the filter does not match."""

    filter: Predicate

    def __init__(self, filter: Filter) -> None:
        object.__setattr__(self, "filter", to_predicate(filter))

    def __call__(self, path: Path, value: typing.Any) -> bool:
        return not self.filter(path, value)

    def decide(self, prefix: Path) -> bool | None:
        answer = decide(self.filter, prefix)
        return None if answer is None else not answer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({short_form(self.filter)})"


class DenyList(Not):
    """Matches all but what the filter matches: `Not` under the name that reads well in `mutable=`.

    Example:
        >>> matches_collection(DenyList("intermediates"), "params")
        True
    """

    @property
    def deny(self) -> Predicate:
        """The filter that is denied."""
        return self.filter


def short_form(predicate: Predicate) -> str:
    """Returns the shortest text that reads as `predicate` inside another filter.

    Example:
        >>> short_form(Any("params", DenyList("cache")))
        "('params', DenyList('cache'))"
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


# --- questions --------------------------------------------------------------------------------------------------------


def to_predicate(filter: Filter) -> Predicate:
    """Returns the predicate that a filter or one of its short forms stands for.

    Example:
        >>> to_predicate(("params", PathContains("lora")))
        Any('params', PathContains('lora'))

    Raises:
        InvalidFilterError: if `filter` is none of the forms listed at the top of this file.
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
            raise InvalidFilterError("filter", f"{name} is the class of a predicate.", f"Call it: {name}(...).")
        return OfType(filter)
    if isinstance(filter, tuple | list):
        return Any(*filter)
    if isinstance(filter, AbstractSet):
        return Any(*sorted(filter, key=repr))  # equal sets must give equal predicates
    if callable(filter):
        return filter
    raise InvalidFilterError("filter", f"{filter!r} of type {type(filter).__name__} is none.", f"Give {_ACCEPTED}.")


def decide(predicate: Predicate, prefix: Path) -> bool | None:
    """Returns `predicate`'s answer for all values under `prefix`, or `None` where they must be visited."""
    return predicate.decide(prefix) if isinstance(predicate, SubtreePredicate) else None


def matches_collection(filter: Filter, collection: str, prefix: Path = ()) -> bool | None:
    """Says whether a filter takes a whole collection, without looking at values.

    Example:
        >>> [matches_collection(f, "params") for f in ("params", "cache", All("params", PathContains("lora")))]
        [True, False, None]

    Args:
        filter: the filter.
        collection: the name of the collection.
        prefix: the modules below which it is asked, if not the whole collection.

    Returns:
        `True` if all values in it match, `False` if none can, `None` if that depends on paths or values.
    """
    return decide(to_predicate(filter), (collection, *prefix))


def matches_sequence(filter: Filter, name: str) -> bool:
    """Says whether a filter takes the PRNG sequence `name`: its path is `(name,)` and its value `None`."""
    return bool(to_predicate(filter)((name,), None))


# --- sets of collections ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Names:
    """A set of collections that is known by names: these, or all but these."""

    names: frozenset[str]
    inverted: bool = False

    def __invert__(self) -> _Names:
        return _Names(self.names, not self.inverted)

    def __and__(self, other: _Names) -> _Names:
        match self.inverted, other.inverted:
            case False, False:
                return _Names(self.names & other.names)
            case False, True:
                return _Names(self.names - other.names)
            case True, False:
                return _Names(other.names - self.names)
        return _Names(self.names | other.names, inverted=True)

    def __or__(self, other: _Names) -> _Names:
        return ~(~self & ~other)

    def filter(self) -> Predicate:
        if not self.names:
            return Everything() if self.inverted else Nothing()
        chosen = self.names if len(self.names) > 1 else next(iter(self.names))
        return DenyList(chosen) if self.inverted else to_predicate(chosen)


_SHORTEST = (Everything, Nothing, WithTag)
"""Filters that cannot be said in fewer words."""

_OWN = (*_SHORTEST, Not, DenyList, All, Any)
"""Filters that take what their class says; a subclass may take others."""

_ALL, _NONE = _Names(frozenset(), inverted=True), _Names(frozenset())


def names_collections(filter: Filter) -> bool:
    """Says whether a filter asks about nothing but the name of the collection.

    Example:
        >>> names_collections(DenyList(("params", "cache"))), names_collections(PathContains("lora"))
        (True, False)
    """
    return _names(to_predicate(filter)) is not None


def _names(predicate: Predicate) -> _Names | None:
    """Returns the collections that `predicate` takes if it asks about nothing else, or `None`."""
    match predicate if type(predicate) in _OWN else None:
        case Everything():
            return _ALL
        case Nothing():
            return _NONE
        case WithTag(tag=tag):
            return _Names(frozenset({tag}))
        case Not(filter=inner):
            denied = _names(inner)
            return None if denied is None else ~denied
        case All(filters=filters):
            return _intersection([_names(f) for f in filters])
        case Any(filters=filters):
            sets = [_names(f) for f in filters]
            common = _intersection([None if s is None else ~s for s in sets])
            return None if common is None else ~common
    return None


def _intersection(sets: Sequence[_Names | None]) -> _Names | None:
    common = _ALL
    for names in sets:
        if names is None:
            return None
        common = common & names
    return common


def intersect(a: Filter, b: Filter) -> Predicate:
    """Returns the filter that takes the collections and variables that both take.

    Filters that only name collections give one that does so too, in its shortest form.

    Example:
        >>> intersect(("params", "cache"), DenyList("cache"))
        WithTag('params')
    """
    left, right = to_predicate(a), to_predicate(b)
    for one, other in ((left, right), (right, left)):  # most often there is nothing to work out
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
    """Returns the filter that takes what `a` or `b` takes; see `intersect`.

    Example:
        >>> union("params", DenyList(("params", "cache")))
        DenyList('cache')
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
    """Returns the filter that takes what `a` takes and `b` does not; see `intersect`.

    Example:
        >>> subtract(True, "intermediates")
        DenyList('intermediates')
    """
    return intersect(a, _complement(to_predicate(b)))


def _complement(predicate: Predicate) -> Predicate:
    """Returns `Not(predicate)`, without stacking negations (De Morgan)."""
    names = _names(predicate)
    if names is not None:
        return (~names).filter()
    match predicate if type(predicate) in _OWN else None:
        case Not(filter=inner):
            return inner
        case All(filters=filters):
            return Any(*map(_complement, filters))
        case Any(filters=filters):
            return All(*map(_complement, filters))
    return Not(predicate)


# --- trees of variables -----------------------------------------------------------------------------------------------


def partition(
    variables: Variables, filters: Sequence[Filter], prefix: Path = ()
) -> tuple[list[dict[str, typing.Any]], dict[str, typing.Any]]:
    """Splits variables into one tree per filter and the rest; the first filter that matches takes a variable.

    A subtree that can be decided as a whole is passed on as the object it is; new dicts are made only where values must
    be visited. A value is whatever is no mapping. Collections with nothing in them appear nowhere.

    Example:
        >>> partition({"params": {"a": 1, "b": 2}, "cache": {"a": 3}}, [PathContains("b"), "params"])
        ([{'params': {'b': 2}}, {'params': {'a': 1}}], {'cache': {'a': 3}})

    Args:
        variables: `{collection: {module: {name: value}}}`.
        filters: the filters, in order.
        prefix: the modules that `variables` lies below: a predicate sees `(collection, *prefix, *relative path)`.

    Returns:
        The trees, in the order of the filters, and the tree of what none of them matched.
    """
    predicates = list(enumerate(map(to_predicate, filters)))
    trees: list[dict[str, typing.Any]] = [{} for _ in range(len(predicates) + 1)]
    for collection, tree in variables.items():
        for index, part in _assign(tree, (collection, *prefix), predicates, len(predicates)):
            if not _is_empty(part):
                trees[index][collection] = part
    return trees[:-1], trees[-1]


def _assign(
    tree: typing.Any, path: Path, predicates: list[tuple[int, Predicate]], rest: int
) -> list[tuple[int, typing.Any]]:
    """Returns the parts of `tree`, each with the index of what takes it: one of `predicates`, else `rest`."""
    undecided: list[tuple[int, Predicate]] = []
    for index, predicate in predicates:
        answer = decide(predicate, path)
        if answer:
            rest = index  # whatever is left by the undecided ones before it goes here
            break
        if answer is None:
            undecided.append((index, predicate))
    if not undecided:
        return [(rest, tree)]
    if not isinstance(tree, Mapping):
        return [(next((index for index, predicate in undecided if predicate(path, tree)), rest), tree)]
    parts: dict[int, dict[str, typing.Any]] = {}
    for key, child in tree.items():
        for index, part in _assign(child, (*path, key), undecided, rest):
            if not _is_empty(part):
                parts.setdefault(index, {})[key] = part
    return list(parts.items())


def _is_empty(tree: typing.Any) -> bool:
    return (type(tree) is dict or isinstance(tree, Mapping)) and not tree


def split(variables: Variables, *filters: Filter) -> tuple[dict[str, typing.Any], ...]:
    """Splits variables into one tree per filter, and raises if one of them is matched by none.

    Example:
        >>> split({"params": {"w": 1}, "cache": {"step": 2}}, "cache", ...)
        ({'cache': {'step': 2}}, {'params': {'w': 1}})

    Args:
        variables: `{collection: {module: {name: value}}}`.
        *filters: the filters, in order; the first that matches takes a variable.

    Returns:
        One tree per filter; `merge` of them is `variables` again, less its empty dicts.

    Raises:
        UnmatchedFilterError: if a variable matches none of the filters.
    """
    trees, rest = partition(variables, filters)
    if not rest:
        return tuple(trees)
    missed = [f"/{'/'.join(path)}" for path in _paths(rest)]
    shown = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
    given = ", ".join(short_form(to_predicate(f)) for f in filters) or "none"
    what = f"no filter matches {shown} (filters given: {given})."
    raise UnmatchedFilterError("split", what, "Add a filter for them, or ... as the last one to take all that is left.")


def _paths(tree: typing.Any, path: Path = ()) -> list[Path]:
    if not isinstance(tree, Mapping) or not tree:
        return [path]
    return [leaf for key, child in tree.items() for leaf in _paths(child, (*path, str(key)))]


def leaves_of(tree: Variables) -> Iterator[tuple[Path, typing.Any]]:
    """Yields each variable of a tree, or of a part of one, with its path.

    Example:
        >>> list(leaves_of({"params": {"dense": {"bias": 1}}}))
        [(('params', 'dense', 'bias'), 1)]
    """
    for name, below in tree.items():
        if isinstance(below, Mapping):
            yield from (((name, *path), value) for path, value in leaves_of(below))
        else:
            yield (name,), below


def merge(*trees: Variables) -> dict[str, typing.Any]:
    """Returns the variables of all trees in one: the inverse of `split` and `partition`.

    Where two trees have a value at one path, the later one wins; nothing given in is changed.

    Example:
        >>> merge({"params": {"a": 1}}, {"params": {"b": 2}})
        {'params': {'a': 1, 'b': 2}}
    """
    merged: dict[str, typing.Any] = {}
    for tree in filter(None, trees):
        merged = _merge_two(merged, tree) if merged else dict(tree)
    return merged


def _merge_two(first: Variables, second: Variables) -> dict[str, typing.Any]:
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge_two(old, value)
        else:
            merged[key] = value
    return merged
