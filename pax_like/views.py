"""The leaves of a module: select them, update them, and summarize them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from liftcore.errors import Expected, LiftArgumentError
from liftcore.owners import is_owner
from liftcore.pytrees import check_acyclic, is_array, is_array_or_struct

from .structure import COLLECTIONS, PaxKind, is_module

__all__ = ["Leaf", "collections", "leaves_of", "select", "summary", "text", "updated"]


class Leaf(NamedTuple):
    """A leaf of a module.

    Attributes:
        names: the names on the path to the leaf.
        kind: the kind of the outermost attribute on this path that is not a module.
        is_trainable: whether the leaf is a parameter that is not frozen.
        value: the value of the leaf.
    """

    names: tuple[str, ...]
    kind: PaxKind
    is_trainable: bool
    value: Any


def leaves_of(module: Any) -> list[Leaf]:
    """Return all leaves of a module, in the order of the pytree."""
    found = jax.tree.leaves_with_path(module)
    kinds = list(_kinds(module))
    return [
        Leaf(tuple([jax.tree_util.keystr((key,), simple=True) for key in path]), *kind, value)
        for (path, value), kind in zip(found, kinds, strict=True)
    ]


def _kinds(module: Any) -> Iterator[tuple[PaxKind, bool]]:
    """Yield for each leaf its kind, and whether it is trainable.

    In an attribute of kind PARAMETER or STATE, all arrays of a module have this kind. In a module of another style, an
    array is a parameter only if that style says so.
    """
    structure = module._structure
    for name in structure.children:
        value, kind = module.__dict__[name], structure.kind(name)
        for one in jax.tree.leaves(value, is_leaf=is_owner):
            if kind is PaxKind.MODULE and is_module(one):
                yield from _kinds(one)
                continue
            is_other = is_owner(one) and not is_module(one)
            for collection in one.__collections__() if is_other else ["params"] * len(jax.tree.leaves(one)):
                found = PaxKind.OTHERS if collection is None else PaxKind.STATE
                if collection == "params" and kind is not PaxKind.STATE:
                    found = PaxKind.PARAMETER
                yield found, found is PaxKind.PARAMETER and not structure.is_frozen


def collections(module: Any) -> list[str | None]:
    """Return the collection of each leaf of a module, as other styles see it: frozen parameters are states."""
    return [
        "params" if trainable else COLLECTIONS[PaxKind.STATE] if kind in COLLECTIONS else None
        for kind, trainable in _kinds(module)
    ]


def select(module: Any, wanted: Callable[[Leaf], bool]) -> Any:
    """Return a copy in which only the wanted leaves keep their value; the others are None."""
    leaves = [leaf.value if wanted(leaf) else None for leaf in leaves_of(module)]
    return jax.tree.unflatten(jax.tree.structure(module), leaves)


def updated(module: Any, other: Any) -> Any:
    """Return a copy with the leaves of another module, except for those that are None there."""
    structure: Any
    mine, structure = jax.tree.flatten(module)
    try:
        theirs = structure.flatten_up_to(other)
    except (ValueError, TypeError) as error:
        given = "one that differs"
        what = Expected("a module of the same structure", given, words=f"{given}: {error}")
        fix = "Pass the result of `parameters` with other arrays; `train`, `eval` and `freeze` change the structure."
        raise LiftArgumentError(f"{type(module).__name__}.update", what, fix) from error
    leaves = [old if new is None else new for old, new in zip(mine, theirs, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def summary(module: Any) -> str:
    """Return a text with one line for each attribute."""
    leaves = leaves_of(module)
    lines = list(_lines(module, ""))
    widths = [max((len(line[place]) for line in lines), default=0) for place in range(2)]
    rows = ["  ".join([*map(str.ljust, line[:2], widths), line[2]]).rstrip() for line in lines]
    sizes = {kind: sum(jnp.size(leaf.value) for leaf in leaves if leaf.kind is kind) for kind in PaxKind}
    numbers = f"{sizes[PaxKind.PARAMETER]:,} numbers in parameters, {sizes[PaxKind.STATE]:,} in states"
    return "\n".join([f"{type(module).__name__}: {numbers}", *rows])


def _lines(module: Any, above: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the kind and the value of each attribute, including those of modules below."""
    for name, kind in module.name_to_kind.items():
        if kind is PaxKind.OTHERS:
            continue
        for path, one in jax.tree.leaves_with_path(module.__dict__[name], is_leaf=is_module):
            place = f"{above}{name}{jax.tree_util.keystr(path)}"
            yield place, kind.name, type(one).__name__ if is_module(one) else _type(one)
            if is_module(one) and kind is PaxKind.MODULE:
                yield from _lines(one, f"{place}.")


def _type(leaf: Any) -> str:
    if is_array_or_struct(leaf):
        return f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"
    return repr(leaf)


def text(module: Any) -> str:
    """Return the module as text in one line, without private attributes."""
    names = [name for name in {**dict.fromkeys(module.pytree_attributes), **module.__dict__} if name[0] != "_"]
    parts = [f"{name}={_texts(module.__dict__[name])!r}" for name in names]
    return f"{type(module).__name__}({', '.join(parts)})"


def _texts(value: Any) -> Any:
    try:
        check_acyclic(value)
    except LiftArgumentError:
        return _Text("...")
    return jax.tree.map(lambda leaf: _Text(_type(leaf)) if is_array(leaf) else leaf, value, is_leaf=is_module)


class _Text(str):
    """A text whose `repr` has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
