"""The body's side of the crossing: refs become objects, and their changes are returned to the caller."""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from liftcore import Scope, is_array, trace_state
from liftcore.errors import LiftArgumentError

from ..errors import AliasError, TraceContextError
from ..graph.definition import (
    AgainDef,
    ArrayDef,
    Definition,
    Fixed,
    Keys,
    StaticDef,
    TreeDef,
    VariableDef,
    metadata_definition,
    path_text,
    static_value,
)
from ..graph.walk import SINGLE, Builder, Place, Walk, is_object
from ..objects.markers import DICTS
from ..objects.pytree import Pytree
from ..variablelib.variable import Variable
from .groups import Change, Choose, Group, Groups, Name, Ref, Still, holds_objects, is_ref, named_by, parts_of
from .kept import Contents, is_fixed

__all__ = [
    "PARTITION_NAME",
    "AxisNames",
    "Inside",
    "Stays",
    "check_no_filters",
    "encode",
    "encode_part",
]


# --- axis names: a variable loses one when it enters a mapping, and gains it when it leaves ---------------------------

PARTITION_NAME = "partition_name"
"""The key of `transform_metadata` for the name of the axis that variables gain."""

_SHARDINGS = ("out_sharding", "optimizer_sharding")
"""The metadata that names the axes of a variable, and of the state of an optimizer for it."""


def _is_told_of_axes(kind: type[Any]) -> bool:
    """Return whether a type of variables overrides the methods for gaining or losing an axis."""
    return kind.add_axis is not Variable.add_axis or kind.remove_axis is not Variable.remove_axis


class AxisNames:
    """The changes that a transformation makes to metadata.

    Args:
        axes: the axis of each group: an int, or another value for a group without an axis.
        transform_metadata: the name of the axis under `PARTITION_NAME`, and other items to insert in metadata tuples.
    """

    def __init__(self, axes: Mapping[str, Any], transform_metadata: Mapping[str, Any]) -> None:
        self.axes = axes
        self.name = transform_metadata.get(PARTITION_NAME)
        self.gains = {key: value for key, value in transform_metadata.items() if key != PARTITION_NAME}

    def is_told(self, variable: Variable[Any]) -> bool:
        """Return whether a variable has hooks for axes, which run when it enters and leaves."""
        metadata = variable._metadata
        return _is_told_of_axes(type(variable)) or "on_add_axis" in metadata or "on_remove_axis" in metadata

    def changed(
        self, kind: type[Any], metadata: dict[str, Any], group: str, value: Any, *, gains: bool
    ) -> dict[str, Any]:
        """Return the metadata of a variable as the caller sees it, if it gains an axis name, or as a body sees it.

        Args:
            kind: the type of the variable.
            metadata: its metadata on the other side.
            group: its group.
            value: its value inside.
            gains: whether it leaves.
        """
        axis = self.axes.get(group)
        if type(axis) is not int or not (metadata or _is_told_of_axes(kind)):
            return metadata
        changed, place = dict(metadata), axis if axis >= 0 else _rank(value) + 1 + axis
        for key, name in {**dict.fromkeys(_SHARDINGS, self.name), **self.gains}.items():
            names = changed.get(key)
            if names and isinstance(names, (tuple, jax.sharding.PartitionSpec)):
                now = _with(tuple(names), place, name) if gains else _without(tuple(names), place)
                changed[key] = now if isinstance(names, tuple) else jax.sharding.PartitionSpec(*now)
        variable = kind.made(None, changed, trace_state())  # runs the hooks of its class and its own
        (variable.add_axis if gains else variable.remove_axis)(axis, self.name)
        found: dict[str, Any] = variable._metadata
        return found


def _rank(value: Any) -> int:
    return max(map(np.ndim, jax.tree.leaves(value)), default=0)


def _with(names: tuple[Any, ...], place: int, name: Any) -> tuple[Any, ...]:
    padded = [*names, *[None] * (place - len(names))]
    return (*padded[:place], name, *padded[place:])


