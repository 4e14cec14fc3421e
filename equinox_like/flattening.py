"""Modules as nodes of pytrees: their children, and their static part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import Rest
from liftcore.cycles import entering
from liftcore.errors import LiftArgumentError, shown
from liftcore.statics import Undescribed, is_unchanging

__all__ = ["OPEN", "STRUCTURE", "children_of", "flatten", "flatten_with_keys", "unflatten"]

STRUCTURE = "_structure"
"""The attribute in which a module keeps its structure."""

OPEN = "_is_open"
"""The attribute that marks a module while it is being created."""

Structure: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], Rest | None]
"""The names of the children, the names of the static fields, and the values of the static fields."""

_CHANGING = frozenset({list, dict})


def _structure_of(module: Any) -> Structure:
    """Return the static part of a module. It is not kept if a static value may change in place."""
    cls, values = type(module), module.__dict__
    if STRUCTURE in values:
        kept: Structure
        kept, seen = values[STRUCTURE]
        if all(values.get(name) is one for name, one in seen.items()):
            return kept
    names = tuple([name for name in cls._dynamic if name in values])
    static = tuple([name for name in cls._static if name in values])
    try:
        found = names, static, _rest([values[name] for name in static]) if static else None
    except Undescribed:
        raise _no_key(module, static) from None
    _keep(module, found)
    return found


def _rest(values: list[Any]) -> Rest:
    """Return the values of static fields for comparison."""
    try:
        return Rest(values)
    except Undescribed as error:
        if not isinstance(error.value, jax.Array) or isinstance(error.value, jax.core.Tracer):
            raise
        return Rest(jax.tree.map(lambda leaf: _Constant(leaf) if isinstance(leaf, jax.Array) else leaf, values))


class _Constant:
    """A JAX array in a static field, which is compared by its contents.

    Args:
        array: the array.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def __static_fields__(self) -> dict[str, Any]:
        """Return its key for comparisons."""
        is_key = jnp.issubdtype(self.array.dtype, jax.dtypes.prng_key)
        numbers = jax.random.key_data(self.array) if is_key else self.array
        return {"dtype": str(self.array.dtype), "numbers": np.asarray(numbers)}


def _keep(module: Any, structure: Structure) -> None:
    values = module.__dict__
    if OPEN in values:  # `__init__` may set more fields
        return
    if all(is_unchanging(values[name]) for name in structure[1]):
        values[STRUCTURE] = structure, {name: values[name] for name in structure[1]}


def _no_key(module: Any, static: Iterable[str]) -> LiftArgumentError:
    for name in static:
        try:
            _rest([module.__dict__[name]])
        except Undescribed as error:
            where = f"{name} of {type(module).__name__}"
            what = f"a static field holds {shown(error.value)}, which cannot be compared: it may change unnoticed."
            fix = f"{error.fix} Or leave out `static=True`."
            return LiftArgumentError(where, what, fix, option="static", given=shown(error.value))
    raise AssertionError


def children_of(module: Any) -> list[Any]:
    """Return the children of a module."""
    values = module.__dict__
    return [values[name] for name in type(module)._dynamic if name in values]


def flatten(module: Any) -> tuple[list[Any], Structure]:
    """Return the children of a module, and its static part."""
    structure = _structure_of(module)
    values = module.__dict__
    children = [values[name] for name in structure[0]]
    if not _CHANGING.isdisjoint(map(type, children)):  # a module can contain itself only through a list or a dict
        entering(module, "Leave out the reference.")
    return children, structure


def flatten_with_keys(module: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    """Return the same as `flatten`, with a key for each child: `.name`."""
    children, structure = flatten(module)
    return list(zip(map(jax.tree_util.GetAttrKey, structure[0]), children, strict=True)), structure


def unflatten(cls: Any, structure: Structure, children: Iterable[Any]) -> Any:
    """Build a module from its children and its static part."""
    names, static, rest = structure
    made = object.__new__(cls)
    made.__dict__.update(zip(names, children, strict=True))
    if rest is not None:
        fields = rest.value
        if rest.holds(_Constant):
            fields = jax.tree.map(lambda leaf: leaf.array if isinstance(leaf, _Constant) else leaf, fields)
        made.__dict__.update(zip(static, fields, strict=True))
    _keep(made, structure)
    return made
