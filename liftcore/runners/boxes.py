"""Boxed metadata at the boundary of a lift: the boxes inside do not name the axis that exists only outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..errors import LiftArgumentError, LiftError
from ..meta import add_axis, has_boxes, is_box, remove_axis
from ..pipeline.effects import Changes
from ..texts import path_text
from ..typing import Axis, PyTree

__all__ = ["boxes_inside", "boxes_outside", "check_params", "sized_inside"]


def check_params(name: str, metadata_params: Any) -> None:
    """Check that the parameters for boxed metadata are a mapping."""
    if not isinstance(metadata_params, Mapping):
        raise LiftArgumentError(
            f"metadata_params of {name}",
            f"expected a mapping for boxed metadata, given {metadata_params!r}.",
            'Write `metadata_params={PARTITION_NAME: "layers"}`.',
        )


def boxes_inside(where: str, groups: Sequence[PyTree], axes: Sequence[Axis], params: Mapping[Any, Any]) -> list[PyTree]:
    """Return groups of variables as a body sees them.

    Args:
        where: the lift, for error messages.
        groups: the input groups.
        axes: for each group, the axis that its boxes lose, or None.
        params: the `metadata_params` of the lift.
    """
    return [
        _without(where, group, axis, params) if axis is not None and any(group) else group
        for group, axis in zip(groups, axes, strict=True)
    ]


def sized_inside(
    where: str,
    groups: Sequence[PyTree],
    axes: Sequence[Axis],
    params: Mapping[Any, Any],
    size: Callable[[Sequence[PyTree]], int],
) -> tuple[int, list[PyTree]]:
    """Return the size of the mapped axis, and groups as a body sees them.

    Boxes come first, because a user-defined box may give its value another shape when it loses the axis.

    Args:
        where: the lift, for error messages.
        groups: the input groups.
        axes: for each group, the axis that its boxes lose, or None.
        params: the `metadata_params` of the lift.
        size: returns the size from the groups, or raises if there is none.
    """
    try:
        inside = boxes_inside(where, groups, axes, params)
    except LiftError:
        size(groups)  # raises the better error if the axis is missing
        raise
    return size(inside), inside


def _without(where: str, group: PyTree, axis: int, params: Mapping[Any, Any]) -> PyTree:
    def change(path: Any, leaf: Any) -> Any:
        try:
            return remove_axis(leaf, axis, params)
        except LiftError as error:
            name = path_text(path[1:])
            raise type(error)(f'"{name}" in {where}', error.what, error.fix) from error

    return jax.tree.map_with_path(change, group, is_leaf=is_box) if has_boxes(group) else group


def boxes_outside(groups: Sequence[PyTree], axes: Sequence[Axis], params: Mapping[Any, Any]) -> tuple[PyTree, ...]:
    """Return the output groups of a body in the form of the scopes outside.

    Args:
        groups: the output groups.
        axes: for each of the first groups, the axis that its boxes gain, or None; the other groups stay unchanged.
        params: the `metadata_params` of the lift.
    """
    if not any(tree for group in groups[: len(axes)] for part in group for tree in part):  # no variables
        return tuple(groups)
    changed = [
        group if axis is None else Changes(*(add_axis(part, axis, params) if any(part) else part for part in group))
        for group, axis in zip(groups, axes, strict=False)
    ]
    return (*changed, *groups[len(changed) :])
