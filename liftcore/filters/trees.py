"""Trees of variables, split by filters and merged again."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence

from ..errors import UnmatchedFilterError
from ..typing import Filter, Path, Predicate, Variables
from ..values import unwrapped
from .predicates import decide, short_form, to_predicate

__all__ = ["leaves_of", "merge", "partition", "split"]


def partition(
    variables: Variables, filters: Sequence[Filter], prefix: Path = (), *, empty: bool = False
) -> tuple[list[dict[str, typing.Any]], dict[str, typing.Any]]:
    """Splits variables into one tree per filter and the rest; the first filter that matches takes a variable.

    A subtree that can be decided as a whole is passed on as the object it is; new dicts are made only where values must
    be visited. A value is whatever is no mapping. Collections with nothing in them appear nowhere.

    Example:
        >>> from liftcore.filters import PathContains
        >>> partition({"params": {"a": 1, "b": 2}, "cache": {"a": 3}}, [PathContains("b"), "params"])
        ([{'params': {'b': 2}}, {'params': {'a': 1}}], {'cache': {'a': 3}})

    Args:
        variables: `{collection: {module: {name: value}}}`.
        filters: the filters, in order.
        prefix: the modules that `variables` lies below: a predicate sees `(collection, *prefix, *relative path)`.
        empty: whether a dict with nothing in it may be a value, which a filter takes, and is not left out.

    Returns:
        The trees, in the order of the filters, and the tree of what none of them matched.
    """
    predicates = list(enumerate(map(to_predicate, filters)))
    trees: list[dict[str, typing.Any]] = [{} for _ in range(len(predicates) + 1)]
    for collection, tree in variables.items():
        for index, part in _assign(tree, (collection, *prefix), predicates, len(predicates), empty):
            if not _is_empty(part):
                trees[index][collection] = part
    return trees[:-1], trees[-1]


def _assign(
    tree: typing.Any, path: Path, predicates: list[tuple[int, Predicate]], rest: int, empty: bool
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
    if not isinstance(tree, Mapping) or (empty and not tree):
        value = unwrapped(tree)
        return [(next((index for index, predicate in undecided if predicate(path, value)), rest), tree)]
    parts: dict[int, dict[str, typing.Any]] = {}
    for key, child in tree.items():
        for index, part in _assign(child, (*path, key), undecided, rest, empty):
            if empty or not _is_empty(part):
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
