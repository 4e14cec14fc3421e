"""The builder: makes objects and variables from a definition and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from liftcore import trace_state

from ..objects.pytree import NO_MARKS, Pytree, mark
from .definition import (
    AgainDef,
    ArrayDef,
    Definition,
    Fixed,
    Keys,
    MappingDef,
    ObjectDef,
    SequenceDef,
    StaticDef,
    TreeDef,
    VariableDef,
    metadata_of,
    static_value,
)

__all__ = ["Builder", "value_of"]


def value_of(parts: Any, form: Any) -> Any:
    """Return the value of a variable from its parts: the inverse of `value_parts`."""
    if form is None:
        return parts
    return static_value(form) if type(form) is tuple else form.unflatten(parts)


class Builder:
    """Makes objects from definitions.

    Args:
        read: returns the value of a group and a key: `read(group, key)`.
        existing: returns the existing object for an index in the definitions, which is then changed; or None.

    Attributes:
        table: the objects and variables, by index.
    """

    __slots__ = ("existing", "read", "table", "trace")

    def __init__(self, read: Callable[[str, Any], Any], existing: Sequence[Any] = ()) -> None:
        self.read, self.existing = read, existing
        self.trace = trace_state()
        self.table: dict[Any, Any] = {}

    def build(self, definition: Definition, place: tuple[Any, ...] | None = None) -> Any:
        """Return the value that a definition describes.

        Args:
            definition: a definition from a walk.
            place: for a part of an attribute, its place.
        """
        kind = type(definition)
        if kind is StaticDef:
            return static_value(definition)
        if kind is VariableDef:
            return self._variable(definition)
        if kind is ObjectDef:
            return self._object(definition)
        if kind is AgainDef:
            return self.table[definition.number]
        if kind is ArrayDef:
            return self._array(definition, place)
        if kind is MappingDef or definition[0] is list:
            return self._container(definition, place)
        if definition[0] is set:
            return self._set(definition)
        parts = [self.build(part, place and (*place, number)) for number, part in enumerate(definition.parts)]
        return definition.structure.value.unflatten(parts) if kind is TreeDef else tuple(parts)

    def _container(self, definition: SequenceDef | MappingDef, place: tuple[Any, ...] | None) -> Any:
        existing, parts = self._existing(definition.number), definition.parts
        keys = definition.keys if type(definition) is MappingDef else None
        fresh: Any = [] if keys is None else keys.empty() if type(keys) is Keys else {}
        made = self.table[definition.number] = fresh if existing is None else existing  # first: it may contain itself
        steps = range(len(parts)) if keys is None else self._keys(keys)
        items = [self.build(part, place and (*place, step)) for step, part in zip(steps, parts, strict=True)]
        fresh.extend(items) if keys is None else fresh.update(zip(steps, items, strict=True))
        if existing is not None:
            self._change_container(made, fresh)
        return made

    def _set(self, definition: SequenceDef) -> Any:
        [items] = definition.parts
        existing, now = self._existing(definition.number), self.build(items)  # a copy, or itself if it has no key
        made = self.table[definition.number] = now if existing is None else existing
        if made is not now:
            self._change_container(made, now)
        return made

    def _keys(self, of: Any) -> Sequence[Any]:
        return [self.build(key) for key in of.keys] if type(of) is Keys else of

    def _object(self, definition: ObjectDef) -> Any:
        existing = self._existing(definition.number)
        made = empty(definition.cls, self.trace) if existing is None else existing
        self.table[definition.number] = made  # before its attributes, since the object may contain itself
        attributes = {}
        for name, part in zip(definition.names, definition.parts, strict=True):
            plain = type(part) is StaticDef and type(part.value) is not Fixed  # as `build` does, without its overhead
            attributes[str(name)] = part.value if plain else self.build(part, (made, name))
        if definition.order:
            attributes = {name: attributes[name] for name in definition.order}
        if existing is None:
            vars(made).update(attributes)
            if definition.marks:
                mark(made, dict(definition.marks))
        else:
            self._change_object(made, attributes)
        return made

    def _variable(self, definition: VariableDef) -> Any:
        cls, index, metadata, form, group, key = definition
        value = value_of(() if group is None else self.read(group, key), form)
        made = self._existing(index)
        if made is None:
            made = cls.made(value, self._metadata(cls, metadata, group, value), self.trace)
        else:
            self._change_variable(made, value, self._metadata(cls, metadata, group, value))
        self.table[index] = made
        return made

    def _array(self, definition: ArrayDef, place: tuple[Any, ...] | None) -> Any:
        return self.read(definition.group, definition.key)

    def _existing(self, number: Any) -> Any:
        return self.existing[number] if number < len(self.existing) else None

    def _metadata(self, kind: type[Any], definition: Definition, group: Any, value: Any) -> dict[str, Any]:
        return metadata_of(definition)

    def _change_object(self, made: Any, attributes: dict[str, Any]) -> None:
        held = vars(made)
        held.clear()
        held.update(attributes)

    def _change_container(self, made: Any, items: Any) -> None:
        made.clear()
        made.extend(items) if isinstance(made, list) else made.update(items)
        if isinstance(made, defaultdict):
            made.default_factory = items.default_factory

    def _change_variable(self, made: Any, value: Any, metadata: dict[str, Any]) -> None:
        object.__setattr__(made, "_value", value)
        object.__setattr__(made, "_metadata", metadata)


def empty(cls: type[Pytree], trace: Any) -> Any:
    """Return an object without attributes; `__init__` is not called."""
    made = object.__new__(cls)
    object.__setattr__(made, "_trace", trace)
    object.__setattr__(made, "_marks", NO_MARKS)
    return made
