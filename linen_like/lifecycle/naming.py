"""Names of submodules: automatic ones, and those that modules get from where they lie in an attribute."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from liftcore.frozen_dict import FrozenDict

from .fields import Base

# Field values of these types hold no module and need no freezing; they are told apart first, since most fields are so.
PLAIN = frozenset(
    {
        bool, bytes, complex, float, int, str, type, type(None), types.BuiltinFunctionType, types.EllipsisType,
        types.FunctionType, types.MethodType, jax.custom_jvp, np.dtype, type(jax.numpy.float32), type(jax.jit(len)),
    }
)  # fmt: skip


_ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Those among them that nobody looks for in a tree."""


class _Members(NamedTuple):
    """The members of a container, each with its key, and what makes the container from other ones."""

    keys: list[Any]
    values: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _members(value: Any) -> _Members | None:
    """The members of a list, tuple, dict or other pytree node; None for what is no container."""
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


def named_modules(value: Any, adopt: Callable[[Base, str], Base], name: str) -> Any:
    """An attribute's value with each module in it adopted, and its lists and dicts made immutable.

    A module in a container is named after the attribute and the keys that lead to it: `layers_0`, `blocks_a_1`. Members
    are visited in the order of their keys as texts, which decides the name of a module that is there twice.

    Args:
        value: a module, or any nesting of containers.
        adopt: given a module and its name; returns the module that is put in its place.
        name: the name of the attribute.
    """
    if isinstance(value, Base):
        return adopt(value, name)
    members = _members(value)
    if members is None:
        return value
    values = members.values
    for index in sorted(range(len(values)), key=lambda index: str(members.keys[index])):
        values[index] = named_modules(values[index], adopt, f"{name}_{members.keys[index]}")
    return tuple(values) if isinstance(value, list) else members.rebuild(values)


def modules_in(tree: Any) -> list[Any]:
    """The outermost modules in a tree, one for each place, as `map_instances` visits them."""
    found: list[Any] = []

    def note(module: Base) -> Any:
        found.append(module)
        return module

    map_instances(tree, Base, note)
    return found


def map_instances(tree: Any, kinds: type | tuple[type, ...], fn: Callable[[Any], Any]) -> Any:
    """A container with all that is of some types replaced; all else, and a tree without any, is passed on as is.

    The fields of modules are not visited: `fn` is given the outermost ones.

    Example:
        >>> import linen_like as nn
        >>> class Scale(nn.Module):
        ...     by: float
        >>> map_instances({"a": Scale(2.0), "b": [1]}, nn.Module, lambda module: module.by)
        {'a': 2.0, 'b': [1]}

    Args:
        tree: one of these, or any nesting of lists, tuples, dicts and other pytree nodes.
        kinds: the types of what is replaced.
        fn: given each of these; returns what is put in its place.
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
