"""The caches of a model as one tree: how they count positions, and how positions are taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError
from ..typing import Array, ArrayLike

__all__ = ["all_counts", "recounted", "rewind"]

_INDEX, _KEYS = "cache_index", "cached_key"


def rewind(cache: Mapping[str, Any], number: ArrayLike) -> dict[str, Any]:
    """Takes back the last positions of a cache, which the next ones overwrite.

    So a prompt that was padded, or tokens that turned out to be wrong, do not count. Each index of the cache is a
    variable `cache_index`, also one that a model keeps itself, such as for the positions that it adds to embeddings.

    Example:
        >>> cache = {"layer": {"cached_key": jnp.ones((2, 8, 1, 4)), "cache_index": jnp.array([5, 5])}}
        >>> rewind(cache, jnp.array([0, 3]))["layer"]["cache_index"]
        Array([5, 2], dtype=int32)

    Args:
        cache: the collection `cache`, also of layers that `nn.scan` stacks.
        number: how many positions; `(batch,)` for a cache with an index for each example.

    Returns:
        The cache with new indices.

    Raises:
        LiftArgumentError: where numbers for each example are given, and an index counts for all of them.
    """
    number = jnp.asarray(number)

    def back(index: Array, is_ragged: bool) -> Array:
        if number.ndim and not is_ragged:
            raise LiftArgumentError(
                "rewind",
                f"numbers of shape {number.shape} were given, and an index of the cache, of shape {index.shape}, "
                "counts for all examples.",
                "Pass one number, or make the cache with an index for each example: `ragged_cache=True`.",
            )
        return index - number.astype(index.dtype)

    return recounted(cache, number.shape, back)


def recounted(cache: Mapping[str, Any], batch: tuple[int, ...], fn: Callable[[Array, bool], Array]) -> dict[str, Any]:
    """The cache with other indices.

    Args:
        cache: the collection.
        batch: the shape of the batch.
        fn: called with each index, and whether that is one for each example of the batch.
    """
    made: dict[str, Any] = {}
    for name, value in cache.items():
        if isinstance(value, Mapping):
            made[name] = recounted(value, batch, fn)
        elif name == _INDEX:
            is_ragged = _is_ragged(value, cache.get(_KEYS), batch)
            made[name] = jax.tree.map(lambda index, is_ragged=is_ragged: fn(index, is_ragged), value)
        else:
            made[name] = value
    return made


def all_counts(cache: Mapping[str, Any], batch: tuple[int, ...]) -> Iterator[bool]:
    """For each index whether it is one for each example."""
    for name, value in cache.items():
        if isinstance(value, Mapping):
            yield from all_counts(value, batch)
        elif name == _INDEX:
            yield _is_ragged(value, cache.get(_KEYS), batch)


def _is_ragged(index: Any, keys: Any, batch: tuple[int, ...]) -> bool:
    """Whether an index is one for each example; beside keys, `(*stacked, *batch, room, heads, depth)`, that is certain.

    Without them an index of layers that are stacked, as many as there are examples, could not be told from one.
    """
    (index,) = jax.tree.leaves(index)
    if keys is not None:
        (keys,) = jax.tree.leaves(keys)
        return bool(index.ndim == keys.ndim - 3) and (index.ndim > 0)
    return bool(batch) and index.shape[index.ndim - len(batch) :] == batch
