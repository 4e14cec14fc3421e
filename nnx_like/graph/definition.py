"""Definitions: the static part of a graph as nested named tuples, which C code hashes and compares.

Each part of a graph has the definition of its type: `ObjectDef`, `VariableDef`, `ArrayDef`, `SequenceDef`,
`MappingDef`, `TreeDef`, `StaticDef` for anything else, and `AgainDef` for what occurred before. Tuples are compared
without their types, but no two types have equal ones: they differ in length, or in the type of an item.

Definitions are keys of JAX's caches. So they hold no arrays, nothing mutable, and nothing that compares equal to a
different value.
"""

from __future__ import annotations

import collections
import copy
import enum
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax

from liftcore import is_array, static_key
from liftcore.pickling import portable
from liftcore.statics import Undescribed, snapshot, warn_not_shared

from ..errors import StructureError
from ..objects.markers import ATOMS, hidden_error, hidden_in
from ..variablelib.variable import is_object

__all__ = [
    "AgainDef",
    "ArrayDef",
    "Definition",
    "Fixed",
    "Held",
    "Keys",
    "MappingDef",
    "ObjectDef",
    "SequenceDef",
    "StaticDef",
    "TreeDef",
    "VariableDef",
    "described",
    "difference",
    "entries",
    "fixed",
    "from_pickle",
    "has_keys",
    "keys_of",
    "metadata_definition",
    "metadata_of",
    "parts_of",
    "path_of",
    "path_text",
    "renumbered",
    "static",
    "static_value",
    "to_pickle",
]


Definition: TypeAlias = Any
"""A definition: one of the classes below."""


class ObjectDef(NamedTuple):
    """An object at its first occurrence.

    Attributes:
        cls: its class.
        number: its number among the objects, variables and containers of the graph.
        names: the names of its attributes, sorted.
        parts: the definitions of the attributes.
        marks: the marks of the object itself.
        order: the names in the order in which they were set; empty if the object is a sequence.
    """

    cls: type[Any]
    number: int
    names: tuple[Any, ...]
    parts: tuple[Definition, ...]
    marks: tuple[tuple[str, bool | tuple[Any, ...]], ...]
    order: tuple[str, ...]


class VariableDef(NamedTuple):
    """A variable at its first occurrence.

    Attributes:
        cls: its kind.
        number: its number.
        metadata: the names and definitions of its metadata.
        form: rebuilds the value from its arrays: None for a single array, a `liftcore.Rest`, or a `StaticDef`.
        group: the group of the value; None if the whole value is static.
        key: the key of the value in the group.
    """

    cls: type[Any]
    number: int
    metadata: tuple[tuple[str, Definition], ...]
    form: Any
    group: Any
    key: Any

    @property
    def slot(self) -> tuple[Any, Any]:
        """The group and the key."""
        return self.group, self.key


class AgainDef(NamedTuple):
    """An object, variable or container that occurred before, by its number."""

    number: int


class ArrayDef(NamedTuple):
    """An array that is an attribute itself, by its group and key."""

    group: Any
    key: Any

    @property
    def slot(self) -> tuple[Any, Any]:
        """The group and the key."""
        return self.group, self.key


class SequenceDef(NamedTuple):
    """A tuple; or a list or a set at its first occurrence, with its number. The part of a set is a static value."""

    cls: type[Any]
    parts: tuple[Definition, ...]
    number: int | None = None


class MappingDef(NamedTuple):
    """A dict at its first occurrence. The keys are strings, or `Keys` of any other keys and other classes of dicts."""

    keys: Any
    parts: tuple[Definition, ...]
    number: int


class TreeDef(NamedTuple):
    """Any other pytree that holds objects or arrays: its structure, and the paths and definitions of its children."""

    structure: Fixed
    steps: tuple[tuple[Any, ...], ...]
    parts: tuple[Definition, ...]


class StaticDef(NamedTuple):
    """Anything else: the class and the value, which is `Fixed` if it cannot be compared directly."""

    cls: type[Any]
    value: Any


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


def has_keys(part: Any) -> bool:
    """Return whether each static value in a definition, or in a part of one, is compared by type and value alone."""
    if type(part) is Fixed:
        return part.has_key
    return not isinstance(part, tuple) or all(map(has_keys, part))


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
            where = path_text(path) + error.place
            what = f"{kind} is in a place where only static values are allowed."
            fix = "Keep arrays in attributes, in lists, tuples or dicts, or in a `Variable`."
            raise StructureError(where, what, fix, expected="static values", given=kind) from None
        place, hidden = hidden_in(value) or ("", None)
        if is_object(hidden) or (hidden is not None and (unknown is not None or isinstance(hidden, jax.core.Tracer))):
            raise hidden_error(path_text(path) + place, hidden, value) from None
        if unknown is not None:
            warn_not_shared(path_text(path), error)
        return Fixed(value, (id(value), unknown), has_key=False)


def static(value: Any, path: tuple[Any, ...], unknown: Hashable = None) -> Definition:
    """Return the definition of a static value; the arguments are those of `fixed`."""
    kind = type(value)
    if kind in ATOMS or isinstance(value, (type, enum.Enum)):
        return StaticDef(kind, value)
    return StaticDef(kind, fixed(value, path, unknown))


def static_value(definition: Definition) -> Any:
    """Return the value that a static definition describes."""
    value = definition.value
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


