"""Axis names on a mesh: rules from logical names to mesh axes, and one error for all names that do not fit.

A model may give its axes logical names, such as `embed` or `heads`. Rules say over which mesh axis each of them is
sharded. This file has the rules and the checks for plain names; `liftcore.meta` applies them to boxed metadata.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import PartitionSpec

from .errors import Expected, LiftArgumentError

__all__ = [
    "LogicalRules",
    "Misfit",
    "check_axes",
    "check_rules",
    "follow_rules",
    "get_logical_axis_rules",
    "hashable_rules",
    "logical_axis_rules",
    "meant",
    "raise_misfits",
    "spec_by_rules",
    "spec_on_mesh",
]

LogicalRules: TypeAlias = Sequence[tuple[str, Any]]
"""Pairs of a logical name and a mesh axis; the axis may be a tuple of several, or None for no axis."""


_RULES: Any = jax.make_user_context(default_value=())  # type: ignore[no-untyped-call]
"""The rules of the innermost `with` block of a thread. To `jax.jit` they are like an argument."""


def logical_axis_rules(rules: LogicalRules | None) -> AbstractContextManager[None]:
    """Return a `with` block in which logical names follow rules.

    Example:
        >>> with logical_axis_rules([("batch", "data"), ("embed", None)]):
        ...     spec_by_rules(("batch", "embed"), get_logical_axis_rules()) == PartitionSpec("data", None)
        True

    Args:
        rules: pairs of a logical name and an axis of the mesh; the first pair that can be followed is used.
    """
    context: AbstractContextManager[None] = _RULES(hashable_rules(rules or ()))
    return context


def get_logical_axis_rules() -> LogicalRules:
    """Return the rules of the innermost `with` block."""
    rules: LogicalRules = _RULES.value
    return rules


def hashable_rules(rules: LogicalRules) -> LogicalRules:
    """Return rules with tuples in place of lists.

    Args:
        rules: pairs of a logical name and mesh axes.

    Raises:
        LiftArgumentError: if they are not pairs.
    """
    _check_pairs(rules)
    return tuple((name, tuple(axis) if isinstance(axis, list) else axis) for name, axis in rules)


class Misfit(NamedTuple):
    """One name, size or rule that does not fit the mesh.

    Attributes:
        where: the path of a variable, or another name of the place.
        what: the problem there.
        fix: what to write instead.
        given: the name, size or rule.
        available: the names that exist.
    """

    where: str
    what: str
    fix: str
    given: Any = None
    available: tuple[str, ...] | None = None


def raise_misfits(title: str, found: Iterable[Misfit]) -> None:
    """Raise one error for all misfits, if there are any.

    Example:
        >>> raise_misfits("two variables", [Misfit(name, "it is odd.", "Drop it.") for name in ("a", "b")])
        Traceback (most recent call last):
            ...
        liftcore.errors.LiftArgumentError: two variables:
          a, b: it is odd.
        Drop it.

    Args:
        title: the first line of the error if there are several misfits.
        found: the misfits.

    Raises:
        LiftArgumentError: if there are any.
    """
    found = list(dict.fromkeys(found))
    facts = {name: fact for one in found[:1] for name, fact in one._asdict().items() if name in ("given", "available")}
    if len(found) == 1:
        raise LiftArgumentError(*found[0][:3], **facts)
    if found:
        places: dict[str, list[str]] = {}
        for one in found:
            places.setdefault(one.what, []).append(one.where)
        lines = "".join(f"\n  {_some(where)}: {what}" for what, where in places.items())
        raise LiftArgumentError(title, f"{lines}\n", " ".join(dict.fromkeys(one.fix for one in found)), **facts)


def _some(places: Sequence[str]) -> str:
    """Return three of the places, and the number of the others: an optimizer state repeats those of the parameters."""
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _axes(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes in one entry of a `PartitionSpec`.

    Example:
        >>> _axes("data"), _axes(("data", "model")), _axes(None)
        (('data',), ('data', 'model'), ())
    """
    return tuple(axis for axis in (entry if isinstance(entry, tuple | list) else [entry]) if isinstance(axis, str))


