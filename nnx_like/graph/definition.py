"""Definitions: the static part of a graph as nested tuples, which C code hashes and compares.

The first item of each tuple is its type:

    (OBJECT, class, index, ((attribute, definition), …), marks, order)
                                                                an object at its first occurrence
    (VARIABLE, class, index, metadata, form, group, key)        a variable; its value is `values[group][key]`
    (AGAIN, index)                                              an object, variable or container that occurred before
    (ARRAY, group, key)                                         an array that is an attribute itself
    (SEQUENCE, tuple, definitions)                              a tuple
    (SEQUENCE, list, definitions, index)                        a list at its first occurrence
    (SEQUENCE, set, (definition,), index)                       a set at its first occurrence, with a static definition
    (MAPPING, keys, definitions, index)                         a dict at its first occurrence: the keys are strings, or
                                                                `Keys` of any other keys and other classes of dicts
    (TREE, structure, definitions)                              any other pytree that holds objects or arrays
    (STATIC, class, value)                                      anything else

Definitions are keys of JAX's caches. So they hold no arrays, nothing mutable, and nothing that compares equal to a
different value.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from liftcore import is_array, static_key
from liftcore.statics import Undescribed, snapshot, warn_not_shared

from ..errors import StructureError
from ..objects.markers import hidden_error, hidden_in
from ..variablelib.variable import is_object

__all__ = [
    "AGAIN",
    "ARRAY",
    "MAPPING",
    "OBJECT",
    "SEQUENCE",
    "STATIC",
    "TREE",
    "VARIABLE",
    "Definition",
    "Fixed",
    "Keys",
    "entries",
    "fixed",
    "from_pickle",
    "keys_of",
    "metadata_definition",
    "metadata_of",
    "path_text",
    "static",
    "static_value",
    "step_of",
    "to_pickle",
]

OBJECT, VARIABLE, AGAIN, ARRAY, SEQUENCE, MAPPING, TREE, STATIC = range(8)

Definition = tuple[Any, ...]

_ATOMS = frozenset(
    {
        bool,
        bytes,
        int,
        str,
        type,
        type(None),
        types.EllipsisType,
        types.FunctionType,
        types.BuiltinFunctionType,
    }
)
"""Types whose values can be compared directly, once their type is compared too."""


class Fixed:
    """A static value that is compared by `liftcore.static_key`: by type and value, recursively.

    An object without such a key may change unnoticed: it is equal only within one walk, and a trace for it is never
    reused.

    Attributes:
        value: the value, with copies of its mutable parts; an object without a key is the object itself.
        has_key: whether it is compared by type and value alone.
    """

    __slots__ = ("_hash", "_key", "has_key", "value")

    def __init__(self, value: Any, key: Hashable, has_key: bool = True) -> None:
        self.value, self._key, self._hash, self.has_key = value, key, hash(key), has_key

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Fixed) and self._hash == other._hash and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return fixed, (self.value, ())  # its hash, and a key by identity, are of this process


class _Function:
    """The class of functions, in a pickle."""


class _BuiltinFunction:
    """The class of built-in functions, in a pickle."""


_IN_PICKLES: dict[type, type] = {types.FunctionType: _Function, types.BuiltinFunctionType: _BuiltinFunction}
"""The stand-ins for classes that cannot be pickled, although their values can."""


def to_pickle(definition: Definition) -> Definition:
    """Return a definition that can be pickled if the static values in it can."""
    return _replaced(definition, _IN_PICKLES)


def from_pickle(definition: Definition) -> Definition:
    """Return the definition for which `to_pickle` returned this one."""
    return _replaced(definition, {stand_in: kind for kind, stand_in in _IN_PICKLES.items()})


def _replaced(part: Any, classes: Mapping[type, type]) -> Any:
    if isinstance(part, tuple):
        below = [_replaced(one, classes) for one in part]
        return tuple(below) if type(part) is tuple else type(part)(*below)
    return classes.get(part, part) if isinstance(part, type) else part


def fixed(value: Any, path: tuple[Any, ...], unknown: Hashable = None) -> Fixed:
    """Wrap a static value for comparison.

    Args:
        value: any Python value without arrays.
        path: its path, for warnings and errors.
        unknown: makes objects without a key differ from one walk to the next; None if they need not.

    Raises:
        StructureError: if it holds a JAX array; or an object whose identity matters.
    """
    try:
        return Fixed(snapshot(value), static_key(value))
    except Undescribed as error:
        if is_array(error.value) or isinstance(error.value, jax.core.Tracer):
            kind = "an array" if error.value is value else f"a {type(value).__name__} that holds an array"
            raise StructureError(
                path_text(path) + error.place,
                f"{kind} is in a place where only static values are allowed.",
                "Keep arrays in attributes, in lists, tuples or dicts, or in a `Variable`.",
            ) from None
        place, hidden = hidden_in(value) or ("", None)
        if is_object(hidden) or (hidden is not None and (unknown is not None or isinstance(hidden, jax.core.Tracer))):
            raise hidden_error(path_text(path) + place, hidden, value) from None
        if unknown is not None:
            warn_not_shared(path_text(path), error)
        return Fixed(value, (id(value), unknown), has_key=False)


def static(value: Any, path: tuple[Any, ...], unknown: Hashable = None) -> Definition:
    """Return the definition of a static value; the arguments are those of `fixed`."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, (type, enum.Enum)):
        return STATIC, kind, value
    return STATIC, kind, fixed(value, path, unknown)


