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
import copy
import enum
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from liftcore import is_array, static_key
from liftcore.pickling import portable
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
    "Held",
    "Keys",
    "described",
    "difference",
    "entries",
    "fixed",
    "from_pickle",
    "keys_of",
    "metadata_definition",
    "metadata_of",
    "path_of",
    "path_text",
    "renumbered",
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


# --- compared by identity ---------------------------------------------------------------------------------------------


class Held:
    """A static attribute value that is equal only to the same object, whatever `__eq__` its class defines.

    Args:
        value: the value, such as an optax transformation, which is a tuple of functions.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return False
        # When objects are rebuilt, a tuple of functions is copied, so compare the functions.
        return self.value is other.value or (isinstance(self.value, tuple) and bool(self.value == other.value))

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __repr__(self) -> str:
        return repr(self.value)

    def __copy__(self) -> Held:
        return Held(self.value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return Held(copy.deepcopy(self.value, memo))

    def __reduce__(self) -> Any:
        return Held, (portable(self.value, "pickle of an optimizer, tx"),)


# --- differences, for errors about structure --------------------------------------------------------------------------


def renumbered(definition: Definition, was: Sequence[int | None]) -> Definition:
    """Return a definition with the numbers that its objects and variables had before; -1 for new ones.

    Args:
        definition: a definition.
        was: maps a number in the definition to the number before.
    """
    kind = definition[0]
    if kind == AGAIN:
        return AGAIN, _before(definition[1], was)
    if kind == VARIABLE:
        return (*definition[:2], _before(definition[2], was), *definition[3:])
    if kind == OBJECT:
        parts = tuple([(name, renumbered(part, was)) for name, part in definition[3]])
        return (*definition[:2], _before(definition[2], was), parts, *definition[4:])
    if kind in (SEQUENCE, MAPPING, TREE):
        parts = tuple([renumbered(part, was) for part in definition[2]])
        return (*definition[:2], parts, *[_before(index, was) for index in definition[3:]])
    return definition


def _before(index: int, was: Sequence[int | None]) -> int:
    found = was[index]
    return -1 if found is None else found


def difference(before: Definition, after: Definition, path: tuple[Any, ...] = ()) -> str | None:
    """Describe the first difference between two definitions of one object; return None if they are equal.

    Args:
        before: a definition.
        after: another one.
        path: the path to the object.
    """
    if before == after:
        return None
    kind = before[0]
    if kind != after[0] or (kind in (OBJECT, VARIABLE, SEQUENCE, STATIC) and before[1] is not after[1]):
        return f"{path_text(path)} was {_named(before)} and is {_named(after)}"
    if kind == OBJECT:
        return _in_attributes(before, after, path)
    if kind in (SEQUENCE, TREE):
        return _in_items(before[2], after[2], path)
    if kind == MAPPING:
        was, now = [dict(zip(keys_of(one), one[2], strict=True)) for one in (before, after)]
        return _in_names(was, now, path) or f"{path_text(path)} has other keys, or is another kind of dict, than before"
    if kind == VARIABLE and before[3] != after[3]:
        return f"the metadata of {path_text(path)} was {_metadata(before)} and is {_metadata(after)}"
    if kind == STATIC:
        return f"{path_text(path)} was {before[2]!r} and is {after[2]!r}"
    return f"{path_text(path)} is a different {'array' if kind == ARRAY else 'object or variable'} than before"


def _in_attributes(before: Definition, after: Definition, path: tuple[Any, ...]) -> str:
    found = _in_names(dict(before[3]), dict(after[3]), path)
    return found or f"{path_text(path)} is a different object than before"


def _in_names(before: dict[Any, Any], after: dict[Any, Any], path: tuple[Any, ...]) -> str | None:
    for name in after.keys() - before.keys():
        return f"{path_text((*path, name))} was added"
    for name in before.keys() - after.keys():
        return f"{path_text((*path, name))} was deleted"
    found = [difference(before[name], after[name], (*path, name)) for name in before]
    return next(filter(None, found), None)


def _in_items(before: tuple[Definition, ...], after: tuple[Definition, ...], path: tuple[Any, ...]) -> str | None:
    if len(before) != len(after):
        return f"{path_text(path)} had {len(before)} items and has {len(after)}"
    found = [
        difference(one, other, (*path, number)) for number, (one, other) in enumerate(zip(before, after, strict=True))
    ]
    return next(filter(None, found), None)


def path_of(definition: Definition, index: int, path: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """Return the path of the object or variable with a given number in a definition; None if there is none.

    Args:
        definition: the definition of an object, or of a part of one.
        index: the number.
        path: the path to the object.
    """
    kind = definition[0]
    own = definition[2:3] if kind in (OBJECT, VARIABLE) else definition[3:] if kind in (SEQUENCE, MAPPING) else ()
    if own == (index,):
        return path
    if kind == OBJECT:
        parts = definition[3]
    elif kind == MAPPING:
        parts = zip(keys_of(definition), definition[2], strict=True)
    else:
        parts = enumerate(definition[2]) if kind in (SEQUENCE, TREE) else ()
    found = (path_of(part, index, (*path, name)) for name, part in parts)
    return next((one for one in found if one is not None), None)


def _named(definition: Definition) -> str:
    kind = definition[0]
    if kind in (OBJECT, VARIABLE):
        return f"a {definition[1].__name__}"
    if kind == STATIC:
        return repr(definition[2])
    if kind == SEQUENCE:
        return f"a {definition[1].__name__}"
    return {AGAIN: "a reference to an earlier object", ARRAY: "an array", MAPPING: "a dict", TREE: "a pytree"}[kind]


def _metadata(definition: Definition) -> str:
    return repr({name: value[2] for name, value in definition[3]})


def described(definition: Definition, path: str = "", whole: Definition | None = None) -> Iterator[tuple[str, str]]:
    """Yield a description of each part of a definition with its path; a function is retraced if one of them changes.

    Args:
        definition: the definition of an object, or of a part of one.
        path: the path to it.
        whole: the definition that it is a part of.
    """
    kind, whole = definition[0], whole or definition
    if kind == OBJECT:
        yield path, definition[1].__name__
        for name, part in definition[3]:
            yield from described(part, f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}", whole)
    elif kind == VARIABLE:
        yield path, definition[1].__name__ if definition[6] is not None else f"{definition[1].__name__}, static"
        for name, value in definition[3]:
            yield f"{path}.{name}", repr(value[2])
    elif kind == AGAIN:
        first = path_of(whole, definition[1])
        yield (
            path,
            f"the object or variable number {definition[1]} again" if first is None else f"{path_text(first)} again",
        )
    elif kind == STATIC:
        yield path, repr(definition[2])
    elif kind == ARRAY:
        yield path, "array"
    else:
        yield path, definition[1].__name__ if kind == SEQUENCE else {MAPPING: "dict", TREE: "pytree"}[kind]
        names = keys_of(definition) if kind == MAPPING else range(len(definition[2]))
        for name, part in zip(names, definition[2], strict=True):
            yield from described(part, f"{path}[{name!r}]", whole)
