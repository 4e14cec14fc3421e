"""Ways through a graph of objects: all that is below one, its modules, its children, what is met twice.

Each object, variable, list, tuple and dict is met once; a part comes before what holds it, sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..filters import to_predicate
from ..variables.variable import Variable
from .markers import is_data
from .pytree import Pytree, attributes_of

__all__ = ["children_of", "find_duplicates", "iter_children", "iter_graph", "recursive_map"]

Path = tuple[Any, ...]


def children_of(node: Any) -> list[tuple[Any, Any]] | None:
    """What is right below a value, with its names or numbers; None where the value is a leaf.

    Args:
        node: an object, a list, a tuple, a dict, or any other value.
    """
    if isinstance(node, Pytree):
        return list(attributes_of(node))
    if isinstance(node, list | tuple):
        if hasattr(node, "_fields"):
            return [(name, getattr(node, name)) for name in node._fields]
        return list(enumerate(node))
    if isinstance(node, Mapping) and not isinstance(node, Variable):
        return sorted(node.items(), key=lambda item: str(item[0]))
    return None


def iter_graph(node: Any, /) -> Iterator[tuple[Path, Any]]:
    """Iterates over all that is below a value, and itself.

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
        The path and the value, also of what is static. What is met again is left out.
    """
    yield from _below((), node, set())


def _below(path: Path, node: Any, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    children = children_of(node)
    if children is not None or isinstance(node, Variable):
        if id(node) in seen:
            return
        seen.add(id(node))
    for name, child in children or ():
        yield from _below((*path, name), child, seen)
    yield path, node


def iter_children(node: Any, /) -> Iterator[tuple[Any, Any]]:
    """Iterates over the objects and variables right below a value.

    Example:
        >>> import nnx_like as nnx
        >>> [name for name, _ in nnx.iter_children(nnx.Dict(size=3, w=nnx.Param(1.0), a=nnx.Dict()))]
        ['a', 'w']

    Args:
        node: an object, or a list, tuple or dict of objects.

    Yields:
        The name and the object.
    """
    for name, child in children_of(node) or ():
        if isinstance(child, Pytree | Variable):
            yield name, child


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /) -> Any:
    """Makes a graph anew, of what a function returns for each part of it.

    Example:
        >>> import nnx_like as nnx
        >>> double = lambda path, value: 2 * value if isinstance(value, int) else value
        >>> nnx.recursive_map(double, nnx.Dict(a=1, b=[2, 3]))["b"]
        [4, 6]

    Args:
        f: called with the path and the value of each part, the innermost first; a value that holds others holds new
            ones by then. It is called once for what is shared.
        node: an object, or lists, tuples and dicts of objects. It stays as it is.

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
    empty = Pytree.__new__(type(node)) if isinstance(node, Pytree) else None
    if empty is not None:
        made[id(node)] = empty  # for one that is below itself
    new = _filled(node, empty, {name: _mapped(f, (*path, name), child, made) for name, child in children})
    made[id(node)] = new = f(path, new)
    return new


def _filled(node: Any, empty: Any, parts: dict[Any, Any]) -> Any:
    if empty is not None:
        return empty.__setstate__(({str(name): part for name, part in parts.items()}, {})) or empty
    if isinstance(node, Mapping):
        return type(node)({name: parts[name] for name in node})  # type: ignore[call-arg]
    return type(node)(*parts.values()) if hasattr(node, "_fields") else type(node)(parts.values())


def find_duplicates(node: Any, /, *, only: Any = ...) -> list[list[Path]]:
    """The paths of what is reached in more than one way.

    Example:
        >>> import nnx_like as nnx
        >>> w = nnx.Param(1.0)
        >>> nnx.find_duplicates(nnx.Dict(a=w, b=nnx.Dict(c=w)))
        [[('a',), ('b', 'c')]]

    Args:
        node: an object, or lists, tuples and dicts of objects.
        only: a filter of what is looked for, asked with the first path.

    Returns:
        For each object, variable or array that is reached in more than one way, its paths.
    """
    found: dict[int, list[Path]] = {}
    first: dict[int, Any] = {}
    _places((), node, found, first, {})
    matches = to_predicate(only)
    repeated = {which: paths for which, paths in found.items() if len(paths) > 1}
    return [paths for which, paths in repeated.items() if matches(paths[0], first[which])]


def _places(path: Path, node: Any, found: dict[int, list[Path]], first: dict[int, Any], open_: dict[int, Any]) -> None:
    """Notes the path of each object, variable and array; what is below an object is looked at once."""
    if not is_data(node):
        if id(node) not in open_:
            for name, child in children_of(node) or ():
                _places((*path, name), child, found, first, {**open_, id(node): node})
        return
    found.setdefault(id(node), []).append(path)
    if id(node) not in first:
        first[id(node)] = node
        for name, child in children_of(node) or ():
            _places((*path, name), child, found, first, open_)