def _without(names: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return names[:place] + names[place + 1 :]


# --- the body's side --------------------------------------------------------------------------------------------------

Stays = bool | Callable[[str, str], bool]
"""Whether a variable keeps the group that it came in with where it is found in another one: `stays(known, group)`."""

_NEW = object()
_NOTHING: Any = (None, None)


class Inside:
    """A body's side of one call.

    Args:
        scope: the scope inside.
        groups: the groups of the transformation.
        names: the changes that the transformation makes to axis names.
    """

    def __init__(self, scope: Scope, groups: Groups, names: AxisNames | None = None) -> None:
        self.scope, self.groups, self.names = scope, groups, names
        self.values = scope.collections_below()
        self.builder = _InnerBuilder(self.values, names)
        self.given: list[tuple[Ref, Any]] = []
        self._made: list[tuple[_Made, Contents]] = []

    def decode(self, tree: Any) -> Any:
        """Return the pytree with an object in place of each `Ref`, and with static arguments as they were given."""
        before = len(self.builder.table)
        decoded = jax.tree.map(self._decoded, tree, is_leaf=is_ref)
        made = _Made.of(list(self.builder.table.values())[before:])
        self._made.append((made, Contents(*made)))
        return decoded

    def _decoded(self, leaf: Any) -> Any:
        if type(leaf) is Still:
            return static_value(leaf.definition)
        if type(leaf) is not Ref:
            return leaf
        made = self.builder.build(leaf.definition)
        self.given.append((leaf, made))
        return made

    def encode(
        self, result: Any, prefix: Any, what: str = "out_axes", stays: Stays = False, name: Name = "result"
    ) -> tuple[Any, Any, Change]:
        """Return what goes back to the caller: the result with refs, values that the scope does not carry, changes.

        Args:
            result: a pytree that may hold objects.
            prefix: the encoded groups of new variables in it; a pytree prefix.
            what: the name of that prefix in errors.
            stays: whether a variable keeps the group that it came in with where the prefix has another one. If not, the
                two must be the same.
            name: the name of the result in errors, or a function that names its parts.

        Returns:
            The result with a `Ref` for each object; for each group, a list of new values, and by key the values that
            cannot be written in the scope; and the change of the structure.
        """
        home: dict[str, Any] = {name: ([], {}) for name in self.groups.specs}
        written = None if holds_objects(result) else self._only_written()
        if written is not None:
            encode(Walk(), self.groups, result, prefix, name, what)  # only checks the prefix: there is nothing to walk
            self._write(written, home)
            return result, home, Change(None, tuple(range(len(self.builder.table))))
        walk = _InnerWalk(self, stays is True)
        definitions = walk.again()
        known = {id(node): index for index, node in self.builder.table.items()}
        was = [known.get(id(node)) for node in walk.nodes]
        same = definitions == tuple([ref.definition for ref, _ in self.given]) and was == list(range(len(known)))
        walk.stays = stays
        result = encode(walk, self.groups, result, prefix, name, what)
        for group, values in walk.fresh.items():
            home.setdefault(group, ([], {}))[0].extend(values)
        self._write([(group, key, parts) for group, key, _, parts, *_ in walk.leaves], home)
        came_from = tuple([known.get(id(node)) for node in walk.nodes])
        return result, home, Change(None if same else definitions, came_from)

    def group_of(self, value: Variable) -> str | None:
        """Return the group that a variable came in with; None for a new variable."""
        found: str | None = self.builder.slots.get(id(value), _NOTHING)[0]
        return found

    def _only_written(self) -> list[tuple[str, str, Any]] | None:
        """Return the values of all variables if the body changed nothing else; None if another walk is needed."""
        if self.names is not None or self.builder.may_change or not all(was.are_in(*made) for made, was in self._made):
            return None
        slots = self.builder.slots
        values = [(*slots[id(variable)], variable._value) for made, _ in self._made for variable in made.variables]
        kinds = {type(value) for _, _, value in values}
        return values if all(kind in SINGLE or issubclass(kind, jax.core.Tracer) for kind in kinds) else None

    def _write(self, values: list[tuple[str, str, Any]], home: dict[str, Any]) -> None:
        """Write values that changed, by identity: a different value with equal contents is also written."""
        for group, key, parts in values:
            given = self.values[group][key]
            if parts is not given and not _are_same(parts, given):
                if self.scope.is_mutable_collection(group):
                    self.scope.put_variable(group, key, parts)
                else:
                    home[group][1][key] = parts


class _Made(NamedTuple):
    """What a builder made, except for sets."""

    objects: list[Pytree]
    variables: list[Variable[Any]]
    dicts: list[Any]
    lists: list[Any]

    @classmethod
    def of(cls, nodes: list[Any]) -> _Made:
        """Return the nodes by their type."""
        return cls(
            [node for node in nodes if isinstance(node, Pytree)],
            [node for node in nodes if isinstance(node, Variable)],
            [node for node in nodes if type(node) in DICTS],
            [node for node in nodes if type(node) is list],
        )


def _are_same(now: Any, given: Any) -> bool:
    """Return whether the parts of two values are the same; a value that is one leaf is compared before."""
    if type(now) is not tuple or type(given) is not tuple or len(now) != len(given):
        return False
    return all(map(operator.is_, now, given))


class _InnerBuilder(Builder):
    """A builder that records where each value came from, and shows metadata as a body sees it."""

    __slots__ = ("arrays", "described", "may_change", "names", "slots", "unknown")

    def __init__(self, values: Any, names: AxisNames | None) -> None:
        super().__init__(lambda group, key: values[group][key])
        self.names = names
        self.slots: dict[int, Any] = {}
        self.described: dict[int, Any] = {}
        self.arrays: dict[Place, Any] = {}
        self.unknown: dict[int, Definition] = {}
        """Objects without a static key, by identity, as the caller passed them."""
        self.may_change = False
        """Whether the body got something that can change in place, other than an object, variable, list or dict."""

    def _static(self, definition: StaticDef) -> Any:
        value = definition.value
        if type(value) is not Fixed:
            return value
        if not value.has_key:
            self.unknown[id(value.value)] = definition
        self.may_change = self.may_change or not is_fixed(value.value)
        return super()._static(definition)

    def _tree(self, definition: TreeDef, parts: list[Any]) -> Any:
        self.may_change = True
        return super()._tree(definition, parts)

    def _keys(self, of: Any) -> Sequence[Any]:
        self.may_change = self.may_change or type(of) is Keys  # also the `default_factory` of a defaultdict
        return super()._keys(of)

    def _variable(self, definition: VariableDef) -> Any:
        made = super()._variable(definition)
        self.slots[id(made)] = definition.group, definition.key
        self.may_change = self.may_change or definition.form is not None
        if self.names is not None and definition.metadata:
            self.described[id(made)] = made._metadata, definition.metadata
        return made

    def _array(self, definition: ArrayDef, place: Place | None) -> Any:
        if place is not None:
            self.arrays[id(place[0]), *place[1:]] = definition.group, definition.key
        return super()._array(definition, place)

    def _metadata(self, kind: type[Any], definition: Definition, group: Any, value: Any) -> dict[str, Any]:
        metadata = {name: self._static(one) for name, one in definition}
        return metadata if self.names is None else self.names.changed(kind, metadata, group, value, gains=False)


class _InnerWalk(Walk):
    """A walk that recognizes values that came in: these keep their group and key; all others are new.

    Attributes:
        fresh: the new values by group. The key of a new value is its number.
        stays: see `Inside.encode`.
    """

    __slots__ = ("fresh", "inside", "stays", "trace")

    def __init__(self, inside: Inside, stays: Stays) -> None:
        super().__init__(None, inside.groups.alias_error)
        self.inside, self.trace, self.stays = inside, trace_state(), stays
        self.fresh: dict[str, list[Any]] = {}

    def again(self) -> tuple[Definition, ...]:
        """Return the current definitions of the objects that came in, then of those that were removed from them."""
        found = []
        for ref, made in self.inside.given:
            self.base = ref.base
            found.append(self.define(made, (), ref.prefix))
        table = self.inside.builder.table
        if not all(id(node) in self.index for node in table.values()):
            found += self._left(table)
        return tuple(found)

    def _left(self, table: dict[int, Any]) -> list[Definition]:
        """Return the definitions of objects that came in and were removed; a caller may still hold them."""
        refs = [ref for ref, _ in self.inside.given if type(ref.definition) is not AgainDef]
        firsts = [ref.definition.number for ref in refs]
        found = []
        for index, node in table.items():
            if id(node) not in self.index:
                ref = refs[bisect.bisect(firsts, index) - 1]
                self.base = ref.base
                found.append(self.define(node, (), functools.partial(self._as_it_came, ref.prefix)))
        return found

    def _as_it_came(self, prefix: Any, path: tuple[Any, ...], value: Any) -> str:
        known = self.inside.group_of(value)
        if known is not None:
            return known
        group: str = prefix if type(prefix) is str else prefix(path, value)
        return group

    def _group(self, value: Variable, path: tuple[Any, ...], prefix: Any) -> str:
        if self.stays is False:
            return super()._group(value, path, prefix)
        known = self.groups.get(self.index[id(value)]) or self.inside.group_of(value)
        if known is not None and self.stays is True:
            return known
        group = super()._group(value, path, prefix)
        return known if known is not None and self._may_go(known, group) else group

    def _metadata(self, value: Variable, path: tuple[Any, ...], group: str) -> Definition:
        names = self.inside.names
        given, outside = self.inside.builder.described.get(id(value), _NOTHING)
        if given is value._metadata and not (names and names.is_told(value)):  # the axis name that it lost is known
            return outside
        if names is None or not (value._metadata or _is_told_of_axes(type(value))):
            return super()._metadata(value, path, group)
        changed = names.changed(type(value), value._metadata, group, value.get_raw_value(), gains=True)
        return metadata_definition(changed, path, self._static)

    def _static(self, value: Any, path: tuple[Any, ...]) -> Definition:
        now = super()._static(value, path)  # raises an error if a body stored an array where it would be lost
        return self.inside.builder.unknown.get(id(value), now)

    def _slot(self, value: Variable, path: tuple[Any, ...], group: str, parts: Any, form: Any) -> tuple[str, Any]:
        found = self.inside.builder.slots.get(id(value), _NEW)
        if found is _NEW and value._trace != self.trace:
            where = f"the {type(value).__name__} at {path_text(path, self.base)}"
            what = "it was created outside the transformation, and the result contains it."
            fix = "Pass the object that holds it as an argument of the transformed function, not by closure."
            raise TraceContextError(where, what, fix, variable=path_text(path, self.base))
        if found is _NEW or found[0] is None:
            return self._new(group, parts)
        if found[0] != group:
            known, groups = found[1].removesuffix("."), self.inside.groups.by_name
            raise AliasError(
                f"the {type(value).__name__} at {path_text(path, self.base)}",
                f"it enters as {known} {groups[found[0]].words}, and cannot leave {groups[group].words}.",
                "Return a copy, `nnx.clone`, or treat it the same way as an input and as an output.",
                variable=path_text(path, self.base),
                expected=groups[found[0]].words,
                given=groups[group].words,
            )
        self.leaves.append((*found, value, parts, form))
        return found

    def _array_slot(self, value: Any, path: tuple[Any, ...], group: str, place: Place | None) -> tuple[str, Any]:
        found = None if place is None else self.inside.builder.arrays.get((id(place[0]), *place[1:]))
        if found is None or found[0] != group:
            return self._new(group, value)
        self.leaves.append((*found, place, value, None))
        return found

    def _may_go(self, known: str, group: str) -> bool:
        return known == group or (self.stays(known, group) if callable(self.stays) else self.stays)

    def _new(self, group: str, parts: Any) -> tuple[str, int]:
        values = self.fresh.setdefault(group, [])
        values.append(parts)
        return group, len(values) - 1


def encode(walk: Walk, groups: Groups, tree: Any, prefix: Any, name: Name, what: str) -> Any:
    """Return a pytree with a `Ref` for each object in it.

    Args:
        walk: takes the values.
        groups: the groups; they name the transformation in errors.
        tree: the pytree.
        prefix: the encoded groups of what is in it; a pytree prefix.
        name: the name of the pytree in errors, or a function that names its parts; the keys of values begin with it.
        what: the name of the prefix in errors.
    """
    parts, structure = parts_of(groups, tree, prefix, name, what)
    encoded = [encode_part(walk, groups, part, group, base, what) for base, group, part in parts]
    return encoded[0] if structure is None else jax.tree.unflatten(structure, encoded)


def encode_part(walk: Walk, groups: Groups, tree: Any, group: Group | Choose, name: Name, what: str) -> Any:
    """Do the work of `encode` for a part of a pytree that has one group."""
    if is_object(tree):
        walk.base = f"{named_by(name, ())}."
        prefix = group.name if isinstance(group, Group) else group
        return Ref(walk.define(tree, (), prefix), prefix, walk.base)
    if not group.many:
        check_no_filters(groups, tree, what)
    if not holds_objects(tree):
        return tree
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)
    parts = [
        encode_part(walk, groups, leaf, group, named_by(name, path), what) if is_object(leaf) else leaf
        for path, leaf in pairs
    ]
    return jax.tree.unflatten(structure, parts)


def check_no_filters(groups: Groups, tree: Any, what: str) -> None:
    """Raise an error for a pytree whose prefix has filters of variables: they apply to one object.

    Args:
        groups: the groups; they name the transformation in errors.
        tree: the pytree, which is no object. Without leaves, no prefix matters.
        what: the name of the prefix in errors.
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_object)
    if any(map(is_object, leaves)):
        raise LiftArgumentError(
            groups.where,
            f"`{what}` has filters of variables for a {type(tree).__name__} of objects; they apply to one object.",
            f"Give `{what}` the same structure, with one for each object.",
            option=what,
        )
    if leaves:
        given = "an array" if is_array(leaves[0]) else f"a {type(leaves[0]).__name__}"
        raise LiftArgumentError(
            groups.where,
            f"`{what}` has filters of variables here, but expects an object for them; given {given}.",
            f"Give one {groups.label} for it.",
            option=what,
            expected="an object",
            given=given,
        )
