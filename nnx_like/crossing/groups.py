"""What crosses: groups of variables, which a transformation treats in the same way, their values, and references.

A user says how to treat variables by a prefix of the arguments: an axis, a sharding, or a `ByFilter` with several of
them. `Groups.encode` turns it into a prefix of groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey

from liftcore import InPlace, is_array
from liftcore.caches import bounded
from liftcore.errors import LiftArgumentError, UnmatchedFilterError

from ..errors import AliasError
from ..filterlib import Everything, PathIn, Predicate, filters_to_predicates, to_predicate
from ..graph.definition import Definition, described, path_text
from ..graph.walk import is_object
from ..statelib.state import State
from ..variablelib.variable import Variable

__all__ = [
    "ByFilter",
    "Change",
    "Choose",
    "Donation",
    "Group",
    "Groups",
    "Name",
    "Plain",
    "Ref",
    "Still",
    "Values",
    "alike",
    "axis_of",
    "holds_objects",
    "in_axis_words",
    "in_call",
    "is_ref",
    "is_spec",
    "named_by",
    "names_of",
    "parts_of",
    "refs_in",
]


# --- names of the parts of a call -------------------------------------------------------------------------------------

Name = str | tuple[str, ...] | Callable[[tuple[Any, ...]], str]
"""The name of a pytree in errors; or those of the items of a tuple; or a function from a JAX path to the name there."""


def named_by(name: Name, path: tuple[Any, ...]) -> str:
    """Return the name of a part of a pytree, for errors.

    Args:
        name: the name of the pytree, the names of its items, or a function that names its parts.
        path: the JAX path of the part.
    """
    if isinstance(name, str):
        return name + jax.tree_util.keystr(path)
    if isinstance(name, tuple):
        return name[path[0].idx] + jax.tree_util.keystr(path[1:]) if path else ""
    return name(path)


@bounded(512)
def names_of(structure: Any, name: Name) -> tuple[str, ...]:
    """Return the name of each leaf of a pytree, for errors.

    Args:
        structure: the structure of the pytree.
        name: see `named_by`.
    """
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    return tuple([named_by(name, path) for path, _ in jax.tree_util.tree_leaves_with_path(numbered)])


def in_call(path: tuple[Any, ...]) -> str:
    """Return the name of a part of a pair `(args, kwargs)`: `[0]` for the first argument, `model` for a keyword one."""
    if len(path) < 2:
        return ""
    return jax.tree_util.keystr(path[1:]) if path[0].idx == 0 else path[1].key + jax.tree_util.keystr(path[2:])


# --- specs by filter --------------------------------------------------------------------------------------------------


class ByFilter(Mapping[Any, Any]):
    """Assigns an axis, a sharding or a spec to the variables of an object, filter by filter.

    Use it in place of a single axis, sharding or spec for an object. The first filter that matches a variable applies.
    It is a mapping from the filters to these.

    Args:
        rules: a mapping from filters to axes, shardings or specs; or pairs of these; or a state with one of them at the
            path of each variable, such as `get_named_sharding` returns.
    """

    def __init__(self, rules: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        if isinstance(rules, State):
            rules = _by_path(rules)
        self.rules = tuple(rules.items() if isinstance(rules, Mapping) else rules)

    @property
    def filters(self) -> tuple[Any, ...]:
        """The filters, in order."""
        return tuple([one for one, _ in self.rules])

    @property
    def specs(self) -> tuple[Any, ...]:
        """The axis, sharding or spec of each filter, in order."""
        return tuple([spec for _, spec in self.rules])

    def __getitem__(self, key: Any) -> Any:
        for one, spec in self.rules:
            if one == key:
                return spec
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.rules)

    def __bool__(self) -> bool:
        return True  # as an axis, it is one even if it has no rule

    def map_prefix(self, path: tuple[Any, ...], variable: Any) -> Any:
        """Return the axis, sharding or spec of a variable.

        Args:
            path: the path of the variable in the object.
            variable: the variable.

        Raises:
            UnmatchedFilterError: if no filter matches it.
        """
        for one, spec in self.rules:
            if to_predicate(one)(path, variable):
                return spec
        raise _unmatched(path, variable, self.filters)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash((type(self), self.rules))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({{{', '.join(f'{one!r}: {spec!r}' for one, spec in self.rules)}}})"


def _by_path(state: State) -> list[tuple[Any, Any]]:
    """Return filters of paths, one for all variables with the same spec."""
    found: list[tuple[Any, list[Any]]] = []
    for path, spec in _leaves(state, ()):
        alike_ones = next((paths for known, paths in found if alike(known, spec)), None)
        if alike_ones is None:
            found.append((spec, [path]))
        else:
            alike_ones.append(path)
    return [(PathIn(*paths), spec) for spec, paths in found]


def _leaves(node: Any, path: tuple[Any, ...]) -> Iterable[tuple[tuple[Any, ...], Any]]:
    if not isinstance(node, Mapping):
        # `get_named_sharding` and similar functions return a state of variables that hold the specs.
        return [(path, node.get_raw_value() if isinstance(node, Variable) else node)]
    return [pair for name in node for pair in _leaves(node[name], (*path, name))]


def _unmatched(path: tuple[Any, ...], value: Any, filters: Iterable[Any]) -> UnmatchedFilterError:
    where = f"the {type(value).__name__} at {path_text(path)}"
    what = f"no filter matches it (filters: {', '.join(map(repr, filters))})."
    return UnmatchedFilterError(where, what, "Add one for the remaining variables: `...`.", variable=path_text(path))


def is_spec(prefix: Any) -> bool:
    """Return whether a part of a prefix applies to everything below it."""
    leaf = (ByFilter, jax.sharding.PartitionSpec, jax.sharding.Sharding)
    return prefix is None or isinstance(prefix, leaf) or is_object(prefix)


def alike(first: Any, second: Any) -> bool:
    """Return whether two specs are the same."""
    return type(first) is type(second) and bool(first == second)


# --- groups -----------------------------------------------------------------------------------------------------------


_EVERYTHING = Everything()


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The variables that a transformation treats alike: a collection of the scope in which they cross.

    As a prefix of a pytree, it takes all variables below. In a `Choose`, it takes those that its filter matches.

    Attributes:
        name: the name of the collection.
        spec: what the variables have in common, such as an axis or a sharding.
        words: what errors put after "is" for one of the variables: `on axis 0`.
        filter: a predicate for the variables.
    """

    name: str
    spec: Any = dataclasses.field(compare=False)  # the name stands for it, and it may have no hash
    words: str = dataclasses.field(compare=False)
    filter: Predicate = _EVERYTHING

    many = True
    """Whether it may be the prefix of several objects."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The group, as a `Choose` has them."""
        return (self,)


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Choose:
    """The groups of the variables of an object: each variable goes to the first group whose filter matches it.

    Args:
        groups: the groups.
        many: whether it may be the prefix of several objects; paths begin at each of them.
    """

    groups: tuple[Group, ...]
    many: bool = False

    def __call__(self, path: tuple[Any, ...], value: Any) -> str:
        """Return the name of the group of a variable.

        Raises:
            UnmatchedFilterError: if no filter matches it.
        """
        for group in self.groups:
            if group.filter(path, value):
                return group.name
        raise _unmatched(path, value, [group.filter for group in self.groups])


