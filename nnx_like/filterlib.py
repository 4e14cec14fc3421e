"""The filter language over paths of attributes: the one of `liftcore.filters`, where a string is the tag of a variable.

A filter is a predicate over `(path, value)`: `path` is a tuple of attribute names and indices, `value` what is there,
most often a `Variable`. Each of these forms is a filter:

    ...  True        Everything()        all
    None  False      Nothing()           none
    a type           OfType(T)           values of that type, or whose `.type` is a subclass of it
    a string         WithTag(tag)        values with that `tag`, such as the streams of `Rngs`
    tuple list set   Any(*filters)       what one of them matches
                     All(*filters)       what all of them match
                     Not(filter)         what the filter does not match
                     PathContains(key)   values with that key in their path, or (exact=False) in a name of it
                     PathIn(*paths)      the values at these paths
    a callable       itself

If there are several filters, a value goes to the first one that matches it, so give narrower filters first.

Example:
    >>> pairs = [(("encoder", "kernel"), 1.0), (("encoder", "steps"), 2), (("head", "kernel"), 3.0)]
    >>> group(pairs, [All(float, PathContains("head")), ...])
    [[(('head', 'kernel'), 3.0)], [(('encoder', 'kernel'), 1.0), (('encoder', 'steps'), 2)]]
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from liftcore import filters as core
from liftcore.errors import LiftArgumentError
from liftcore.problems import no_filter, unmatched

__all__ = [
    "All",
    "Any",
    "Everything",
    "Filter",
    "FilterLiteral",
    "HasTag",
    "Key",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "PathIn",
    "PathParts",
    "Predicate",
    "WithTag",
    "filters_to_predicates",
    "group",
    "to_predicate",
]

Key: typing.TypeAlias = typing.Any
"""One step of a path: the name of an attribute, the index of an item, or any other key that is hashed and compared."""

PathParts: typing.TypeAlias = tuple[Key, ...]
"""A path: a tuple of keys."""

Predicate: typing.TypeAlias = Callable[[PathParts, typing.Any], bool]
"""A function of a path and of the value there."""

FilterLiteral: typing.TypeAlias = type | str | Predicate | bool | types.EllipsisType | None
"""A filter that is not made of others."""

Filter: typing.TypeAlias = FilterLiteral | tuple["Filter", ...] | list["Filter"] | AbstractSet["Filter"]
"""Everything that `to_predicate` reads as a predicate."""

_ACCEPTED = (
    "..., None, a bool, a type, a tag, a callable, a tuple, list or set of filters, "
    "or one of All, Any, Not, OfType, PathContains, PathIn, WithTag"
)


@typing.runtime_checkable
class HasTag(typing.Protocol):
    """A value that a string selects by its tag."""

    tag: str


# --- the classes ------------------------------------------------------------------------------------------------------

Everything = core.Everything
Nothing = core.Nothing


class OfType(core.OfType):
    """Matches values that are a `type`, or whose own `.type` is a subclass of it.

    Example:
        >>> OfType(int)(("steps",), 3), OfType(str)(("steps",), 3)
        (True, False)

    Args:
        type: a class.
    """

    def __repr__(self) -> str:
        return f"OfType({self.type!r})"


class WithTag(core.WithTag):
    """Matches values with that `tag`, at any path.

    Example:
        >>> class Stream:
        ...     tag = "dropout"
        >>> WithTag("dropout")(("rngs", "key"), Stream()), WithTag("rngs")(("rngs", "key"), Stream())
        (True, False)

    Args:
        tag: the tag.
    """

    def __call__(self, path: PathParts, value: typing.Any) -> bool:
        """Return whether the value at `path` matches."""
        return bool(getattr(value, "tag", None) == self.tag)

    def decide(self, prefix: PathParts) -> None:
        """Return None: a path does not decide whether a tag matches.

        Args:
            prefix: the first parts of a path.
        """


class PathContains(core.PathContains):
    """Matches values with `key` somewhere in their path.

    Example:
        >>> path = ("layers", 0, "lora_a")
        >>> PathContains(0)(path, None), PathContains("lora")(path, None), PathContains("lora", exact=False)(path, None)
        (True, False, True)

    Args:
        key: an attribute name, or an index; `0` and `"0"` match the same, as an index is text in files.
        exact: whether an item of the path must equal `key`; if False, it is enough that its string contains `key`.
    """

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}, exact={self.exact})"


class PathIn(core.SubtreePredicate):
    """Matches the values at some paths.

    Example:
        >>> PathIn(("head", "kernel"))(("head", "kernel"), None), PathIn(("head",))(("head", "kernel"), None)
        (True, False)

    Args:
        *paths: whole paths; an index may be a number or text, as for `PathContains`.
    """

    def __init__(self, *paths: PathParts) -> None:
        self.paths = frozenset(paths)
        self._names = frozenset(map(_names, paths))

    def __call__(self, path: PathParts, value: typing.Any) -> bool:
        """Return whether the value at `path` matches."""
        return _names(path) in self._names

    def decide(self, prefix: PathParts) -> bool | None:
        """Answer for all values under `prefix`.

        Args:
            prefix: the first parts of the paths of these values.
        """
        return None if any(path[: len(prefix)] == _names(prefix) for path in self._names) else False

    def asked_names(self) -> list[str]:
        """Return the names in the paths."""
        return sorted({name for path in self._names for name in path})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathIn) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash((PathIn, self.paths))

    def __repr__(self) -> str:
        return f"PathIn({', '.join(sorted(map(repr, self.paths)))})"


def _names(path: PathParts) -> tuple[str, ...]:
    return tuple(map(str, path))


class _Several:
    """What `Any` and `All` add to those of the core: all the filters of this file, and their text."""

    filters: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        super().__init__(*map(to_predicate, filters))

    @property
    def predicates(self) -> tuple[Predicate, ...]:
        """The predicates that it combines."""
        return self.filters

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.filters))})"


class Any(_Several, core.Any):
    """Matches values that at least one of the filters matches; without filters, no value.

    Example:
        >>> Any(int, "dropout")
        Any(OfType(<class 'int'>), WithTag('dropout'))

    Args:
        *filters: filters, or short forms of them.
    """


class All(_Several, core.All):
    """Matches values that all of the filters match; without filters, every value.

    Example:
        >>> All(float, PathContains("head"))(("head", "scale"), 1.0)
        True

    Args:
        *filters: filters, or short forms of them.
    """


class Not(core.Not):
    """Matches values that the filter does not match.

    Example:
        >>> Not(float)(("steps",), 3)
        True

    Args:
        collection_filter: a filter, in any of the forms at the top of this file.
    """

    def __init__(self, collection_filter: Filter, /) -> None:
        super().__init__(to_predicate(collection_filter))

    @property
    def predicate(self) -> Predicate:
        """The predicate that it inverts."""
        return self.filter

    def __repr__(self) -> str:
        return f"Not({self.filter!r})"


# --- questions --------------------------------------------------------------------------------------------------------


def to_predicate(filter: Filter) -> Predicate:
    """Return the predicate of a filter.

    Example:
        >>> to_predicate((float, "dropout"))
        Any(OfType(<class 'float'>), WithTag('dropout'))

    Args:
        filter: any of the forms that are listed at the top of this file.

    Returns:
        A callable of a path and a value.

    Raises:
        InvalidFilterError: if `filter` does not have one of these forms.
    """
    if isinstance(filter, core.SubtreePredicate):
        return filter
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, type) and not issubclass(filter, core.SubtreePredicate):
        return OfType(filter)
    if isinstance(filter, tuple | list):
        return Any(*filter)
    if isinstance(filter, AbstractSet):
        return Any(*sorted(filter, key=repr))  # equal sets must give equal predicates
    if filter is ... or filter is None or isinstance(filter, bool) or callable(filter):
        return core.to_predicate(filter)
    raise no_filter(filter, _ACCEPTED)


def filters_to_predicates(filters: Sequence[Filter]) -> tuple[Predicate, ...]:
    """Return the predicates of filters that apply in order.

    Example:
        >>> filters_to_predicates([float, ...])
        (OfType(<class 'float'>), Everything())

    Args:
        filters: the filters, in order.

    Returns:
        One predicate for each.

    Raises:
        LiftArgumentError: if a filter comes after `...`, which matches everything.
        InvalidFilterError: if one of them is not a filter.
    """
    filters = tuple(filters)
    for index, filter in enumerate(filters):
        if filter is ... or filter is True:
            late = next((one for one in filters[index + 1 :] if one is not ... and one is not True), ...)
            if late is not ...:
                what = f"{core.short_form(to_predicate(late))} comes after ..., which matches everything."
                given = ", ".join(core.short_form(to_predicate(one)) for one in filters)
                raise LiftArgumentError(f"filters ({given})", what, "Move ... to the end.", given=given)
    return tuple(map(to_predicate, filters))


def group(
    pairs: Iterable[tuple[PathParts, typing.Any]],
    filters: Sequence[Filter],
    complete: bool = True,
    where: str = "split",
) -> list[list[tuple[PathParts, typing.Any]]]:
    """Group pairs of path and value: each goes to the first filter that matches it, in the order given.

    Example:
        >>> group([(("a",), 1), (("b",), 2.0)], [float], complete=False)
        [[(('b',), 2.0)]]

    Args:
        pairs: `(path, value)`.
        filters: the filters, in order.
        complete: whether a value that no filter matches is an error; otherwise such values are left out.
        where: the name of the caller, for the error.

    Returns:
        One list of pairs for each filter.

    Raises:
        LiftArgumentError: if a filter comes after `...`, or asks for a name and matches nothing.
        InvalidFilterError: if one of them is not a filter.
        UnmatchedFilterError: if no filter matches a value, and `complete` is True.
    """
    pairs = list(pairs)
    predicates = filters_to_predicates(filters)
    if predicates and isinstance(predicates[0], Everything):  # the common case: there is nothing to decide
        return [pairs, *([] for _ in predicates[1:])]
    groups: list[list[tuple[PathParts, typing.Any]]] = [[] for _ in predicates]
    numbered = tuple(zip(predicates, groups, strict=True))
    missed = []
    for pair in pairs:
        path, value = pair
        for matches, chosen in numbered:
            if matches(path, value):
                chosen.append(pair)
                break
        else:
            missed.append(pair)
    for predicate, chosen in numbered:
        if not chosen:
            core.check_names(where, predicate, pairs)
    if missed and complete:
        named = [(".".join(map(str, path)), type(value).__name__) for path, value in missed]
        texts = [f"{path} ({kind})" for path, kind in named]
        raise unmatched(where, texts, [*map(core.short_form, predicates)], named[0][0])
    return groups
