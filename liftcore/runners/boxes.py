"""Boxes at the boundary of a lift: inside they lack the name of the axis that lies outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..errors import LiftArgumentError, LiftError
from ..meta import add_axis, has_boxes, is_box, remove_axis
from ..pipeline.changes import Changes
from ..texts import path_text
from ..typing import Axis, PyTree

__all__ = ["boxes_inside", "boxes_outside", "check_params", "sized_inside"]


def check_params(name: str, metadata_params: Any) -> None:
    """Checks that what boxes are told of an axis is a mapping."""
    if not isinstance(metadata_params, Mapping):
        raise LiftArgumentError(
            f"metadata_params of {name}",
            f"expected a mapping that boxes read, given {metadata_params!r}.",
            'Write `metadata_params={PARTITION_NAME: "layers"}`.',
        )


def boxes_inside(where: str, groups: Sequence[PyTree], axes: Sequence[Axis], params: Mapping[Any, Any]) -> list[PyTree]:
    """Groups of variables as a body sees them.

    Args:
        where: the lift, for the text of an error.
        groups: the groups that go in.
        axes: for each of them the axis that their boxes lose, or None.
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
    """The size of the mapped axis, and groups as a body sees them.

    Boxes come first: one of a user's own may give its value another shape when it loses the axis.

    Args:
        where: the lift, for the text of an error.
        groups: the groups that go in.
        axes: for each of them the axis that their boxes lose, or None.
        params: the `metadata_params` of the lift.
        size: finds the size in the groups, and raises where there is none.
    """
    try:
        inside = boxes_inside(where, groups, axes, params)
    except LiftError:
        size(groups)  # if it is that an axis is not there, this says so
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
    """The output groups of a body as the scopes outside take them.

    Args:
        groups: the groups that come out.
        axes: for each of them, from the first, the axis that their boxes gain, or None; those after are unchanged.
        params: the `metadata_params` of the lift.
    """
    if not any(tree for group in groups[: len(axes)] for part in group for tree in part):  # no variables at all
        return tuple(groups)
    changed = [
        group if axis is None else Changes(*(add_axis(part, axis, params) if any(part) else part for part in group))
        for group, axis in zip(groups, axes, strict=False)
    ]
    return (*changed, *groups[len(changed) :])
