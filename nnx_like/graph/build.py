"""The builder: makes objects and variables from a definition and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from liftcore import trace_state

from ..objects.pytree import NO_MARKS, Pytree, mark
from .definition import (
    AGAIN,
    ARRAY,
    MAPPING,
    OBJECT,
    SEQUENCE,
    STATIC,
    TREE,
    VARIABLE,
    Definition,
    Keys,
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
        self.table: dict[int, Any] = {}

    def build(self, definition: Definition, place: tuple[Any, ...] | None = None) -> Any:
        """Return the value that a definition describes.

        Args:
            definition: a definition from a walk.
            place: for a part of an attribute, its place.
        """
        kind = definition[0]
        if kind == STATIC:
            return static_value(definition)
        if kind == VARIABLE:
            return self._variable(definition)
        if kind == OBJECT:
            return self._object(definition)
        if kind == AGAIN:
            return self.table[definition[1]]
        if kind == ARRAY:
            return self._array(definition, place)
        if kind == MAPPING or (kind == SEQUENCE and definition[1] is list):
            return self._container(definition, place)
        if kind == SEQUENCE and definition[1] is set:
            return self._set(definition)
        _, of, parts = definition
        built = [self.build(part, place and (*place, number)) for number, part in enumerate(parts)]
        return of.value.unflatten(built) if kind == TREE else of(built)

    def _container(self, definition: Definition, place: tuple[Any, ...] | None) -> Any:
        kind, of, parts, index = definition
        existing = self._existing(index)
        fresh: Any = [] if kind == SEQUENCE else of.empty() if type(of) is Keys else {}
        made = self.table[index] = fresh if existing is None else existing  # before its items: it may contain itself
        steps = self._keys(of) if kind == MAPPING else range(len(parts))
        items = [self.build(part, place and (*place, step)) for step, part in zip(steps, parts, strict=True)]
        fresh.extend(items) if kind == SEQUENCE else fresh.update(zip(steps, items, strict=True))
        if existing is not None:
            self._change_container(made, fresh)
        return made

    def _set(self, definition: Definition) -> Any:
        _, _, [items], index = definition
        existing, now = self._existing(index), self.build(items)  # a copy, or itself if it has no key
        made = self.table[index] = now if existing is None else existing
        if made is not now:
            self._change_container(made, now)
        return made

    def _keys(self, of: Any) -> Sequence[Any]:
        return [self.build(key) for key in of.keys] if type(of) is Keys else of

    def _object(self, definition: Definition) -> Any:
        _, cls, index, parts, marks, order = definition
        existing = self._existing(index)
        made = empty(cls, self.trace) if existing is None else existing
        self.table[index] = made  # before its attributes, since the object may contain itself
        attributes = {str(name): self.build(part, (made, name)) for name, part in parts}
        if order:
            attributes = {name: attributes[name] for name in order}
        if existing is None:
            vars(made).update(attributes)
            if marks:
                mark(made, dict(marks))
        else:
            self._change_object(made, attributes)
        return made

    def _variable(self, definition: Definition) -> Any:
        _, cls, index, metadata, form, group, key = definition
        value = value_of(() if group is None else self.read(group, key), form)
        made = self._existing(index)
        if made is None:
            made = cls.made(value, self._metadata(cls, metadata, group, value), self.trace)
        else:
            self._change_variable(made, value, self._metadata(cls, metadata, group, value))
        self.table[index] = made
        return made

    def _array(self, definition: Definition, place: tuple[Any, ...] | None) -> Any:
        return self.read(definition[1], definition[2])

    def _existing(self, index: int) -> Any:
        return self.existing[index] if index < len(self.existing) else None

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
