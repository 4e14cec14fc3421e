"""The check for `graph=False`: that no variable is shared, and that no object refers to itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import AliasError
from ..variablelib.variable import Variable
from .pytree import Pytree
from .traversal import children_of, find_duplicates, iter_graph

__all__ = ["check_unshared"]


def check_unshared(name: str, tree: Mapping[str, Any]) -> None:
    """Check that objects could be plain pytrees, as they are in the tree mode of NNX.

    Args:
        name: the function that the objects were passed to.
        tree: the objects by the names of their parameters.

    Raises:
        AliasError: if a variable can be reached in two ways, or an object from itself.
    """
    for paths in find_duplicates(dict(tree), only=lambda _, value: isinstance(value, Variable | Pytree)):
        first, *others = sorted(paths, key=len)
        shared = _found(tree, first)
        circular = [path for path in others if path[: len(first)] == first]
        if circular or any(isinstance(one, Variable) for _, one in iter_graph(shared)):
            second = (circular or others)[0]
            raise AliasError(
                name,
                f"{_text(first)} and {_text(second)} are the same {type(shared).__name__}, which `graph=False` and "
                "`graph_updates=False` forbid.",
                "Leave that option out, or pass a copy in one of the places: `nnx.clone(…)`.",
            )


def _found(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = dict(children_of(tree) or ())[step]
    return tree


def _text(path: tuple[Any, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