def meant(name: str, known: Iterable[Any]) -> str:
    """Return a question, after a space, that suggests a similar known name; an empty string if there is none.

    Args:
        name: the unknown name.
        known: the known names.
    """
    import difflib  # imported here: only errors need it

    near = difflib.get_close_matches(name, [str(one) for one in known], 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def follow_rules(names: Sequence[Any], rules: LogicalRules) -> dict[int, Any]:
    """Return the mesh axes for the logical names of one array.

    Rules are tried in order. A rule is skipped if another dimension of the array already has its mesh axis, or if its
    logical name already has a mesh axis.

    Example:
        >>> follow_rules(("batch", "embed", "other"), [("batch", "data"), ("embed", "data"), ("embed", "model")])
        {0: 'data', 1: 'model'}

    Args:
        names: a logical name for each dimension. An item that is not a string is kept.
        rules: the rules.

    Returns:
        The entries of the `PartitionSpec` by dimension, without the dimensions to which no rule applies.

    Raises:
        LiftArgumentError: if the rules are not pairs of a name and mesh axes.
    """
    _check_pairs(rules)
    names = list(names)
    found = {place: name for place, name in enumerate(names) if not isinstance(name, str)}
    for name, axis in rules:
        if name in names:
            taken = {one for entry in found.values() for one in _axes(entry)}
            if names.index(name) not in found and taken.isdisjoint(_axes(axis)):
                found[names.index(name)] = axis
    return found


def check_rules(rules: LogicalRules, mesh: Any) -> tuple[LogicalRules, list[Misfit]]:
    """Return the rules with None in place of axes that the mesh does not have, and a misfit for each of these.

    Args:
        rules: pairs of a logical name and mesh axes.
        mesh: the mesh.

    Raises:
        LiftArgumentError: if the rules are not pairs of a name and mesh axes.
    """
    _check_pairs(rules)
    known = list(mesh.axis_names)
    kept = [(name, axis if set(_axes(axis)) <= set(known) else None) for name, axis in rules]
    return kept, [
        Misfit(
            f"rule {name, axis!r}",
            f"the mesh has no axis {one!r} (axes: {known}).{meant(one, known)}",
            "Name an axis of the mesh, or None for an axis that is not sharded.",
            one,
            tuple(known),
        )
        for name, axis in rules
        for one in _axes(axis)
        if one not in known
    ]


def spec_on_mesh(
    where: str, names: Sequence[Any], shape: Sequence[int] | None, mesh: Any, rules: LogicalRules | None = None
) -> tuple[PartitionSpec, list[Misfit]]:
    """Return the sharding of one array, and its misfits.

    A dimension of size 1 is not sharded. An array with fewer dimensions than names is not sharded at all: an optimizer
    state may be in the box of a parameter with more dimensions.

    Example:
        >>> import jax
        >>> mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
        >>> spec, found = spec_on_mesh('"w"', ("embed", "mlp"), (8, 6), mesh, [("embed", None), ("mlp", "model")])
        >>> spec == PartitionSpec(None, "model"), found[0].what
        (True, "dimension 1 of shape (8, 6) is sharded over 'model', of size 4, which does not divide 6.")

    Args:
        where: the name of the array, for errors.
        names: for each dimension a mesh axis, a tuple of several, or None; with rules, also logical names.
        shape: the sizes of the dimensions, or None if they are not known.
        mesh: the mesh.
        rules: pairs of a logical name and mesh axes. A name without a rule must be a mesh axis.
    """
    if shape is not None and len(names) > len(shape):
        return PartitionSpec(), []  # type: ignore[no-untyped-call]
    entries = list(names) if rules is None else _followed(names, rules)
    found = [*_unknown(where, entries, mesh, rules), *_repeated(where, names, entries)]
    if not found and shape is not None:
        entries = [None if size == 1 else entry for entry, size in zip(entries, shape, strict=False)]
        found = [*_uneven(where, entries, shape, dict(mesh.shape))]
    return PartitionSpec(*entries), found  # type: ignore[no-untyped-call]


def spec_by_rules(names: Sequence[Any], rules: LogicalRules) -> PartitionSpec:
    """Return the sharding of one array by rules, without a mesh. A name without a rule is the name of a mesh axis.

    Example:
        >>> rules = [("embed", "model"), ("mlp", "model")]
        >>> spec_by_rules(("embed", "mlp", "data"), rules) == PartitionSpec("model", None, "data")
        True

    Args:
        names: for each dimension a logical name, a mesh axis, a tuple of several mesh axes, or None.
        rules: pairs of a logical name and mesh axes; see `follow_rules`.

    Raises:
        LiftArgumentError: if a name or a mesh axis occurs twice, or the rules are not pairs.
    """
    entries = _followed(names, rules)
    raise_misfits("names of axes", _repeated(f"the names {tuple(names)}", names, entries))
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]


