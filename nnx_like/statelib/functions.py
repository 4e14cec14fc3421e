"""Functions over states, which also accept plain nested dicts and flat states; and states with their definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import jax
from jax.tree_util import DictKey

from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError
from liftcore.traverse_util import flatten_dict

from ..filterlib import Filter, PathIn, PathParts
from .nested import joined, nest, sorted_keys
from .state import FlatState, State

__all__ = [
    "GraphState",
    "create_path_filters",
    "diff",
    "filter_state",
    "from_flat_state",
    "map_state",
    "merge_state",
    "replace_by_pure_dict",
    "restore_int_paths",
    "split_state",
    "to_flat_state",
    "to_pure_dict",
]


States = State | FlatState | Mapping[Any, Any]
"""The type of arguments that are states."""


def _state(state: Any) -> State:
    """Return the value itself if it has the methods of a state, else a state of the same leaves."""
    if isinstance(state, FlatState):
        return state.to_nested_state()
    if not isinstance(state, Mapping) and not hasattr(state, "flat_state"):
        fix = "Get one with `nnx.state(model)`."
        raise LiftArgumentError("a state", Expected("a `State`", state), fix)
    whole: State = state if hasattr(state, "flat_state") else State(state)
    return whole


def to_flat_state(state: States) -> FlatState:
    """Return the leaves of a state with their paths, sorted; see `State.flat_state`.

    Example:
        >>> dict(to_flat_state(State({"b": 1, "a": {"c": 2}})))
        {('a', 'c'): 2, ('b',): 1}

    Args:
        state: a state.

    Returns:
        A sequence of pairs of path and leaf.
    """
    return _state(state).flat_state()


def from_flat_state(
    flat_state: Mapping[PathParts, Any] | Iterable[tuple[PathParts, Any]], *, cls: Callable[[Any], Any] = State
) -> Any:
    """Return the state of some paths and leaves: the inverse of `to_flat_state`.

    Example:
        >>> from_flat_state([(("a", "c"), 2), (("b",), 1)], cls=dict)
        {'a': {'c': 2}, 'b': 1}

    Args:
        flat_state: `{path: leaf}`, or pairs of path and leaf.
        cls: called with the nested dicts to make the result.

    Returns:
        A `State`, or the result of `cls`.

    Raises:
        LiftArgumentError: if a path is empty, or continues below a leaf.
    """
    return cls(nest(flat_state.items() if isinstance(flat_state, Mapping) else flat_state))


@boundary
def map_state(f: Callable[[PathParts, Any], Any], state: States) -> State:
    """Return a state in which `f` replaces each leaf; see `State.map`.

    Example:
        >>> map_state(lambda path, leaf: (path, leaf), State({"a": {"b": 1}})).a.b
        (('a', 'b'), 1)

    Args:
        f: `(path, leaf) -> leaf`.
        state: a state.

    Returns:
        A new state.
    """
    return _state(state).map(f)


def split_state(state: States, first: Filter, /, *filters: Filter) -> Any:
    """Split a state: each leaf goes to the first filter that matches it.

    Example:
        >>> steps, rest = split_state(State({"kernel": 1.0, "steps": 3}), int, ...)
        >>> steps.to_pure_dict(), rest.to_pure_dict()
        ({'steps': 3}, {'kernel': 1.0})

    Args:
        state: a state.
        first: a filter; see `nnx_like.filterlib`.
        *filters: more of these.

    Returns:
        One state for one filter; for several filters, a tuple of states.

    Raises:
        UnmatchedFilterError: if no filter matches a leaf.
        LiftArgumentError: if a filter asks for a name, and matches nothing.
    """
    return _state(state).split(first, *filters)


def filter_state(state: States, first: Filter, /, *filters: Filter) -> Any:
    """Select parts of a state: like `split_state`, but leaves that no filter matches are dropped.

    Example:
        >>> filter_state(State({"kernel": 1.0, "steps": 3}), float).to_pure_dict()
        {'kernel': 1.0}

    Args:
        state: a state.
        first: a filter; see `nnx_like.filterlib`.
        *filters: more of these.

    Returns:
        One state for one filter; for several filters, a tuple of states.

    Raises:
        LiftArgumentError: if a filter asks for a name, and matches nothing.
    """
    return _state(state).filter(first, *filters)


def merge_state(state: Mapping[Any, Any], /, *states: Mapping[Any, Any], cls: Callable[[Any], Any] = State) -> Any:
    """Merge states; if two have a leaf at the same path, the later one wins.

    Example:
        >>> merge_state(State({"a": {"b": 1}}), State({"a": {"c": 2}}), cls=dict)
        {'a': {'b': 1, 'c': 2}}

    Args:
        state: a state or other nested mappings.
        *states: more of these.
        cls: called with the nested dicts to make the result.

    Returns:
        A `State`, or the result of `cls`; the states passed in do not change.
    """
    return cls(joined(map(_state, (state, *states))))


def diff(state: States, other: States) -> State:
    """Return the part of a state at paths that another state lacks, also written `state - other`.

    Example:
        >>> diff(State({"a": 1, "b": 2}), State({"a": 5})).to_pure_dict()
        {'b': 2}

    Args:
        state: a state.
        other: the other state; only its paths matter.

    Returns:
        A new state.
    """
    return _state(state) - _state(other)


def create_path_filters(state: States) -> dict[PathIn, Any]:
    """Return one filter for each distinct leaf of a state of specs, such as axes.

    Example:
        >>> create_path_filters(State({"a": 0, "b": {"c": None, "d": 0}}))
        {PathIn(('a',), ('b', 'd')): 0, PathIn(('b', 'c')): None}

    Args:
        state: a state with hashable leaves.

    Returns:
        `{filter: leaf}`, where the filter matches the paths of all equal leaves.
    """
    places: dict[Any, list[PathParts]] = {}
    for path, leaf in to_flat_state(state):
        places.setdefault(leaf, []).append(path)
    return {PathIn(*paths): leaf for leaf, paths in places.items()}


def to_pure_dict(state: States, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Return a state as nested dicts of values instead of variables, for checkpoints.

    Example:
        >>> to_pure_dict(State({"layers": {0: {"bias": 1.0}}}))
        {'layers': {0: {'bias': 1.0}}}

    Args:
        state: a state.
        extract_fn: called with each leaf; returns the value. By default, a `Variable` gives its value, and any other
            leaf is kept.

    Returns:
        New dicts, sorted by key.
    """
    return _state(state).to_pure_dict(extract_fn)


