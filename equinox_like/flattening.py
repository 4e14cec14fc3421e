"""Modules as nodes of pytrees: what their children are, and what is static of them."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, TypeAlias

import jax

from liftcore import Rest
from liftcore.errors import LiftArgumentError, shown
from liftcore.statics import Undescribed, static_key

__all__ = ["OPEN", "STRUCTURE", "flatten", "flatten_with_keys", "unflatten"]

STRUCTURE = "_structure"
"""Under which name a module keeps its structure."""

OPEN = "_is_open"
"""The name of what marks a module that is being made."""

Structure: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], Rest | None]
"""The names of the children, those of static fields, and the values of these."""

_UNCHANGING = frozenset(
    {bool, int, float, complex, str, bytes, type(None), types.FunctionType, types.BuiltinFunctionType, type}
)


def _structure_of(module: Any) -> Structure:
    """What is static of a module; what may change in place is looked at each time."""
    cls, values = type(module), module.__dict__
    if STRUCTURE in values:
        kept: Structure
        kept, seen = values[STRUCTURE]
        if all(values.get(name) is one for name, one in seen.items()):
            return kept
    names = tuple([name for name in cls._dynamic if name in values])
    static = tuple([name for name in cls._static if name in values])
    try:
        found = names, static, Rest([values[name] for name in static]) if static else None
    except Undescribed:
        raise _no_key(module, static) from None
    _keep(module, found)
    return found


def _keep(module: Any, structure: Structure) -> None:
    values = module.__dict__
    if OPEN in values:  # it gets more fields
        return
    if all(type(values[name]) in _UNCHANGING for name in structure[1]):
        values[STRUCTURE] = structure, {name: values[name] for name in structure[1]}


def _no_key(module: Any, static: Iterable[str]) -> LiftArgumentError:
    for name in static:
        try:
            static_key(module.__dict__[name])
        except Undescribed as error:
            return LiftArgumentError(
                f"{name} of {type(module).__name__}",
                f"no key stands for the value of a static field, {shown(error.value)}: it may change unseen.",
                f"Make {type(error.value).__name__} a frozen dataclass, or leave out `static=True`.",
            )
    raise AssertionError


def flatten(module: Any) -> tuple[list[Any], Structure]:
    """The children of a module, and what is static of it."""
    structure = _structure_of(module)
    values = module.__dict__
    return [values[name] for name in structure[0]], structure


def flatten_with_keys(module: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    """The same, each child with its key: `.name`."""
    children, structure = flatten(module)
    return list(zip(map(jax.tree_util.GetAttrKey, structure[0]), children, strict=True)), structure


def unflatten(cls: Any, structure: Structure, children: Iterable[Any]) -> Any:
    """A module of children."""
    names, static, rest = structure
    made = object.__new__(cls)
    made.__dict__.update(zip(names, children, strict=True))
    if rest is not None:
        made.__dict__.update(zip(static, rest.value, strict=True))
    _keep(made, structure)
    return made
