"""Traversals of a graph of objects: everything below a value, its modules, its children, and duplicates.

Each object, variable, list, tuple and dict is visited once; parts come before their container, sorted by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from liftcore.errors import shown

from ..errors import AliasError, StructureError
from ..filterlib import to_predicate
from ..variablelib.variable import Variable, is_object
from .markers import NATIVE, children_with_path, hidden_error, hidden_in, is_data, items_of, step_of
from .pytree import Pytree, attributes_of, renewed

__all__ = [
    "check_not_returned",
    "check_unshared",
    "children_of",
    "find_duplicates",
    "iter_children",
    "iter_graph",
    "recursive_map",
]


Path = tuple[Any, ...]


def children_of(node: Any) -> list[tuple[Any, Any]] | None:
    """Return the direct children of a value, with their names or numbers; None if the value is a leaf.

    Args:
        node: an object, a list, a tuple, a dict, any other pytree, or a leaf.
    """
    kind = type(node)
    if isinstance(node, Pytree):
        return attributes_of(node)
    if kind is tuple or type(node) in NATIVE:
        return list(items_of(node))
    if node is None or is_data(node) or isinstance(node, str | int | float | type):
        return None
    if jax.tree_util.all_leaves((node,)):
        found = hidden_in(node)
        if found is not None and is_object(found[1]):
            raise hidden_error(f"a {kind.__name__}{found[0]}", found[1], node)
        return None
    return [(step_of(path[0]), child) for path, child in children_with_path(node)[0]]


def iter_graph(node: Any, /) -> Iterator[tuple[Path, Any]]:
    """Iterate over a value and everything in it.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.Dict(size=3, w=nnx.Param(1.0))
        >>> for path, value in nnx.iter_graph([layer, layer]):
        ...     print(path, type(value).__name__)
        (0, 'size') int
        (0, 'w') Param
        (0,) Dict
        () list

    Args:
        node: an object, or lists, tuples and dicts of objects.

    Yields:
        The path and the value, including static values. An object that was visited before is skipped.
    """
    yield from _below((), node, {})


def _below(path: Path, node: Any, seen: dict[int, Any]) -> Iterator[tuple[Path, Any]]:
    children = children_of(node)
    if children is not None or node is None or isinstance(node, Variable):
        if id(node) in seen:
            return
        seen[id(node)] = node  # held, since another value could get the identity of one that is gone
    for name, child in children or ():
        yield from _below((*path, name), child, seen)
    yield path, node


def iter_children(node: Any, /) -> Iterator[tuple[Any, Any]]:
    """Iterate over the objects and variables that a value holds directly.

    Example:
        >>> import nnx_like as nnx
        >>> [name for name, _ in nnx.iter_children(nnx.Dict(size=3, w=nnx.Param(1.0), a=nnx.Dict()))]
        ['a', 'w']

    Args:
        node: an object, or a list, tuple or dict of objects.

    Yields:
        The name and the object.

    Raises:
        StructureError: if the value has another type.
    """
    children = children_of(node)
    if children is None:
        raise StructureError(
            f"iter_children({shown(node)})",
            "it has no children.",
            "Pass an object, or a list, tuple or dict of objects.",
            given=node,
        )
    for name, child in children:
        if isinstance(child, Pytree | Variable):
            yield name, child


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /) -> Any:
    """Rebuild a graph from what a function returns for each part of it.

    Example:
        >>> import nnx_like as nnx
        >>> double = lambda path, value: 2 * value if isinstance(value, int) else value
        >>> nnx.recursive_map(double, nnx.Dict(a=1, b=[2, 3]))["b"]
        [4, 6]

    Args:
        f: called with the path and the value of each part, the innermost first, so a value that holds others already
            holds their replacements. It is called once for a shared part.
        node: an object, or lists, tuples and dicts of objects. It is not changed.

    Returns:
        What `f` returns for the whole.
    """
    return _mapped(f, (), node, {})


def _mapped(f: Callable[[Path, Any], Any], path: Path, node: Any, made: dict[int, Any]) -> Any:
    if id(node) in made:
        return made[id(node)]
    children = children_of(node)
    if children is None:
        new = f(path, node)
        if isinstance(node, Variable):
            made[id(node)] = new
        return new
    empty: Any = renewed(node) if isinstance(node, Pytree) else None
    if type(node) in NATIVE:
        empty = copy.copy(node)  # of the same class, with the same order of keys
    if empty is not None:
        made[id(node)] = empty  # before its children, since the object may contain itself
    parts = [(name, _mapped(f, (*path, name), child, made)) for name, child in children]
    if isinstance(node, Pytree):
        vars(empty).update({str(name): part for name, part in parts})
    elif type(node) in NATIVE:
        for name, part in parts:
            empty[name] = part
    else:
        empty = children_with_path(node)[1].unflatten([part for _, part in parts])
    made[id(node)] = new = f(path, empty)
    return new


def find_duplicates(node: Any, /, *, only: Any = ...) -> list[list[Path]]:
    """Find the objects, variables and arrays that can be reached by more than one path.

    Example:
        >>> import nnx_like as nnx
        >>> w = nnx.Param(1.0)
        >>> nnx.find_duplicates(nnx.Dict(a=w, b=nnx.Dict(c=w)))
        [[('a',), ('b', 'c')]]

    Args:
        node: an object, or lists, tuples and dicts of objects.
        only: a filter for what to report; it gets the first path.

    Returns:
        A list of paths for each object, variable or array that can be reached in more than one way.
    """
    matches = to_predicate(only)
    return [paths for found, paths in _repeated(node) if matches(paths[0], found)]


def _repeated(node: Any) -> list[tuple[Any, list[Path]]]:
    """Return the objects, variables and arrays that can be reached by more than one path, with their paths."""
    places: dict[int, tuple[Any, list[Path]]] = {}
    _find_places((), node, places, {})
    return [(found, paths) for found, paths in places.values() if len(paths) > 1]


def _find_places(path: Path, node: Any, places: dict[int, tuple[Any, list[Path]]], open_: dict[int, Any]) -> None:
    """Record the path of each object, variable and array; look below an object only once."""
    if is_data(node):
        places.setdefault(id(node), (node, []))[1].append(path)
        if len(places[id(node)][1]) > 1:
            return
    elif id(node) in open_:
        return
    else:
        open_ = {**open_, id(node): node}
    for name, child in children_of(node) or ():
        _find_places((*path, name), child, places, open_)


# --- the checks for `graph=False` and `graph_updates=False` -----------------------------------------------------------


def check_unshared(name: str, tree: Mapping[str, Any]) -> None:
    """Check that objects could be plain pytrees, as they are in the tree mode of NNX.

    Args:
        name: the function that the objects were passed to.
        tree: the objects by the names of their parameters.

    Raises:
        AliasError: if a variable can be reached in two ways, or an object from itself.
    """
    for shared, (first, *others) in _shared(tree):
        circular = [path for path in others if path[: len(first)] == first]
        if circular or _holds_variables(shared):
            what = _same(first, (circular or others)[0], shared, "graph=False")
            fix = "Leave that option out, or pass a copy in one of the places: `nnx.clone(…)`."
            raise AliasError(name, what, fix, option="graph")


def check_not_returned(name: str, given: Mapping[str, Any], result: Any) -> None:
    """Check that a function returns no variable that it was given.

    Args:
        name: the transformation of the function.
        given: the objects that it was given, by the names of the parameters.
        result: what it returned.

    Raises:
        AliasError: if a variable is in both.
    """
    for shared, paths in _shared({**given, "result": result}):
        came = [path for path in paths if path[0] != "result"]
        went = [path for path in paths if path[0] == "result"]
        if came and went and _holds_variables(shared):
            what = _same(went[0], came[0], shared, "graph_updates=False")
            fix = "Leave that option out, or return a copy: `nnx.clone(…)`."
            raise AliasError(name, what, fix, option="graph_updates")


def _shared(tree: Mapping[str, Any]) -> Iterator[tuple[Any, list[Path]]]:
    """Yield the objects and variables that can be reached in several ways, with their paths, the shortest first."""
    for found, paths in _repeated(dict(tree)):
        if isinstance(found, Variable | Pytree):
            yield found, sorted(paths, key=len)


def _holds_variables(shared: Any) -> bool:
    return any(isinstance(one, Variable) for _, one in iter_graph(shared))


def _same(first: tuple[Any, ...], second: tuple[Any, ...], shared: Any, option: str) -> str:
    return f"{_text(first)} and {_text(second)} are the same {type(shared).__name__}, which `{option}` forbids."


def _text(path: tuple[Any, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
