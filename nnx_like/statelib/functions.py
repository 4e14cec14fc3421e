"""Functions over states; each takes plain nested dicts and flat states as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from liftcore.traverse_util import flatten_dict

from ..filterlib import Filter, PathIn, PathParts
from .nested import joined, nest
from .state import FlatState, State

__all__ = [
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
"""What the functions take for a state."""


def _state(state: Any) -> State:
    """Whatever has the methods of a state, else a state of the same leaves."""
    if isinstance(state, FlatState):
        return state.to_nested_state()
    whole: State = state if hasattr(state, "flat_state") else State(state)
    return whole


def to_flat_state(state: States) -> FlatState:
    """Returns the leaves of a state with their paths, sorted; see `State.flat_state`.

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
    """Returns the state with some leaves: the inverse of `to_flat_state`.

    Example:
        >>> from_flat_state([(("a", "c"), 2), (("b",), 1)], cls=dict)
        {'a': {'c': 2}, 'b': 1}

    Args:
        flat_state: `{path: leaf}`, or pairs of path and leaf.
        cls: what is called with the nested dicts.

    Returns:
        A `State`, or what `cls` makes.

    Raises:
        LiftArgumentError: if a path is empty, or goes on below a leaf.
    """
    return cls(nest(flat_state.items() if isinstance(flat_state, Mapping) else flat_state))


def map_state(f: Callable[[PathParts, Any], Any], state: States) -> State:
    """Returns a state of what `f` makes of each leaf; see `State.map`.

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
    """Splits a state: each leaf goes to the first filter that matches it.

    Example:
        >>> steps, rest = split_state(State({"kernel": 1.0, "steps": 3}), int, ...)
        >>> steps.to_pure_dict(), rest.to_pure_dict()
        ({'steps': 3}, {'kernel': 1.0})

    Args:
        state: a state.
        first: a filter; see `nnx_like.filterlib`.
        *filters: more of them.

    Returns:
        One state with one filter, else a tuple of states.

    Raises:
        UnmatchedFilterError: if no filter matches a leaf.
    """
    return _state(state).split(first, *filters)


def filter_state(state: States, first: Filter, /, *filters: Filter) -> Any:
    """Chooses parts of a state: as `split_state`, and what no filter matches is left out.

    Example:
        >>> filter_state(State({"kernel": 1.0, "steps": 3}), float).to_pure_dict()
        {'kernel': 1.0}

    Args:
        state: a state.
        first: a filter; see `nnx_like.filterlib`.
        *filters: more of them.

    Returns:
        One state with one filter, else a tuple of states.
    """
    return _state(state).filter(first, *filters)


def merge_state(state: Mapping[Any, Any], /, *states: Mapping[Any, Any], cls: Callable[[Any], Any] = State) -> Any:
    """Returns one state with the leaves of all; at one path, the later leaf stays.

    Example:
        >>> merge_state(State({"a": {"b": 1}}), State({"a": {"c": 2}}), cls=dict)
        {'a': {'b': 1, 'c': 2}}

    Args:
        state: a state or other nested mappings.
        *states: more of them.
        cls: what is called with the nested dicts.

    Returns:
        A `State`, or what `cls` makes; the states given stay as they are.
    """
    return cls(joined(map(_state, (state, *states))))


def diff(state: States, other: States) -> State:
    """Returns what of a state is at paths that another has not, also written `state - other`.

    Example:
        >>> diff(State({"a": 1, "b": 2}), State({"a": 5})).to_pure_dict()
        {'b': 2}

    Args:
        state: a state.
        other: a state, whose leaves do not matter.

    Returns:
        A new state.
    """
    return _state(state) - _state(other)


def create_path_filters(state: States) -> dict[PathIn, Any]:
    """Returns the filters of a state whose leaves are specs, such as axes: each leaf by the filter for its places.

    Example:
        >>> create_path_filters(State({"a": 0, "b": {"c": None, "d": 0}}))
        {PathIn(('a',), ('b', 'd')): 0, PathIn(('b', 'c')): None}

    Args:
        state: a state whose leaves can be hashed.

    Returns:
        `{filter: leaf}`, with one filter for all places of equal leaves.
    """
    places: dict[Any, list[PathParts]] = {}
    for path, leaf in to_flat_state(state):
        places.setdefault(leaf, []).append(path)
    return {PathIn(*paths): leaf for leaf, paths in places.items()}


def to_pure_dict(state: States, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Returns a state as nested dicts of values, without the variables that hold them, as checkpoints take them.

    Example:
        >>> to_pure_dict(State({"layers": {0: {"bias": 1.0}}}))
        {'layers': {0: {'bias': 1.0}}}

    Args:
        state: a state.
        extract_fn: what is made of each leaf. Without it a `Variable` gives its value, and others stay.

    Returns:
        New dicts, sorted by key.
    """
    return _state(state).to_pure_dict(extract_fn)


def replace_by_pure_dict(
    state: State, pure_dict: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Puts values into a state, which is changed; see `State.replace_by_pure_dict`.

    Example:
        >>> state = State({"layers": {0: {"bias": 1.0}}})
        >>> replace_by_pure_dict(state, {"layers": {"0": {"bias": 5.0}}})
        >>> state.layers[0].bias
        5.0

    Args:
        state: a state.
        pure_dict: nested mappings of new values.
        replace_fn: `(leaf, value) -> leaf`. Without it a `Variable` becomes one of the same type and metadata that
            holds the value, and any other leaf becomes the value.

    Raises:
        LiftArgumentError: if `pure_dict` has a path that the state has not. Then nothing is changed.
    """
    state.replace_by_pure_dict(pure_dict, replace_fn)


def restore_int_paths(pure_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns nested dicts whose keys are integers again where they are the text of one, as checkpoints write them.

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
    try:
        return int(key) if isinstance(key, str) else key
    except ValueError:
        return key
