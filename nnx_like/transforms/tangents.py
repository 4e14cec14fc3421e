"""Gradients and tangents as states, at the paths of their variables.

In JAX, an object among the arguments is a `Ref`, which has no leaves. So gradients and tangents of arrays already have
the structure of the arguments; only refs have to be replaced by states, or states by refs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError

from ..crossing.ref import Ref, Still, is_ref
from ..graph.build import value_of
from ..graph.definition import VARIABLE, Definition, entries, metadata_of, path_text
from ..graph.flattening import flatten
from ..graph.walk import value_parts
from ..objects.pytree import Pytree
from ..statelib.state import FlatState, State
from ..variablelib.variable import Variable
from .differentiation import DIFFERENTIATED, moves

__all__ = ["outline", "state_of", "tangents_in", "variable_of", "with_states"]


def variable_of(definition: Definition, value: Any) -> Any:
    """Return a variable that a definition describes, with another value; for an array, the value itself."""
    if definition[0] != VARIABLE:
        return value
    return definition[1].made(value, metadata_of(definition[3]), liftcore.trace_state())


def state_of(
    ref: Ref,
    read: Callable[[str, Any], Any],
    make: Callable[[Definition, Any], Any] = variable_of,
    convert: Callable[[Any], Any] = lambda value: value,
    only: str | None = DIFFERENTIATED,
) -> Any:
    """Return the state of an object, with each value once, at its first path. `make` makes its leaves.

    Args:
        ref: the reference to the object.
        read: returns the traced value of a group and a key.
        make: the leaf of the state for a definition and a value.
        convert: applied to each array first.
        only: the group whose values are in the state; None for all groups.
    """
    pairs = []
    for path, one in entries(ref.definition):
        group, key = one[-2:]
        if group is not None and only in (None, group):
            value, form = read(group, key), one[4] if one[0] == VARIABLE else None
            value = convert(value) if form is None else value_of([convert(part) for part in value], form)
            pairs.append((path, make(one, value)))
    if pairs and not pairs[0][0]:  # a variable that is not an attribute
        return pairs[0][1]
    return State.from_flat_path(pairs)


def with_states(tree: Any, read: Callable[[str, Any], Any], **options: Any) -> Any:
    """Return a pytree with a state in place of each `Ref`.

    Args:
        tree: the pytree.
        read: see `state_of`.
        options: the other arguments of `state_of`.
    """
    return jax.tree.map(
        lambda leaf: state_of(leaf, read, **options) if type(leaf) is Ref else leaf, tree, is_leaf=is_ref
    )


_PLACE = Still(())


def outline(tree: Any) -> Any:
    """Return a pytree with its refs, and with leafless placeholders in place of leaves."""
    return jax.tree.map(lambda leaf: leaf if type(leaf) is Ref else _PLACE, tree, is_leaf=is_ref)


def tangents_in(where: str, tree: Any, given: Any, what: str) -> tuple[dict[str, dict[Any, Any]], Any]:
    """Split tangents into values for variables and the rest: the inverse of `with_states`.

    Args:
        where: the name of the transformation, for errors.
        tree: a pytree with refs, or its outline.
        given: the same pytree with tangents in place of leaves. For a ref: a state, an object of the same
            structure, a variable or value (if it refers to one variable), or None for zero.
        what: the name of the tangents in errors.

    Returns:
        The floating values by group and key; and the pytree with refs.

    Raises:
        LiftArgumentError: if the structures differ.
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_ref)
    structure: Any = jax.tree.structure(tree, is_leaf=is_ref)
    try:
        parts = structure.flatten_up_to(given)
    except ValueError as error:
        raise LiftArgumentError(
            where, f"the {what} do not have the structure of the arguments: {error}.", "Give one for each."
        ) from None
    found: dict[Any, Any] = {}
    for place, (leaf, part) in enumerate(zip(leaves, parts, strict=True)):
        if type(leaf) is Ref:
            for group, key, value in _values_in(where, leaf, part, what):
                found.setdefault(group, {})[key] = value
            parts[place] = leaf
    return found, structure.unflatten(parts)


def _values_in(where: str, ref: Ref, given: Any, what: str) -> Iterator[tuple[str, str, Any]]:
    if given is None:
        return
    pairs = _pairs_in(where, ref, given, what)
    known = dict(entries(ref.definition))
    unknown = [path_text(path) for path in pairs if path not in known]
    if unknown and not isinstance(given, Pytree):  # in a copy of an object, a shared variable may be two
        raise LiftArgumentError(
            where,
            f"the {what} have unknown paths, {', '.join(unknown)}; {ref!r} has no such variables.",
            "Use the paths of its variables; for a shared variable, the first path.",
        )
    for path, definition in known.items():
        value = pairs.get(path)
        value = value.get_raw_value() if isinstance(value, Variable) else value
        group, key = definition[-2:]
        if group is not None and moves(value):
            yield group, key, value_parts(value)[0]


def _pairs_in(where: str, ref: Ref, given: Any, what: str) -> dict[Any, Any]:
    if ref.definition[0] == VARIABLE and not isinstance(given, Mapping | Pytree):
        return {(): given}
    if isinstance(given, Mapping):
        return dict((given if isinstance(given, State) else State(given)).flat_state())
    if isinstance(given, FlatState):
        return dict(given)
    if isinstance(given, Pytree):
        return dict(flatten(given)[1])
    raise LiftArgumentError(
        where, f"the {what} of {ref!r} are of type {type(given).__name__}.", "Give a `State`, or None for zeros."
    )
