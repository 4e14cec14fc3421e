"""`hold`: sets a variable at a path below an object, and makes the containers on the way that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from liftcore import AxisMetadata
from liftcore.errors import LiftArgumentError

from ..objects.pytree import Pytree
from ..variablelib.variable import Variable

__all__ = ["hold", "leaves_of"]


def hold(node: Any, names: Iterable[str], variable: Variable[Any]) -> None:
    """Set a variable at a path: update the variable that is there, or make a new attribute.

    If an object on the way lacks the attribute, a dict is made there. A class can make something else: define a method
    `to_nnx__part`. If the path leads into a static value, nothing is done.

    Args:
        node: an object, or a dict, list or tuple of objects.
        names: the names that lead to the variable.
        variable: the variable.

    Raises:
        LiftArgumentError: if a variable of another kind is there.
    """
    *above, name = names
    for each in above:
        node = _below(node, each)
    held = _get(node, name)
    if isinstance(held, Variable):
        if type(held) is not type(variable):
            raise LiftArgumentError(
                ".".join([*above, name]),
                f"a {type(held).__name__} and a {type(variable).__name__} have this path; an object can hold only one.",
                "Rename one of them, or put it into a scope of its own.",
            )
        held.set_raw_value(variable.get_raw_value())
    elif isinstance(node, Pytree):
        setattr(node, name, variable)
    elif isinstance(node, dict):
        node[name] = variable


def _below(node: Any, name: str) -> Any:
    held = _get(node, name)
    if held is not None or not isinstance(node, (Pytree, dict)):
        return held
    part = getattr(type(node), "to_nnx__part", None)
    made = {} if part is None else part(node, name)
    if isinstance(node, dict):
        node[name] = made
        return made
    setattr(node, name, made)
    return vars(node)[name]


def _get(node: Any, name: str) -> Any:
    if isinstance(node, Pytree):
        return vars(node).get(name)
    if isinstance(node, Mapping):
        return node.get(name)
    if isinstance(node, (list, tuple)) and name.isdigit() and int(name) < len(node):
        return node[int(name)]
    return None


def leaves_of(variables: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of plain dicts of variables with their paths; a boxed value is one leaf."""
    for name, value in variables.items():
        if isinstance(value, Mapping) and not isinstance(value, AxisMetadata):
            for below, leaf in leaves_of(value):
                yield (str(name), *below), leaf
        else:
            yield (str(name),), value
