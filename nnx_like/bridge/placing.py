"""The places of an object's variables in a tree of variables: the collection of their kind, and their path."""

from __future__ import annotations

from typing import Any, NamedTuple

from liftcore import is_array
from liftcore.errors import LiftArgumentError

from ..graph.definition import Definition, path_text
from ..graph.walk import Place, Walk
from ..variablelib.kinds import RngCount, RngState, collection_of
from ..variablelib.variable import Variable

__all__ = ["RANDOM", "Names", "Placed", "Random"]

RANDOM = ""
"""The group of the state of RNG streams. No collection holds it: keys come from the streams of the scope."""

Names = tuple[str, ...]
"""A place in a tree of variables: `(collection, *names)`."""


class Random(NamedTuple):
    """The state of an RNG stream.

    Attributes:
        tag: the name of the stream.
        shape: the shape of its keys.
        is_count: True for the count of the stream, False for its key.
    """

    tag: str
    shape: tuple[int, ...]
    is_count: bool


class Placed(Walk):
    """A walk that records variables, and arrays that are attributes, by their places.

    Attributes:
        definition: the definition; its keys are places without their collections.
        found: the variables and arrays by place.
        random: the state of RNG streams, by path.
    """

    __slots__ = ("definition", "found", "random")

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.found: dict[Names, Any] = {}
        self.random: dict[Names, Random] = {}
        self.definition: Definition = self.define(node, (), _group)

    def _variable_parts(self, value: Variable[Any], path: tuple[Any, ...]) -> tuple[Any, Any]:
        parts, form = super()._variable_parts(value, path)
        is_static = form is not None and not parts and not isinstance(value, RngState)
        return (parts, form) if is_static else (value.get_raw_value(), None)  # a pytree is one value of a collection

    def _slot(self, value: Variable[Any], path: tuple[Any, ...], group: str, parts: Any, form: Any) -> tuple[str, Any]:
        names = tuple(map(str, path))
        if isinstance(value, RngState):
            shape = tuple(parts.shape) if is_array(parts) else ()
            self.random[names] = Random(value.get_metadata("tag", "default"), shape, isinstance(value, RngCount))
            return group, names
        return self._place(value, path, group)

    def _array_slot(self, value: Any, path: tuple[Any, ...], group: str, place: Place | None) -> tuple[str, Any]:
        return self._place(value, path, group)

    def _place(self, value: Any, path: tuple[Any, ...], group: str) -> tuple[str, Names]:
        names = tuple(map(str, path)) or ("value",)
        if (group, *names) in self.found:
            raise LiftArgumentError(
                path_text(path),
                f'two variables of "{group}" have this path once its keys are converted to strings.',
                "Use dict keys that differ as strings.",
            )
        self.found[group, *names] = value
        return group, names


def _group(path: tuple[Any, ...], value: Any) -> str:
    return RANDOM if isinstance(value, RngState) else collection_of(value)
