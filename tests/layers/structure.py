"""Rows that between them have every option of every layer: for laws that cost time.

No transformation can tell apart two rows that differ in numbers, dtypes and initializers only: it sees the same
operations. So a row is chosen if it has what no row before it had: an option or an argument of its layer, or inputs of
another kind. For most laws that is a matter of names, and of flags by their value; where nothing is compiled, the kind
of every value counts. The numbers of what is left out are compared by the tests of parity, which run over all rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

import linen_like as nn
from tests.layers.row import Row
from tests.layers.table import OWN, TABLE

__all__ = ["BRIEF", "CHOSEN", "FIRST", "SECONDARY", "features"]

SECONDARY = {"dtype", "param_dtype", "precision", "promote_dtype"}
"""Options that change how something is computed, and not what."""


def features(row: Row) -> Iterator[tuple[Hashable, ...]]:
    """What a transformation can see of a row, piece by piece."""
    config = row.config(nn) if callable(row.config) else row.config
    yield row.layer, "inputs", _kind(row.args)
    for name, value in {**config, **row.call}.items():
        if _matters(name):
            yield row.layer, name, _kind(value)


def _matters(name: str) -> bool:
    return name not in SECONDARY and not name.endswith("_init")


def _kind(value: Any) -> Hashable:
    if isinstance(value, nn.Module):
        names = [field.name for field in dataclasses.fields(value) if field.name not in ("parent", "name")]
        return type(value).__name__, _kind({name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return tuple(sorted((name, _kind(value[name])) for name in filter(_matters, value)))
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    if isinstance(value, bool | str | None):
        return repr(value)
    if callable(value):
        held = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return getattr(value, "__qualname__", type(value).__name__), tuple(map(_kind, held))
    if isinstance(value, np.ndarray):
        return np.ndim(value), jnp.issubdtype(value.dtype, jnp.inexact)
    return type(value).__name__


def _new(features: Callable[[Row], Iterable[Hashable]]) -> dict[str, Row]:
    """The rows that have what none before them had."""
    seen: set[Hashable] = set()
    chosen = {}
    for name, row in {**TABLE, **OWN}.items():
        found = set(features(row))
        if found - seen:
            chosen[name] = row
        seen |= found
    return chosen


CHOSEN = _new(features)
"""Rows that differ in the kind of a value."""


def _brief(row: Row) -> Iterator[Hashable]:
    """The options by name, flags by value; of a `Sequential` all, since what it holds are the layers."""
    for layer, name, kind in features(row):
        yield layer, name, kind if layer == "Sequential" or kind in ("True", "False") else None


BRIEF = _new(_brief)
"""Rows that differ in the names of their options."""

FIRST = _new(lambda row: [row.layer])
"""One row for each layer."""
