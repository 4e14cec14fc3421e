"""Names of submodules: automatic ones, and those that follow from the attribute that holds a module."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from liftcore.frozen_dict import FrozenDict
from liftcore.owners import style_of

from .fields import Base

# Field values of these types hold no module and need no freezing. They are checked first, since most fields have one.
PLAIN = frozenset(
    {
        bool, bytes, complex, float, int, str, type, type(None), types.BuiltinFunctionType, types.EllipsisType,
        types.FunctionType, types.MethodType, jax.custom_jvp, np.dtype, type(jax.numpy.float32), type(jax.jit(len)),
    }
)  # fmt: skip


_ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""The types among them that are not searched for in a tree."""


class _Members(NamedTuple):
    """The members of a container, their keys, and a function that makes the container from other members."""

    keys: list[Any]
    values: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _members(value: Any) -> _Members | None:
    """Return the members of a list, tuple, dict or other pytree node; None for any other value."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if kind is tuple or isinstance(value, list):
        return _Members(list(range(len(value))), list(value), kind)
    if isinstance(value, dict | FrozenDict):
        keys = list(value)
        return _Members(keys, list(value.values()), lambda values: FrozenDict(zip(keys, values, strict=True)))
    if isinstance(value, Base) or jax.tree_util.all_leaves([value]):
        return None
    pairs, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    keys = [jax.tree_util.keystr(path, simple=True) for path, _ in pairs]
    return _Members(keys, [member for _, member in pairs], lambda values: jax.tree_util.tree_unflatten(treedef, values))


def named_modules(value: Any, adopt: Callable[[Any, str], Any], name: str) -> Any:
    """Adopt each module in an attribute's value, and make its lists and dicts immutable; return the new value.

    A module in a container is named after the attribute and the keys that lead to it: `layers_0`, `blocks_a_1`. Members
    are visited in the order of their keys as strings, which decides the name of a module that occurs twice.

    Args:
        value: a module, or any nesting of containers.
        adopt: called with a module, or an object that calls change, and its name; returns what to put in its place.
        name: the name of the attribute.
    """
    style = style_of(value)
    if style is not None and (style.is_changed or isinstance(value, Base)):
        return adopt(value, name)
    members = _members(value)
    if members is None:
        return value
    values = members.values
    for index in sorted(range(len(values)), key=lambda index: str(members.keys[index])):
        values[index] = named_modules(values[index], adopt, f"{name}_{members.keys[index]}")
    return tuple(values) if isinstance(value, list) else members.rebuild(values)


def modules_in(tree: Any) -> list[Any]:
    """Return the outermost modules in a tree, one for each place, in the order of `map_instances`."""
    found: list[Any] = []

    def note(module: Base) -> Any:
        found.append(module)
        return module

    map_instances(tree, Base, note)
    return found


def map_instances(tree: Any, kinds: type | tuple[type, ...], fn: Callable[[Any], Any]) -> Any:
    """Replace all values of some types in a container; everything else, and a tree without such values, is unchanged.

    The fields of modules are not visited: `fn` is called with the outermost ones.

    Example:
        >>> import linen_like as nn
        >>> class Scale(nn.Module):
        ...     by: float
        >>> map_instances({"a": Scale(2.0), "b": [1]}, nn.Module, lambda module: module.by)
        {'a': 2.0, 'b': [1]}

    Args:
        tree: a value of these types, or any nesting of lists, tuples, dicts and other pytree nodes.
        kinds: the types of the values to replace.
        fn: called with each of these values; returns the value to put in its place.
    """
    if type(tree) in _ATOMS:
        return tree
    if isinstance(tree, kinds):
        return fn(tree)
    members = _members(tree)
    if members is None:
        return tree
    values = [map_instances(member, kinds, fn) for member in members.values]
    if all(new is old for new, old in zip(values, members.values, strict=True)):
        return tree
    if isinstance(tree, dict):
        return dict(zip(members.keys, values, strict=True))
    return members.rebuild(values)
