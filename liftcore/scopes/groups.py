"""Groups: what a lift takes in and lets out, by the filters that its user gave, and how to make it take more."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..filters import Nothing, to_predicate, union
from ..typing import Filter, Predicate

__all__ = ["Advice", "Captured", "Groups"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """The last output filter of a lift that lets sown values through which no other filter takes.

    Attributes:
        all: whether it takes those too that another filter would.
    """

    all: bool = False


class Groups(NamedTuple):
    """What a lift takes in and lets out.

    Attributes:
        into: the filters of the groups of variables that go in.
        out: those of the groups that come out.
        keys: those of the groups of PRNG sequences.
        taken: what any of the groups that come out takes.
        captures: whether, and which, captured values come out in a last group.
        advice: how to make the lift take more, for the text of errors.
    """

    into: tuple[Predicate, ...]
    out: tuple[Predicate, ...]
    keys: tuple[Predicate, ...]
    taken: Predicate
    captures: Captured | None
    advice: Advice

    @classmethod
    def of(
        cls,
        in_variable_filters: Sequence[Filter],
        out_variable_filters: Sequence[Filter | Captured],
        rng_filters: Sequence[Filter],
        advice: Advice,
    ) -> Groups:
        """The same from filters in any form; the last of those that let out may be a `Captured`."""
        last = out_variable_filters[-1] if out_variable_filters else None
        captures = last if isinstance(last, Captured) else None
        outs: Sequence[Any] = out_variable_filters[:-1] if captures else out_variable_filters
        into, out, keys = (tuple(map(to_predicate, some)) for some in (in_variable_filters, outs, rng_filters))
        nothing: Predicate = Nothing()
        return cls(into, out, keys, functools.reduce(union, out, nothing), captures, advice)


class Advice(NamedTuple):
    """How a lift takes variables and PRNG sequences, in words.

    Attributes:
        collection: how it is told to take a collection, for the text of errors: `{}` stands for its name.
        sequence: the same for a sequence.
        into: what becomes of each group of variables that goes in, for `explain`.
        out: what becomes of each one that comes out.
        keys: what becomes of each group of sequences.
        captured: what becomes of sown values that no group takes.
    """

    collection: str
    sequence: str
    into: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
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
            each: what it has several of, such as `lane`.
            in_axes: the axes of the groups of variables that go in; None for one value in all lanes.
            out_axes: those of the groups that come out.
            key_axes: those of the groups of sequences.
            first: what becomes of groups before these.
        """
        into, out = (
            first + tuple(f"axis None, one value for all {each}s" if axis is None else f"axis {axis}" for axis in axes)
            for axes in (in_axes, out_axes)
        )
        keys = tuple(f"the same keys in all {each}s" if axis is None else f"split between {each}s" for axis in key_axes)
        return self._replace(into=into, out=out, keys=keys, captured="stacked on a new axis 0")
