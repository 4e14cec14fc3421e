"""Leafless pytree nodes: what is static about an object, or about a call, goes through JAX as a part of a structure."""

from __future__ import annotations

from typing import Any

import jax

from ..graph.definition import Definition
from ..graph.differences import described

__all__ = ["Change", "Ref", "Still", "is_ref"]


class _Text(str):
    """A text that shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _facts(definition: Definition) -> dict[str, _Text]:
    return {path: _Text(text) for path, text in described(definition)}


class _Leafless:
    """A pytree node without leaves. What it holds is compared by C, as a part of the key of each cache of JAX."""

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
    """Stands for an object in a pytree; its values are elsewhere.

    Args:
        definition: what a walk gave for it.
        prefix: the groups of what is below it.
        base: what the keys of its values begin with.
    """

    __slots__ = ()

    definition = property(lambda self: self.held[0])
    prefix = property(lambda self: self.held[1])
    base = property(lambda self: self.held[2])

    def trace_facts(self) -> dict[str, _Text]:
        """What is static of the object, by path: what `liftcore.retraces` tells where one of them has changed."""
        return _facts(self.definition)

    def __repr__(self) -> str:
        kind = self.definition[1]
        return kind.__name__ if isinstance(kind, type) else "the object"


@jax.tree_util.register_static
class Still(_Leafless):
    """A static argument: its definition."""

    __slots__ = ()

    definition = property(lambda self: self.held[0])

    def trace_facts(self) -> dict[str, _Text]:
        """The value, for `liftcore.retraces`."""
        return _facts(self.definition)


@jax.tree_util.register_static
class Change(_Leafless):
    """What a body did to the structure of the objects that it was given.

    Args:
        definitions: of each of these objects, as it is now, and then of those below them that are no longer in any;
            None where all are as before.
        was: for each index in these definitions, and in those of the result, the index of the object before the call;
            None for one that is new.
    """

    __slots__ = ()

    definitions = property(lambda self: self.held[0])
    was = property(lambda self: self.held[1])


def is_ref(value: Any) -> bool:
    """Whether a value in a pytree stands for an object or for a static argument."""
    return type(value) is Ref or type(value) is Still
