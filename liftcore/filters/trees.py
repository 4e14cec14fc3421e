"""Functions that take trees and groups of variables apart, and put them together again.

A *tree* of variables is `{collection: {module: {name: value}}}`. A *group* is a sequence with one tree for each
outermost scope of a lift. In a group, a variable has a *place*: the index of its scope, and the path below that.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Container, Iterator, Mapping, MutableMapping, Sequence

import jax

from ..errors import Expected, LiftArgumentError
from ..texts import path_text
from ..typing import Filter, Path, Predicate, PyTree, Variables
from ..values import Whole, unwrapped, wrapped
from .predicates import SubtreePredicate, short_form, to_predicate

__all__ = [
    "Place",
    "apart",
    "by_place",
    "flat",
    "leaves_of",
    "merge",
    "merged",
    "names_of",
    "nested",
    "overlay",
    "partition",
    "rewrapped",
    "rooted",
    "select",
    "split",
    "subtree",
    "under",
]


Place: typing.TypeAlias = tuple[int, Path]
"""The place of a variable in a group: the index of its scope, and the path below that."""

# --- trees and filters ------------------------------------------------------------------------------------------------


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
            Expected("{collection: {name: … array}}", given=variables),
            "To get the variables of a pytree, write `liftcore.Blueprint.of(tree).variables(tree)`.",
        )
    predicates = [(i, one if isinstance(one, SubtreePredicate) else to_predicate(one)) for i, one in enumerate(filters)]
    trees: list[dict[str, typing.Any]] = [{} for _ in range(len(predicates) + 1)]
    for collection, tree in variables.items():
        for index, part in _assign(tree, (collection, *prefix), predicates, len(predicates), empty):
            if not isinstance(part, Mapping) or part:
                trees[index][collection] = part
    return trees[:-1], trees[-1]


def _assign(
    tree: typing.Any, path: Path, predicates: list[tuple[int, Predicate]], rest: int, empty: bool
) -> list[tuple[int, typing.Any]]:
    """Return the parts of `tree`, each with the index of the predicate that takes it, or `rest` if none does."""
    undecided: list[tuple[int, Predicate]] = []
    for index, predicate in predicates:
        answer = predicate.decide(path) if isinstance(predicate, SubtreePredicate) else None
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
            kept = empty or not isinstance(part, Mapping) or bool(part)
            if kept:
                parts.setdefault(index, {})[key] = part
            whole = whole and kept and part is child
    if whole and len(parts) == 1:
        # The same object, not a new dict: a `FrozenDict` may be the value of a variable.
        return [(index, tree) for index in parts]
    return list(parts.items())


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
    from ..problems import unmatched  # imported here: needed only for this error
    from ..traverse_util import flatten_dict

    missed = [f"/{'/'.join(map(str, path))}" for path in flatten_dict(rest, keep_empty_nodes=True)]
    raise unmatched("split", missed, [short_form(to_predicate(f)) for f in filters], missed[0][1:])


# --- trees and paths --------------------------------------------------------------------------------------------------


def leaves_of(tree: Variables) -> Iterator[tuple[Path, typing.Any]]:
    """Yield each variable of a tree, or of a subtree, with its path.

    Example:
        >>> list(leaves_of({"params": {"dense": {"bias": 1}}}))
        [(('params', 'dense', 'bias'), 1)]

    Args:
        tree: variables as nested dicts.
    """
    return iter(flat(tree).items())


def flat(tree: Variables, prefix: Path = ()) -> dict[Path, typing.Any]:
    """Return the variables of a tree, or of a subtree at a prefix, by path: the inverse of `nested`."""
    found: dict[Path, typing.Any] = {}
    for name, below in tree.items():
        if isinstance(below, Mapping):
            found |= flat(below, (*prefix, name))
        else:
            found[(*prefix, name)] = below
    return found


def nested(flat: Mapping[Path, typing.Any]) -> dict[str, typing.Any]:
    """Return the tree of variables that are given by path."""
    tree: dict[str, typing.Any] = {}
    for path, value in flat.items():
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return tree


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


def under(modules: Path, path: Path) -> Path:
    """Return the path of a variable from the root, from its path `(collection, *modules, name)` below other modules."""
    return path[0], *modules, *path[1:]


def rooted(tree: Variables, path: Path) -> dict[str, typing.Any]:
    """Return the variables of the module at a path as variables of the root: the inverse of `subtree`."""
    return {
        collection: functools.reduce(lambda inner, name: {name: inner}, reversed(path), below)
        for collection, below in tree.items()
    }


def subtree(tree: Variables, path: Path) -> dict[str, typing.Any]:
    """Return the variables of the module at a path, without empty collections."""
    found: dict[str, typing.Any] = {}
    for collection, inner in tree.items():
        for name in path:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping) and inner:
            found[collection] = inner
    return found


# --- values in trees --------------------------------------------------------------------------------------------------


def rewrapped(tree: typing.Any, like: typing.Any) -> typing.Any:
    """Return a tree whose mappings have the same kinds as in another tree: value of a variable, frozen, or plain."""
    if type(like) is Whole:
        return wrapped(tree)
    if not isinstance(tree, Mapping) or not isinstance(like, Mapping):
        return tree
    below = {name: rewrapped(below, like.get(name)) for name, below in tree.items()}
    # A frozen mapping that a user passed may be a module or a value; as a value, it must keep its type.
    return below if isinstance(like, MutableMapping) else type(like)(below)  # type: ignore[call-arg]


# --- groups -----------------------------------------------------------------------------------------------------------


def by_place(*groups: PyTree) -> dict[Place, typing.Any]:
    """Return the variables of groups by place, to look them up and to compare two groups."""
    found: dict[Place, typing.Any] = {}
    for group in groups:
        for index, tree in enumerate(group):
            if tree:
                found |= {(index, path): value for path, value in flat(tree).items()}
    return found


def names_of(group: PyTree) -> list[str]:
    """Return the names of the variables of a group."""
    return sorted({path_text(path) for tree in group for path in flat(tree)})


def apart(group: PyTree, places: Container[Place]) -> tuple[PyTree, PyTree]:
    """Return the variables of a group at some places, and the others."""
    parts = [partition(tree, [_among(places, index)]) for index, tree in enumerate(group)]
    return tuple([taken for (taken,), _ in parts]), tuple([rest for _, rest in parts])


def _among(places: Container[Place], index: int) -> Predicate:
    return lambda path, _: (index, path) in places


def merged(*groups: PyTree) -> PyTree:
    """Return the variables of several groups in one, as `merge` does for trees."""
    return tuple([merge(*trees) for trees in zip(*groups, strict=True)])


def select(group: PyTree, like: PyTree) -> PyTree:
    """Restrict a group to the paths of another group."""
    return tuple([_select(tree, pattern) for tree, pattern in zip(group, like, strict=True)])


def _select(tree: typing.Any, pattern: typing.Any) -> typing.Any:
    if not isinstance(pattern, Mapping):
        return wrapped(tree) if type(pattern) is Whole else tree
    tree = unwrapped(tree)
    if not isinstance(tree, Mapping):
        return tree
    return {name: _select(tree[name], below) for name, below in pattern.items() if name in tree}


def overlay(group: PyTree, newer: PyTree) -> PyTree:
    """Return the variables of a group, with the values of a newer group where it has them."""
    return tuple([_overlay(tree, update) for tree, update in zip(group, newer, strict=True)])


def _overlay(tree: typing.Any, update: typing.Any) -> typing.Any:
    held = unwrapped(tree)
    if not isinstance(held, Mapping) or not isinstance(update, Mapping):
        return update
    newer = {name: _overlay(below, update[name]) if name in update else below for name, below in held.items()}
    if type(tree) is dict:
        return newer
    # A child scope may write a part of a value: together, the parts are still one value, of its own type and order.
    leaves = {path_text(path): leaf for path, leaf in jax.tree.leaves_with_path(newer)}
    whole = jax.tree.map_with_path(lambda path, _: leaves[path_text(path)], held)
    return wrapped(whole) if type(tree) is Whole else whole
