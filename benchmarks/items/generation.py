"""Decoding: a prompt that goes through attention with a cache at once, and one token after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import linen_like as nn

from ..measure import seconds
from ..row import Row
from ..settings import Settings
from ..sides import PURE

__all__ = ["generation", "ways"]

_LAYERS, _WIDTH, _HEADS = 4, 128, 4
_LENGTHS = (200, 50)


class _Model(nn.Module):
    """Layers of causal attention with residual connections."""

    decode: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(_LAYERS):
            attend = nn.MultiHeadAttention(_HEADS, use_bias=False, is_causal=True, decode=self.decode, name=f"{i}")
            x = x + attend(x)
        return x


def generation(settings: Settings) -> Iterator[Row]:
    """A prompt of some tokens against one pass without a cache, written by hand."""
    for length in _LENGTHS:
        sides = {
            name: functools.partial(lambda way, given: jax.block_until_ready(way(*given)), way, given)
            for name, (way, *given) in ways(length).items()
        }
        what = f"a prompt of {length} tokens with a cache, relative to one pass without"
        yield Row("generation", what, "s", seconds(sides, max(3, settings.rounds // 4)), {"linen_like": 1.5})


def ways(length: int) -> dict[str, tuple[Callable[..., Any], Any, jax.Array]]:
    """What is compared: for each side a compiled function, and what it is called with; all return the same."""
    x = jax.random.normal(jax.random.key(0), (1, length, _WIDTH))
    variables = _Model(decode=True).init(jax.random.key(1), x)
    decode = functools.partial(_Model(decode=True).apply, mutable=["cache"])

    def step(variables: Any, x: jax.Array) -> Any:
        y, written = decode(variables, x[:, None])
        return {**variables, **written}, y[:, 0]

    def by_steps(variables: Any, x: jax.Array) -> jax.Array:
        return jnp.swapaxes(jax.lax.scan(step, variables, jnp.swapaxes(x, 0, 1))[1], 0, 1)

    return {
        PURE: (jax.jit(_by_hand), variables["params"], x),
        "linen_like": (jax.jit(lambda variables, x: decode(variables, x)[0]), variables, x),
        "linen_like, by steps": (jax.jit(by_steps), variables, x),
    }


def _by_hand(params: Any, x: jax.Array) -> jax.Array:
    """The same model without a cache."""
    is_seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    for i in range(_LAYERS):
        layer = params[f"{i}"]
        query, key, value = (
            jnp.einsum("blf,fhd->blhd", x, layer[name]["kernel"]) for name in ("query", "key", "value")
        )
        weights = jnp.einsum("bqhd,bkhd->bhqk", query / query.shape[-1] ** 0.5, key)
        weights = jax.nn.softmax(jnp.where(is_seen, weights, -1e30))
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        x = x + jnp.einsum("blhd,hdf->blf", y, layer["out"]["kernel"])
    return x
