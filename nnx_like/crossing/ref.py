"""What crosses: references to objects, static arguments and changes, all without leaves; and the values of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey

from ..graph.definition import Definition, described

__all__ = ["Change", "Plain", "Ref", "Still", "Values", "is_ref", "packed", "refs_in"]


class Plain(str):
    """A string that prints without quotes, also in place of a leaf of a pytree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _facts(definition: Definition) -> dict[str, Plain]:
    return {path: Plain(text) for path, text in described(definition)}


class _Leafless:
    """A pytree node without leaves. Its contents are compared in C, as a part of the key of each JAX cache."""

    __slots__ = ("_hash", "held")

    def __init__(self, *held: Any) -> None:
        self.held = held
        self._hash = hash(held)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._hash == other._hash and self.held == other.held)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.held!r}"


@jax.tree_util.register_static
class Ref(_Leafless):
    """A reference to an object in a pytree; the values of the object are stored elsewhere.

    Args:
        definition: the definition of the object, from a walk.
        prefix: the groups of what is below it.
        base: the prefix of the keys of its values.
    """

    __slots__ = ()

    definition = property(lambda self: self.held[0])
    prefix = property(lambda self: self.held[1])
    base = property(lambda self: self.held[2])

    def trace_facts(self) -> dict[str, Plain]:
        """Return the static parts of the object by path, from which `liftcore.retraces` reports what changed."""
        return _facts(self.definition)

    def __repr__(self) -> str:
        kind = getattr(self.definition, "cls", None)
        return "the object" if kind is None else str(kind.__name__)


@jax.tree_util.register_static
class Still(_Leafless):
    """A static argument, as its definition."""

    __slots__ = ()

    definition = property(lambda self: self.held[0])

    def trace_facts(self) -> dict[str, Plain]:
        """Return the value, for `liftcore.retraces`."""
        return _facts(self.definition)


@jax.tree_util.register_static
class Change(_Leafless):
    """The changes that a body made to the structure of the objects that it was given.

    Args:
        definitions: the current definition of each of these objects, then of those that were removed from all objects;
            None if nothing changed.
        was: for each index in these definitions, and in those of the result, the index of the object before the call;
            None for a new object.
    """

    __slots__ = ()

    definitions = property(lambda self: self.held[0])
    was = property(lambda self: self.held[1])


is_ref: Callable[[Any], bool] = _Leafless.__instancecheck__
"""Returns whether a part of a pytree is a reference to an object or a static value. JAX calls it on each leaf, in C."""


def refs_in(tree: Any) -> list[Ref]:
    """Return the references to objects in a pytree."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_ref) if type(leaf) is Ref]


# --- the values of a group --------------------------------------------------------------------------------------------


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


jax.tree_util.register_pytree_with_keys(Values, _with_keys, Values, lambda values: (values.held, values.names))