@dataclasses.dataclass(frozen=True)
class Donation:
    """The spec of variables whose memory the results may reuse.

    Args:
        sharding: their sharding.
    """

    sharding: Any

    def __str__(self) -> str:
        return "donated" if self.sharding is None else f"donated, with sharding {self.sharding}"


class Groups:
    """The groups of a transformation.

    Args:
        where: the name of the transformation in errors, such as `vmap(block)`.
        label: the name of a spec in errors, such as `axis`.
        words: returns the words that errors put after "is" for a variable with a given spec: `on axis 0`.
        groups: the groups that it has from the start.

    Attributes:
        by_name: the groups by name.
        specs: their specs by name.
    """

    def __init__(
        self, where: str, label: str, words: Callable[[Any], str] | None = None, groups: Iterable[Group] = ()
    ) -> None:
        self.where, self.label = where, label
        self._words = words or f"with {label} {{}}".format
        self.by_name = {group.name: group for group in groups}
        self.specs = {group.name: group.spec for group in groups}

    def add(self, group: Group) -> Group:
        """Add a group, and return it."""
        self.by_name[group.name], self.specs[group.name] = group, group.spec
        return group

    def group(self, spec: Any) -> Group:
        """Return the group for a spec. Adds it if it is new."""
        name = f"{self.label} {spec}"
        while name in self.specs and not alike(self.specs[name], spec):  # different specs may print alike
            name += "'"
        return self.by_name.get(name) or self.add(Group(name, spec, self._words(spec)))

    def encode(self, prefix: Any) -> Any:
        """Return the prefix with a `Group`, or a `Choose`, in place of each spec.

        Args:
            prefix: a pytree prefix of axes, shardings and the like, and of `ByFilter`.

        Raises:
            LiftArgumentError: if it contains an object.
        """
        return jax.tree.map(self._encoded, prefix, is_leaf=is_spec)

    def _encoded(self, spec: Any) -> Group | Choose:
        if is_object(spec):
            raise LiftArgumentError(
                self.where,
                f"a {type(spec).__name__} was given as an axis or a sharding; an object cannot be a prefix.",
                f"Give one {self.label} for the whole object, or one for each filter, as in `StateAxes`.",
                given=type(spec).__name__,
            )
        if isinstance(spec, ByFilter):
            pairs = zip(filters_to_predicates(spec.filters), spec.specs, strict=True)
            return Choose(tuple([dataclasses.replace(self.group(each), filter=one) for one, each in pairs]))
        return self.group(spec)

    @property
    def axes(self) -> dict[str, Any]:
        """The axis of each group; see `axis_of`."""
        return {name: axis_of(spec) for name, spec in self.specs.items()}

    def plain(self, prefix: Any, instead: Any = None) -> Any:
        """Return the prefix as JAX accepts it; specs by filter do not apply to arrays and become None."""
        return jax.tree.map(
            lambda spec: instead if isinstance(spec, ByFilter) else axis_of(spec), prefix, is_leaf=is_spec
        )

    def alias_error(self, value: Any, place: str, first: str, before: str, now: str) -> AliasError:
        """Return the error for one variable in two groups.

        Args:
            value: the variable, or the array.
            place: the second place where it was found, such as `[1].w`.
            first: the first place.
            before: the name of its group at the first place.
            now: the name of its group at the second place.
        """
        one, other = self.by_name[before], self.by_name[now]
        # A copy by `nnx.clone` shares the arrays, so both copies would be donated.
        copy = "jax.tree.map(jnp.copy, …)" if Donation in (type(one.spec), type(other.spec)) else "nnx.clone"
        what = f"it is also {first}, which is {one.words}; here it is {other.words}."
        fix = f"Treat both places the same way, or pass a copy in one of them: `{copy}`."
        return AliasError(f"the {type(value).__name__} at {place}", what, fix, expected=one.words, given=other.words)


