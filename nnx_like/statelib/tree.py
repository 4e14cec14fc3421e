"""`StateTree`: nested dicts with access by key and by attribute, as a pytree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self, TypeVar

import jax
from jax.tree_util import DictKey

from .nested import sorted_keys
from .showing import nested_text, nested_view

__all__ = ["StateTree", "tree_over"]

T = TypeVar("T", bound="StateTree")


class StateTree(MutableMapping[Any, Any]):
    """Nested dicts. The value of a key that is not a leaf is a tree, a view of a part of this one.

    As a pytree, its children are sorted by key. Iteration follows the order of insertion.

    Example:
        >>> tree = StateTree({"encoder": {"kernel": 1.0}})
        >>> tree.encoder.bias = 2.0
        >>> jax.tree_util.tree_leaves_with_path(tree)
        [((DictKey(key='encoder'), DictKey(key='bias')), 2.0), ((DictKey(key='encoder'), DictKey(key='kernel')), 1.0)]

    Args:
        mapping: nested mappings, or pairs of key and value. The outermost mapping is copied, the inner ones are not.
    """

    __slots__ = ("__weakref__", "_mapping")
    _mapping: dict[Any, Any]

    def __init__(self, mapping: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /, *, _copy: bool = True) -> None:
        own: Any = mapping
        if _copy:
            own = dict(mapping._mapping if isinstance(mapping, StateTree) else mapping)
            for key, value in own.items():
                if isinstance(value, StateTree):  # equal states must have the same structure as pytrees
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
        self._mapping[key] = value._mapping if isinstance(value, StateTree) else value

    def __delitem__(self, key: Any) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getattr__(self, name: str) -> Any:
        mapping = object.__getattribute__(self, "_mapping")  # raises an error, without recursion, if it is not set yet
        if name not in mapping:
            raise AttributeError(
                f"{type(self).__name__} has no key {name!r}. It has {list(mapping)}.", name=name, obj=self
            )
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._mapping:
            raise AttributeError(
                f"{type(self).__name__} has no key {name!r}. It has {list(self)}.", name=name, obj=self
            )
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


def tree_over(cls: type[T], mapping: dict[Any, Any]) -> T:
    """Return a tree that uses nested dicts directly, without a copy: for dicts that were made for it.

    Example:
        >>> raw = {"a": {"b": 1}}
        >>> tree_over(StateTree, raw).raw_mapping is raw
        True
    """
    tree = object.__new__(cls)
    object.__setattr__(tree, "_mapping", mapping)
    return tree


def _no_key(tree: StateTree, name: str) -> AttributeError:
    return AttributeError(f"{type(tree).__name__} has no key {name!r}. It has {list(tree)}.", name=name, obj=tree)


def _flatten(tree: StateTree) -> tuple[list[Any], tuple[Any, ...]]:
    mapping = tree.raw_mapping
    keys = tuple(sorted_keys(mapping))
    return [mapping[key] for key in keys], keys


def _flatten_with_keys(tree: StateTree) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    children, keys = _flatten(tree)
    return list(zip(map(DictKey, keys), children, strict=True)), keys


def _register(cls: type[StateTree]) -> None:
    jax.tree_util.register_pytree_with_keys(
        cls, _flatten_with_keys, lambda keys, children: tree_over(cls, dict(zip(keys, children, strict=True))), _flatten
    )


_register(StateTree)
