"""Gradients and tangents as states, at the paths of the variables that they are of.

An object among the arguments is a `Ref` inside of JAX, which has no leaves. So gradients and tangents of arrays have
the structure of the arguments already, and only need states in the places of refs, or refs in the places of states.
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
    """A variable of a definition with another value; of an array, the value."""
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
    """The state of an object: values once, each at its first path. For a variable, what `make` makes of it.

    Args:
        ref: the reference to the object.
        read: what is traced of the value that has a group and a key.
        make: the leaf of the state for a definition and a value.
        convert: what is done to each array before.
        only: the group whose values are in the state; None for all of them.
    """
    pairs = []
    for path, one in entries(ref.definition):
        group, key = one[-2:]
        if group is not None and only in (None, group):
            value, form = read(group, key), one[4] if one[0] == VARIABLE else None
            value = convert(value) if form is None else value_of([convert(part) for part in value], form)
            pairs.append((path, make(one, value)))
    if pairs and not pairs[0][0]:  # a variable that is no attribute
        return pairs[0][1]
    return State.from_flat_path(pairs)


def with_states(tree: Any, read: Callable[[str, Any], Any], **options: Any) -> Any:
    """A pytree with the state of an object in place of its `Ref`.

    Args:
        tree: the pytree.
        read: see `state_of`.
        options: likewise.
    """
    return jax.tree.map(
        lambda leaf: state_of(leaf, read, **options) if type(leaf) is Ref else leaf, tree, is_leaf=is_ref
    )


_PLACE = Still(())


def outline(tree: Any) -> Any:
    """A pytree with its refs, and something leafless in the places of leaves."""
    return jax.tree.map(lambda leaf: leaf if type(leaf) is Ref else _PLACE, tree, is_leaf=is_ref)


def tangents_in(where: str, tree: Any, given: Any, what: str) -> tuple[dict[str, dict[Any, Any]], Any]:
    """The inverse of `with_states`: what is given for variables, and for all else.

    Args:
        where: the transformation, for errors.
        tree: a pytree with refs, or its outline.
        given: the same pytree with what is given in the places of leaves: for a ref a state, an object of the same
            structure, for one variable a variable or a value, or None for zero.
        what: what errors call that which is given.

    Returns:
        Values by group and key, of those that are floating; and the pytree with refs.

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
    if unknown and not isinstance(given, Pytree):  # in a copy of an object, shared variables may be two
        raise LiftArgumentError(
            where,
            f"the {what} have unknown paths, {', '.join(unknown)}: {ref!r} has no such variables.",
            "Use the paths of its variables; of a shared variable, the first.",
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
