"""Graphs and states: `split`, `merge`, `state`, `update`, `pop`, `clone` and what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax

from liftcore.errors import LiftArgumentError

from ..filterlib import Filter, group
from ..objects.pytree import Pytree, attributes_of, check_live
from ..statelib.state import FlatState, State
from ..variablelib.variable import Variable
from .build import Builder
from .definition import ARRAY, MAPPING, OBJECT, SEQUENCE, TREE, VARIABLE, Definition, path_text
from .walk import Place, Walk, is_object

__all__ = [
    "GraphDef",
    "clone",
    "flatten",
    "graphdef",
    "merge",
    "pop",
    "split",
    "state",
    "unflatten",
    "update",
    "variables",
]

Node = TypeVar("Node")
Path = tuple[Any, ...]


@jax.tree_util.register_static
class GraphDef(Generic[Node]):
    """All that is static about a graph: classes, attributes, references, metadata. It is a pytree without leaves.

    Two are equal where the graphs are alike, by type and value, so a `GraphDef` may be a static argument.

    Attributes:
        definition: the nest of tuples that says it.
    """

    __slots__ = ("definition",)

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    @property
    def type(self) -> Any:
        """The class of the object or the variable; None for another pytree."""
        return self.definition[1] if self.definition[0] in (OBJECT, VARIABLE) else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the values that a graph of it has, in the order of a state."""
        return tuple(_paths(self.definition))

    @property
    def num_leaves(self) -> int:
        """How many values a graph of it has."""
        return len(self.paths)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, GraphDef) and self.definition == other.definition)

    def __hash__(self) -> int:
        return hash(self.definition)

    def __repr__(self) -> str:
        kind = self.type
        return f"GraphDef({kind.__name__ if kind else 'pytree'}, {self.num_leaves} values)"


def _paths(definition: Definition) -> Iterable[Path]:
    kind = definition[0]
    if kind == OBJECT:
        for _, part in definition[3]:
            yield from _paths(part)
    elif kind in (SEQUENCE, MAPPING, TREE):
        for part in definition[2]:
            yield from _paths(part)
    elif kind == ARRAY:
        yield definition[2]
    elif kind == VARIABLE:
        yield definition[6]


