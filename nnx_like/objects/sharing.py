"""The checks for `graph=False` and `graph_updates=False`: no variable is shared, or is returned as it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import AliasError
from ..variablelib.variable import Variable
from .pytree import Pytree
from .traversal import children_of, find_duplicates, iter_graph

__all__ = ["check_not_returned", "check_unshared"]


def check_unshared(name: str, tree: Mapping[str, Any]) -> None:
    """Check that objects could be plain pytrees, as they are in the tree mode of NNX.

    Args:
        name: the function that the objects were passed to.
        tree: the objects by the names of their parameters.

    Raises:
        AliasError: if a variable can be reached in two ways, or an object from itself.
    """
    for shared, (first, *others) in _repeated(tree):
        circular = [path for path in others if path[: len(first)] == first]
        if circular or _holds_variables(shared):
            what = _same(first, (circular or others)[0], shared, "graph=False")
            raise AliasError(name, what, "Leave that option out, or pass a copy in one of the places: `nnx.clone(…)`.")


def check_not_returned(name: str, given: Mapping[str, Any], result: Any) -> None:
    """Check that a function returns no variable that it was given.

    Args:
        name: the transformation of the function.
        given: the objects that it was given, by the names of the parameters.
        result: what it returned.

    Raises:
        AliasError: if a variable is in both.
    """
    for shared, paths in _repeated({**given, "result": result}):
        came = [path for path in paths if path[0] != "result"]
        went = [path for path in paths if path[0] == "result"]
        if came and went and _holds_variables(shared):
            what = _same(went[0], came[0], shared, "graph_updates=False")
            raise AliasError(name, what, "Leave that option out, or return a copy: `nnx.clone(…)`.")


def _repeated(tree: Mapping[str, Any]) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
    """Yield the objects and variables that can be reached in several ways, with their paths, the shortest first."""
    for paths in find_duplicates(dict(tree), only=lambda _, value: isinstance(value, Variable | Pytree)):
        ordered = sorted(paths, key=len)
        yield _found(tree, ordered[0]), ordered


def _holds_variables(shared: Any) -> bool:
    return any(isinstance(one, Variable) for _, one in iter_graph(shared))


def _same(first: tuple[Any, ...], second: tuple[Any, ...], shared: Any, option: str) -> str:
    return f"{_text(first)} and {_text(second)} are the same {type(shared).__name__}, which `{option}` forbids."


def _found(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = dict(children_of(tree) or ())[step]
    return tree


def _text(path: tuple[Any, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
