"""The carry of a loop: the same objects in each iteration, with other values."""

from __future__ import annotations

from typing import Any

import jax

from liftcore.errors import CarryTypeError

from ..crossing.inside import Inside
from ..crossing.ref import Change, Ref
from ..errors import StructureError
from ..graph.differences import difference, renumbered
from ..graph.walk import is_object
from .decorating import Plain

__all__ = ["carried", "check_same_structure"]


def carried(where: str, given: Any, encoded: Any, value: Any) -> Any:
    """Return the next carry in the form that JAX expects, with the refs that came in.

    Args:
        where: the name of the loop in errors.
        given: the carry that the body got.
        encoded: the same carry with refs.
        value: the carry that the body returned.

    Raises:
        StructureError: if it holds an object other than the one that came in.
        CarryTypeError: if it has another structure.
    """
    before = jax.tree.leaves(given, is_leaf=is_object)
    shape: Any = jax.tree.structure(given, is_leaf=is_object)
    refs = jax.tree.leaves(encoded, is_leaf=lambda one: type(one) is Ref)
    pairs, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_object)
    if not any(map(is_object, before)) and not any(is_object(leaf) for _, leaf in pairs):
        return value
    if structure != shape:
        raise CarryTypeError(
            where,
            f"the body got the carry {_outline(given)}, and returned {_outline(value)}.",
            "Return a carry with the structure of the carry that the body got.",
        )
    objects = [(old, ref) for old, ref in zip(before, refs, strict=True)]
    leaves = []
    for number, (path, leaf) in enumerate(pairs):
        old, ref = objects[number] if number < len(objects) else (None, None)
        if is_object(leaf) or is_object(old):
            if leaf is not old:
                place = jax.tree_util.keystr(path) or "the value"
                expected, given = _shown(old, "the"), _shown(leaf, "another")
                raise StructureError(
                    f"{where}, {place}",
                    f"the carry must hold the objects that came in; expected {expected}, given {given}.",
                    "Return the object that the function got, and change its variables: `nnx.update(old, …)`.",
                )
            leaf = ref
        leaves.append(leaf)
    return jax.tree.unflatten(structure, leaves)


def _outline(value: Any) -> str:
    """Return the structure of a pytree, with the class of each object."""
    named = jax.tree.map(lambda leaf: Plain(type(leaf).__name__ if is_object(leaf) else "*"), value, is_leaf=is_object)
    return repr(named)


def _shown(value: Any, which: str) -> str:
    return f"{which if is_object(value) else 'a'} {type(value).__name__}"


def check_same_structure(where: str, inside: Inside, change: Change, carry: Any) -> None:
    """Check that the structure of objects in the carry did not change.

    Args:
        where: the name of the loop in errors.
        inside: the body's side of the call.
        change: the changes that the body made.
        carry: the carry with refs.

    Raises:
        StructureError: if attributes, references or metadata changed.
    """
    if change.definitions is None:
        return
    kept = {id(leaf) for leaf in jax.tree.leaves(carry, is_leaf=lambda one: type(one) is Ref) if type(leaf) is Ref}
    for (ref, _), now in zip(inside.given, change.definitions, strict=False):
        if id(ref) in kept:
            now = renumbered(now, change.was)  # additions elsewhere shifted the numbers
            if now == ref.definition:
                continue
            found = difference(ref.definition, now) or "an object in it was replaced"
            raise StructureError(
                f"{where}, {ref.base.removesuffix('.')}",
                f"the structure of the carry must not change: {found}.",
                "Create or delete attributes before or after the loop; the body may only change values of variables.",
            )
