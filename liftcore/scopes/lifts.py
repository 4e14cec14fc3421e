"""A lift: its name, its input and output groups, and advice for the user on how to extend them."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import Expected, LiftArgumentError, words
from ..filters import Nothing, asking_further, names_collections, names_in, short_form, to_predicate, union
from ..texts import closest
from ..typing import Filter, Predicate

__all__ = ["Advice", "Captured", "Lift"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """The last output filter of a lift. It passes out the sown values that no other filter takes.

    Attributes:
        all: whether it also takes values that another filter would take.
    """

    all: bool = False


class Lift(NamedTuple):
    """A lifted transformation with its filters.

    Attributes:
        name: the name of the lift in paths, such as `vmap(block)`.
        into: the filters of the input groups of variables.
        out: the filters of the output groups of variables.
        rngs: the filters of the groups of RNG streams.
        own: those of them that a user wrote, which may ask about more than the name of a stream.
        taken: the union of the filters of the output groups.
        captures: which captured values come out in an additional last group; None for none.
        advice: how to make the lift take more, for error messages.
        shown: whether the name appears in the paths of the scopes inside the lift.
    """

    name: str
    into: tuple[Predicate, ...]
    out: tuple[Predicate, ...]
    rngs: tuple[Predicate, ...]
    own: tuple[Predicate, ...]
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
        """Return a lift from filters in any form; the last output filter may be a `Captured`.

        Raises:
            LiftArgumentError: if filters are not given as lists, or one is not allowed there.
        """
        _check_filters(name, in_variable_filters, out_variable_filters, rng_filters)
        last = out_variable_filters[-1] if out_variable_filters else None
        captures = last if isinstance(last, Captured) else None
        outs: Sequence[Any] = out_variable_filters[:-1] if captures else out_variable_filters
        into, out, rngs = (tuple(map(to_predicate, some)) for some in (in_variable_filters, outs, rng_filters))
        nothing: Predicate = Nothing()
        own = tuple(one for one in rngs if not names_collections(one))
        return cls(name, into, out, rngs, own, functools.reduce(union, out, nothing), captures, advice, shown)

    def check_streams(self, names: Sequence[str]) -> None:
        """Check that predicates that a user wrote for RNG streams are not predicates over the paths of variables.

        One that looks for more than the name of a stream, and matches no stream that was given, would have no effect.

        Args:
            names: the names of the streams that were given.
        """
        for matches in self.own:
            paths = [_StreamPath((name,)) for name in names]
            try:
                taken = [path for path in paths if matches(path, None)]
            except Exception as error:  # such as for the attribute of a value
                raise _no_stream_filter(self.name, matches) from error
            if not taken and any(path.looked_further for path in paths):
                raise _no_stream_filter(self.name, matches)

    def to_take(self, collection: str, known: Container[str] = ()) -> str:
        """Return the code that makes the lift take a collection, in place of a misspelled name of it.

        Args:
            collection: the name of the collection.
            known: the names of collections that exist, which are not misspelled.
        """
        options = ("variable_carry", "variable_broadcast")
        names = {option: words().option(self.name.partition("(")[0], option) for option in options}
        code = self.advice.collection.format(collection, **names)
        typo = closest(collection, [name for one in self.into for name in names_in(one) if name not in known])
        return re.sub(f'"{re.escape(typo)}": [^,}}]*, ', "", code, count=1) if typo else code


class Advice(NamedTuple):
    """Describes in words how a lift treats variables and RNG streams.

    Attributes:
        collection: the code that makes the lift take a collection, for error messages; `{}` stands for its name.
        stream: the code that makes the lift take an RNG stream.
        into: how the lift treats each input group of variables, for `explain`.
        out: how it treats each output group.
        rngs: how it treats each group of RNG streams.
        captured: how it treats sown values that no group takes.
        part: the code that shares a part of a collection and gives the rest of it an axis; `{0}` stands for the name of
            the collection, `{1}` for a name in the paths of that part.
        whole: the code that shares a collection; `{}` stands for its name.
        size: the name of the option for the number of elements or iterations.
    """

    collection: str
    stream: str
    into: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    rngs: tuple[str, ...] = ()
    captured: str = "passed on"
    part: str = ""
    whole: str = '`variable_axes={{"{}": None}}`'
    size: str = "axis_size"

    def sharing(self, path: Sequence[str], others: Iterable[Sequence[str]]) -> str:
        """Return the code that shares a variable, and gives the others of its collection an axis.

        Args:
            path: the path of the variable.
            others: paths of scopes and variables that must not be shared.

        Returns:
            The code. It is empty if the lift cannot share a part, or no name distinguishes the variable.
        """
        collection, *names = path
        taken = {name for other in others for name in other}
        own = next((name for name in names if name not in taken), None)
        return "" if own is None else self.part.format(collection, own)

    def along(
        self,
        each: str,
        in_axes: Iterable[Any],
        out_axes: Iterable[Any],
        key_axes: Iterable[Any],
        first: tuple[str, ...] = (),
    ) -> Advice:
        """Return the advice for a mapping or a loop, completed from the axes of its groups.

        Args:
            each: the noun for one of the several runs, such as `element`.
            in_axes: the axes of the input groups of variables; None for one value for all.
            out_axes: the axes of the output groups.
            key_axes: the axes of the groups of RNG streams.
            first: how the lift treats the groups before these.
        """
        into, out = (
            first + tuple(f"axis None, one value for all {each}s" if axis is None else f"axis {axis}" for axis in axes)
            for axes in (in_axes, out_axes)
        )
        rngs = tuple(f"the same keys in all {each}s" if axis is None else f"split between {each}s" for axis in key_axes)
        return self._replace(into=into, out=out, rngs=rngs, captured="stacked on a new axis 0")

    def listing(self, variable_axes: Mapping[Any, Any]) -> Advice:
        """Return the advice with the given `variable_axes` repeated in the line to write, before the missing entry.

        Args:
            variable_axes: the argument as the user wrote it.
        """
        names = [_quoted(filter) for filter in variable_axes]
        if not names or None in names or not all(isinstance(axis, int | None) for axis in variable_axes.values()):
            return self
        listed = "".join(f"{name}: {axis}, " for name, axis in zip(names, variable_axes.values(), strict=True))
        return self._replace(collection=self.collection.replace("variable_axes={{", f"variable_axes={{{{{listed}", 1))


def _quoted(filter: Filter) -> str | None:
    """Return the source text of a filter of collection names, escaped for `str.format`; None for other filters."""
    if isinstance(filter, str):
        return json.dumps(filter).replace("{", "{{").replace("}", "}}")
    if not isinstance(filter, tuple):
        return None
    names = [_quoted(name) for name in filter]
    return None if None in names else f"({', '.join(map(str, names))}{',' * (len(names) == 1)})"


def _check_filters(name: str, into: Sequence[Any], out: Sequence[Any], rngs: Sequence[Any]) -> None:
    """Check that filters are given as lists, and that a `Captured` is the last output filter."""
    for what, given in ("in_variable_filters", into), ("out_variable_filters", out), ("rng_filters", rngs):
        where = f"{what} of {name}"
        if not isinstance(given, tuple | list):
            raise LiftArgumentError(
                where, Expected("a list of filters, one for each group", given=given), f"Write `[{given!r}]`."
            )
        if any(isinstance(one, Captured) for one in (given[:-1] if what == "out_variable_filters" else given)):
            what = "`Captured()` must be the last output filter."
            raise LiftArgumentError(where, what, "Move it to the end.", option="out_variable_filters")
    for one in rngs:
        found = asking_further(one)
        if found is not None:
            raise _no_stream_filter(name, found)


def _no_stream_filter(name: str, filter: Predicate) -> LiftArgumentError:
    scope = words().scope
    return LiftArgumentError(
        f"the RNG streams of {name}",
        f'{short_form(filter)} asks about paths or values, but a stream has only a name, such as "params".',
        "Filter streams by name. To split keys for a part of the variables, draw these from a stream of their own: "
        f'`{scope}.param("w", lambda key: init({scope}.make_rng("head"), shape))`, with '
        '`split_rngs={"head": True, "params": False}`.',
        option="split_rngs",
    )


class _StreamPath(tuple[str, ...]):
    """The path of an RNG stream, `(name,)`. It notes whether a predicate looks for anything else.

    Attributes:
        looked_further: whether it did.
    """

    looked_further = False

    def __contains__(self, item: object) -> bool:
        self.looked_further = True
        return super().__contains__(item)

    def __iter__(self) -> Iterator[str]:
        self.looked_further = True
        return super().__iter__()

    def __len__(self) -> int:
        self.looked_further = True
        return super().__len__()

    def __getitem__(self, place: Any) -> Any:
        self.looked_further |= place != 0
        return super().__getitem__(place)
