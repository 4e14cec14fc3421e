"""`Contents`: a record of what objects, variables, lists and dicts hold, to check later that nothing changed."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from ..objects import flattening
from ..objects.pytree import Pytree
from ..variablelib.variable import Variable

__all__ = ["Contents"]

_metadata = operator.attrgetter("_metadata")
_attributes = operator.attrgetter("__dict__")  # twice as fast as `vars`
_of_all = itertools.chain.from_iterable


class Contents:
    """A record of what values hold, each compared by identity. The values of variables are left out.

    Comparing it takes far less time than another walk: nearly all of it runs in C.

    Args:
        objects: the objects. They are not kept: pass them, or replacements to compare with, to `are_in`.
        variables: the variables.
        dicts: native dicts.
        lists: native lists.
    """

    __slots__ = ("items", "keys", "kinds", "marks", "metadata", "names", "sizes", "values")

    def __init__(
        self,
        objects: Sequence[Pytree],
        variables: Sequence[Variable],
        dicts: Sequence[Mapping[Any, Any]],
        lists: Sequence[list[Any]],
    ) -> None:
        every = [*map(_attributes, objects), *dicts]
        self.kinds = [*map(type, objects), *map(type, variables)]
        self.sizes = list(map(len, [*every, *lists]))
        self.names, self.keys = list(_of_all(every)), list(_of_all(dicts))
        self.values, self.items = list(_of_all(map(dict.values, every))), list(_of_all(lists))
        self.metadata = list(map(_metadata, variables))
        self.marks = flattening.marks_made()

    def are_in(
        self,
        objects: Sequence[Pytree],
        variables: Sequence[Variable],
        dicts: Sequence[Mapping[Any, Any]],
        lists: Sequence[list[Any]],
    ) -> bool:
        """Return whether these values hold the same things by identity, under the same names and in the same order."""
        every = [*map(_attributes, objects), *dicts]
        return (
            self.marks == flattening.marks_made()
            and [*map(type, objects), *map(type, variables)] == self.kinds
            and [*map(len, every), *map(len, lists)] == self.sizes
            and list(_of_all(every)) == self.names
            and all(map(operator.is_, _of_all(dicts), self.keys))  # keys of two types may be equal
            and all(map(operator.is_, _of_all(map(dict.values, every)), self.values))
            and all(map(operator.is_, _of_all(lists), self.items))
            and all(map(operator.is_, map(_metadata, variables), self.metadata))
        )