class _Listing(Walk):
    """A walk that lists variables, and arrays that are attributes, by their paths."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[Path, Any]] = []

    def _variable_parts(self, value: Variable, path: Path) -> tuple[Any, Any]:
        return None, None  # the variable itself is in the state, whatever it holds

    def _slot(self, value: Variable, path: Path, group: str, parts: Any, form: Any) -> tuple[str, Any]:
        self.pairs.append((path, value))
        return group, path

    def _array_slot(self, value: Any, path: Path, group: str, place: Place | None) -> tuple[str, Any]:
        self.pairs.append((path, value))
        return group, path


def _listed(node: Any) -> tuple[Definition, list[tuple[Path, Any]]]:
    walk = _Listing()
    return walk.define(node, (), ""), walk.pairs


def flatten(node: Any) -> tuple[GraphDef[Any], FlatState]:
    """The definition of a graph, and its variables and arrays by path.

    Example:
        >>> import nnx_like as nnx
        >>> definition, flat = nnx.flatten(nnx.Dict(w=nnx.Param(2.0)))
        >>> [(path, leaf.get_value()) for path, leaf in flat]
        [(('w',), 2.0)]

    Args:
        node: an object, or a pytree that holds objects.
    """
    definition, pairs = _listed(node)
    return GraphDef(definition), FlatState(pairs)


def split(node: Any, *filters: Filter) -> Any:
    """Splits a graph into what is static, and its variables and arrays.

    The states hold the variables of the graph, not copies; `merge` makes new ones of them.

    Example:
        >>> import nnx_like as nnx
        >>> counter = nnx.Dict(count=nnx.Variable(0), w=nnx.Param(2.0))
        >>> graphdef, params, rest = nnx.split(counter, nnx.Param, ...)
        >>> params.to_pure_dict(), rest.to_pure_dict()
        ({'w': 2.0}, {'count': 0})
        >>> nnx.merge(graphdef, params, rest).w.get_value()
        2.0

    Args:
        node: an object, or a pytree that holds objects.
        filters: for each state what it takes; the first that matches counts. Without, there is one state.

    Returns:
        The `GraphDef`, and a `State` for each filter.

    Raises:
        UnmatchedFilterError: where no filter takes a variable.
        LiftArgumentError: where a filter comes after `...`.
    """
    definition, pairs = _listed(node)
    if len(pairs) == 1 and not pairs[0][0]:  # a variable or an array alone has no path
        return GraphDef(definition), pairs[0][1]
    return GraphDef(definition), *[State.from_flat_path(found) for found in group(pairs, filters or (...,))]


def state(node: Any, *filters: Filter) -> Any:
    """The variables and arrays of a graph that filters take.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.state(nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0)), nnx.Param).to_pure_dict()
        {'w': 2.0}

    Args:
        node: an object, or a pytree that holds objects.
        filters: for each state what it takes. Without, it takes all.

    Returns:
        One `State`; for several filters a tuple of them.
    """
    found = [State.from_flat_path(pairs) for pairs in group(_listed(node)[1], filters or (...,), complete=False)]
    return found[0] if len(found) == 1 else tuple(found)


variables = state


def graphdef(node: Any) -> GraphDef[Any]:
    """All that is static about a graph: the first that `split` returns.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.graphdef(nnx.Dict(w=nnx.Param(2.0))) == nnx.graphdef(nnx.Dict(w=nnx.Param(3.0)))
        True

    Args:
        node: an object, or a pytree that holds objects.
    """
    return GraphDef(_listed(node)[0])


def merge(graphdef: GraphDef[Node], /, *states: Any, copy: bool = False, recreate_variables: bool = True) -> Node:
    """Makes a graph of its definition and its values: the inverse of `split`.

    Example:
        >>> import nnx_like as nnx
        >>> graphdef, state = nnx.split(nnx.Dict(w=nnx.Param(2.0)))
        >>> nnx.merge(graphdef, {"w": 3.0}).w
        Param(
          value=3.0
        )

    Args:
        graphdef: what is static.
        states: the values: states, or nested mappings, whose leaves are variables or raw values. A variable brings its
            kind and its metadata, a raw value has those of the definition.
        copy: whether variables are new although `recreate_variables` is false.
        recreate_variables: whether variables are new, and those of the states stay what they are.

    Raises:
        LiftArgumentError: where a value is missing, or is not of the graph.
    """
    if not isinstance(graphdef, GraphDef):
        raise LiftArgumentError(
            "merge", f"expected a GraphDef, given a {type(graphdef).__name__}.", "Write `merge(graphdef, state)`."
        )
    leaves = dict(pairs_of_states(states))
    _check_complete(graphdef, leaves)
    return _Merger(leaves, recreate_variables or copy).build(graphdef.definition)


def unflatten(graphdef: GraphDef[Node], state: Any, /) -> Node:
    """Makes a graph of its definition and its values: the inverse of `flatten`.

    Args:
        graphdef: what is static.
        state: a `FlatState`, a `State`, or the values in a list, in the order of `flatten`.
    """
    if isinstance(state, Sequence) and not isinstance(state, FlatState):
        return merge(graphdef, FlatState(list(zip(graphdef.paths, state, strict=True))))
    return merge(graphdef, state)


class _Merger(Builder):
    """A builder of the leaves of states, by path."""

    __slots__ = ("recreate",)

    def __init__(self, leaves: Mapping[Path, Any], recreate: bool) -> None:
        super().__init__(lambda _, path: leaves[path])
        self.recreate = recreate

    def _variable(self, definition: Definition) -> Any:
        _, cls, index, metadata, _, group, path = definition
        leaf = self.read(group, path)
        if not isinstance(leaf, Variable):
            made = cls.made(leaf, self._metadata(cls, metadata, group), self.trace)
        elif self.recreate:
            made = type(leaf).made(leaf._value, leaf._metadata, self.trace)
        else:
            made = leaf
        self.table[index] = made
        return made


def _check_complete(graphdef: GraphDef[Any], leaves: Mapping[Path, Any]) -> None:
    paths = dict.fromkeys(graphdef.paths)
    missing = [path_text(path) for path in paths if path not in leaves]
    others = [path_text(path) for path in leaves if path not in paths]
    if missing or others:
        listed = [("missing", missing), ("not of the graph", others)]
        said = "; ".join(f"{what}: {', '.join(names)}" for what, names in listed if names)
        raise LiftArgumentError(
            f"merge({graphdef!r})",
            f"the states do not fit ({said}).",
            "Pass all states that `split` gave, and no others.",
        )


def pairs_of_states(states: Iterable[Any]) -> Iterable[tuple[Path, Any]]:
    """The leaves of states, flat states, nested mappings, and of a leaf that stands alone, with their paths."""
    for one in states:
        if isinstance(one, FlatState):
            yield from one
        elif isinstance(one, Mapping):
            yield from (one if isinstance(one, State) else State(one)).flat_state()
        else:
            yield (), one


def clone(node: Node, variables: bool = True, *, arrays: bool = False) -> Node:
    """A copy of a graph: other objects and variables, with the same sharing among them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0))
        >>> copied = nnx.clone(model)
        >>> copied.w.set_value(3.0)
        >>> model.w.get_value()
        2.0

    Args:
        node: an object, or a pytree that holds objects.
        variables: whether variables are copied too; if not, both graphs hold the same.
        arrays: whether arrays are copied too.
    """
    definition, pairs = _listed(node)
    made = _Merger(dict(pairs), variables).build(definition)
    if arrays:
        for _, leaf in _listed(made)[1]:
            if isinstance(leaf, Variable):
                leaf.set_raw_value(jax.tree.map(_copied, leaf.get_raw_value()))
    return made


def _copied(leaf: Any) -> Any:
    return leaf.copy() if hasattr(leaf, "copy") else leaf


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Writes states into the variables of a graph, in place.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0))
        >>> nnx.update(model, {"w": 3.0})
        >>> model.w.get_value(), model.n.get_value()
        (3.0, 0)

    Args:
        node: an object, or a pytree that holds objects.
        state: a state or a nested mapping; it may be of a part of the graph. A leaf that is a variable brings its value
            and its metadata, another leaf a value. A path that the graph has not becomes an attribute.
        states: others.

    Raises:
        LiftArgumentError: where a path leads to what holds no variables.
        TraceContextError: inside a transformation that the graph was not passed to.
    """
    here = dict(_listed(node)[1])
    writes = [(path, leaf, here.get(path)) for path, leaf in pairs_of_states((state, *states))]
    for path, _, found in writes:
        if isinstance(found, Variable):
            found.check_live()
        elif path:
            owner = _owner(node, path)
            if isinstance(owner, Pytree):
                check_live(owner, str(path[-1]))
    for path, leaf, found in writes:
        if not isinstance(found, Variable):
            _put(_owner(node, path), path[-1], leaf)
        elif isinstance(leaf, Variable):
            if leaf is not found:
                found.update_from_state(leaf)
        else:
            found.set_raw_value(leaf)