def _followed(names: Sequence[Any], rules: LogicalRules) -> list[Any]:
    """Return the entries by the rules: None if all axes for a name are taken, and the name itself if it has no rule."""
    found, known = follow_rules(names, rules), {name for name, _ in rules}
    return [found.get(place, None if name in known else name) for place, name in enumerate(names)]


def _unknown(where: str, entries: Sequence[Any], mesh: Any, rules: LogicalRules | None) -> Iterator[Misfit]:
    axes, known = list(mesh.axis_names), [*dict.fromkeys(name for name, _ in rules or ())]
    unknown = [axis for entry in entries for axis in _axes(entry) if axis not in axes]
    if unknown and not rules:
        what = f"the mesh has no axis {_listed(unknown)} (axes: {axes}).{meant(unknown[0], axes)}"
        ways = "pass rules, or apply them with `logical_to_mesh`" if rules is None else "use `logical_axis_rules`"
        fix = f"Name an axis of the mesh. To use logical names, {ways}."
        yield Misfit(where, what, fix, unknown[0], tuple(axes))
        return
    for name in dict.fromkeys(unknown):
        what = f"{name!r} has no rule (rules for: {known}) and is not an axis of the mesh (axes: {axes})."
        fix = f'Add a rule, such as `("{name}", None)` for an axis that is not sharded.'
        yield Misfit(where, what + meant(name, [*known, *axes]), fix, name, (*known, *axes))


def _repeated(where: str, names: Sequence[Any], entries: Sequence[Any]) -> Iterator[Misfit]:
    twice = _twice([axis for name in names for axis in _axes(name)])
    twice = twice or _twice([axis for entry in entries for axis in _axes(entry)])
    if twice:
        what = f"{_listed(twice)} occurs twice in {tuple(names)}, but a mesh axis can shard only one dimension."
        fix = "Give the dimensions different names, and None to those that are not sharded."
        yield Misfit(where, what, fix, twice[0])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _check_pairs(rules: LogicalRules) -> None:
    is_sequence = isinstance(rules, Sequence) and not isinstance(rules, str)
    if is_sequence and all(isinstance(one, tuple | list) and len(one) == 2 and _is_axis(one[1]) for one in rules):
        return
    given = list(rules.items()) if isinstance(rules, Mapping) else [("embed", None), ("mlp", "model")]
    wrong = Expected("pairs of a logical name and a mesh axis", given=rules)
    raise LiftArgumentError("rules", wrong, f"Write a list of pairs: `{given}`.")


def _is_axis(entry: Any) -> bool:
    names = entry if isinstance(entry, tuple | list) else [entry]
    return entry in (None, PartitionSpec.UNCONSTRAINED) or all(isinstance(name, str) for name in names)


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _uneven(where: str, entries: Sequence[Any], shape: Sequence[int], sizes: dict[Any, int]) -> Iterator[Misfit]:
    for place, (entry, size) in enumerate(zip(entries, shape, strict=False)):
        parts = math.prod(sizes[axis] for axis in _axes(entry))
        if size % parts:
            over = f"{entry!r}, of size {parts}, which does not divide {size}"
            what = f"dimension {place} of shape {tuple(shape)} is sharded over {over}."
            fix = f"Make the size a multiple of {parts}, or use None or a smaller mesh axis there."
            yield Misfit(where, what, fix, size)


def check_axes(where: str, spec: PartitionSpec, mesh: Any, shape: Sequence[int] | None = None) -> None:
    """Check that a mesh has the axes of a `PartitionSpec`, each used once, and that their sizes divide the shape.

    Example:
        >>> import jax
        >>> check_axes("x", PartitionSpec("data"), jax.sharding.AbstractMesh((2,), ("data",)), shape=(4, 3))

    Args:
        where: the name of the array, for errors.
        spec: the mesh axes.
        mesh: the mesh.
        shape: the shape of the array, if it is known.

    Raises:
        LiftArgumentError: if an axis or a size does not fit.
    """
    raise_misfits(where, spec_on_mesh(where, tuple(spec), shape, mesh)[1])