def in_axis_words(axis: Any) -> str:
    """Return the words that errors put after "is" for variables on an axis."""
    if axis is None:
        return "on no axis"
    if isinstance(axis, InPlace):
        return f"on axis {axis.axis}, in place"
    return f"on axis {axis}" if type(axis) is int else "in the carry"


def axis_of(spec: Any) -> Any:
    """Return the axis of a spec that also says that a loop updates variables in place; any other spec as it is."""
    return spec.axis if isinstance(spec, InPlace) and type(spec.axis) is int else spec


# --- a pytree and its prefix ------------------------------------------------------------------------------------------


_GROUPS = (Group, Choose)


def parts_of(groups: Groups, tree: Any, prefix: Any, name: Name, what: str) -> tuple[list[tuple[Any, Any, Any]], Any]:
    """Split a pytree into parts that each have one group, and return how to join them again.

    Args:
        groups: the groups; they name the transformation in errors.
        tree: the pytree.
        prefix: the result of `Groups.encode` for a prefix of the pytree.
        name: the name of the pytree in errors, or a function that names its parts.
        what: the name of the prefix in errors, such as `in_axes`.

    Returns:
        The name, the group and the value of each part; and the structure, None if there is only one part.

    Raises:
        LiftArgumentError: if it is not a prefix.
    """
    if isinstance(prefix, _GROUPS):
        return [(name, prefix, tree)], None
    found: Any
    structure: Any
    found, structure = jax.tree.flatten(prefix)  # groups are leaves
    try:
        parts = structure.flatten_up_to(tree)
    except ValueError:
        fix = "Give one for each of these, or one for all of them."
        raise LiftArgumentError(groups.where, f"`{what}`{_misfit(prefix, tree)}.", fix, option=what) from None
    return list(zip(names_of(structure, name), found, parts, strict=True)), structure


def holds_objects(tree: Any) -> bool:
    """Return whether a pytree contains an object."""
    return any(map(is_object, jax.tree.leaves(tree, is_leaf=is_object)))


def _shown(prefix: Any) -> str:
    """Return the spec of a group, or the one that all groups of a `Choose` have; `…` for anything else."""
    specs = {str(group.spec) for group in prefix.groups} if isinstance(prefix, _GROUPS) else set()
    return specs.pop() if len(specs) == 1 else "…"


