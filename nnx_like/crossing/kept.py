"""Kept walks: the result of a walk is reused if everything that it looked at is unchanged.

A call of a compiled function takes less time than a walk over a large model. So a walk is kept with the object that it
began at, and reused for a call with the same objects. Each use compares every attribute of every object by identity,
the items of lists, dicts and states, and all metadata. Only the values of variables may differ. If an attribute can
change in place in another way, as an array can, the walk is not kept.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..graph.definition import Held
from ..graph.walk import SINGLE, Walk, is_object
from ..objects.markers import ATOMS, DICTS, NATIVE
from ..objects.pytree import Pytree, marks_made, walks_of
from ..statelib.state import State
from ..variablelib.variable import Variable
from .groups import Ref, Still, Values

__all__ = ["Contents", "KeptWalk", "Used", "find", "is_fixed", "keep"]


# --- what values hold -------------------------------------------------------------------------------------------------

_metadata = operator.attrgetter("_metadata")
_attributes = operator.attrgetter("__dict__")  # twice as fast as `vars`
_of_all = itertools.chain.from_iterable


class Contents:
    """A record of what values hold, each compared by identity. The values of variables are left out.

    Comparing it takes far less time than another walk: nearly all of it runs in C.

    Args:
        held: see `_contents`. The objects are not kept: pass them, or replacements to compare with, to `are_in`.
    """

    __slots__ = ("equal", "same")

    def __init__(self, *held: Any) -> None:
        self.equal, same = _contents(*held)
        self.same = list(same)

    def are_in(self, *held: Any) -> bool:
        """Return whether these values hold the same things by identity, under the same names and in the same order."""
        equal, same = _contents(*held)
        return equal == self.equal and all(map(operator.is_, same, self.same))


def _contents(
    objects: Iterable[Pytree], variables: Iterable[Variable], dicts: Iterable[Any], lists: Iterable[list[Any]]
) -> tuple[Any, Iterator[Any]]:
    """Return what must be equal in values that hold the same, and then what must be identical."""
    every = [*map(_attributes, objects), *dicts]
    kinds, sizes = [*map(type, objects), *map(type, variables)], [*map(len, every), *map(len, lists)]
    equal = marks_made(), kinds, sizes, list(_of_all(every))
    return equal, itertools.chain(
        _of_all(dicts),  # keys of two types may be equal
        _of_all(map(dict.values, every)),
        _of_all(lists),
        map(_metadata, variables),
    )


# --- kept walks -------------------------------------------------------------------------------------------------------

_FIXED = ATOMS | {float, complex, type(jax.jit(len))}
"""Types whose values cannot change in place. For functions, JAX assumes this too."""

_FIXED_KINDS = (type, enum.Enum, Held, np.dtype, jax.sharding.PartitionSpec, jax.sharding.Mesh)

_value = operator.attrgetter("_value")

Key = tuple[tuple[str, str], ...]
"""For each object among the arguments, the prefix of the keys of its values, and its group."""


class KeptWalk:
    """The result of a walk, without the values.

    Args:
        key: the key that the walk is kept under.
        roots: the objects that it began at, in order.
        walk: the walk.
        refs: the `Ref` of each of these objects.
    """

    def __init__(self, key: Key, roots: Sequence[Pytree], walk: Walk, refs: Sequence[Ref]) -> None:
        given = set(map(id, roots))
        self.refs = refs
        # The roots are held weakly. When one dies, its walk is dropped with everything below it; otherwise a walk that
        # is kept with the first root would keep the other roots alive.
        first = weakref.ref(roots[0])
        self.others = [weakref.ref(root, functools.partial(_drop, first, key)) for root in roots[1:]]
        self.nodes = [None if id(node) in given else node for node in walk.nodes]
        self.places = [walk.index[id(root)] for root in roots]
        self.inner = [node for node in self.nodes if isinstance(node, Pytree)]
        objects = [*roots, *self.inner]
        containers = [*_containers([list(vars(one).values()) for one in objects])]
        self.dicts = [one for one in containers if type(one) in DICTS]
        self.lists = [one for one in containers if type(one) not in DICTS]
        self.variables = [node for node in walk.nodes if isinstance(node, Variable)]
        self.contents = Contents(objects, self.variables, self.dicts, self.lists)
        self.holders = walk.holders
        self.by_key = {
            group: {key: holder for key, (holder, _) in found.items()} for group, found in self.holders.items()
        }
        self.slots = {group: (Still(tuple(found)), list(found.values())) for group, found in self.by_key.items()}
        self.traces: list[Any] = []
        for variable in self.variables:
            if variable._trace not in self.traces:  # traces can be compared, but not hashed
                self.traces.append(variable._trace)

    def use(self, roots: Sequence[Pytree]) -> Used | None:
        """Return what the walk would find now; None if anything but the values of variables changed."""
        if not all(known() is root for known, root in zip(self.others, roots[1:], strict=True)):
            return None
        if not self.contents.are_in([*roots, *self.inner], self.variables, self.dicts, self.lists):
            return None
        values = {}
        for group, (names, variables) in self.slots.items():
            held = list(map(_value, variables))
            if not set(map(type, held)) <= SINGLE:
                return None
            values[group] = Values(names, held)
        return Used(self, roots, values)


class Used:
    """A kept walk in a call. It has the attributes of a finished `Walk`.

    Attributes:
        refs: the `Ref` of each object that it began at.
        packed: the values by group and key, as `Values`.
        holders: the variables by group and key, see `Walk`.
    """

    __slots__ = ("_kept", "_roots", "holders", "packed", "refs")

    def __init__(self, kept: KeptWalk, roots: Sequence[Pytree], values: dict[str, Values]) -> None:
        self._kept, self._roots, self.packed = kept, roots, values
        self.holders, self.refs = kept.holders, kept.refs

    @property
    def values(self) -> dict[str, dict[str, Any]]:
        """The values by group and key."""
        return {group: dict(found) for group, found in self.packed.items()}

    @property
    def nodes(self) -> list[Any]:
        """The objects and variables, by index."""
        nodes = list(self._kept.nodes)
        for place, root in zip(self._kept.places, self._roots, strict=True):
            nodes[place] = root
        return nodes

    def write(self, news: Mapping[str, Mapping[str, Any]], trace: Any) -> bool:
        """Write values into variables: all, or none (returning False) if a variable belongs to another trace.

        Args:
            news: the values by group and key.
            trace: the current trace.
        """
        if self._kept.traces != [trace]:
            return False
        for group, values in news.items():
            variables = map(self._kept.by_key[group].__getitem__, values)
            _exhaust(map(_put_value, variables, values.values()))
        return True


def find(key: Key, roots: Sequence[Pytree]) -> Used | None:
    """Return the walk that was kept for some objects if it would find the same now; else None."""
    try:
        kept: KeptWalk | None = object.__getattribute__(roots[0], "_walks").get(key)
    except AttributeError:  # none was kept yet
        return None
    return None if kept is None else kept.use(roots)


def keep(key: Key, roots: Sequence[Pytree], walk: Walk, refs: Sequence[Ref]) -> None:
    """Keep a walk with the first of its objects, if nothing in it can change unnoticed."""
    if len(set(map(id, roots))) < len(roots) or not all(map(_can_be_kept, walk.nodes)):
        return
    if any(type(holder) is tuple or form is not None for _, _, holder, _, form in walk.leaves):
        return
    walks = walks_of(roots[0])
    if len(walks) >= _MANY:
        walks.clear()
    walks[key] = KeptWalk(key, roots, walk, refs)


_put_value = Variable.__dict__["_value"].__set__
_exhaust = collections.deque[Any](maxlen=0).extend

_MANY = 8
"""How many walks are kept with one object, such as those of a training step and of an evaluation."""


def _drop(first: weakref.ref[Pytree], key: Any, _: Any) -> None:
    """Drop a walk whose root died; without any global name, since modules are empty when the interpreter ends."""
    root = first()
    if root is not None:
        root._walks.pop(key, None)


def _can_be_kept(node: Any) -> bool:
    """Return whether no part of a node can change unnoticed."""
    if isinstance(node, Variable):
        return type(node._value) in SINGLE and all(map(is_fixed, node._metadata.values()))
    if type(node) in DICTS and getattr(node, "default_factory", None) is not None:  # it can be replaced
        return False
    held = node if type(node) is list else node.values() if type(node) in DICTS else vars(node).values()
    return all(type(part) in _FIXED or is_object(part) or _is_seen(part) for part in held)


def _is_seen(value: Any) -> bool:
    """Return whether everything in an attribute is immutable, or is compared in each call."""
    if is_object(value) or type(value) in NATIVE or is_fixed(value):
        return True  # a list or a dict is a node itself
    parts = _inside(value)
    return parts is not None and all(map(_is_seen, parts))


def _inside(value: Any) -> Iterable[Any] | None:
    """Return the items of a list, dict, state or tuple; None for anything else."""
    value = value.raw_mapping if isinstance(value, State) else value
    if type(value) in DICTS:
        return value.values()
    return value if type(value) is list or _is_plain_tuple(value) else None


def _containers(values: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """Return the lists and dicts in attributes, each once; a container may contain itself."""
    left, met = [part for some in values for part in some if type(part) not in _FIXED and not is_object(part)], set()
    while left:
        value = left.pop()
        value = value.raw_mapping if isinstance(value, State) else value
        if type(value) in NATIVE:
            if id(value) in met:
                continue
            met.add(id(value))
            yield value
        left += _inside(value) or ()


def is_fixed(value: Any) -> bool:
    """Return whether a value can never change in place."""
    kind = type(value)
    if kind in _FIXED or isinstance(value, _FIXED_KINDS):
        return True
    return (kind is frozenset or _is_plain_tuple(value)) and all(map(is_fixed, value))


def _is_plain_tuple(value: Any) -> bool:
    """Return whether a value is a tuple, named or not, without attributes."""
    return type(value) is tuple or (isinstance(value, tuple) and not hasattr(value, "__dict__"))
