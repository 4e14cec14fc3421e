"""The cache of attention that decodes one position after the other: keys and values of those before it."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import LiftArgumentError, ScopeVariableNotFoundError
from ..scopes.scope import Scope
from ..typing import Array, ArrayLike
from .masks import check_attention_mask

__all__ = ["DecodeCache", "Holder", "decode_cache"]


class Holder(Protocol):
    """What holds an array that is replaced: a variable of a scope, or another object with a `value`."""

    value: Any


@dataclasses.dataclass(frozen=True)
class DecodeCache:
    """Room for the keys and values of all positions; `decode_cache` makes one in a scope.

    Example:
        >>> from types import SimpleNamespace as Box
        >>> cache = DecodeCache(Box(value=jnp.zeros((5, 1, 2))), Box(value=jnp.zeros((5, 1, 2))), Box(value=0), "here")
        >>> query, keys, values, mask = cache.append(*[jnp.ones((1, 1, 2))] * 3)
        >>> keys.shape, mask
        ((5, 1, 2), Array([[[1., 0., 0., 0., 0.]]], dtype=float32))

    Attributes:
        key: those of the positions so far, `(*batch, length, heads, depth)`, zeros after them.
        value: the same of values.
        index: the next position, an `int32` scalar; by it positions are counted from 0.
        where: the place, for errors.
        made_by: what makes a cache, with a noun that "of the greatest length" can follow, for errors.
    """

    key: Holder
    value: Holder
    index: Holder
    where: str
    made_by: str = "`init` with inputs"

    def append(
        self, query: Array, key: Array, value: Array, mask: ArrayLike | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Adds one position, and gives what its query attends to: the query, all keys and values, and their mask.

        Where the cache is full and its index is known, that is an error. A traced index cannot raise: then the query
        is NaN, and so is what attention makes of it; keys and values stay as they are, and the index counts on.

        Args:
            query: `(*batch, 1, query heads, depth)`.
            key: `(*batch, 1, heads, depth)`.
            value: the same of values.
            mask: of the weights, `(*batch, query heads, 1, length)`, combined with that of the positions so far.

        Returns:
            The query; keys and values, `(*batch, length, heads, depth)`; the mask.

        Raises:
            LiftArgumentError: where not one position is given, its shape or dtype is not that of the cache, the mask
                does not fit, or the cache is known to be full.
        """
        keys, values, index = self.key.value, self.value.value, self.index.value
        self._check(query, (key, keys), (value, values))
        batch, length = keys.shape[:-3], keys.shape[-3]
        check_attention_mask(self.where, "mask", mask, (*batch, query.shape[-2], 1, length))
        fits = self._fits(index, length)
        self.key.value = keys = _put(keys, key, index, fits)
        self.value.value = values = _put(values, value, index, fits)
        self.index.value = index + 1
        seen = jnp.broadcast_to(jnp.arange(length) <= index, (*batch, 1, 1, length))
        allowed = jnp.asarray(seen if mask is None else jnp.logical_and(mask, seen), jnp.float32)
        return jnp.where(fits, query, jnp.nan), keys, values, allowed

    def _check(self, query: Array, *pairs: tuple[Array, Array]) -> None:
        for name, (new, kept) in zip(("key", "value"), pairs, strict=True):
            expected = (*kept.shape[:-3], 1, *kept.shape[-2:])
            if (new.shape, new.dtype) != (expected, kept.dtype) or query.shape[:-2] != expected[:-2]:
                raise LiftArgumentError(
                    self.where,
                    f"the cache takes one position at a time, a {name} of shape {expected} and dtype {kept.dtype}; "
                    f"given {new.shape} and {new.dtype}, with queries of shape {query.shape}.",
                    "Pass inputs of length 1, of the batch and dtype that the cache was made with.",
                )

    def _fits(self, index: Array, length: int) -> Array:
        if not isinstance(index, jax.core.Tracer) and int(index) >= length:
            raise LiftArgumentError(
                self.where,
                f"the cache is full: it has room for {length} positions, and this would be number {int(index) + 1}.",
                f"Make a longer one: call {self.made_by} of the greatest length.",
            )
        return index < length


def decode_cache(scope: Scope, key: Array, value: Array) -> DecodeCache | None:
    """The cache of a scope, to decode with; where there is none yet, it is made, empty, and the result is None.

    It has room for as many positions as the keys have that it is made from: those of the longest inputs, then.

    Collections: `cache`, with `cached_key` and `cached_value`, of the shapes and dtypes of key and value, and
    `cache_index`, a scalar.

    Example:
        >>> import liftcore
        >>> def step(scope, x):
        ...     cache = decode_cache(scope, x, x)
        ...     if cache is not None:
        ...         query, keys, values, mask = cache.append(x, x, x)
        ...         x = liftcore.nn.dot_product_attention(query, keys, values, mask=mask)
        ...     return x
        >>> _, variables = liftcore.init(step)(jax.random.key(0), jnp.ones((5, 2, 3)))
        >>> y, variables = liftcore.apply(step, mutable=["cache"])(variables, jnp.ones((1, 2, 3)))
        >>> y.shape, variables["cache"]["cache_index"].item()
        ((1, 2, 3), 1)

    Args:
        scope: where the variables live.
        key: `(*batch, length, heads, depth)`, as it would be cached; only shape and dtype count.
        value: the same of values.

    Raises:
        ScopeVariableNotFoundError: where `apply` is to decode one position and was given no cache, or an immutable one.
    """
    where, exists = f"decode_cache at {scope.path_text}", scope.has_variable("cache", "cached_key")
    if not exists and key.shape[-3] == 1 and not scope.is_initializing():  # it would be made anew at every step
        raise ScopeVariableNotFoundError(
            where,
            "this is one step of decoding, and there is no cache to decode with.",
            'Make one with inputs of the greatest length, `cache = model.init(key, inputs)["cache"]`, then pass '
            '`{"params": params, "cache": cache}` and `mutable=["cache"]`.',
        )
    cached_key = scope.variable("cache", "cached_key", jnp.zeros, key.shape, key.dtype)
    cached_value = scope.variable("cache", "cached_value", jnp.zeros, value.shape, value.dtype)
    index = scope.variable("cache", "cache_index", lambda: jnp.array(0, jnp.int32))
    return DecodeCache(cached_key, cached_value, index, where) if exists else None


def _put(kept: Array, new: Array, index: Array, fits: Array) -> Array:
    """The kept array with the new one at a position; as it was, where that does not fit."""
    zero = jnp.zeros_like(index)  # with 64-bit numbers on, a plain 0 would be of another dtype than the index
    starts = [*(zero for _ in kept.shape[:-3]), index, zero, zero]
    there = lax.dynamic_slice(kept, starts, new.shape)  # what JAX would overwrite instead, since it clamps the position
    return lax.dynamic_update_slice(kept, jnp.where(fits, new, there), starts)