def replace_by_pure_dict(
    state: State, pure_dict: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Write values into a state, in place; see `State.replace_by_pure_dict`.

    Example:
        >>> state = State({"layers": {0: {"bias": 1.0}}})
        >>> replace_by_pure_dict(state, {"layers": {"0": {"bias": 5.0}}})
        >>> state.layers[0].bias
        5.0

    Args:
        state: a state.
        pure_dict: nested mappings of new values.
        replace_fn: `(leaf, value) -> leaf`. By default, a `Variable` is replaced by one of the same type and metadata
            with the new value, and any other leaf by the value.

    Raises:
        LiftArgumentError: if `pure_dict` has a path that the state lacks; then nothing changes.
    """
    state.replace_by_pure_dict(pure_dict, replace_fn)


def restore_int_paths(pure_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return nested dicts in which keys that are decimal strings, as in checkpoints, are integers again.

    Example:
        >>> restore_int_paths({"layers": {"0": {"bias": 1.0}, "1": {"bias": 2.0}}})
        {'layers': {0: {'bias': 1.0}, 1: {'bias': 2.0}}}

    Args:
        pure_dict: nested mappings.

    Returns:
        New dicts.
    """
    return nest((tuple(map(_restored, path)), leaf) for path, leaf in flatten_dict(pure_dict).items())


def _restored(key: Any) -> Any:
    """Return whatever text `int` takes as an integer, as flax does; a state that is written to is stricter."""
    try:
        return int(key) if isinstance(key, str) else key
    except ValueError:
        return key


# --- a state with its definition --------------------------------------------------------------------------------------


class GraphState(MutableMapping[Any, Any]):
    """A definition and its state. As a mapping and as a pytree it is the state; the definition is static.

    Example:
        >>> pair = GraphState("definition", State({"kernel": 1.0}))
        >>> pair.kernel, jax.tree.leaves(pair)
        (1.0, [1.0])

    Args:
        graphdef: the definition.
        state: the state.
    """

    __slots__ = ("__weakref__", "_graphdef", "_state")
    _graphdef: Any
    _state: State

    def __init__(self, _graphdef: Any, _state: State) -> None:
        object.__setattr__(self, "_graphdef", _graphdef)
        object.__setattr__(self, "_state", _state)

    def __getitem__(self, key: Any) -> Any:
        return self._state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_state"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._state[name] = value

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, GraphState) and self._graphdef == other._graphdef
        return same and self._state == other._state  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __reduce__(self) -> Any:
        return type(self), (self._graphdef, self._state)

    def __repr__(self) -> str:
        parts = (f"  _graphdef={self._graphdef!r},", f"  _state={self._state!r}")
        return "GraphState(\n{}\n)".format("\n".join(part.replace("\n", "\n  ") for part in parts))


def _flatten(pair: GraphState) -> tuple[list[tuple[Any, Any]], tuple[Any, tuple[Any, ...]]]:
    mapping = pair._state.raw_mapping
    keys = tuple(sorted_keys(mapping))
    return [(DictKey(key), mapping[key]) for key in keys], (pair._graphdef, keys)


jax.tree_util.register_pytree_with_keys(
    GraphState, _flatten, lambda aux, children: GraphState(aux[0], State(zip(aux[1], children, strict=True)))
)
