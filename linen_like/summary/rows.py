"""Rows: for each recorded call, its module, the variables of the module, and the lifts around the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from liftcore import ExplainedLift
from liftcore.filters import leaves_of
from liftcore.typing import Path

from ..lifecycle.fields import Base
from .recording import Notes, RecordedCall

__all__ = ["Row", "Size", "rows_of"]

Named = dict[str, dict[str, Any]]

_PLAIN = (": lifted", ": passed through")
"""The words of `explain` for a lift that only passes a variable on."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The number of elements of some arrays, and the number of bytes that they take."""

    count: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, tree: Any) -> Size:
        """Return the size of all arrays in a pytree."""
        types = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.ShapeDtypeStruct)]
        return cls(sum(one.size for one in types), sum(one.size * one.dtype.itemsize for one in types))


@dataclasses.dataclass(frozen=True)
class Row:
    """One call of a method of a module.

    Attributes:
        path: the names from the root to the module.
        module: an unbound copy of the module; for an instance of a lifted class, one of the class that was lifted.
        method: the name of the method.
        inputs: its arguments after the module: one value, or a tuple that ends with a dict of keyword arguments. Arrays
            are `jax.ShapeDtypeStruct`.
        outputs: its result.
        variables: `{collection: {name: type}}`, as stored: the module's own variables, and those of submodules that
            were not called, whose names are paths. If an earlier row has the same module, there are none.
        sizes: for each collection, the size of these variables and of those in submodules without a row.
        lifts: the lifts around the call, the outermost first, and what each does with `variables`.
        repeated: whether an earlier row has the same module.
        flops: the cost of the call; None if it was not requested, or the call cannot be run alone.
        vjp_flops: the cost of its pullback, including the call itself.
        at_least: whether the counts include a loop of unknown length, which counts as one iteration.
    """

    path: Path
    module: Base
    method: str
    inputs: Any
    outputs: Any
    variables: Named
    sizes: Mapping[str, Size]
    lifts: Mapping[str, tuple[str, ...]]
    repeated: bool = False
    flops: int | None = None
    vjp_flops: int | None = None
    at_least: bool = False


def rows_of(notes: Notes, depth: int | None, show_repeated: bool) -> Iterator[tuple[RecordedCall, Row]]:
    """Yield the calls to show, each with its row.

    Args:
        notes: the record.
        depth: the depth of modules that have rows; calls below count for the rows above them. By default all have rows.
        show_repeated: whether to show each call, instead of only the first one of each module.
    """
    called = {call.path for call in notes.calls}
    shown = {path for path in called if depth is None or len(path) <= depth}
    own, counted = _by_owner(notes.variables, called), _by_owner(notes.variables, shown)
    seen: set[Path] = set()
    for call in notes.calls:
        path, repeated = call.path, call.path in seen
        if path not in shown or (repeated and not show_repeated):
            continue
        seen.add(path)
        variables: Named = {} if repeated else own.get(path, {})
        below = {} if repeated else counted.get(path, {})
        sizes = {name: Size.of(below.get(name, {})) for name in notes.variables}
        lifts = _lifts_round(call, variables, notes.lifts)
        inputs = _inputs(call.args, call.kwargs)
        yield call, Row(path, call.module, call.method, inputs, call.outputs, variables, sizes, lifts, repeated)


def _by_owner(variables: Mapping[str, Any], paths: Iterable[Path]) -> dict[Path, Named]:
    """Assign each variable to the innermost of some modules that contains it, under its path from there."""
    found: dict[Path, Named] = {}
    known = {(), *paths}
    for (collection, *names), value in leaves_of(variables):
        ends = range(len(names) - 1, -1, -1)
        owner = next(tuple(names[:end]) for end in ends if tuple(names[:end]) in known)
        found.setdefault(owner, {}).setdefault(collection, {})["/".join(names[len(owner) :])] = value
    return found


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = (*args, kwargs) if kwargs else args
    return values[0] if len(values) == 1 else values


def _lifts_round(call: RecordedCall, variables: Named, lifts: Sequence[ExplainedLift]) -> dict[str, tuple[str, ...]]:
    """Return the lifts around a call, and what each of them does with the variables of its module."""
    names = [part for part in call.place.split("/") if part.endswith(")")]
    paths = {(collection, *call.path, *name.split("/")) for collection, named in variables.items() for name in named}
    done: dict[str, dict[str, None]] = {name: {} for name in names}
    for lift in _all_lifts(lifts):
        if lift.name in done:
            rules = (f"{row.group}: {row.treatment}" for row in lift.variables if row.path in paths and row.group)
            done[lift.name].update(dict.fromkeys(rules))
    return {name: tuple(rule for rule in rules if not rule.endswith(_PLAIN)) for name, rules in done.items()}


def _all_lifts(lifts: Sequence[ExplainedLift]) -> Iterator[ExplainedLift]:
    for lift in lifts:
        yield lift
        yield from _all_lifts(lift.lifts)
