"""Keys whose numbers take few operations: compiling JAX's own generator takes longer than all of a small layer."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

__all__ = ["quick_sequences"]


def _mixed(left: Any, right: Any) -> Any:
    """32 bits of 64, each of which changes about half of them."""
    x = (left ^ (right * jnp.uint32(0x9E3779B1))) * jnp.uint32(0x85EBCA6B)
    return (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0xC2B2AE35)


def _seed(seed: Any) -> Any:
    return jnp.stack([jnp.asarray(seed).astype(jnp.uint32), jnp.uint32(7)])


def _fold_in(key: Any, data: Any) -> Any:
    return _mixed(key, data.astype(jnp.uint32) + jnp.array([1, 3], jnp.uint32))


def _split(key: Any, shape: tuple[int, ...]) -> Any:
    number = jnp.arange(math.prod(shape), dtype=jnp.uint32) + jnp.uint32(17)
    return jnp.stack([_mixed(key[0], number), _mixed(key[1], number)], -1).reshape(*shape, 2)


def _random_bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
    bits = _mixed(_mixed(key[0], jnp.arange(math.prod(shape), dtype=jnp.uint32)), key[1])
    if width == 64:
        return (bits.astype(jnp.uint64) << jnp.uint64(32) | _mixed(bits, key[0]).astype(jnp.uint64)).reshape(shape)
    return bits.astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width]).reshape(shape)


_QUICK = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="quick", tag="quick"
)


def quick_sequences() -> dict[str, Any]:
    """A key for each RNG stream that a row uses."""
    return dict(zip(("params", "dropout", "noise"), jax.random.split(jax.random.key(0, impl=_QUICK), 3), strict=True))
