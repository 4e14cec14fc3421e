"""The walk collects the definition and the values of a graph in one pass. The builder makes a graph from both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from liftcore import flatten_static, trace_state
from liftcore.owners import is_owner
from liftcore.pytrees import is_array_like, is_array_or_struct, is_number, is_numpy
from liftcore.statics import Undescribed

from ..errors import AliasError
from ..objects.markers import NATIVE, children_with_path, contains_itself, step_of
from ..objects.pytree import NO_MARKS, Pytree, attributes_of, mark, marks_of, own_marks
from ..objects.traversal import children_of
from ..variablelib.kinds import CONSTANTS, variable_type_from_name
from ..variablelib.variable import Variable, is_object
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
    fixed,
    metadata_definition,
    metadata_of,
    path_text,
    static,
    static_value,
)

__all__ = ["SINGLE", "Builder", "Leaf", "Place", "Prefix", "Walk", "is_object", "value_of", "value_parts"]

# --- the walk ---------------------------------------------------------------------------------------------------------


Prefix = str | Callable[[tuple[Any, ...], Any], str]
"""The name of the group of all variables below an object; or a function of path and variable that returns the name."""

Place = tuple[Any, ...]
"""The place of an array in an attribute: `(owner, attribute, *path in the attribute)`."""

Leaf = tuple[str, Any, Any, Any, Any]
"""A value: `(group, key, variable or place, parts of the value, form)`."""

SINGLE: set[type] = {bool, int, float, complex}
"""Types whose values are one leaf, and never a tracer. Types of JAX arrays and of other numbers are added when seen."""

_STATIC = frozenset({str, int, bool, float, type(None), type, type(len), type(lambda: None), type(jax.jit(len))})
"""The most common types of static attributes; checked before anything else."""


def value_parts(
    raw: Any, path: tuple[Any, ...] = (), define: Callable[[Any, tuple[Any, ...]], Definition] = static
) -> tuple[Any, Any]:
    """Split the value of a variable into a traced part and a static form.

    Args:
        raw: an array or a number, which is traced directly; or any pytree.
        path: the path of the variable, for errors.
        define: returns the definition of a static value at a path.

    Returns:
        The array, and None for its form; or a tuple of arrays, empty if the whole value is static, and the form that
        rebuilds the value from them: a `liftcore.Rest`, or a static definition.
    """
    if is_array_like(raw):
        if not isinstance(raw, jax.core.Tracer) and not is_numpy(raw):  # an array of NumPy may hold texts
            SINGLE.add(type(raw))
        return raw, None
    if is_array_or_struct(raw):
        return raw, None
    try:
        arrays, rest = flatten_static(raw, _is_part)
    except Undescribed:
        return (), define(raw, path)
    return tuple(arrays), rest


def _is_part(leaf: Any) -> bool:
    return is_array_like(leaf) or is_array_or_struct(leaf)


class Walk:
    """One pass over the graph below some values. It describes an object once; later occurrences are numbers.

    Args:
        unknown: makes static values without a key differ from one walk to the next; see `fixed`.
        alias_error: makes the error for a variable in two groups; see `crossing.groups.Groups.alias_error`. Not needed
            if the group of a variable is the same at all its paths.

    Attributes:
        base: the prefix of the keys of values.
        nodes: the objects and variables that were found, by index.
        leaves: the values, in the order in which they were found.
        values: the same values by group and key.
        origins: the prefix under which each object and variable was first found, by index. If filters decide, also the
            prefix of its key, since filters see paths within one argument.
        groups: the groups of variables, by index. Within one argument the first path decides, as in states.
        placed: the groups of arrays in attributes, by the identity of the object, list or dict, and the name.
        open: the identities of the pytrees, other than objects and native containers, that it is in.
        owned: the kinds of variables that filters see in place of the arrays of modules of other styles, by identity.
    """

    __slots__ = (
        "alias_error",
        "base",
        "groups",
        "index",
        "leaves",
        "nodes",
        "open",
        "origins",
        "owned",
        "placed",
        "unknown",
        "values",
    )

    def __init__(self, unknown: Hashable = None, alias_error: Callable[..., AliasError] = AliasError) -> None:
        self.base = ""
        self.unknown, self.alias_error = unknown, alias_error
        self.index: dict[int, int] = {}
        self.nodes: list[Any] = []
        self.origins: list[Any] = []
        self.groups: dict[int, str] = {}
        self.open: set[int] = set()
        self.owned: dict[int, type[Variable[Any]]] = {}
        self.placed: dict[tuple[int, Any], str] = {}
        self.leaves: list[Leaf] = []
        self.values: dict[str, dict[str, Any]] = {}

    @property
    def holders(self) -> dict[str, dict[Any, tuple[Any, Any]]]:
        """For each group and key, the variable or the place that a value came from, and the form of the value."""
        found: dict[str, dict[Any, tuple[Any, Any]]] = {}
        for group, key, holder, _, form in self.leaves:
            found.setdefault(group, {})[key] = (holder, form)
        return found

    def define(self, value: Any, path: tuple[Any, ...], prefix: Prefix, place: Place | None = None) -> Definition:
        """Return the definition of any value.

        Args:
            value: the value.
            path: the names and numbers that lead to it.
            prefix: the group of what is below it.
            place: for a part of an attribute, its place.
        """
        kind = type(value)
        if kind in _STATIC:
            return static(value, path) if kind is float else StaticDef(kind, value)
        if isinstance(value, type):  # such as a dtype
            return StaticDef(kind, value)
        if isinstance(value, Variable):
            return self._variable(value, path, prefix)
        if isinstance(value, Pytree):
            return self._object(value, path, prefix)
        if is_array_or_struct(value):
            return self._array(value, path, prefix, place)
        if kind is tuple:
            return SequenceDef(kind, self._items(enumerate(value), path, prefix, place))
        if type(value) in NATIVE:
            return self._container(value, path, prefix, place)
        if kind is set:
            return self._set(value, path)
        return self._other(value, path, prefix, place)

    def _container(self, value: Any, path: tuple[Any, ...], prefix: Prefix, place: Place | None) -> Definition:
        """Return the definition of a list or a dict, which can change in place and be shared."""
        index = self.index.setdefault(id(value), len(self.nodes))
        if index < len(self.nodes):
            return self._again(index, value, path, prefix)
        self.nodes.append(value)
        self.origins.append(prefix if type(prefix) is str else (prefix, self.base))
        items = list(enumerate(value) if type(value) is list else value.items())
        parts = self._items(items, path, prefix, place)
        for (name, _), part in zip(items, parts, strict=True):
            if (group := _array_group(part)) is not None:
                self.placed[id(value), name] = group
        if type(value) is list:
            return SequenceDef(list, parts, index)
        return MappingDef(Keys.of(value, lambda key: self._static(key, path)), parts, index)

    def _set(self, value: set[Any], path: tuple[Any, ...]) -> Definition:
        """Return the definition of a set, which can change in place and be shared, and holds static values only."""
        index = self.index.setdefault(id(value), len(self.nodes))
        if index < len(self.nodes):
            return AgainDef(index)
        self.nodes.append(value)
        self.origins.append("")
        return SequenceDef(set, (self._static(value, path),), index)

    def _items(
        self, items: Iterable[tuple[Any, Any]], path: tuple[Any, ...], prefix: Prefix, place: Place | None
    ) -> tuple[Definition, ...]:
        return tuple([self.define(one, (*path, name), prefix, place and (*place, name)) for name, one in items])

    def _object(self, value: Pytree, path: tuple[Any, ...], prefix: Prefix) -> Definition:
        index = self.index.setdefault(id(value), len(self.nodes))
        if index < len(self.nodes):
            return self._again(index, value, path, prefix)
        self.nodes.append(value)
        self.origins.append(prefix if type(prefix) is str else (prefix, self.base))
        names, parts, marks = [], [], marks_of(value)
        for name, part in attributes_of(value):
            kind = type(part)
            names.append(name)
            if marks and not marks.get(name, True) and is_number(part):  # marked as data
                parts.append(self._array(part, (*path, name), prefix, (value, name)))
            elif kind in _STATIC and kind is not float:  # as `define` does, without its call overhead
                parts.append(StaticDef(kind, part))
            elif isinstance(part, Variable):
                parts.append(self._variable(part, (*path, name), prefix))
            else:
                parts.append(self.define(part, (*path, name), prefix, (value, name)))
        # A body may iterate over the attributes, so their order is part of the definition.
        order = () if type(value)._numbered else tuple(vars(value))
        own = tuple(sorted(own_marks(value).items())) if marks else ()
        return ObjectDef(type(value), index, tuple(names), tuple(parts), own, order)

    def _variable(self, value: Variable, path: tuple[Any, ...], prefix: Prefix) -> Definition:
        index = self.index.setdefault(id(value), len(self.nodes))
        if index < len(self.nodes):
            return self._again(index, value, path, prefix)
        group = self._group(value, path, prefix)
        self.nodes.append(value)
        self.origins.append(prefix if type(prefix) is str else (prefix, self.base))
        self.groups[index] = group
        metadata = self._metadata(value, path, group)
        parts, form = self._variable_parts(value, path)
        if form is not None and not parts:
            return VariableDef(type(value), index, metadata, form, None, None)
        return VariableDef(type(value), index, metadata, form, *self._slot(value, path, group, parts, form))

    def _array(self, value: Any, path: tuple[Any, ...], prefix: Prefix, place: Place | None) -> Definition:
        group = prefix if isinstance(prefix, str) else prefix(path, self.seen(value))
        if place is not None:
            self.placed[id(place[0]), place[1]] = group
        return ArrayDef(*self._array_slot(value, path, group, place))

    def _other(self, value: Any, path: tuple[Any, ...], prefix: Prefix, place: Place | None) -> Definition:
        """Return the definition of a value that JAX may know as a pytree."""
        if jax.tree_util.all_leaves((value,)):
            return self._static(value, path)
        if id(value) in self.open:
            raise contains_itself(value, path_text(path, self.base))
        if is_owner(value):
            self._own(value)
        pairs, structure = children_with_path(value)
        self.open.add(id(value))
        steps, parts = tuple([tuple(map(step_of, keys)) for keys, _ in pairs]), []
        for number, (_, child) in enumerate(pairs):
            parts.append(self.define(child, (*path, *steps[number]), prefix, place and (*place, number)))
        self.open.discard(id(value))
        if all(type(part) is StaticDef for part in parts):
            return self._static(value, path)
        return TreeDef(fixed(structure, path, self.unknown), steps, tuple(parts))

    def _own(self, value: Any) -> None:
        """Record the kinds of the arrays of a module of another style."""
        for leaf, collection in zip(jax.tree.leaves(value), value.__collections__(), strict=True):
            if collection not in (None, CONSTANTS) and is_array_or_struct(leaf):
                self.owned[id(leaf)] = variable_type_from_name(collection, allow_register=True)

    def seen(self, value: Any) -> Any:
        """Return what a filter sees in place of an array: for an array of a module of another style, a variable."""
        kind = self.owned.get(id(value))
        return value if kind is None else kind.from_metadata(value, {})

    # -- what subclasses override -----------------------------------------------------------------------------------

    def _metadata(self, value: Variable, path: tuple[Any, ...], group: str) -> Definition:
        """Return the definition of a variable's metadata."""
        return metadata_definition(value._metadata, path, self._static) if value._metadata else ()

    def _static(self, value: Any, path: tuple[Any, ...]) -> Definition:
        """Return the definition of a static value."""
        return static(value, path, self.unknown)

    def _variable_parts(self, value: Variable, path: tuple[Any, ...]) -> tuple[Any, Any]:
        """Split the value of a variable; see `value_parts`."""
        raw = value._value
        return (raw, None) if type(raw) in SINGLE else value_parts(raw, path, self._static)

    def _group(self, value: Variable, path: tuple[Any, ...], prefix: Prefix) -> str:
        """Return the group of a variable."""
        return prefix if isinstance(prefix, str) else prefix(path, value)

    def _slot(self, holder: Any, path: tuple[Any, ...], group: str, parts: Any, form: Any) -> tuple[str, Any]:
        """Store the value of a variable, or of a place; return its group and key."""
        values = self.values.setdefault(group, {})
        key = self.base + ".".join(map(str, path))
        while key in values:  # names may contain dots, and digits may be names
            key += "'"
        values[key] = parts
        self.leaves.append((group, key, holder, parts, form))
        return group, key

    def _array_slot(self, value: Any, path: tuple[Any, ...], group: str, place: Place | None) -> tuple[str, Any]:
        """Store an array that is an attribute; return its group and key."""
        return Walk._slot(self, place, path, group, value, None)

    # -- one object in two places ------------------------------------------------------------------------------------

    def _again(self, index: int, value: Any, path: tuple[Any, ...], prefix: Prefix) -> Definition:
        """Return the definition of what occurred before, which must have the same groups here."""
        if self.origins[index] != (prefix if type(prefix) is str else (prefix, self.base)):
            if not isinstance(value, Variable):
                self._check_alike(value, path, prefix, set())
            elif (group := self._group(value, path, prefix)) != self.groups[index]:
                raise self._aliased(value, path, self.groups[index], group)
        return AgainDef(index)

    def _check_alike(
        self, value: Any, path: tuple[Any, ...], prefix: Prefix, seen: set[int], known: str | None = None
    ) -> None:
        """Check that a repeated value has the same groups under another prefix.

        Args:
            value: the value, or a part of it.
            path: its path.
            prefix: the group of what is below it.
            seen: the objects, lists and dicts that were checked, by identity.
            known: the group of the arrays in it that are in no object, list or dict inside it; None if there are none.
        """
        if isinstance(value, Variable):
            self._variable(value, path, prefix)
        elif is_array_like(value):
            now = prefix if isinstance(prefix, str) else prefix(path, self.seen(value))
            if known is not None and not self._may_go(known, now):
                raise self._aliased(value, path, known, now)
        elif id(value) not in seen:
            is_node = isinstance(value, Pytree) or type(value) in NATIVE
            if is_node:
                seen.add(id(value))
            for name, part in children_of(value) or ():
                found = self.placed.get((id(value), name)) if is_node else known
                self._check_alike(part, (*path, name), prefix, seen, found)

    def _may_go(self, known: str, group: str) -> bool:
        """Return whether an array that was found in one group may occur in another."""
        return known == group

    def _aliased(self, value: Any, path: tuple[Any, ...], before: str, now: str) -> AliasError:
        found = (key for _, key, holder, parts, *_ in self.leaves if holder is value or parts is value)
        first = next(found, "in an earlier place").removesuffix(".")
        return self.alias_error(value, path_text(path, self.base), first, before, now)