def _misfit(prefix: Any, tree: Any, place: str = "") -> str:
    """Return the first place where a prefix does not fit the pytree."""
    outlines = _outline(prefix, _shown), _outline(tree, lambda one: "array" if is_array(one) else type(one).__name__)
    if type(prefix) is type(tree) and isinstance(tree, (tuple, list, dict)) and len(prefix) == len(tree):
        names = prefix if isinstance(prefix, dict) else range(len(prefix))
        pairs = [(name, prefix[name], tree[name]) for name in names if not isinstance(tree, dict) or name in tree]
        for name, one, part in pairs:
            if not isinstance(one, _GROUPS) and (found := _misfit(one, part, f"{place}[{name!r}]")):
                return found
        if not isinstance(tree, dict) or len(pairs) == len(tree):
            return ""
    return f"{place} is {outlines[0]} where the pytree is {outlines[1]}"


def _outline(tree: Any, leaf: Callable[[Any], str]) -> str:
    if isinstance(tree, dict):
        return f"{{{', '.join(f'{name!r}: {leaf(one)}' for name, one in tree.items())}}}"
    if not isinstance(tree, (tuple, list)):
        return f"a {type(tree).__name__}"
    parts = ", ".join(map(leaf, tree))
    return f"[{parts}]" if isinstance(tree, list) else f"({parts}{',' * (len(tree) == 1)})"


# --- references -------------------------------------------------------------------------------------------------------


class Plain(str):
    """A string that prints without quotes, also in place of a leaf of a pytree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _facts(definition: Definition) -> dict[str, Plain]:
    return {path: Plain(text) for path, text in described(definition)}


class _Leafless:
    """A pytree node without leaves. Its contents are compared in C, as a part of the key of each JAX cache."""

    __slots__ = ("_hash", "held")

    def __init__(self, *held: Any) -> None:
        self.held = held
        self._hash = hash(held)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._hash == other._hash and self.held == other.held)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.held!r}"


@jax.tree_util.register_static
class Ref(_Leafless):
    """A reference to an object in a pytree; the values of the object are stored elsewhere.

    Args:
        definition: the definition of the object, from a walk.
        prefix: the groups of what is below it.
        base: the prefix of the keys of its values.
    """

    __slots__ = ()

    definition = property(lambda self: self.held[0])
    prefix = property(lambda self: self.held[1])
    base = property(lambda self: self.held[2])

    def trace_facts(self) -> dict[str, Plain]:
        """Return the static parts of the object by path, from which `liftcore.retraces` reports what changed."""
        return _facts(self.definition)

    def __repr__(self) -> str:
        kind = getattr(self.definition, "cls", None)
        return "the object" if kind is None else str(kind.__name__)


@jax.tree_util.register_static
class Still(_Leafless):
    """A static argument, as its definition."""

    __slots__ = ()

    definition = property(lambda self: self.held[0])

    def trace_facts(self) -> dict[str, Plain]:
        """Return the value, for `liftcore.retraces`."""
        return _facts(self.definition)


@jax.tree_util.register_static
class Change(_Leafless):
    """The changes that a body made to the structure of the objects that it was given.

    Args:
        definitions: the current definition of each of these objects, then of those that were removed from all objects;
            None if nothing changed.
        was: for each index in these definitions, and in those of the result, the index of the object before the call;
            None for a new object.
    """

    __slots__ = ()

    definitions = property(lambda self: self.held[0])
    was = property(lambda self: self.held[1])


is_ref: Callable[[Any], bool] = _Leafless.__instancecheck__
"""Returns whether a part of a pytree is a reference to an object or a static value. JAX calls it on each leaf, in C."""


def refs_in(tree: Any) -> list[Ref]:
    """Return the references to objects in a pytree."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_ref) if type(leaf) is Ref]


# --- the values of a group --------------------------------------------------------------------------------------------


class Values(Mapping[str, Any]):
    """An immutable mapping that JAX sees as a list. The names are in the structure; a dict would be sorted each time.

    Args:
        names: the names, as a static node.
        held: the values, in the same order.
    """

    __slots__ = ("_by_name", "held", "names")

    def __init__(self, names: Still, held: Sequence[Any]) -> None:
        self.names, self.held = names, held
        self._by_name: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        if self._by_name is None:
            self._by_name = dict(zip(self.names.definition, self.held, strict=True))
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.definition)

    def __len__(self) -> int:
        return len(self.held)


def _with_keys(values: Values) -> Any:
    return [*zip(map(DictKey, values.names.definition), values.held, strict=True)], values.names


jax.tree_util.register_pytree_with_keys(
    Values, _with_keys, lambda names, held: Values(names, list(held)), lambda values: (values.held, values.names)
)
