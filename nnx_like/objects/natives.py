"""Python's own containers: which of them are known by identity, and which hide what they hold.

A list or a dict can change in place and be shared, so it is known by identity, like an object. So is a set, but its
items are static values. Deques and other containers that JAX does not know as pytrees are static values themselves: a
variable in one of them would never be found.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from liftcore import is_array

from ..errors import StructureError
from ..statelib.nested import sorted_keys
from ..variablelib.variable import is_object

__all__ = [
    "children_with_path",
    "contains_itself",
    "hidden_error",
    "hidden_in",
    "is_dict",
    "is_native",
    "items_of",
    "parts_in",
]

_DICTS = frozenset({dict, collections.OrderedDict, collections.defaultdict})
_NATIVE = _DICTS | {list}
_MAPPINGS = (dict, collections.ChainMap, collections.UserDict, types.MappingProxyType)
_COLLECTIONS = (list, tuple, set, frozenset, collections.deque, collections.UserList)


def is_dict(value: Any) -> bool:
    """Return whether a value is a dict that is known by identity: a `dict`, an `OrderedDict` or a `defaultdict`."""
    return type(value) in _DICTS


def is_native(value: Any) -> bool:
    """Return whether a value is a list or a dict that is known by identity."""
    return type(value) in _NATIVE


def items_of(container: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a list, tuple or dict, with their numbers or keys, in the order of the leaves of a pytree.

    JAX cannot order the keys of a dict that have different types; here, numbers come first, then strings.

    Example:
        >>> items_of({"b": 1, 2: 3})
        [(2, 3), ('b', 1)]

    Args:
        container: the list, tuple or dict.
    """
    if not is_dict(container):
        return list(enumerate(container))
    ordered = type(container) is collections.OrderedDict
    return [(key, container[key]) for key in (container if ordered else sorted_keys(container))]


def children_with_path(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the direct children of a pytree, each with its path, and the structure that has them as leaves.

    Example:
        >>> pairs, structure = children_with_path((1, [2, 3]))
        >>> [child for _, child in pairs], structure
        ([1, [2, 3]], PyTreeDef((*, *)))

    Args:
        tree: the pytree.
    """
    # JAX asks about the pytree first, and then about each child, which may be the pytree itself.
    asked = itertools.chain([False], itertools.repeat(True))
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda _: next(asked))


def contains_itself(value: Any, where: str) -> StructureError:
    """Return the error for a pytree that contains itself.

    Args:
        value: the pytree.
        where: the second place where it was found.
    """
    kind = type(value).__name__
    return StructureError(
        where,
        f"a {kind} contains itself here, so as a pytree it would be infinitely deep.",
        "Leave out the reference, or derive the class from `nnx.Pytree`, whose objects may contain themselves.",
    )


def hidden_in(value: Any) -> tuple[str, Any] | None:
    """Return the first variable, object or array inside a value that is not a pytree; None if there is none.

    Example:
        >>> import jax.numpy as jnp
        >>> hidden_in({"a": collections.deque([1, jnp.ones(2)])})
        ("['a'][1]", Array([1., 1.], dtype=float32))

    Args:
        value: any Python value; see `parts_in` for where it is searched.

    Returns:
        Its place in the value, and the variable, object or array.
    """
    return next(((place, one) for place, one in parts_in(value) if is_object(one) or is_array(one)), None)


def parts_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value and everything inside it, each once and with its place.

    Containers, dataclasses, `functools.partial` and bound methods are searched, not variables, nor the attributes of
    other objects.

    Example:
        >>> list(parts_in(collections.deque([1, "a"])))
        [('', deque([1, 'a'])), ('[1]', 'a'), ('[0]', 1)]

    Args:
        value: any Python value.
    """
    left, seen = [("", value)], set()
    while left:
        place, one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield place, one
            left += [] if is_object(one) else [(place + step, below) for step, below in _inside(one)]


def hidden_error(where: str, found: Any, holder: Any) -> StructureError:
    """Return the error for a variable, object or array in a place where only static values are allowed.

    Args:
        where: its place.
        found: the variable, object or array.
        holder: the static value that it is in.
    """
    inside = "" if found is holder else f", in a {type(holder).__name__}"
    return StructureError(
        where,
        f"a {type(found).__name__} is in a place where only static values are allowed{inside}.",
        "Keep it in an attribute, a list, a tuple or a dict, or pass it as an argument that is not static.",
    )


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _MAPPINGS):
        yield from [(" as a key", key) for key in value]
        yield from [(f"[{key!r}]", below) for key, below in value.items()]
    elif isinstance(value, _COLLECTIONS):
        yield from [(f"[{number}]", below) for number, below in enumerate(value)]
    elif isinstance(value, functools.partial):
        yield from [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.SimpleNamespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        slots = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
        yield from [(f".{name}", below) for name, below in held.items()]
