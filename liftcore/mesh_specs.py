"""Names of axes on a mesh: rules from logical names to mesh axes, and what does not fit, all of it at once.

A model may name the axes of its arrays as it likes, `embed` or `heads`. Rules say which axis of the mesh each of these
logical names is sharded over. Here are the rules and the checks, over plain names; `liftcore.meta` has the boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from jax.sharding import PartitionSpec

from .errors import LiftArgumentError

__all__ = [
    "LogicalRules",
    "Misfit",
    "check_axes",
    "check_rules",
    "follow_rules",
    "meant",
    "raise_misfits",
    "spec_on_mesh",
]

LogicalRules: TypeAlias = Sequence[tuple[str, Any]]
"""Pairs of a logical name and an axis of the mesh; several axes as a tuple, or None for no axis."""


class Misfit(NamedTuple):
    """One thing that does not fit.

    Attributes:
        where: the path of a variable, or what else names the place.
        what: what was found there and what was expected.
        fix: what to write instead.
    """

    where: str
    what: str
    fix: str


def raise_misfits(title: str, found: Iterable[Misfit]) -> None:
    """Raises one error for all misfits; if there are none, returns.

    Example:
        >>> raise_misfits("two variables", [Misfit(name, "it is odd.", "Drop it.") for name in ("a", "b")])
        Traceback (most recent call last):
            ...
        liftcore.errors.LiftArgumentError: two variables:
          a, b: it is odd.
        Drop it.

    Args:
        title: stands before the list, if there are several.
        found: the misfits.

    Raises:
        LiftArgumentError: if there are any.
    """
    found = list(dict.fromkeys(found))
    if len(found) == 1:
        raise LiftArgumentError(*found[0])
    if found:
        places: dict[str, list[str]] = {}
        for one in found:
            places.setdefault(one.what, []).append(one.where)
        lines = "".join(f"\n  {_some(where)}: {what}" for what, where in places.items())
        raise LiftArgumentError(title, f"{lines}\n", " ".join(dict.fromkeys(one.fix for one in found)))


def _some(places: Sequence[str]) -> str:
    """Three of the places, and how many more there are: the state of an optimiser repeats those of parameters."""
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _axes(entry: Any) -> tuple[str, ...]:
    """The axes of the mesh that one entry of a `PartitionSpec` names.

    Example:
        >>> _axes("data"), _axes(("data", "model")), _axes(None)
        (('data',), ('data', 'model'), ())
    """
    return tuple(axis for axis in (entry if isinstance(entry, tuple | list) else [entry]) if isinstance(axis, str))


def meant(name: str, known: Iterable[Any]) -> str:
    """A question about a name that is not known, if a known one is much like it; else nothing.

    Args:
        name: the name that is not known.
        known: the names that are.
    """
    import difflib  # here, as it is for the text of an error

    near = difflib.get_close_matches(name, [str(one) for one in known], 1)
    return f"Is {near[0]!r} meant? " if near else ""


def follow_rules(names: Sequence[Any], rules: LogicalRules) -> dict[int, Any]:
    """The mesh axes for the logical names of one array.

    Rules are tried in their order. A rule does not apply if its mesh axis is taken by another dimension of the array,
    or if its logical name has a mesh axis already.

    Example:
        >>> follow_rules(("batch", "embed", "other"), [("batch", "data"), ("embed", "data"), ("embed", "model")])
        {0: 'data', 1: 'model'}

    Args:
        names: for each dimension a logical name; an item that is no text stays as it is.
        rules: the rules.

    Returns:
        For each dimension its entry in a `PartitionSpec`; dimensions to whose names no rule applies are left out.
    """
    names = list(names)
    found = {place: name for place, name in enumerate(names) if not isinstance(name, str)}
    for name, axis in rules:
        if name in names:
            taken = {one for entry in found.values() for one in _axes(entry)}
            if names.index(name) not in found and taken.isdisjoint(_axes(axis)):
                found[names.index(name)] = axis
    return found


def check_rules(rules: LogicalRules, mesh: Any) -> tuple[LogicalRules, list[Misfit]]:
    """The rules, with None for axes that the mesh does not have, and a misfit for each of those.

    Args:
        rules: pairs of a logical name and mesh axes.
        mesh: the mesh.
    """
    known = list(mesh.axis_names)
    kept = [(name, axis if set(_axes(axis)) <= set(known) else None) for name, axis in rules]
    return kept, [
        Misfit(
            f"rule {name, axis!r}",
            f"{one!r} is no axis of the mesh (axes: {known}).",
            f"{meant(one, known)}Name an axis of the mesh, or None for an axis that is not sharded.",
        )
        for name, axis in rules
        for one in _axes(axis)
        if one not in known
    ]


def spec_on_mesh(
    where: str, names: Sequence[Any], shape: Sequence[int] | None, mesh: Any, rules: LogicalRules | None = None
) -> tuple[PartitionSpec, list[Misfit]]:
    """How one array is sharded, and what does not fit.

    A dimension of size 1 is not sharded. If there are not as many names as dimensions, nothing is: so a state of an
    optimiser which is smaller than its parameter can be in the box of that.

    Example:
        >>> import jax
        >>> mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
        >>> spec, found = spec_on_mesh('"w"', ("embed", "mlp"), (8, 6), mesh, [("embed", None), ("mlp", "model")])
        >>> spec == PartitionSpec(None, "model"), found[0].what
        (True, "dimension 1 of shape (8, 6) is sharded over 'model', of size 4, which does not divide 6.")

    Args:
        where: what names the array.
        names: for each dimension a mesh axis, several as a tuple, or None; if there are rules, logical names too.
        shape: the sizes of the dimensions, or None if they are not known.
        mesh: the mesh.
        rules: from logical names to mesh axes. A name without a rule must be an axis of the mesh.
    """
    if shape is not None and len(names) > len(shape):
        return PartitionSpec(), []  # type: ignore[no-untyped-call]
    entries = list(names) if rules is None else _followed(names, rules)
    found = _unknown(where, entries, mesh, rules) + _repeated(where, names, entries)
    if not found and shape is not None:
        entries = [None if size == 1 else entry for entry, size in zip(entries, shape, strict=False)]
        found = _uneven(where, entries, shape, dict(mesh.shape))
    return PartitionSpec(*entries), found  # type: ignore[no-untyped-call]


def _followed(names: Sequence[Any], rules: LogicalRules) -> list[Any]:
    """The entries by rules; None if all axes that a name may have are taken, and without any rule the name itself."""
    found, known = follow_rules(names, rules), {name for name, _ in rules}
    return [found.get(place, None if name in known else name) for place, name in enumerate(names)]


def _unknown(where: str, entries: Sequence[Any], mesh: Any, rules: LogicalRules | None) -> list[Misfit]:
    axes = list(mesh.axis_names)
    unknown = [axis for entry in entries for axis in _axes(entry) if axis not in axes]
    if not unknown:
        return []
    if rules is None:
        advice = "Name an axis of the mesh; logical names become such by rules, as `logical_to_mesh` follows them."
        return [
            Misfit(where, f"{unknown} is no axis of the mesh (axes: {axes}).", f"{meant(unknown[0], axes)}{advice}")
        ]
    known = [*dict.fromkeys(name for name, _ in rules)]
    return [
        Misfit(
            where,
            f"{name!r} has no rule (rules for: {known}) and is no axis of the mesh (axes: {axes}).",
            f'{meant(name, [*known, *axes])}Add a rule, such as `("{name}", None)` for an axis that is not sharded.',
        )
        for name in dict.fromkeys(unknown)
    ]


def _repeated(where: str, names: Sequence[Any], entries: Sequence[Any]) -> list[Misfit]:
    twice = _twice([axis for name in names for axis in _axes(name)])
    twice = twice or _twice([axis for entry in entries for axis in _axes(entry)])
    if not twice:
        return []
    return [
        Misfit(
            where,
            f"{twice} occurs twice in {tuple(names)}, and a mesh axis can shard only one dimension of an array.",
            "Give the dimensions different names, or None to those that are not sharded.",
        )
    ]


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _uneven(where: str, entries: Sequence[Any], shape: Sequence[int], sizes: dict[Any, int]) -> list[Misfit]:
    found = []
    for place, (entry, size) in enumerate(zip(entries, shape, strict=False)):
        parts = math.prod(sizes[axis] for axis in _axes(entry))
        if size % parts:
            over = f"{entry!r}, of size {parts}, which does not divide {size}"
            found.append(
                Misfit(
                    where,
                    f"dimension {place} of shape {tuple(shape)} is sharded over {over}.",
                    f"Make the size a multiple of {parts}, or name None there, or a smaller axis of the mesh.",
                )
            )
    return found


def check_axes(where: str, spec: PartitionSpec, mesh: Any, shape: Sequence[int] | None = None) -> None:
    """Checks that a mesh has the axes that a `PartitionSpec` names, each once, and that their sizes divide.

    Example:
        >>> import jax
        >>> check_axes("x", PartitionSpec("data"), jax.sharding.AbstractMesh((2,), ("data",)), shape=(4, 3))

    Args:
        where: what names the array.
        spec: the axes of the mesh.
        mesh: the mesh.
        shape: the shape of the array, if it is known.

    Raises:
        LiftArgumentError: if something does not fit.
    """
    raise_misfits(where, spec_on_mesh(where, tuple(spec), shape, mesh)[1])
