"""Choosing the next token of each example, from the logits of all tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import LiftArgumentError
from ..typing import Array, ArrayLike, Key

__all__ = ["filter_logits", "sample_tokens"]


def filter_logits(logits: ArrayLike, top_k: ArrayLike | None = None, top_p: ArrayLike | None = None) -> Array:
    """The logits, with minus infinity for all but the most probable tokens.

    With both limits, `top_p` counts the probabilities of the `top_k` alone. Of two equal logits the one with the lower
    index is taken first. Source of top-p, "nucleus sampling": Holtzman et al., https://arxiv.org/abs/1904.09751.

    Example:
        >>> logits = jnp.log(jnp.array([0.1, 0.4, 0.3, 0.2]))
        >>> jnp.exp(filter_logits(logits, top_k=2)).round(1)
        Array([0. , 0.4, 0.3, 0. ], dtype=float32)
        >>> jnp.exp(filter_logits(logits, top_p=0.8)).round(1)
        Array([0. , 0.4, 0.3, 0.2], dtype=float32)

    Args:
        logits: `(*batch, vocabulary)`.
        top_k: how many tokens are kept, `(*batch,)` or one number for all; by default, and if there are no more, all.
        top_p: the fewest most probable tokens are kept whose probabilities sum to that, `(*batch,)` or one number; at
            least one token, and with 1, the default, all.
    """
    logits = jnp.asarray(logits)
    order = jnp.argsort(logits, axis=-1, stable=True, descending=True)
    ranked = jnp.take_along_axis(_wide(logits), order, -1)
    is_kept = jnp.ones(logits.shape, bool)
    if top_k is not None:
        is_kept &= jnp.arange(logits.shape[-1]) < jnp.expand_dims(jnp.asarray(top_k), -1)
    if top_p is not None:
        limit = jnp.expand_dims(jnp.asarray(top_p), -1)
        probabilities = jax.nn.softmax(jnp.where(is_kept, ranked, -jnp.inf))
        before = jnp.cumsum(probabilities, -1) - probabilities
        is_kept &= (before < limit) | (limit >= 1)  # the sum of all may be rounded to 1 before the last token
    is_kept = jnp.take_along_axis(is_kept, jnp.argsort(order, axis=-1), -1)
    return jnp.where(is_kept, logits, -jnp.inf)


def sample_tokens(
    logits: ArrayLike,
    keys: Key,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
) -> Array:
    """Draws a token for each example from `softmax(filter_logits(logits / temperature, top_k, top_p))`.

    All limits may be traced. Where no example needs them, nothing is sorted.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> logits = jnp.array([[1.0, 3.0, 2.0], [0.0, 0.0, 9.0]])
        >>> sample_tokens(logits, keys, temperature=0.0)
        Array([1, 2], dtype=int32)
        >>> sample_tokens(logits, keys, top_k=1)
        Array([1, 2], dtype=int32)

    Args:
        logits: `(batch, vocabulary)`.
        keys: `(batch,)`: each example has its own, so that a draw does not depend on the rest of the batch.
        temperature: what logits are divided by, `(batch,)` or one number; 0 takes the most probable token.
        top_k: how many tokens may be drawn, `(batch,)` or one number; see `filter_logits`.
        top_p: the probability of those that may be drawn, `(batch,)` or one number; see `filter_logits`.

    Returns:
        `(batch,)` integers.

    Raises:
        LiftArgumentError: where the logits are not of that shape.
    """
    logits = jnp.asarray(logits)
    if logits.ndim != 2:
        raise LiftArgumentError(
            "sample_tokens",
            f"expected logits of shape (batch, vocabulary), given {logits.shape}.",
            "Pass those of one position: `logits[:, -1]`.",
        )
    batch, vocabulary = logits.shape
    temperature, top_k, top_p = (
        jnp.broadcast_to(jnp.asarray(default if one is None else one), (batch,))
        for one, default in ((temperature, 1.0), (top_k, vocabulary), (top_p, 1.0))
    )
    draws = temperature > 0

    def drawn() -> Array:
        # The greatest one becomes 0, which stays finite however small the temperature is.
        scaled = _wide(logits) - _wide(logits).max(-1, keepdims=True)
        scaled = scaled / jnp.where(draws, temperature, 1)[:, None].astype(scaled.dtype)
        is_limited = jnp.any(draws & ((top_k < vocabulary) | (top_p < 1)))
        scaled = lax.cond(is_limited, lambda: filter_logits(scaled, top_k, top_p), lambda: scaled)
        return jax.vmap(jax.random.categorical)(keys, scaled)

    likeliest = jnp.argmax(logits, -1)
    return jnp.where(draws, lax.cond(jnp.any(draws), drawn, lambda: likeliest), likeliest).astype(jnp.int32)


def _wide(logits: Array) -> Array:
    """Logits of dtype float32 at least: a sum of thousands of probabilities needs more than 16 bits."""
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