def keys_of(definition: MappingDef) -> tuple[Any, ...]:
    """Return the keys of a dict from its definition."""
    keys = definition.keys
    return tuple(map(static_value, keys.keys)) if type(keys) is Keys else keys


def parts_of(definition: Definition) -> list[tuple[Any, Definition]]:
    """Return the parts of a definition, each with its name, key or number; nothing for a value without parts."""
    kind = type(definition)
    if kind is ObjectDef:
        return list(zip(definition.names, definition.parts, strict=True))
    if kind is MappingDef:
        return list(zip(keys_of(definition), definition.parts, strict=True))
    return list(enumerate(getattr(definition, "parts", ())))


def metadata_definition(
    metadata: Mapping[str, Any], path: tuple[Any, ...], define: Callable[[Any, tuple[Any, ...]], Definition]
) -> Definition:
    """Return the metadata of a variable, as a part of its definition.

    Args:
        metadata: the metadata.
        path: the path of the variable.
        define: returns the definition of a static value at a path.
    """
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


def entries(definition: Definition, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Definition]]:
    """Yield the variables and arrays of a definition, each once, with their paths.

    Args:
        definition: a definition from a walk.
        path: its path.
    """
    kind = type(definition)
    if kind is VariableDef or kind is ArrayDef:
        yield path, definition
    elif kind is TreeDef:
        for steps, part in zip(definition.steps, definition.parts, strict=True):
            yield from entries(part, (*path, *steps))
    elif kind is not StaticDef:
        for step, part in parts_of(definition):
            if type(part) is not StaticDef:
                yield from entries(part, (*path, step))


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
    changes: dict[str, Any] = {}
    if getattr(definition, "number", None) is not None:
        before = was[definition.number]
        changes["number"] = -1 if before is None else before
    if getattr(definition, "parts", ()):
        changes["parts"] = tuple([renumbered(part, was) for part in definition.parts])
    return definition._replace(**changes) if changes else definition


def difference(before: Definition, after: Definition, path: tuple[Any, ...] = ()) -> str | None:
    """Describe the first difference between two definitions of one object; return None if they are equal.

    Args:
        before: a definition.
        after: another one.
        path: the path to the object.
    """
    if before == after:
        return None
    kind = type(before)
    by_class = kind in (ObjectDef, VariableDef, SequenceDef, StaticDef)
    if kind is not type(after) or (by_class and before.cls is not after.cls):
        return f"{path_text(path)} was {_named(before)} and is {_named(after)}"
    if kind in (ObjectDef, MappingDef):
        found = _in_names(dict(parts_of(before)), dict(parts_of(after)), path)
        other = "has other keys, or is another kind of dict," if kind is MappingDef else "is a different object"
        return found or f"{path_text(path)} {other} than before"
    if kind in (SequenceDef, TreeDef):
        return _in_items(before.parts, after.parts, path)
    if kind is VariableDef and before.metadata != after.metadata:
        return f"the metadata of {path_text(path)} was {_metadata(before)} and is {_metadata(after)}"
    if kind is StaticDef:
        return f"{path_text(path)} was {before.value!r} and is {after.value!r}"
    return f"{path_text(path)} is a different {'array' if kind is ArrayDef else 'object or variable'} than before"


def _in_names(before: dict[Any, Any], after: dict[Any, Any], path: tuple[Any, ...]) -> str | None:
    for name in (name for name in after if name not in before):
        return f"{path_text((*path, name))} was added"
    for name in (name for name in before if name not in after):
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


def path_of(definition: Definition, number: int, path: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """Return the path of the object or variable with a given number in a definition; None if there is none.

    Args:
        definition: the definition of an object, or of a part of one.
        number: the number.
        path: the path to the object.
    """
    if type(definition) is not AgainDef and getattr(definition, "number", None) == number:
        return path
    found = (path_of(part, number, (*path, name)) for name, part in parts_of(definition))
    return next((one for one in found if one is not None), None)


_NAMES: dict[type[Any], str] = {
    AgainDef: "reference to an earlier object",
    ArrayDef: "array",
    MappingDef: "dict",
    TreeDef: "pytree",
}


def _named(definition: Definition) -> str:
    if type(definition) is StaticDef:
        return repr(definition.value)
    name = _NAMES.get(type(definition)) or definition.cls.__name__
    return f"an {name}" if type(definition) is ArrayDef else f"a {name}"


def _metadata(definition: VariableDef) -> str:
    return repr({name: one.value for name, one in definition.metadata})


def described(definition: Definition, path: str = "", whole: Definition | None = None) -> Iterator[tuple[str, str]]:
    """Yield a description of each part of a definition with its path; a function is retraced if one of them changes.

    Args:
        definition: the definition of an object, or of a part of one.
        path: the path to it.
        whole: the definition that it is a part of.
    """
    kind, whole = type(definition), whole or definition
    if kind is StaticDef:
        yield path, repr(definition.value)
        return
    name = _NAMES.get(kind) or definition.cls.__name__
    if kind is AgainDef:
        first = path_of(whole, definition.number)
        name = f"the object or variable number {definition.number}" if first is None else path_text(first)
        name = f"{name} again"
    elif kind is VariableDef and definition.group is None:
        name = f"{name}, static"
    yield path, name
    for key, one in definition.metadata if kind is VariableDef else ():
        yield f"{path}.{key}", repr(one.value)
    for step, part in parts_of(definition):
        is_name = kind is ObjectDef and not isinstance(step, int)
        yield from described(part, f"{path}.{step}" if is_name else f"{path}[{step!r}]", whole)
