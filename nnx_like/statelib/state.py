"""`State`, nested mappings of leaves, and `FlatState`, a sorted sequence of paths and leaves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Self, TypeVar, overload

import jax
from jax.tree_util import DictKey

from ..filterlib import Filter, PathParts, group
from ..variablelib.variable import Variable
from .nested import (
    flat_text,
    joined,
    nest,
    nested_text,
    nested_view,
    pairs_of,
    put_pure_values,
    sorted_keys,
    sorted_pairs,
)

__all__ = ["FlatState", "State", "state_over", "tree_over"]


S = TypeVar("S", bound="State")


class State(MutableMapping[Any, Any]):
    """The variables of an object, without the object: nested mappings with access by key and by attribute.

    A leaf is anything that is not a mapping, most often a `Variable` or an array. The value of a key that is not a leaf
    is a `State`, a view of a part of this one, so `state.encoder.kernel = x` and `del state["encoder"]["kernel"]`
    change this state. Keys are strings, and integers for the items of lists. If a key has the name of an attribute of
    the class (`items`, `map`, ...), read it by `state["map"]`.

    A state is a pytree. Its leaves and its `flat_state` are sorted by key; iteration follows the order of insertion.

    Example:
        >>> state = State({"encoder": {"kernel": 1.0}, "steps": 3})
        >>> state.encoder.kernel = 2.0
        >>> state
        State({
          'encoder': {
            'kernel': 2.0
          },
          'steps': 3
        })
        >>> jax.tree.map(lambda x: 10 * x, state).to_pure_dict()
        {'encoder': {'kernel': 20.0}, 'steps': 30}

    Args:
        mapping: nested mappings, or pairs of key and value. The outermost mapping is copied, the inner ones are not.
    """

    __slots__ = ("__weakref__", "_mapping")
    _mapping: dict[Any, Any]

    def __init__(self, mapping: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /, *, _copy: bool = True) -> None:
        own: Any = mapping
        if _copy:
            own = dict(mapping._mapping if isinstance(mapping, State) else mapping)
            for key, value in own.items():
                if isinstance(value, State):  # equal states must have the same structure as pytrees
                    own[key] = value._mapping
        object.__setattr__(self, "_mapping", own)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        """The nested dicts themselves, not a copy."""
        return self._mapping

    def __contains__(self, key: object) -> bool:
        return key in self._mapping

    def __getitem__(self, key: Any) -> Any:
        value = self._mapping[key]
        return tree_over(type(self), value) if type(value) in (dict, OrderedDict) else value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mapping[key] = value._mapping if isinstance(value, State) else value

    def __delitem__(self, key: Any) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getattr__(self, name: str) -> Any:
        mapping = object.__getattribute__(self, "_mapping")  # raises an error, without recursion, if it is not set yet
        if name not in mapping:
            raise _no_key(self, name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._mapping:
            raise _no_key(self, name)
        del self[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *(key for key in self._mapping if isinstance(key, str))]

    def __copy__(self) -> Self:
        return type(self)(self)

    def __reduce__(self) -> Any:
        return tree_over, (type(self), self._mapping)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({nested_text(self._mapping)})"

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return nested_view(type(self), self._mapping, path, subtree_renderer)

    def __or__(self, other: Any) -> State:
        return State.merge(self, other) if isinstance(other, Mapping) else NotImplemented

    def __sub__(self, other: Any) -> State:
        if not isinstance(other, Mapping):
            return NotImplemented
        paths = {path for path, _ in pairs_of(other)}
        return state_over(nest(pair for pair in pairs_of(self.raw_mapping) if pair[0] not in paths))

    # --- paths and leaves ---------------------------------------------------------------------------------------------

    def flat_state(self) -> FlatState:
        """Return the leaves with their paths, sorted.

        Example:
            >>> for path, leaf in State({"b": 1, "a": {"c": 2}}).flat_state():
            ...     print(path, leaf)
            ('a', 'c') 2
            ('b',) 1
        """
        return FlatState(pairs_of(self.raw_mapping), sort=False)

    @classmethod
    def from_flat_path(cls, flat_state: Mapping[PathParts, Any] | Iterable[tuple[PathParts, Any]], /) -> State:
        """Return the state of some paths and leaves: the inverse of `flat_state`.

        Example:
            >>> State.from_flat_path({("a", "c"): 2, ("b",): 1}).a.c
            2

        Args:
            flat_state: `{path: leaf}`, or pairs of path and leaf.

        Returns:
            A new state.

        Raises:
            LiftArgumentError: if a path is empty, or continues below a leaf.
        """
        return tree_over(cls, nest(flat_state.items() if isinstance(flat_state, Mapping) else flat_state))

    def map(self, f: Callable[[PathParts, Any], Any]) -> State:
        """Return a state in which `f` replaces each leaf.

        Example:
            >>> State({"a": {"b": 1}}).map(lambda path, leaf: (".".join(path), leaf)).to_pure_dict()
            {'a': {'b': ('a.b', 1)}}

        Args:
            f: `(path, leaf) -> leaf`.

        Returns:
            A new state.
        """
        return state_over(nest((path, f(path, leaf)) for path, leaf in pairs_of(self.raw_mapping)))

    # --- parts --------------------------------------------------------------------------------------------------------

    def split(self, first: Filter, /, *filters: Filter) -> Any:
        """Split a state: each leaf goes to the first filter that matches it.

        Example:
            >>> steps, rest = State({"kernel": 1.0, "steps": 3}).split(int, ...)
            >>> rest.to_pure_dict()
            {'kernel': 1.0}

        Args:
            first: a filter; see `nnx_like.filterlib`.
            *filters: more of these.

        Returns:
            One state for one filter; for several filters, a tuple of states.

        Raises:
            UnmatchedFilterError: if no filter matches a leaf.
            LiftArgumentError: if a filter asks for a name, and matches nothing.
        """
        return _parts(State.from_flat_path, pairs_of(self.raw_mapping), (first, *filters))

    def filter(self, first: Filter, /, *filters: Filter) -> Any:
        """Select parts of a state: like `split`, but leaves that no filter matches are dropped.

        Example:
            >>> State({"kernel": 1.0, "steps": 3}).filter(float).to_pure_dict()
            {'kernel': 1.0}

        Args:
            first: a filter; see `nnx_like.filterlib`.
            *filters: more of these.

        Returns:
            One state for one filter; for several filters, a tuple of states.

        Raises:
            LiftArgumentError: if a filter asks for a name, and matches nothing.
        """
        pairs = pairs_of(self.raw_mapping)
        return _parts(State.from_flat_path, pairs, (first, *filters), complete=False, where="filter")

    @classmethod
    def merge(cls, state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> State:
        """Merge states, also written `state | other`; if two have a leaf at the same path, the later one wins.

        Example:
            >>> State.merge(State({"a": {"b": 1}}), {"a": {"c": 2}}).to_pure_dict()
            {'a': {'b': 1, 'c': 2}}

        Args:
            state: a state or other nested mappings.
            *states: more of these.

        Returns:
            A new state; the states passed in do not change.
        """
        return state_over(joined((state, *states)))

    # --- values without variables -------------------------------------------------------------------------------------

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
        """Return nested dicts of values instead of variables, for checkpoints.

        Example:
            >>> State({"layers": {0: {"bias": 1.0}}}).to_pure_dict()
            {'layers': {0: {'bias': 1.0}}}

        Args:
            extract_fn: called with each leaf; returns the value. By default, a `Variable` gives its value, and any
                other leaf is kept.

        Returns:
            New dicts, sorted by key.
        """

        def value(leaf: Any) -> Any:
            return leaf.get_value() if isinstance(leaf, Variable) else leaf

        extract = value if extract_fn is None else extract_fn
        return nest((path, extract(leaf)) for path, leaf in pairs_of(self.raw_mapping))

    def replace_by_pure_dict(
        self, pure_dict: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
    ) -> None:
        """Write values into this state: the inverse of `to_pure_dict`, also for a part of its result.

        The state gets new variables with the new values; the object that the state came from does not change. For an
        integer key, the values may have the key as a decimal string, as in checkpoints.

        Example:
            >>> state = State({"layers": {0: {"bias": 1.0}}})
            >>> state.replace_by_pure_dict({"layers": {"0": {"bias": 5.0}}})
            >>> state.to_pure_dict()
            {'layers': {0: {'bias': 5.0}}}

        Args:
            pure_dict: nested mappings of new values.
            replace_fn: `(leaf, value) -> leaf`. By default, a `Variable` is replaced by one of the same type and
                metadata with the new value, and any other leaf by the value.

        Raises:
            LiftArgumentError: if `pure_dict` has a path that the state lacks; then nothing changes.
        """
        put_pure_values(self.raw_mapping, pure_dict, replace_fn)


def tree_over(cls: type[S], mapping: dict[Any, Any]) -> S:
    """Return a tree that uses nested dicts directly, without a copy: for dicts that were made for it.

    Example:
        >>> raw = {"a": {"b": 1}}
        >>> tree_over(State, raw).raw_mapping is raw
        True
    """
    tree = object.__new__(cls)
    object.__setattr__(tree, "_mapping", mapping)
    return tree


def _no_key(tree: State, name: str) -> AttributeError:
    return AttributeError(f"{type(tree).__name__} has no key {name!r}. It has {list(tree)}.", name=name, obj=tree)


def _flatten(tree: State) -> tuple[list[Any], tuple[Any, ...]]:
    mapping = tree.raw_mapping
    keys = tuple(sorted_keys(mapping))
    return [mapping[key] for key in keys], keys


def _flatten_with_keys(tree: State) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    children, keys = _flatten(tree)
    return list(zip(map(DictKey, keys), children, strict=True)), keys


def _register(cls: type[State]) -> None:
    jax.tree_util.register_pytree_with_keys(
        cls, _flatten_with_keys, lambda keys, children: tree_over(cls, dict(zip(keys, children, strict=True))), _flatten
    )


_register(State)


class FlatState(Sequence[tuple[PathParts, Any]]):
    """Paths and leaves, most often sorted by path: a sequence of pairs.

    It is a pytree of the leaves.

    Example:
        >>> flat = State({"b": 1, "a": {"c": 2}}).flat_state()
        >>> flat.paths, flat.leaves, flat[0], dict(flat)
        ((('a', 'c'), ('b',)), [2, 1], (('a', 'c'), 2), {('a', 'c'): 2, ('b',): 1})

    Args:
        items: `(path, leaf)` pairs, or `{path: leaf}`.
        sort: whether to sort them by path.
    """

    __slots__ = ("_keys", "_values")
    _keys: tuple[PathParts, ...]
    _values: list[Any]

    def __init__(
        self, items: Iterable[tuple[PathParts, Any]] | Mapping[PathParts, Any], /, *, sort: bool = False
    ) -> None:
        pairs = list(items.items() if isinstance(items, Mapping) else items)
        pairs = sorted_pairs(pairs) if sort else pairs
        self._keys = tuple(path for path, _ in pairs)
        self._values = [leaf for _, leaf in pairs]

    @staticmethod
    def from_sorted_keys_values(keys: tuple[PathParts, ...], values: list[Any], /) -> FlatState:
        """Return the flat state of paths that are already sorted, and of the leaf at each path.

        Example:
            >>> FlatState.from_sorted_keys_values((("a",), ("b",)), [1, 2]).to_nested_state().b
            2

        Args:
            keys: the paths, sorted.
            values: the leaves, in the order of the paths.
        """
        flat = object.__new__(FlatState)
        flat._keys, flat._values = keys, values
        return flat

    @property
    def paths(self) -> tuple[PathParts, ...]:
        """The paths, in order."""
        return self._keys

    @property
    def leaves(self) -> list[Any]:
        """The leaves, in the order of the paths."""
        return list(self._values)

    @overload
    def __getitem__(self, index: int) -> tuple[PathParts, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState: ...
    def __getitem__(self, index: int | slice) -> tuple[PathParts, Any] | FlatState:
        if isinstance(index, slice):
            return FlatState.from_sorted_keys_values(self._keys[index], self._values[index])
        return self._keys[index], self._values[index]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[PathParts, Any]]:
        return iter(zip(self._keys, self._values, strict=True))

    def __repr__(self) -> str:
        return flat_text(type(self).__name__, self)

    def items(self) -> Iterator[tuple[PathParts, Any]]:
        """Return an iterator over the pairs, like `iter`."""
        return iter(self)

    def flat_state(self) -> FlatState:
        """Return itself, so that a flat state is accepted wherever a state is flattened."""
        return self

    def to_nested_state(self) -> State:
        """Return the nested state of these leaves."""
        return state_over(nest(self))

    def split(self, first: Filter, /, *filters: Filter) -> Any:
        """Split it like `State.split`, into flat states.

        Args:
            first: a filter; see `nnx_like.filterlib`.
            *filters: more of these.

        Returns:
            One flat state for one filter; for several filters, a tuple of them.

        Raises:
            UnmatchedFilterError: if no filter matches a leaf.
            LiftArgumentError: if a filter asks for a name, and matches nothing.
        """
        return _parts(FlatState, self, (first, *filters))

    def filter(self, first: Filter, /, *filters: Filter) -> Any:
        """Select parts like `State.filter`, and return flat states.

        Args:
            first: a filter; see `nnx_like.filterlib`.
            *filters: more of these.

        Returns:
            One flat state for one filter; for several filters, a tuple of them.

        Raises:
            LiftArgumentError: if a filter asks for a name, and matches nothing.
        """
        return _parts(FlatState, self, (first, *filters), complete=False, where="filter")

    @staticmethod
    def merge(
        flat_state: Iterable[tuple[PathParts, Any]], /, *flat_states: Iterable[tuple[PathParts, Any]]
    ) -> FlatState:
        """Merge flat states into a sorted one; if two have a leaf at the same path, the later one wins.

        Example:
            >>> FlatState.merge([(("b",), 1)], [(("a",), 2)]).paths
            (('a',), ('b',))

        Args:
            flat_state: a flat state, or pairs of path and leaf.
            *flat_states: more of these.

        Returns:
            A new flat state.
        """
        return FlatState({path: leaf for flat in (flat_state, *flat_states) for path, leaf in flat}, sort=True)


def state_over(mapping: dict[Any, Any]) -> State:
    """Return a state that uses nested dicts directly, without a copy: for dicts that were made for it.

    Example:
        >>> raw = {"a": {"b": 1}}
        >>> state_over(raw).raw_mapping is raw
        True

    Args:
        mapping: nested dicts with the leaves of a state.
    """
    return tree_over(State, mapping)


def _parts(make: Callable[[Any], Any], pairs: Any, filters: Sequence[Filter], **options: Any) -> Any:
    """Return one part of the pairs for each filter; without a tuple, if there is one filter."""
    parts = [make(part) for part in group(pairs, filters, **options)]
    return parts[0] if len(parts) == 1 else tuple(parts)


jax.tree_util.register_pytree_node(
    FlatState,
    lambda flat: (flat._values, flat._keys),
    lambda keys, leaves: FlatState.from_sorted_keys_values(keys, list(leaves)),
)
