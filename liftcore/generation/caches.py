"""The caches of a model as one tree: find their position indices, and move them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError, shown
from ..typing import Array, ArrayLike

__all__ = ["all_counts", "lengthened", "recounted", "rewind", "shortened"]

_INDEX, _KEYS, _VALUES = "cache_index", "cached_key", "cached_value"


def rewind(cache: Mapping[str, Any], number: ArrayLike) -> dict[str, Any]:
    """Move the positions of a cache back, so that the next inputs overwrite the last ones.

    Use it to discard the padding of a prompt, or tokens that you tried. The indices of the cache are the variables
    named `cache_index`. A model may have such a variable of its own, for instance to embed positions.

    Example:
        >>> cache = {"layer": {"cached_key": jnp.ones((2, 8, 1, 4)), "cache_index": jnp.array([5, 5])}}
        >>> rewind(cache, jnp.array([0, 3]))["layer"]["cache_index"]
        Array([5, 2], dtype=int32)

    Args:
        cache: the collection `cache`; its layers may be stacked by `nn.scan`.
        number: the number of positions to move back; `(batch,)` for a cache with an index for each example.

    Returns:
        The cache with new indices. If they are traced, an index that would be negative is 0.

    Raises:
        LiftArgumentError: if `number` has an entry for each example, but all examples share an index; if it is not an
            integer, or is known to be negative or larger than an index; if the cache has no index.
    """
    _check_number(cache, number)
    number = jnp.asarray(number)

    def back(index: Array, is_ragged: bool) -> Array:
        if number.ndim and not is_ragged:
            raise LiftArgumentError(
                "rewind",
                f"numbers of shape {number.shape} were given, but all examples share an index of the cache, of shape "
                f"{index.shape}.",
                "Pass one number, or create the cache with an index for each example: `ragged_cache=True`.",
                option="ragged_cache",
                given=number.shape,
            )
        new = index - number.astype(index.dtype)
        if not isinstance(new, jax.core.Tracer) and (new < 0).any():
            raise LiftArgumentError(
                "rewind",
                f"the cache is at position {np.asarray(index).tolist()}, so it cannot move back "
                f"{np.asarray(number).tolist()}.",
                "Pass at most the number of positions so far.",
                given=np.asarray(number).tolist(),
            )
        return jnp.maximum(new, 0)

    return recounted(cache, number.shape, back)


def _check_number(cache: Mapping[str, Any], given: ArrayLike) -> None:
    """Check that a number of positions is right, and that the cache has something to move."""
    try:
        number = jnp.asarray(given)
    except (TypeError, ValueError):  # None or a text
        number = jnp.zeros(())
    is_negative = not isinstance(number, jax.core.Tracer) and bool((number < 0).any())
    if not jnp.issubdtype(number.dtype, jnp.integer) or is_negative:
        raise LiftArgumentError(
            "rewind",
            Expected("how many positions to move back", given=given),
            "Pass an integer, 0 or more, or one for each example.",
        )
    if not isinstance(cache, Mapping) or not any(True for _ in all_counts(cache, number.shape)):
        has = f"it has {sorted(map(str, cache))}" if isinstance(cache, Mapping) else f"given {shown(cache)}"
        raise LiftArgumentError(
            "rewind",
            f"there is no `{_INDEX}` in the cache; {has}.",
            'Pass the collection itself: `rewind(variables["cache"], number)`.',
            collection="cache",
            given=None if isinstance(cache, Mapping) else cache,
            available=cache if isinstance(cache, Mapping) else None,
        )


def recounted(cache: Mapping[str, Any], batch: tuple[int, ...], fn: Callable[[Array, bool], Array]) -> dict[str, Any]:
    """Return the cache with new indices.

    Args:
        cache: the collection `cache`.
        batch: the shape of the batch.
        fn: a function of an index, and of whether it has an entry for each example; it returns the new index.
    """

    def moved(name: str, value: Any, around: Mapping[str, Any]) -> Any:
        if name != _INDEX:
            return value
        is_ragged = _is_ragged(value, around.get(_KEYS), batch)
        return jax.tree.map(lambda index: fn(index, is_ragged), value)

    return _changed(moved, cache)


def shortened(cache: Mapping[str, Any], size: int, new: int) -> dict[str, Any]:
    """Return an empty cache with room for fewer positions.

    Args:
        cache: the collection `cache`. Only its keys and values of shape `(*stacked, *batch, size, heads, depth)` become
            shorter.
        size: the number of positions that it has room for.
        new: the number of positions that the result has room for.
    """

    def cut(leaf: Array) -> Array:
        is_clear = leaf.ndim >= 3 and leaf.shape[-3] == size and leaf.shape.count(size) == 1
        return leaf[..., :new, :, :] if is_clear else leaf

    def change(name: str, value: Any, around: Mapping[str, Any]) -> Any:
        return jax.tree.map(cut, value) if name in (_KEYS, _VALUES) and _INDEX in around else value

    return _changed(change, cache)


def lengthened(cache: Mapping[str, Any], empty: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cache with the room of another one, where the keys and values of further positions are zeros.

    Args:
        cache: the collection `cache`, which a model wrote to `shortened(empty, …)`.
        empty: the empty cache that has the room.
    """

    def pad(leaf: Array, like: Array) -> Array:
        more = [(0, wanted - number) for number, wanted in zip(leaf.shape, like.shape, strict=True)]
        return jnp.pad(leaf, more) if any(map(any, more)) else leaf

    def change(name: str, value: Any, around: Mapping[str, Any], like: Mapping[str, Any]) -> Any:
        return jax.tree.map(pad, value, like[name]) if name in (_KEYS, _VALUES) and name in like else value

    return _changed(change, cache, empty)


def _changed(change: Callable[..., Any], cache: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cache with `change(name, value, cache, *others)` in place of each value, in the dicts below too."""
    return {
        name: _changed(change, value, *[one.get(name, {}) for one in others])
        if isinstance(value, Mapping)
        else change(name, value, cache, *others)
        for name, value in cache.items()
    }


def all_counts(cache: Mapping[str, Any], batch: tuple[int, ...]) -> Iterator[bool]:
    """Yield for each index whether it has an entry for each example."""
    for name, value in cache.items():
        if isinstance(value, Mapping):
            yield from all_counts(value, batch)
        elif name == _INDEX:
            yield _is_ragged(value, cache.get(_KEYS), batch)


def _is_ragged(index: Any, keys: Any, batch: tuple[int, ...]) -> bool:
    """Return whether an index has an entry for each example.

    The shape of the cached keys, `(*stacked, *batch, size, heads, depth)`, decides. Without keys, an index with an
    entry for each stacked layer looks the same if there are as many layers as examples.
    """
    (index,) = jax.tree.leaves(index)
    if keys is not None:
        (keys,) = jax.tree.leaves(keys)
        return bool(index.ndim == keys.ndim - 3) and (index.ndim > 0)
    return bool(batch) and index.shape[index.ndim - len(batch) :] == batch
