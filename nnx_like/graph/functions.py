"""Graphs and states: splits a graph into a definition and states, and merges them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import jax

from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError

from ..filterlib import Filter, group
from ..objects.traversal import check_unshared
from ..statelib.functions import GraphState
from ..statelib.state import FlatState, State
from ..variablelib.variable import Variable
from .definition import Definition, ObjectDef, VariableDef, described, entries, from_pickle, path_text, to_pickle
from .walk import Builder, Place, Walk

__all__ = [
    "Caller",
    "GraphDef",
    "Path",
    "PureState",
    "at_known_paths",
    "call",
    "clone",
    "flatten",
    "graphdef",
    "grouped",
    "listed",
    "map",
    "merge",
    "pairs_of_states",
    "split",
    "state",
    "unflatten",
    "unpack",
    "variables",
]


class Caller:
    """A proxy for an object, or a part of it, that is made at each call. Attributes and items select parts.

    Example:
        >>> class Line:
        ...     slope = 2.0
        ...     def at(self, x):
        ...         return self.slope * x
        >>> Caller(Line, lambda line: line.slope).at(3.0)
        (6.0, 2.0)

    Args:
        make: makes the object.
        after: called with the object after each method call; its result is returned together with the method's.
        steps: the attributes and items that lead from the object to this part.
    """

    __slots__ = ("_after", "_make", "_steps")

    def __init__(
        self, make: Callable[[], Any], after: Callable[[Any], Any], steps: tuple[Callable[[Any], Any], ...] = ()
    ) -> None:
        self._make, self._after, self._steps = make, after, steps

    def __getattr__(self, name: str) -> Caller:
        if name[:2] == "__":  # Python's protocols look these up on this object
            raise AttributeError(name)
        return Caller(self._make, self._after, (*self._steps, lambda value: getattr(value, name)))

    def __getitem__(self, key: Any) -> Caller:
        return Caller(self._make, self._after, (*self._steps, lambda value: value[key]))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Make the object, and call it or the selected part.

        Args:
            *args: the arguments of the method.
            **kwargs: the keyword arguments.

        Returns:
            The result of the method, and of `after`.
        """
        made = method = self._make()
        for step in self._steps:
            method = step(method)
        return method(*args, **kwargs), self._after(made)


Node = TypeVar("Node")
Path = tuple[Any, ...]


@jax.tree_util.register_static
class GraphDef(Generic[Node]):
    """The static part of a graph: classes, attributes, references, metadata. It is a pytree without leaves.

    Two definitions are equal if the static parts of their graphs are equal by type and value, so you can pass a
    `GraphDef` as a static argument.

    Example:
        >>> import nnx_like as nnx
        >>> graphdef = nnx.graphdef(nnx.Dict(a=nnx.Param(1.0), b=nnx.Dict(c=nnx.Param(2.0))))
        >>> graphdef.type.__name__, graphdef.num_leaves, graphdef.paths
        ('Dict', 2, (('a',), ('b', 'c')))

    Attributes:
        definition: the named tuples that describe the graph.
    """

    __slots__ = ("definition",)

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    @property
    def type(self) -> Any:
        """The class of the object or the variable; None for any other pytree."""
        return self.definition.cls if isinstance(self.definition, ObjectDef | VariableDef) else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the values in the graph, in the order of a state."""
        return tuple([one.key for _, one in entries(self.definition)])

    @property
    def num_leaves(self) -> int:
        """The number of values in the graph."""
        return len(self.paths)

    def apply(self, state: Any, *states: Any, graph: bool | None = None) -> Any:
        """Return an object that calls methods of the graph with these values; see `call`.

        Args:
            state: a state.
            *states: more states.
            graph: True, like None, means the only mode there is: variables may be shared. False forbids it.
        """
        if graph is False:
            check_unshared("apply", {"model": merge(self, state, *states)})
        return _caller(self, (state, *states))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, GraphDef) and self.definition == other.definition)

    def __hash__(self) -> int:
        return hash(self.definition)

    def __reduce__(self) -> Any:
        return _unpickled, (to_pickle(self.definition),)

    def __repr__(self) -> str:
        (_, kind), *parts = described(self.definition)
        lines = [f"\n  {path.removeprefix('.')}: {text}" for path, text in parts]
        return f"GraphDef({kind}, {self.num_leaves} values{''.join([',', *lines, chr(10)]) if lines else ''})"


def _unpickled(definition: Definition) -> GraphDef[Any]:
    return GraphDef(from_pickle(definition))


PureState: TypeAlias = tuple[GraphDef[Node], State]
"""The result of `split` without filters: a `GraphDef` and a `State`."""


class _Listing(Walk):
    """A walk that lists variables, and arrays that are attributes, by their paths."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[Path, Any]] = []

    def _variable_parts(self, value: Variable, path: Path) -> tuple[Any, Any]:
        return None, None  # the state holds the variable itself, whatever its value is

    def _slot(self, value: Variable, path: Path, group: str, parts: Any, form: Any) -> tuple[str, Any]:
        self.pairs.append((path, value))
        return group, path

    def _array_slot(self, value: Any, path: Path, group: str, place: Place | None) -> tuple[str, Any]:
        self.pairs.append((path, value))
        return group, path


