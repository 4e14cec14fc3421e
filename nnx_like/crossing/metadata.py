"""Axis metadata: a variable loses an axis name when it enters a mapping, and gains it when it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from liftcore import trace_state

from ..variablelib.variable import Variable

__all__ = ["PARTITION_NAME", "AxisNames", "is_told_of_axes"]

PARTITION_NAME = "partition_name"
"""The key of `transform_metadata` for the name of the axis that variables gain."""

_SHARDINGS = ("out_sharding", "optimizer_sharding")
"""The metadata that name the axes of a variable, and of the state of an optimizer for it."""


def is_told_of_axes(kind: type[Any]) -> bool:
    """Return whether a type of variables overrides the methods for gaining or losing an axis."""
    return kind.add_axis is not Variable.add_axis or kind.remove_axis is not Variable.remove_axis


class AxisNames:
    """The changes that a transformation makes to metadata.

    Args:
        axes: the axis of each group: an int, or another value for a group without an axis.
        transform_metadata: the name of the axis under `PARTITION_NAME`, and other items to insert in metadata tuples.
    """

    def __init__(self, axes: Mapping[str, Any], transform_metadata: Mapping[str, Any]) -> None:
        self.axes = axes
        self.name = transform_metadata.get(PARTITION_NAME)
        self.gains = {key: value for key, value in transform_metadata.items() if key != PARTITION_NAME}

    def is_told(self, variable: Variable[Any]) -> bool:
        """Return whether a variable has hooks for axes, which run when it enters and leaves."""
        metadata = variable._metadata
        return is_told_of_axes(type(variable)) or "on_add_axis" in metadata or "on_remove_axis" in metadata

    def inside(self, kind: type[Any], metadata: dict[str, Any], group: str, value: Any) -> dict[str, Any]:
        """Return the metadata of a variable as a body sees it; `value` is its value there."""
        return self._changed(kind, metadata, group, value, _without)

    def outside(self, kind: type[Any], metadata: dict[str, Any], group: str, value: Any) -> dict[str, Any]:
        """Return the metadata of a variable as the caller sees it; `value` is its value inside."""
        return self._changed(kind, metadata, group, value, _with)

    def _changed(
        self, kind: type[Any], metadata: dict[str, Any], group: str, value: Any, change: Callable[..., Any]
    ) -> dict[str, Any]:
        axis = self.axes.get(group)
        if type(axis) is not int or not (metadata or is_told_of_axes(kind)):
            return metadata
        changed, place = dict(metadata), axis if axis >= 0 else _rank(value) + 1 + axis
        for key, name in {**dict.fromkeys(_SHARDINGS, self.name), **self.gains}.items():
            names = changed.get(key)
            if names and isinstance(names, (tuple, jax.sharding.PartitionSpec)):
                now = change(tuple(names), place, name)
                changed[key] = now if isinstance(names, tuple) else jax.sharding.PartitionSpec(*now)
        variable = kind.made(None, changed, trace_state())  # runs the hooks of its class and its own
        (variable.add_axis if change is _with else variable.remove_axis)(axis, self.name)
        found: dict[str, Any] = variable._metadata
        return found


def _rank(value: Any) -> int:
    return max(map(np.ndim, jax.tree.leaves(value)), default=0)


def _with(names: tuple[Any, ...], place: int, name: Any) -> tuple[Any, ...]:
    padded = [*names, *[None] * (place - len(names))]
    return (*padded[:place], name, *padded[place:])


def _without(names: tuple[Any, ...], place: int, name: Any) -> tuple[Any, ...]:
    return names[:place] + names[place + 1 :]
