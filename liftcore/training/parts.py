"""Select the part of a tree of variables that a filter matches, and put other values for that part into the tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..errors import LiftArgumentError
from ..filters import Everything, Nothing, WithTag, leaves_of, partition, short_form, to_predicate
from ..texts import path_text
from ..typing import Filter, Predicate, PyTree, Variables

__all__ = ["check_like", "check_names", "check_taken", "inserted", "listed", "taken"]


def taken(where: str, variables: Variables, filter: Filter) -> dict[str, Any]:
    """Return the variables that a filter matches. A subtree that matches as a whole is the given object itself.

    Args:
        where: the name of the caller, for errors.
        variables: `{collection: {module: {name: value}}}`.
        filter: a filter of variables.

    Raises:
        LiftArgumentError: if the filter matches none, and is not `None`.
    """
    predicate = to_predicate(filter)
    (part,), _ = partition(variables, [predicate])
    check_taken(where, variables, predicate, part)
    return part


def check_taken(where: str, variables: Variables, predicate: Predicate, part: Variables) -> None:
    """Check that a filter matches a variable: a misspelled one does not. Filters for all or none are not checked.

    Raises:
        LiftArgumentError: if the filter matches none.
    """
    if part or isinstance(predicate, Everything | Nothing) or not any(True for _ in leaves_of(variables)):
        return
    what = f"the filter {short_form(predicate)} matches no variable (available: {listed(variables)})."
    if isinstance(predicate, WithTag):
        tag = predicate.tag
        fix = f'A string is the name of a collection. To match a module or a name, write `PathContains("{tag}")`.'
    else:
        fix = "Match some of these, such as a module with `PathContains(name)`, or write `None` to match nothing."
    raise LiftArgumentError(where, what, fix)


def listed(variables: Variables) -> str:
    """Return the first few paths of variables, as text."""
    paths = [path_text(path) for path, _ in leaves_of(variables)]
    return ", ".join(paths[:6]) + (f" and {len(paths) - 6} more" if len(paths) > 6 else "")


def inserted(tree: PyTree, part: PyTree) -> PyTree:
    """Return a tree in which the values of `part` replace those at the same paths. Each node keeps its type.

    Args:
        tree: nested mappings.
        part: nested mappings with some of the names of `tree`.
    """
    if not isinstance(tree, Mapping) or not isinstance(part, Mapping):
        return part
    below, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    children = [inserted(child, part[path[0].key]) if path[0].key in part else child for path, child in below]
    return jax.tree.unflatten(treedef, children)


def check_like(where: str, given: PyTree, expected: PyTree, fix: str) -> None:
    """Check that two trees have arrays of the same shapes at the same paths. `None` may be given for some arrays.

    Raises:
        LiftArgumentError: if paths or shapes differ.
    """
    _check_equal(where, _shapes(given), _shapes(expected), fix)


def check_names(where: str, given: PyTree, expected: PyTree, fix: str) -> None:
    """Check that two trees of nested mappings have variables at the same paths, whatever these are.

    Raises:
        LiftArgumentError: if paths differ.
    """
    _check_equal(where, _names(given), _names(expected), fix)


def _check_equal(
    where: str, here: Mapping[str, tuple[int, ...] | None], there: Mapping[str, tuple[int, ...] | None], fix: str
) -> None:
    missing, extra = [path for path in there if path not in here], [path for path in here if path not in there]
    wrong = [
        f"{path} of shape {shape}, not {there[path]}"
        for path, shape in here.items()
        if path in there and None is not shape != there[path] is not None
    ]
    problems = [("missing", missing), ("unexpected", extra), ("given", wrong)]
    if missing or extra or wrong:
        what = "; ".join(f"{text} {', '.join(names[:6])}" for text, names in problems if names)
        raise LiftArgumentError(where, f"{what}.", fix)


def _names(tree: PyTree) -> dict[str, None]:
    return {path_text(path[1:]) or ".": None for path, _ in leaves_of({"": tree})}


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of the arrays in a tree by their paths, and None for each None."""
    leaves = [] if tree is None else jax.tree.leaves_with_path(tree, is_leaf=lambda node: node is None)
    return {path_text(path) or ".": None if leaf is None else np.shape(leaf) for path, leaf in leaves}
