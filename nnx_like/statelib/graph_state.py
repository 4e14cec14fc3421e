"""`GraphState`: a definition and the state that belongs to it, as one mapping and one pytree."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import jax
from jax.tree_util import DictKey

from .nested import sorted_keys
from .state import State

__all__ = ["GraphState"]


class GraphState(MutableMapping[Any, Any]):
    """A definition and its state. As a mapping and as a pytree it is the state; the definition is static.

    Example:
        >>> pair = GraphState("definition", State({"kernel": 1.0}))
        >>> pair.kernel, jax.tree.leaves(pair)
        (1.0, [1.0])

    Args:
        graphdef: the definition.
        state: the state.
    """

    __slots__ = ("__weakref__", "_graphdef", "_state")
    _graphdef: Any
    _state: State

    def __init__(self, _graphdef: Any, _state: State) -> None:
        object.__setattr__(self, "_graphdef", _graphdef)
        object.__setattr__(self, "_state", _state)

    def __getitem__(self, key: Any) -> Any:
        return self._state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_state"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._state[name] = value

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, GraphState) and self._graphdef == other._graphdef
        return same and self._state == other._state  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __reduce__(self) -> Any:
        return type(self), (self._graphdef, self._state)

    def __repr__(self) -> str:
        parts = (f"  _graphdef={self._graphdef!r},", f"  _state={self._state!r}")
        return "GraphState(\n{}\n)".format("\n".join(part.replace("\n", "\n  ") for part in parts))


def _flatten(pair: GraphState) -> tuple[list[tuple[Any, Any]], tuple[Any, tuple[Any, ...]]]:
    mapping = pair._state.raw_mapping
    keys = tuple(sorted_keys(mapping))
    return [(DictKey(key), mapping[key]) for key in keys], (pair._graphdef, keys)


jax.tree_util.register_pytree_with_keys(
    GraphState, _flatten, lambda aux, children: GraphState(aux[0], State(zip(aux[1], children, strict=True)))
)
