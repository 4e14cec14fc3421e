"""An immutable nested dict, for users who want one; the library itself returns plain dicts.

The functions accept plain dicts too, so that code need not distinguish the two.

Example:
    >>> frozen = freeze({"params": {"w": 1}, "cache": {}})
    >>> variables, cache = pop(frozen, "cache")
    >>> variables == {"params": {"w": 1}}
    True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import jax

__all__ = ["FrozenDict", "copy", "freeze", "pop", "pretty_repr", "unfreeze"]

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(Mapping[K, V]):
    """An immutable mapping. Nested dicts are frozen too: a dict that is read from it is a `FrozenDict`.

    It equals a dict with the same items, and is hashable if its values are. It is a single pytree node, because the
    dicts inside are plain: flattening it takes one call into Python, whatever its depth.

    Example:
        >>> frozen = FrozenDict({"dense": {"w": 1}})
        >>> frozen.copy({"bias": 2})["dense"]
        FrozenDict({
            w: 1,
        })

    Args:
        *args: arguments of `dict`.
        **kwargs: keyword arguments of `dict`.
    """

    __slots__ = ("_dict", "_hash")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._dict: dict[K, V] = unfreeze(dict(*args, **kwargs))
        self._hash: int | None = None

    @classmethod
    def _around(cls, plain: dict[Any, Any]) -> FrozenDict[Any, Any]:
        """Wrap a dict without copying it; nobody else may write to it."""
        frozen = cls.__new__(cls)
        frozen._dict, frozen._hash = plain, None
        return frozen

    def __getitem__(self, key: K) -> V:
        value = self._dict[key]
        return cast(V, self._around(value)) if isinstance(value, dict) else value

    def __contains__(self, key: object) -> bool:
        return key in self._dict

    def __iter__(self) -> Iterator[K]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __repr__(self) -> str:
        return self.pretty_repr()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.unfreeze(),)

    def copy(self, add_or_replace: Mapping[K, V] | None = None) -> FrozenDict[K, V]:
        """Return a frozen dict with entries added or replaced.

        Args:
            add_or_replace: the entries; by default none.
        """
        return type(self)({**self._dict, **(add_or_replace or {})})

    def pop(self, key: K) -> tuple[FrozenDict[K, V], V]:
        """Return a frozen dict without `key`, and the value that it had.

        Args:
            key: the key to leave out.

        Raises:
            KeyError: if there is no such key.
        """
        value = self[key]
        return self._around({k: v for k, v in self._dict.items() if k != key}), value

    def unfreeze(self) -> dict[K, V]:
        """Return plain nested dicts with the same items, which may be changed."""
        return cast(dict[K, V], unfreeze(self._dict))

    def pretty_repr(self, num_spaces: int = 4) -> str:
        """Return an indented text of the nested items; see `pretty_repr`.

        Args:
            num_spaces: the indentation of one level; by default 4.
        """
        return f"{type(self).__name__}({pretty_repr(self._dict, num_spaces)})"


def _flatten(frozen: FrozenDict[Any, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    keys = tuple(sorted(frozen._dict))
    return [frozen._dict[key] for key in keys], keys


def _flatten_with_keys(frozen: FrozenDict[Any, Any]) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    children, keys = _flatten(frozen)
    return [(jax.tree_util.DictKey(key), child) for key, child in zip(keys, children, strict=True)], keys


def _unflatten(keys: tuple[Any, ...], children: Any) -> FrozenDict[Any, Any]:
    return FrozenDict._around(dict(zip(keys, children, strict=True)))


jax.tree_util.register_pytree_with_keys(FrozenDict, _flatten_with_keys, _unflatten, _flatten)


def freeze(tree: Mapping[Any, Any]) -> FrozenDict[Any, Any]:
    """Return nested dicts as a `FrozenDict`. The dicts are copied, but not the values.

    Args:
        tree: nested dicts, frozen or plain.
    """
    return FrozenDict(tree)


def unfreeze(tree: Any) -> Any:
    """Return nested dicts, frozen or not, as new plain dicts. Any other value is returned unchanged.

    Example:
        >>> unfreeze(freeze({"dense": {"w": 1}}))
        {'dense': {'w': 1}}

    Args:
        tree: nested dicts, or any value.
    """
    if isinstance(tree, FrozenDict):
        tree = tree._dict
    if not isinstance(tree, dict):
        return tree
    return {key: unfreeze(value) for key, value in tree.items()}


def copy(tree: Mapping[Any, Any], add_or_replace: Mapping[Any, Any] | None = None) -> Any:
    """Return a dict of the same kind, frozen or plain, with entries added or replaced.

    Example:
        >>> copy({"a": 1}, {"b": 2})
        {'a': 1, 'b': 2}

    Args:
        tree: a dict, frozen or plain.
        add_or_replace: the entries; by default none.
    """
    if isinstance(tree, FrozenDict):
        return tree.copy(add_or_replace)
    return unfreeze({**tree, **(add_or_replace or {})})


def pop(tree: Mapping[Any, Any], key: Any) -> tuple[Any, Any]:
    """Return a dict of the same kind, frozen or plain, without `key`, and the value that it had.

    Example:
        >>> pop({"params": {"w": 1}, "cache": {}}, "params")
        ({'cache': {}}, {'w': 1})

    Args:
        tree: a dict, frozen or plain.
        key: the key to leave out.

    Raises:
        KeyError: if there is no such key.
    """
    if isinstance(tree, FrozenDict):
        return tree.pop(key)
    rest = unfreeze({**tree})
    return rest, rest.pop(key)


def pretty_repr(tree: Any, num_spaces: int = 4) -> str:
    """Return an indented text of nested dicts, and `repr` of anything else.

    Example:
        >>> print(pretty_repr({"dense": {"w": 1}}))
        {
            dense: {
                w: 1,
            },
        }

    Args:
        tree: nested dicts, or any value.
        num_spaces: the indentation of one level; by default 4.
    """
    if isinstance(tree, FrozenDict):
        return tree.pretty_repr(num_spaces)
    if not isinstance(tree, dict):
        return repr(tree)
    if not tree:
        return "{}"
    items = "".join(f"{key}: {pretty_repr(value, num_spaces)},\n" for key, value in tree.items())
    indented = "".join(f"{' ' * num_spaces}{line}" for line in items.splitlines(keepends=True))
    return f"{{\n{indented}}}"
