"""Parts of a pytree of variables that a filter matches: select them, replace them, and count their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..errors import LiftArgumentError
from ..filters import Everything, Parameters, decide, to_predicate
from ..filters.parameters import children_of, names_its_children
from ..texts import path_text
from ..typing import Filter, PyTree

__all__ = ["check_like", "check_names", "count", "inserted", "size_bytes", "taken"]


def taken(where: str, variables: PyTree, filter: Filter) -> PyTree:
    """Return the variables that a filter matches; see `Parameters.part`.

    Args:
        where: the name of the caller, for errors.
        variables: `{collection: {module: {name: value}}}`, or a pytree of parameters that is no mapping.
        filter: a filter of variables.

    Raises:
        LiftArgumentError: if the filter matches none, and is not `None`.
    """
    predicate = to_predicate(filter)
    if isinstance(predicate, Everything):
        return variables
    if isinstance(variables, Mapping) and all(decide(predicate, (collection,)) for collection in variables):
        return variables  # without a walk: a training step in eager mode asks several times
    found = Parameters.of_variables(variables)
    return found.part(found.chosen(where, predicate))


def inserted(tree: PyTree, part: PyTree) -> PyTree:
    """Return a tree in which the values of `part` replace those at the same paths. Each node keeps its type.

    Args:
        tree: a pytree.
        part: a part of such a tree, as `taken` returns it: with some of the names, and None in place of variables.
    """
    if part is None or (isinstance(part, Mapping) and not part):
        return tree
    below, treedef = children_of(tree)
    if treedef is None:
        return part
    if names_its_children(tree, below):
        if not isinstance(part, Mapping):
            return part
        return treedef.unflatten([inserted(child, part.get(key.key)) for key, child in below])
    values, same = children_of(part)
    if same != treedef:
        return part
    return treedef.unflatten([inserted(child, new) for (_, child), (_, new) in zip(below, values, strict=True)])


def check_like(where: str, given: PyTree, expected: PyTree, fix: str) -> None:
    """Check that two trees have arrays of the same shapes at the same paths. `None` may be given for some arrays.

    Raises:
        LiftArgumentError: if paths or shapes differ.
    """
    _check_equal(where, _shapes(given), _shapes(expected), fix)


def check_names(where: str, given: PyTree, expected: PyTree, fix: str) -> None:
    """Check that two trees have variables at the same paths, whatever these are.

    Raises:
        LiftArgumentError: if paths differ.
    """
    _check_equal(where, _names(given), _names(expected), fix)


def _check_equal(
    where: str, here: Mapping[str, tuple[int, ...] | None], there: Mapping[str, tuple[int, ...] | None], fix: str
) -> None:
    missing = [path for path, shape in there.items() if path not in here and shape is not None]
    extra = [path for path, shape in here.items() if shape is not None and there.get(path) is None]
    wrong = [path for path, shape in here.items() if None is not shape != there.get(path) is not None]
    shapes = [f"{path} of shape {here[path]}, not {there[path]}" for path in wrong]
    problems = [("missing", missing), ("unexpected", extra), ("given", shapes)]
    if paths := missing + extra + wrong:
        what = "; ".join(f"{text} {', '.join(names[:6])}" for text, names in problems if names)
        raise LiftArgumentError(where, f"{what}.", fix, variable=paths[0])


def _names(tree: PyTree) -> dict[str, tuple[int, ...] | None]:
    """Return the names of the variables, as if they were of one shape: it does not count."""
    return {path_text(path) or ".": () for path in Parameters.of(tree).paths}


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of the arrays in a tree by their paths, and None for each None."""
    leaves = [] if tree is None else jax.tree.leaves_with_path(tree, is_leaf=lambda node: node is None)
    return {path_text(path) or ".": None if leaf is None else np.shape(leaf) for path, leaf in leaves}


# --- sizes ------------------------------------------------------------------------------------------------------------


def count(variables: PyTree, filter: Filter = True) -> int:
    """Count the scalars in the variables that a filter matches.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> from liftcore.filters import PathContains
        >>> shapes = jax.eval_shape(lambda: {"params": {"dense": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}})
        >>> count(shapes), count(shapes, PathContains("kernel"))
        (16, 12)

    Args:
        variables: `{collection: {module: {name: value}}}`, or another pytree of parameters, such as a module. Values
            may be boxed, or be `jax.ShapeDtypeStruct`s.
        filter: a filter of variables; all by default.

    Raises:
        LiftArgumentError: if the filter matches no variable, unless it is `None`.
    """
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(taken("count", variables, filter)))


def size_bytes(variables: PyTree, filter: Filter = True) -> int:
    """Count the bytes of the variables that a filter matches, over all devices. A replicated array counts once.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> variables = {"params": {"w": jnp.ones((3, 4), jnp.bfloat16)}, "cache": {"k": jnp.ones(5)}}
        >>> size_bytes(variables), size_bytes(variables, "params")
        (44, 24)

    Args:
        variables: `{collection: {module: {name: value}}}`, or another pytree of parameters, such as a module. Values
            may be boxed, or be `jax.ShapeDtypeStruct`s.
        filter: a filter of variables; all by default.

    Raises:
        LiftArgumentError: if the filter matches no variable, unless it is `None`.
    """
    leaves = jax.tree.leaves(taken("size_bytes", variables, filter))
    return sum(math.prod(np.shape(leaf)) * _itemsize(leaf) for leaf in leaves)


def _itemsize(leaf: Any) -> int:
    return int(leaf.dtype.itemsize if hasattr(leaf, "dtype") else jax.dtypes.result_type(leaf).itemsize)
