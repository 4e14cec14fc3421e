"""Functions that split trees of variables by filters, and merge them again."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence

from ..errors import LiftArgumentError, UnmatchedFilterError, shown
from ..texts import path_text
from ..typing import Filter, Path, Predicate, PyTree, Variables
from ..values import unwrapped
from .predicates import decide, short_form, to_predicate

__all__ = ["leaves_of", "merge", "names_of", "partition", "split"]


def partition(
    variables: Variables, filters: Sequence[Filter], prefix: Path = (), *, empty: bool = False
) -> tuple[list[dict[str, typing.Any]], dict[str, typing.Any]]:
    """Split variables into one tree per filter and a rest; the first filter that matches takes a variable.

    A subtree that goes to one tree as a whole is passed on as the same object. Everything that is not a mapping is a
    value. Empty collections are left out.

    Example:
        >>> from liftcore.filters import PathContains
        >>> partition({"params": {"a": 1, "b": 2}, "cache": {"a": 3}}, [PathContains("b"), "params"])
        ([{'params': {'b': 2}}, {'params': {'a': 1}}], {'cache': {'a': 3}})

    Args:
        variables: `{collection: {module: {name: value}}}`.
        filters: the filters, in order.
        prefix: the path of modules above `variables`: a predicate sees `(collection, *prefix, *relative path)`.
        empty: whether an empty dict counts as a value, which a filter can take, instead of being left out.

    Returns:
        The trees, in the order of the filters, and a tree of the variables that no filter matched.

    Raises:
        LiftArgumentError: if `variables` is not a mapping.
    """
    if not isinstance(variables, Mapping):
        raise LiftArgumentError(
            "variables",
            f"expected {{collection: {{name: … array}}}}, given {shown(variables)}.",
            "To get the variables of a pytree, write `liftcore.Blueprint.of(tree).variables(tree)`.",
        )
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
    """Return the parts of `tree`, each with the index of the predicate that takes it, or `rest` if none does."""
    undecided: list[tuple[int, Predicate]] = []
    for index, predicate in predicates:
        answer = decide(predicate, path)
        if answer:
            rest = index  # takes whatever the undecided predicates before it leave over
            break
        if answer is None:
            undecided.append((index, predicate))
    if not undecided:
        return [(rest, tree)]
    if not isinstance(tree, Mapping) or (empty and not tree):
        value = unwrapped(tree)
        return [(next((index for index, predicate in undecided if predicate(path, value)), rest), tree)]
    parts: dict[int, dict[str, typing.Any]] = {}
    whole = True
    for key, child in tree.items():
        for index, part in _assign(child, (*path, key), undecided, rest, empty):
            kept = empty or not _is_empty(part)
            if kept:
                parts.setdefault(index, {})[key] = part
            whole = whole and kept and part is child
    if whole and len(parts) == 1:
        # The same object, not a new dict: a `FrozenDict` may be the value of a variable.
        return [(index, tree) for index in parts]
    return list(parts.items())


def _is_empty(tree: typing.Any) -> bool:
    return (type(tree) is dict or isinstance(tree, Mapping)) and not tree


def split(variables: Variables, *filters: Filter) -> tuple[dict[str, typing.Any], ...]:
    """Split variables into one tree per filter, and raise if a variable matches none of them.

    Example:
        >>> split({"params": {"w": 1}, "cache": {"step": 2}}, "cache", ...)
        ({'cache': {'step': 2}}, {'params': {'w': 1}})

    Args:
        variables: `{collection: {module: {name: value}}}`.
        *filters: the filters, in order; the first that matches takes a variable.

    Returns:
        One tree per filter; merged, they are `variables` again, without its empty dicts.

    Raises:
        UnmatchedFilterError: if a variable matches none of the filters.
        LiftArgumentError: if a filter asks for a name, and matches nothing. Write `("batch_stats", None)` for a
            collection that may be missing.
    """
    trees, rest = partition(variables, filters)
    for filter, tree in zip(filters, trees, strict=True):
        if not tree:
            from .parameters import check_names  # imported here: needed only for empty trees

            check_names("split", filter, [(path, unwrapped(value)) for path, value in leaves_of(variables)])
    if not rest:
        return tuple(trees)
    from ..traverse_util import flatten_dict  # imported here: needed only for this error

    missed = [f"/{'/'.join(map(str, path))}" for path in flatten_dict(rest, keep_empty_nodes=True)]
    shown = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
    given = ", ".join(short_form(to_predicate(f)) for f in filters) or "none"
    what = f"no filter matches {shown} (filters given: {given})."
    raise UnmatchedFilterError("split", what, "Add a filter that does, or `...` as the last filter to take the rest.")


def leaves_of(tree: Variables) -> Iterator[tuple[Path, typing.Any]]:
    """Yield each variable of a tree, or of a subtree, with its path.

    Example:
        >>> list(leaves_of({"params": {"dense": {"bias": 1}}}))
        [(('params', 'dense', 'bias'), 1)]

    Args:
        tree: variables as nested dicts.
    """
    return _leaves_below((), tree)


def names_of(group: PyTree) -> list[str]:
    """Return the names of the variables of a group, a sequence of trees."""
    return sorted({path_text(path) for tree in group for path, _ in leaves_of(tree)})


def _leaves_below(prefix: Path, tree: Variables) -> Iterator[tuple[Path, typing.Any]]:
    for name, below in tree.items():
        if isinstance(below, Mapping):
            yield from _leaves_below((*prefix, name), below)
        else:
            yield (*prefix, name), below


def merge(*trees: Variables) -> dict[str, typing.Any]:
    """Return the variables of all trees in one tree: the inverse of `split` and `partition`.

    If two trees have a value at the same path, the later one wins. The arguments are not changed.

    Example:
        >>> merge({"params": {"a": 1}}, {"params": {"b": 2}})
        {'params': {'a': 1, 'b': 2}}

    Args:
        *trees: variables as nested dicts.
    """
    given = [tree for tree in trees if tree]
    merged = dict(given[0]) if given else {}
    for tree in given[1:]:
        for key, value in tree.items():
            if isinstance(old := merged.get(key), Mapping) and isinstance(value, Mapping):
                value = merge(old, value)
            merged[key] = value
    return merged
