"""The part of a tree of variables that a filter takes, and the whole tree with other values for that part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ..errors import LiftArgumentError
from ..filters import Everything, Nothing, WithTag, leaves_of, partition, short_form, to_predicate
from ..texts import path_text
from ..typing import Filter, Predicate, PyTree, Variables

__all__ = ["check_names", "check_taken", "inserted", "listed", "taken"]


def taken(where: str, variables: Variables, filter: Filter) -> dict[str, Any]:
    """The variables that a filter takes; a subtree that is taken as a whole is the object that was given.

    Args:
        where: the name of the caller, for errors.
        variables: `{collection: {module: {name: value}}}`.
        filter: a filter of variables.

    Raises:
        LiftArgumentError: if it takes none, and was not made to take none.
    """
    predicate = to_predicate(filter)
    (part,), _ = partition(variables, [predicate])
    check_taken(where, variables, predicate, part)
    return part


def check_taken(where: str, variables: Variables, predicate: Predicate, part: Variables) -> None:
    """Checks that a filter takes some variable, as a misspelt one does not; one for all, or for none, needs not.

    Raises:
        LiftArgumentError: if it takes none.
    """
    if part or isinstance(predicate, Everything | Nothing) or not any(True for _ in leaves_of(variables)):
        return
    what = f"the filter {short_form(predicate)} takes no variable (there are {listed(variables)})."
    if isinstance(predicate, WithTag):
        tag = predicate.tag
        fix = f'A string is the name of a collection. To choose a module or a name, write `PathContains("{tag}")`.'
    else:
        fix = "Choose some of these, for a module by `PathContains(name)`; a filter that is to take none is `None`."
    raise LiftArgumentError(where, what, fix)


def listed(variables: Variables) -> str:
    """The paths of variables, the first few of them."""
    paths = [path_text(path) for path, _ in leaves_of(variables)]
    return ", ".join(paths[:6]) + (f" and {len(paths) - 6} more" if len(paths) > 6 else "")


def inserted(tree: PyTree, part: PyTree) -> PyTree:
    """A tree with the values of a part of it in their places. Each node keeps its type.

    Args:
        tree: nested mappings.
        part: nested mappings with some of the names of `tree`.
    """
    if not isinstance(tree, Mapping) or not isinstance(part, Mapping):
        return part
    below, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    children = [inserted(child, part[path[0].key]) if path[0].key in part else child for path, child in below]
    return jax.tree.unflatten(treedef, children)


def check_names(where: str, given: PyTree, expected: PyTree, fix: str) -> None:
    """Checks that two trees have values at the same paths; of trees that are no mappings nothing is known.

    Raises:
        LiftArgumentError: where they have not.
    """
    if not isinstance(given, Mapping) or not isinstance(expected, Mapping):
        return
    here, there = ({path_text(path): None for path, _ in leaves_of(tree)} for tree in (given, expected))
    extra, missing = [path for path in here if path not in there], [path for path in there if path not in here]
    if extra or missing:
        said = [f"{text} {', '.join(paths[:6])}" for text, paths in (("lack", missing), ("have also", extra)) if paths]
        raise LiftArgumentError(where, f"they {' and '.join(said)}.", fix)