def _owner(node: Any, path: Path) -> Any:
    """What holds the attribute or the item at a path."""
    for number, name in enumerate(path[:-1]):
        try:
            node = vars(node)[str(name)] if isinstance(node, Pytree) else node[name]
        except (KeyError, IndexError, TypeError) as error:
            raise LiftArgumentError(
                "update", f"nothing is at {path_text(path[: number + 1])} of the graph.", "Make it first."
            ) from error
    return node


def _put(owner: Any, name: Any, leaf: Any) -> None:
    if isinstance(owner, Pytree):
        setattr(owner, str(name), leaf)
    elif isinstance(owner, (list, dict)):
        owner[name] = leaf
    else:
        raise LiftArgumentError(
            "update",
            f"a {type(owner).__name__} holds {name!r}, and cannot be changed.",
            "Keep the value in a `Variable`, a `List` or a list.",
        )


def pop(node: Any, *filters: Filter) -> Any:
    """Takes the variables that filters match out of a graph, wherever it refers to them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), seen=nnx.Intermediate(1.0))
        >>> nnx.pop(model, nnx.Intermediate).to_pure_dict(), list(vars(model))
        ({'seen': 1.0}, ['w'])

    Args:
        node: an object, or a pytree that holds objects.
        filters: for each state what it takes; at least one.

    Returns:
        One `State`; for several filters a tuple of them.
    """
    if not filters:
        raise LiftArgumentError("pop", "no filter says what to take.", "Write `pop(model, nnx.Intermediate)`.")
    walk = _Listing()
    walk.define(node, (), "")
    groups = group([(path, leaf) for path, leaf in walk.pairs if isinstance(leaf, Variable)], filters, complete=False)
    gone = {id(leaf) for pairs in groups for _, leaf in pairs}
    doomed = [
        (owner, name)
        for owner in walk.nodes
        if isinstance(owner, Pytree)
        for name, part in attributes_of(owner)
        if id(part) in gone or (not is_object(part) and _holds(part, gone))
    ]
    for owner, name in doomed:
        check_live(owner, str(name))
    for owner, name in doomed:
        part = vars(owner)[str(name)]
        if id(part) in gone:
            delattr(owner, str(name))
        else:
            vars(owner)[str(name)] = _without(part, gone)
    found = [State.from_flat_path(pairs) for pairs in groups]
    return found[0] if len(found) == 1 else tuple(found)


def _holds(part: Any, gone: set[int]) -> bool:
    """Whether a list or a dict holds one of some variables."""
    if isinstance(part, (list, tuple)):
        return any(id(one) in gone or _holds(one, gone) for one in part)
    return isinstance(part, dict) and any(id(one) in gone or _holds(one, gone) for one in part.values())


def _without(part: Any, gone: set[int]) -> Any:
    if isinstance(part, (list, tuple)):
        return type(part)([_without(one, gone) for one in part if id(one) not in gone])
    if isinstance(part, dict):
        return {name: _without(one, gone) for name, one in part.items() if id(one) not in gone}
    return part