def static_value(definition: Definition) -> Any:
    """Return the value that a static definition describes."""
    value = definition[2]
    return snapshot(value.value) if type(value) is Fixed else value


class Keys(NamedTuple):
    """The keys of a dict that are not all strings, or those of a dict of another class.

    Attributes:
        kind: the class.
        factory: the definition of the `default_factory` of a `defaultdict`.
        keys: the definitions of the keys.
    """

    kind: type[Any]
    factory: Definition
    keys: tuple[Definition, ...]

    @classmethod
    def of(cls, value: Any, define: Callable[[Any], Definition]) -> Any:
        """Return the keys of a dict, or a tuple of strings for a plain dict of strings.

        Args:
            value: the dict.
            define: returns the definition of a static value.
        """
        if type(value) is dict and all(type(key) is str for key in value):
            return tuple(value)
        return cls(type(value), define(getattr(value, "default_factory", None)), tuple(map(define, value)))

    def empty(self) -> Any:
        """Return a dict of the class without items."""
        if self.kind is collections.defaultdict:
            return collections.defaultdict(static_value(self.factory))
        return self.kind()


def keys_of(definition: Definition) -> tuple[Any, ...]:
    """Return the keys of a dict from its definition."""
    of = definition[1]
    return tuple(map(static_value, of.keys)) if type(of) is Keys else of


def metadata_definition(
    metadata: Mapping[str, Any], path: tuple[Any, ...], define: Callable[[Any, tuple[Any, ...]], Definition]
) -> Definition:
    """Return the metadata of a variable, as a part of its definition.

    Args:
        metadata: the metadata.
        path: the path of the variable.
        define: returns the definition of a static value at a path.
    """
    if not metadata:
        return ()
    return tuple([(name, define(metadata[name], (*path, name))) for name in sorted(metadata)])


def metadata_of(definition: Definition) -> dict[str, Any]:
    """Return the metadata that a part of a definition describes."""
    return {name: static_value(one) for name, one in definition}


def path_text(path: tuple[Any, ...], base: str = "") -> str:
    """Format a path for errors, such as `encoder.layers[0].kernel`.

    Args:
        path: names and numbers.
        base: where the path begins, such as `[0].`.
    """
    text = "".join(f".{name}" if isinstance(name, str) else f"[{name!r}]" for name in path)
    return base + text.removeprefix(".") if path else base.removesuffix(".") or "the object itself"


def step_of(key: Any) -> Any:
    """Convert a step of a JAX path into a step of a path here."""
    for name in ("name", "key", "idx"):
        if hasattr(key, name):
            return getattr(key, name)
    return str(key)


def entries(definition: Definition, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Definition]]:
    """Yield the variables and arrays of a definition, each once, with their paths.

    Args:
        definition: a definition from a walk.
        path: its path.
    """
    kind = definition[0]
    if kind in (VARIABLE, ARRAY):
        yield path, definition
    elif kind == OBJECT:
        for name, part in definition[3]:
            if part[0] != STATIC:
                yield from entries(part, (*path, name))
    elif kind in (SEQUENCE, MAPPING, TREE):
        for step, part in zip(_steps(definition), definition[2], strict=True):
            yield from entries(part, (*path, *step))


def _steps(definition: Definition) -> list[tuple[Any, ...]]:
    """Return the steps from a sequence, a dict or another pytree to its parts."""
    kind, of, parts = definition[:3]
    if kind == MAPPING:
        return [(key,) for key in keys_of(definition)]
    if kind == SEQUENCE:
        return [(number,) for number in range(len(parts))]
    pairs = jax.tree_util.tree_leaves_with_path(of.value.unflatten(range(len(parts))))
    return [tuple(map(step_of, keys)) for keys, _ in pairs]