def _array_group(definition: Definition) -> str | None:
    """Return the group of an array, or of the first array in a tuple or another pytree; None if there is none."""
    kind = type(definition)
    if kind is ArrayDef:
        return str(definition.group)
    if kind is not TreeDef and (kind is not SequenceDef or definition.cls is not tuple):
        return None
    return next(filter(None, map(_array_group, definition.parts)), None)


# --- the builder ------------------------------------------------------------------------------------------------------


def value_of(parts: Any, form: Any) -> Any:
    """Return the value of a variable from its parts and its form: the inverse of `value_parts`."""
    return static_value(form) if type(form) is tuple else form.unflatten(parts)


class Builder:
    """Makes objects from definitions.

    Args:
        read: returns the value of a group and a key: `read(group, key)`.
        existing: the objects that are changed in place of new ones, by index in the definitions.

    Attributes:
        table: the objects and variables, by index.
    """

    __slots__ = ("existing", "read", "table", "trace")

    def __init__(self, read: Callable[[str, Any], Any], existing: Mapping[Any, Any] | None = None) -> None:
        self.read, self.existing = read, existing or {}
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
            return self._static(definition)
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
        return self._tree(definition, parts) if kind is TreeDef else tuple(parts)

    def _container(self, definition: SequenceDef | MappingDef, place: tuple[Any, ...] | None) -> Any:
        existing, parts = self.existing.get(definition.number), definition.parts
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
        existing, now = self.existing.get(definition.number), self.build(items)  # a copy, or itself if it has no key
        made = self.table[definition.number] = now if existing is None else existing
        if made is not now:
            self._change_container(made, now)
        return made

    def _keys(self, of: Any) -> Sequence[Any]:
        return [self.build(key) for key in of.keys] if type(of) is Keys else of

    def _object(self, definition: ObjectDef) -> Any:
        made = existing = self.existing.get(definition.number)
        if existing is None:
            made = object.__new__(definition.cls)  # without `__init__`
            object.__setattr__(made, "_trace", self.trace)
            object.__setattr__(made, "_marks", NO_MARKS)
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
        value = () if group is None else self.read(group, key)
        value = value if form is None else value_of(value, form)
        made = self.existing.get(index)
        if made is None:
            made = cls.made(value, self._metadata(cls, metadata, group, value), self.trace)
        else:
            self._change_variable(made, value, self._metadata(cls, metadata, group, value))
        self.table[index] = made
        return made

    def _array(self, definition: ArrayDef, place: tuple[Any, ...] | None) -> Any:
        return self.read(definition.group, definition.key)

    def _static(self, definition: StaticDef) -> Any:
        return static_value(definition)

    def _tree(self, definition: TreeDef, parts: list[Any]) -> Any:
        return definition.structure.value.unflatten(parts)

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