def listed(node: Any) -> tuple[Definition, list[tuple[Path, Any]]]:
    """Return the definition of a graph, and its variables and arrays by path."""
    walk = _Listing()
    return walk.define(node, (), ""), walk.pairs


def grouped(
    node: Any, filters: Sequence[Filter], complete: bool = False, where: str = "split"
) -> tuple[Definition, list[Any]]:
    """Return the definition of a graph, and for each filter the variables and arrays that go to it, by path.

    Args:
        node: an object, or a pytree that holds objects.
        filters: the filters; see `filterlib.group`.
        complete: whether a value that no filter matches is an error.
        where: the name of the caller, for errors.
    """
    walk = _Listing()
    definition = walk.define(node, (), "")
    if not walk.owned:
        return definition, group(walk.pairs, filters, complete, where)
    held = dict(walk.pairs)
    groups = group([(path, walk.seen(value)) for path, value in walk.pairs], filters, complete, where)
    return definition, [[(path, held[path]) for path, _ in pairs] for pairs in groups]


def split(node: Any, *filters: Filter) -> Any:
    """Split a graph into its static part, and states with its variables and arrays.

    The states hold the variables of the graph, not copies, and `merge` makes another graph of the same variables.

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
        filters: one filter for each state; a variable goes to the first one that matches it. Without filters, there is
            one state.

    Returns:
        The `GraphDef`, and a `State` for each filter.

    Raises:
        UnmatchedFilterError: if no filter matches a variable.
        LiftArgumentError: if a filter comes after `...`, or asks for a name and matches nothing.
    """
    definition, groups = grouped(node, filters or (...,), complete=True)
    return GraphDef(definition), *[_state_of(pairs) for pairs in groups]


def _state_of(pairs: list[tuple[Path, Any]]) -> Any:
    """Return the state of some variables. A variable or an array that is the whole graph is its own state."""
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    return State.from_flat_path(pairs)


def state(node: Any, *filters: Filter) -> Any:
    """Return the variables and arrays of a graph that filters match.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.state(nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(0)), nnx.Param).to_pure_dict()
        {'w': 2.0}

    Args:
        node: an object, or a pytree that holds objects.
        filters: one filter for each state. Without filters, the state has all variables.

    Returns:
        One `State`; for several filters a tuple of them.

    Raises:
        LiftArgumentError: if a filter asks for a name, and matches nothing. Write `(PathContains("bias"), None)` for
            what may be missing.
    """
    found = [_state_of(pairs) for pairs in grouped(node, filters or (...,), where="state")[1]]
    return found[0] if len(found) == 1 else tuple(found)


variables = state


def graphdef(node: Any) -> GraphDef[Any]:
    """Return the static part of a graph: the first value that `split` returns.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.graphdef(nnx.Dict(w=nnx.Param(2.0))) == nnx.graphdef(nnx.Dict(w=nnx.Param(3.0)))
        True

    Args:
        node: an object, or a pytree that holds objects.
    """
    return GraphDef(listed(node)[0])


