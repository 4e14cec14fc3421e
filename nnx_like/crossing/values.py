"""`Values`: the values of a group in the form that JAX flattens fastest, a list with static names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey

from .ref import Still

__all__ = ["Values", "packed"]


class Values(Mapping[str, Any]):
    """An immutable mapping that JAX sees as a list. The names are in the structure; a dict would be sorted each time.

    Args:
        names: the names, as a static node.
        held: the values, in the same order.
    """

    __slots__ = ("_by_name", "held", "names")

    def __init__(self, names: Still, held: Sequence[Any]) -> None:
        self.names, self.held = names, held
        self._by_name: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        if self._by_name is None:
            self._by_name = dict(zip(self.names.definition, self.held, strict=True))
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.definition)

    def __len__(self) -> int:
        return len(self.held)


def packed(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Values]:
    """Return the values by group and key, each group as `Values`."""
    return {group: Values(Still(tuple(found)), list(found.values())) for group, found in values.items()}


def _with_keys(values: Values) -> Any:
    return [*zip(map(DictKey, values.names.definition), values.held, strict=True)], values.names


def _made(names: Still, held: Iterable[Any]) -> Values:
    return Values(names, list(held))


jax.tree_util.register_pytree_with_keys(Values, _with_keys, _made, lambda values: (values.held, values.names))
