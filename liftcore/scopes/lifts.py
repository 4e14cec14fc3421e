"""A lift: its name, what it takes in and lets out, and how its user makes it take more."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..filters import Nothing, to_predicate, union
from ..typing import Filter, Predicate

__all__ = ["Advice", "Captured", "Lift"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """The last output filter of a lift that lets sown values through which no other filter takes.

    Attributes:
        all: whether it takes those too that another filter would.
    """

    all: bool = False


class Lift(NamedTuple):
    """A lifted transformation with its filters.

    Attributes:
        name: how it shows in paths, such as `vmap(block)`.
        into: the filters of the groups of variables that go in.
        out: those of the groups that come out.
        rngs: those of the groups of RNG streams.
        taken: what any of the groups that come out takes.
        captures: whether, and which, captured values come out in a last group.
        advice: how to make it take more, for the text of errors.
        shown: whether it shows in the paths of the scopes inside it.
    """

    name: str
    into: tuple[Predicate, ...]
    out: tuple[Predicate, ...]
    rngs: tuple[Predicate, ...]
    taken: Predicate
    captures: Captured | None
    advice: Advice
    shown: bool

    @classmethod
    def of(
        cls,
        name: str,
        in_variable_filters: Sequence[Filter],
        out_variable_filters: Sequence[Filter | Captured],
        rng_filters: Sequence[Filter],
        advice: Advice,
        shown: bool = True,
    ) -> Lift:
        """The same from filters in any form; the last of those that let out may be a `Captured`."""
        last = out_variable_filters[-1] if out_variable_filters else None
        captures = last if isinstance(last, Captured) else None
        outs: Sequence[Any] = out_variable_filters[:-1] if captures else out_variable_filters
        into, out, rngs = (tuple(map(to_predicate, some)) for some in (in_variable_filters, outs, rng_filters))
        nothing: Predicate = Nothing()
        return cls(name, into, out, rngs, functools.reduce(union, out, nothing), captures, advice, shown)


class Advice(NamedTuple):
    """How a lift takes variables and RNG streams, in words.

    Attributes:
        collection: how to make it take a collection, for the text of errors: `{}` stands for its name.
        stream: the same for a stream.
        into: what becomes of each group of variables that goes in, for `explain`.
        out: what becomes of each one that comes out.
        rngs: what becomes of each group of streams.
        captured: what becomes of sown values that no group takes.
    """

    collection: str
    stream: str
    into: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    rngs: tuple[str, ...] = ()
    captured: str = "passed on"

    def along(
        self,
        each: str,
        in_axes: Iterable[Any],
        out_axes: Iterable[Any],
        key_axes: Iterable[Any],
        first: tuple[str, ...] = (),
    ) -> Advice:
        """The same for a mapping or a loop, from the axes of its groups.

        Args:
            each: what it has several of, such as `element`.
            in_axes: the axes of the groups of variables that go in; None for one value for all.
            out_axes: those of the groups that come out.
            key_axes: those of the groups of streams.
            first: what becomes of groups before these.
        """
        into, out = (
            first + tuple(f"axis None, one value for all {each}s" if axis is None else f"axis {axis}" for axis in axes)
            for axes in (in_axes, out_axes)
        )
        rngs = tuple(f"the same keys in all {each}s" if axis is None else f"split between {each}s" for axis in key_axes)
        return self._replace(into=into, out=out, rngs=rngs, captured="stacked on a new axis 0")

    def listing(self, variable_axes: Mapping[Any, Any]) -> Advice:
        """The same where the argument `variable_axes` was given: the line to write then lists what it has already.

        Args:
            variable_axes: the argument as it was given.
        """
        names = [_quoted(filter) for filter in variable_axes]
        if not names or None in names or not all(isinstance(axis, int | None) for axis in variable_axes.values()):
            return self
        listed = "".join(f"{name}: {axis}, " for name, axis in zip(names, variable_axes.values(), strict=True))
        return self._replace(collection=self.collection.replace("variable_axes={{", f"variable_axes={{{{{listed}", 1))


def _quoted(filter: Filter) -> str | None:
    """A filter by names of collections as one writes it, for a text that is formatted; of others None."""
    if isinstance(filter, str):
        return json.dumps(filter).replace("{", "{{").replace("}", "}}")
    if not isinstance(filter, tuple):
        return None
    names = [_quoted(name) for name in filter]
    return None if None in names else f"({', '.join(map(str, names))}{',' * (len(names) == 1)})"