def merge(graphdef: Any, /, *states: Any, copy: bool = False, recreate_variables: bool = True) -> Any:
    """Make a graph from its definition and its values: the inverse of `split`.

    Example:
        >>> import nnx_like as nnx
        >>> graphdef, state = nnx.split(nnx.Dict(w=nnx.Param(2.0)))
        >>> nnx.merge(graphdef, {"w": 3.0}).w
        Param(
          value=3.0
        )

    Args:
        graphdef: the static part; or a `GraphState`, which holds the values as well.
        states: states, or nested mappings, whose leaves are variables or raw values. A variable becomes a part of the
            new graph. A raw value gets the kind and the metadata of the definition.
        copy: whether the graph gets copies of the variables.
        recreate_variables: whether a raw value is wrapped in a variable of the kind in the definition. If False, the
            attribute is the raw value.

    Returns:
        New objects, as the definition describes them.

    Raises:
        LiftArgumentError: if a value is missing, the graph has no such path, or a leaf is a variable of another
            library.
    """
    if isinstance(graphdef, GraphState):
        others = [one for one in states if not isinstance(one, GraphState) or one._graphdef != graphdef._graphdef]
        if others:
            raise LiftArgumentError(
                "merge",
                f"a {type(others[0]).__name__} follows a GraphState, and is not a GraphState of the same graph.",
                "Pass exactly the values that `unpack` returned.",
                expected="a GraphState",
                given=type(others[0]).__name__,
            )
        graphdef, states = graphdef._graphdef, (graphdef, *states)
    if not isinstance(graphdef, GraphDef):
        given = f"a {type(graphdef).__name__}"
        what = Expected("a GraphDef", given, words=given)
        raise LiftArgumentError("merge", what, "Write `merge(graphdef, state)`.")
    leaves = at_known_paths(pairs_of_states("merge", states), graphdef.paths)
    _check_complete(graphdef, leaves)
    return _Merger(leaves, copy, recreate_variables).build(graphdef.definition)


class _Merger(Builder):
    """A builder that takes the leaves of states by path."""

    __slots__ = ("copy", "recreate")

    def __init__(self, leaves: Mapping[Path, Any], copy: bool, recreate: bool = True) -> None:
        super().__init__(lambda _, path: leaves[path])
        self.copy, self.recreate = copy, recreate

    def _variable(self, definition: Definition) -> Any:
        cls, index, metadata, _, group, path = definition
        leaf = self.read(group, path)
        if not isinstance(leaf, Variable):
            made = leaf if not self.recreate else cls.made(leaf, self._metadata(cls, metadata, group, leaf), self.trace)
        elif self.copy:
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
        listed = [("missing", missing), ("not in the graph", others)]
        said = "; ".join(f"{what}: {', '.join(names)}" for what, names in listed if names)
        raise LiftArgumentError(
            f"merge of a {getattr(graphdef.type, '__name__', 'pytree')}",
            f"the states do not match the definition ({said}).",
            "Pass exactly the states that `split` returned: `merge(graphdef, *states)`.",
            variable=[*missing, *others][0],
        )


def at_known_paths(pairs: Iterable[tuple[Path, Any]], known: Iterable[Path]) -> dict[Path, Any]:
    """Return leaves by path, where a path may have a number as text, as files store it: `"0"` for the key 0.

    Example:
        >>> at_known_paths([(("layers", "0"), 1.5), (("new",), 2)], [("layers", 0)])
        {('layers', 0): 1.5, ('new',): 2}

    Args:
        pairs: the leaves with their paths.
        known: the paths of a graph.
    """
    known = dict.fromkeys(known)
    by_text = {_text(path): path for path in known}
    return {path if path in known else by_text.get(_text(path), path): leaf for path, leaf in pairs}


def _text(path: Path) -> Path:
    return tuple([str(step) for step in path])  # `map` is another function in this file


def pairs_of_states(where: str, states: Iterable[Any]) -> Iterable[tuple[Path, Any]]:
    """Return the leaves of states, flat states and nested mappings with their paths; or a single leaf.

    Args:
        where: the name of the caller, for the error.
        states: the states.

    Raises:
        LiftArgumentError: if a leaf is a variable of another library, such as flax.
    """
    for path, leaf in _pairs(states):
        if not isinstance(leaf, Variable) and hasattr(type(leaf), "raw_value"):
            kind = type(leaf)
            raise LiftArgumentError(
                where,
                f"the value for {path_text(path)} is a variable of another library, {kind.__module__}.{kind.__name__}.",
                f"Pass plain values: `{where}(…, flax.nnx.to_pure_dict(state))`.",
                variable=path_text(path),
                given=f"{kind.__module__}.{kind.__name__}",
            )
        yield path, leaf


def _pairs(states: Iterable[Any]) -> Iterable[tuple[Path, Any]]:
    for one in states:
        if isinstance(one, FlatState):
            yield from one
        elif isinstance(one, Mapping):
            yield from (one if isinstance(one, State) else State(one)).flat_state()
        else:
            yield (), one


def clone(node: Node, variables: bool = True, *, arrays: bool = False) -> Node:
    """Copy a graph: new objects and variables, with the same sharing among them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0))
        >>> copied = nnx.clone(model)
        >>> copied.w.set_value(3.0)
        >>> model.w.get_value()
        2.0

    Args:
        node: an object, or a pytree that holds objects.
        variables: whether variables are copied too; if False, both graphs share them.
        arrays: whether arrays are copied too.
    """
    definition, pairs = listed(node)
    made = _Merger(dict(pairs), variables).build(definition)
    if arrays:
        for _, leaf in listed(made)[1]:
            if isinstance(leaf, Variable):
                leaf.set_raw_value(jax.tree.map(_copied, leaf.get_raw_value()))
    return made


