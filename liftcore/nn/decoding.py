"""The cache for decoding with attention: the keys and values of all positions so far, added one or many at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LiftArgumentError, ScopeVariableNotFoundError
from ..scopes.scope import Scope
from ..typing import Array, ArrayLike, Dtype
from .layer import checks_options
from .masks import check_attention_mask
from .sharding import gather, place, sharding_entries

__all__ = ["DecodeCache", "Holder", "decode_cache"]


class Holder(Protocol):
    """An object that holds a replaceable array: a variable of a scope, or another object with a `value`."""

    value: Any


@dataclasses.dataclass(frozen=True)
class DecodeCache:
    """Storage for the keys and values of all positions; `decode_cache` makes one in a scope.

    Example:
        >>> from types import SimpleNamespace as Box
        >>> cache = DecodeCache(Box(value=jnp.zeros((5, 1, 2))), Box(value=jnp.zeros((5, 1, 2))), Box(value=0), "here")
        >>> query, keys, values, mask = cache.append(*[jnp.ones((2, 1, 2))] * 3)
        >>> keys.shape, mask
        ((5, 1, 2), Array([[[1., 0., 0., 0., 0.],
                            [1., 1., 0., 0., 0.]]], dtype=float32))

    Attributes:
        key: the keys of the positions so far, `(*batch, room, heads, depth)`, with zeros after them.
        value: the values of the positions so far, in the same form.
        index: the next position, counted from 0: an `int32` scalar, or `(*batch,)`, one for each example.
        where: the place, for errors.
        made_by: how to make a cache, a noun phrase that "of the greatest length" can follow, for errors.
        casts: whether the dtype of the cache was chosen: keys and values are then cast to it, and cast back to their
            own dtype for attention. Otherwise, another dtype is an error.
    """

    key: Holder
    value: Holder
    index: Holder
    where: str
    made_by: str = "`init` with inputs"
    casts: bool = False

    def positions(self, number: int) -> Array:
        """Return the positions of the next inputs.

        Example:
            >>> from types import SimpleNamespace as Box
            >>> full = Box(value=jnp.zeros((2, 9, 1, 2)))
            >>> DecodeCache(full, full, Box(value=jnp.array([0, 4])), "here").positions(3)
            Array([[0, 1, 2],
                   [4, 5, 6]], dtype=int32)

        Args:
            number: the number of positions.

        Returns:
            `(number,)`; with an index for each example, `(*batch, number)`.
        """
        index = jnp.asarray(self.index.value)
        return jnp.expand_dims(index, -1) + jnp.arange(number, dtype=index.dtype)

    def append(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
    ) -> tuple[Array, Array, Array, Array]:
        """Add positions; return their queries, all keys and values, and the mask for these.

        A query attends to its own position and to earlier ones, so chunks of any size give the same results as all
        positions at once. If there is not enough room and the index is known, that is an error. A traced index cannot
        raise an error: each query beyond the room is NaN, and so is its result; its key and value are dropped, and the
        index still increases.

        Args:
            query: `(*batch, positions, query heads, depth)`.
            key: `(*batch, positions, heads, depth)`.
            value: `(*batch, positions, heads, depth)`.
            mask: a mask of the weights, `(*batch, query heads, positions, room)`, combined with the mask of the
                positions so far.
            lengths: `(*batch,)` integers, for a cache with an index for each example: the number of valid positions.
                Negative numbers mean none, too large ones mean all. The positions after them are padding: they are not
                kept, no other position attends to them, and the example continues at its own length.

        Returns:
            The queries; keys and values, `(*batch, room, heads, depth)`; the mask.

        Raises:
            LiftArgumentError: if shapes or dtypes differ from those of the cache, the mask or the lengths do not match,
                or the room is known to be too small.
        """
        keys, values = self.key.value, self.value.value
        self._check(query, (key, keys), (value, values))
        batch, room, number = keys.shape[:-3], keys.shape[-3], key.shape[-3]
        check_attention_mask(self.where, "mask", mask, (*batch, query.shape[-2], number, room))
        count = self._count(lengths, batch, number)
        self._check_room(count, room)
        at = to = self.positions(number)
        fits = at < room
        if lengths is not None:  # padding, like excess positions, goes to a position that does not exist
            is_padding = jnp.arange(number) >= jnp.expand_dims(count, -1)
            to, fits = jnp.where(is_padding, room, at), fits | is_padding
        self.key.value, self.value.value = keys, values = _put(keys, _whole(key), to), _put(values, _whole(value), to)
        self.index.value = self.index.value + count
        seen = jnp.expand_dims(jnp.arange(room) <= jnp.expand_dims(at, -1), -3)  # an axis for the heads
        seen = jnp.broadcast_to(seen, (*batch, 1, number, room))
        allowed = jnp.asarray(seen if mask is None else jnp.logical_and(mask, seen), jnp.float32)
        query = jnp.where(jnp.expand_dims(fits, (-1, -2)), query, jnp.nan)
        return query, keys.astype(key.dtype), values.astype(value.dtype), allowed

    def _check(self, query: Array, *pairs: tuple[Array, Array]) -> None:
        for name, (new, kept) in zip(("key", "value"), pairs, strict=True):
            expected = (*kept.shape[:-3], *new.shape[-3:-2], *kept.shape[-2:])
            same = self.casts or new.dtype == kept.dtype
            if not same or new.shape != expected or query.shape[:-2] != expected[:-2]:
                positions = ", ".join(map(str, (*kept.shape[:-3], "positions", *kept.shape[-2:])))
                raise LiftArgumentError(
                    self.where,
                    f"the cache takes a {name} of shape ({positions}) and dtype {kept.dtype}, and as many queries; "
                    f"given {new.shape} and {new.dtype}, with queries of shape {query.shape}.",
                    "Pass inputs of the batch that the cache was made with. To choose another dtype, set it when "
                    "you make the cache: `dtype` of `decode_cache`, `cache_dtype` of a layer.",
                    given=new.shape,
                )

    def _count(self, lengths: ArrayLike | None, batch: tuple[int, ...], number: int) -> Any:
        """Return how many positions are added: one number, or with lengths one for each example."""
        shape = jnp.shape(self.index.value)
        if shape not in ((), batch):
            raise LiftArgumentError(
                self.where,
                f"the cache has an index of shape {shape}, but a batch of shape {batch}.",
                f"Use one index for all, of shape (), or one for each example, of shape {batch}.",
                given=shape,
                expected=batch,
            )
        if lengths is None:
            return number
        lengths = jnp.asarray(lengths)
        if shape != batch or lengths.shape != batch or not jnp.issubdtype(lengths.dtype, jnp.integer):
            raise LiftArgumentError(
                self.where,
                f"lengths, {lengths.dtype} of shape {lengths.shape}, need a batch of that shape and an index of the "
                f"cache for each example; the batch has shape {batch} and the index {shape}.",
                "Make the cache with `ragged=True` (in layers `ragged_cache`), and pass one integer for each example.",
                option="ragged",
                given=lengths.shape,
                expected=batch,
            )
        return jnp.clip(lengths, 0, number).astype(self.index.value.dtype)

    def _check_room(self, count: Any, room: int) -> None:
        index = self.index.value
        if isinstance(index, jax.core.Tracer) or isinstance(count, jax.core.Tracer):
            return
        last = np.asarray(index) + np.asarray(count)
        if last.size and last.max() > room:
            example = f" of example {tuple(map(int, np.argwhere(last > room)[0]))}" if last.ndim else ""
            raise LiftArgumentError(
                self.where,
                f"the cache is full: it has room for {room} positions, but this would be number {last.max()}{example}.",
                f"Make a longer one: call {self.made_by} of the greatest length.",
                given=int(last.max()),
                expected=room,
            )


@checks_options
def decode_cache(
    scope: Scope, key: Array, value: Array, *, ragged: bool = False, dtype: Dtype | None = None
) -> DecodeCache | None:
    """Return the cache of a scope, for decoding; if there is none, it makes an empty one and returns None.

    The cache has room for as many positions as the keys that it is made from, so make it from the longest inputs. After
    that, it takes inputs of any length: a whole prompt, parts of it, or one position at a time.

    Collections: `cache`, with `cached_key` and `cached_value`, of the shapes of key and value, and `cache_index`, a
    scalar, or with `ragged` of shape `(*batch,)`.

    Example:
        >>> import liftcore
        >>> def step(scope, x):
        ...     cache = decode_cache(scope, x, x)
        ...     if cache is not None:
        ...         query, keys, values, mask = cache.append(x, x, x)
        ...         x = liftcore.nn.dot_product_attention(query, keys, values, mask=mask)
        ...     return x
        >>> _, variables = liftcore.init(step)(jax.random.key(0), jnp.ones((8, 2, 3)))
        >>> decode = liftcore.apply(step, mutable=["cache"])
        >>> y, variables = decode(variables, jnp.ones((5, 2, 3)))  # a prompt
        >>> y, variables = decode(variables, jnp.ones((1, 2, 3)))  # and a step
        >>> y.shape, variables["cache"]["cache_index"].item()
        ((1, 2, 3), 6)

    Args:
        scope: the scope of the cache.
        key: `(*batch, length, heads, depth)`, in the form to cache; only its shape and dtype matter.
        value: the values, in the same form.
        ragged: whether each example has its own index, for prompts of different lengths in one batch.
        dtype: the dtype of the cache, such as `bfloat16` for half the memory, independent of the computation; by
            default the dtype of key and value.

    Raises:
        ScopeVariableNotFoundError: if `apply` decodes one position without a cache, or with an immutable one.
    """
    where, exists = f"decode_cache at {scope.path_text}", scope.has_variable("cache", "cached_key")
    if not exists and key.shape[-3] == 1 and not scope.is_initializing():  # it would be made again at every step
        raise ScopeVariableNotFoundError(
            where,
            "this is one step of decoding, but there is no cache to decode with.",
            'Make one with inputs of the greatest length, `cache = model.init(key, inputs)["cache"]`, then pass '
            '`{"params": params, "cache": cache}` and `mutable=["cache"]`.',
            collection="cache",
            option="mutable",
        )
    batch = key.shape[:-3] if ragged else ()
    # On a mesh with Explicit axes, the cache has the sharding of the keys and values that it is made from, except along
    # their length: positions are written one after the other.
    cached_key = scope.variable("cache", "cached_key", lambda: jnp.zeros_like(_whole(key), dtype))
    cached_value = scope.variable("cache", "cached_value", lambda: jnp.zeros_like(_whole(value), dtype))
    index = scope.variable("cache", "cache_index", lambda: jnp.zeros(batch, jnp.int32))
    return DecodeCache(cached_key, cached_value, index, where, casts=dtype is not None) if exists else None


def _whole(x: Array) -> Array:
    """Return keys or values that no mesh axis divides along their length."""
    return gather(x, [x.ndim - 3])


def _put(kept: Array, new: Array, at: Array) -> Array:
    """Return the kept array with new values at their positions, `(*batch, positions)` or `(positions,)`."""
    new = new.astype(kept.dtype)
    if at.shape == (1,):
        return _put_one(kept, new, at[0])
    put: Callable[..., Array] = _put_many
    if at.ndim > 1:
        at = place(at, sharding_entries(kept)[: at.ndim - 1], kept)
    for _ in kept.shape[:-3]:
        put = jax.vmap(put, in_axes=(0, 0, 0 if at.ndim > 1 else None))
    return put(kept, new, at)


def _put_many(kept: Array, new: Array, at: Array) -> Array:
    return kept.at[at].set(new, mode="drop")


def _put_one(kept: Array, new: Array, index: Array) -> Array:
    """Do the same for one position, with a slice, which is faster than a scatter."""
    zero = jnp.zeros_like(index)  # with 64-bit numbers on, a plain 0 would have another dtype than the index
    starts = [*(zero for _ in kept.shape[:-3]), index, zero, zero]
    there = lax.dynamic_slice(kept, starts, new.shape)  # JAX clamps the position, and would overwrite this
    return lax.dynamic_update_slice(kept, jnp.where(index < kept.shape[-3], new, there), starts)