@boundary
def map(f: Callable[[Path, Any], Any], node: Node, /, *, recreate_variables: bool = True) -> Node:
    """Copy a graph, with each variable and array replaced by the result of a function.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), n=nnx.Variable(1.0))
        >>> nnx.map(lambda path, leaf: leaf.replace(10 * leaf) if path == ("w",) else leaf, model).w.get_value()
        20.0

    Args:
        f: called with the path and the variable or array; returns its replacement.
        node: an object, or a pytree that holds objects.
        recreate_variables: whether a plain value is wrapped in a variable of the original kind. If False, the
            attribute is the plain value.
    """
    definition, pairs = listed(node)
    leaves = {path: f(path, leaf) for path, leaf in pairs}
    made: Node = _Merger(leaves, copy=False, recreate=recreate_variables).build(definition)
    return made


def call(graphdef_state: tuple[GraphDef[Any], Any], /) -> Any:
    """Call methods of an object that is given as a pair of a definition and a state.

    Example:
        >>> import nnx_like as nnx
        >>> class Counter(nnx.Module):
        ...     def __init__(self):
        ...         self.count = nnx.Variable(0)
        ...     def add(self, n):
        ...         self.count += n
        ...         return self.count.get_value()
        >>> result, (graphdef, state) = nnx.call(nnx.split(Counter())).add(3)
        >>> result, state.count.get_value()
        (3, 3)

    Args:
        graphdef_state: the pair.

    Returns:
        An object with the attributes of the graph. Each method call returns the result of the method and a new pair.
        The state passed in does not change.
    """
    graphdef, state = graphdef_state
    return _caller(graphdef, (state,))


def _caller(graphdef: GraphDef[Any], states: tuple[Any, ...]) -> Caller:
    return Caller(lambda: merge(graphdef, *states, copy=True), split)


def _copied(leaf: Any) -> Any:
    return leaf.copy() if hasattr(leaf, "copy") else leaf


# --- flat, and as one mapping -----------------------------------------------------------------------------------------


def flatten(node: Any, /, *, with_paths: bool = True) -> tuple[GraphDef[Any], Any]:
    """Return the definition of a graph, and its variables and arrays by path.

    Example:
        >>> import nnx_like as nnx
        >>> definition, flat = nnx.flatten(nnx.Dict(w=nnx.Param(2.0)))
        >>> [(path, leaf.get_value()) for path, leaf in flat]
        [(('w',), 2.0)]

    Args:
        node: an object, or a pytree that holds objects.
        with_paths: whether to return paths; if False, the variables and arrays are returned in a list.
    """
    definition, pairs = listed(node)
    return GraphDef(definition), FlatState(pairs) if with_paths else [leaf for _, leaf in pairs]


def unflatten(graphdef: GraphDef[Node], state: Any, /) -> Node:
    """Make a graph from its definition and its values: the inverse of `flatten`.

    Example:
        >>> import nnx_like as nnx
        >>> graphdef, flat = nnx.graph.flatten(nnx.Dict(w=nnx.Param(2.0)))
        >>> nnx.graph.unflatten(graphdef, flat).w.value
        2.0

    Args:
        graphdef: the static part of the graph, as `flatten` returns it.
        state: a `FlatState`, a `State`, or the values in a list, in the order of `flatten`.

    Returns:
        New objects, as the definition describes them.

    Raises:
        LiftArgumentError: if a value is missing, or the graph has no such path.
    """
    if isinstance(state, Sequence) and not isinstance(state, FlatState):
        return merge(graphdef, FlatState(list(zip(graphdef.paths, state, strict=True))))
    return merge(graphdef, state)


def unpack(node: Any, *filters: Filter) -> Any:
    """Split a graph like `split`, but return each state together with the definition in one pytree, a `GraphState`.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> packed = nnx.unpack(nnx.Dict(w=nnx.Param(2.0)))
        >>> nnx.merge(jax.tree.map(lambda leaf: 10 * leaf, packed)).w.get_value()
        20.0

    Args:
        node: an object, or a pytree that holds objects.
        filters: one filter for each `GraphState`; a variable goes to the first one that matches it. Without filters,
            there is one `GraphState`.

    Returns:
        A `GraphState`; for several filters a tuple of them.
    """
    graphdef, *states = split(node, *filters)
    packed = [GraphState(graphdef, state) for state in states]
    return packed[0] if len(packed) == 1 else tuple(packed)
