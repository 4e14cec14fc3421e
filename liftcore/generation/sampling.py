"""Choose the next token of each example from the logits of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import Expected, LiftArgumentError
from ..nn.masks import broadcasts
from ..typing import Array, ArrayLike, Key, Shape

__all__ = ["check_limits", "filter_logits", "sample_tokens"]


def filter_logits(logits: ArrayLike, top_k: ArrayLike | None = None, top_p: ArrayLike | None = None) -> Array:
    """Set all logits to minus infinity, except those of the most probable tokens.

    With both limits, `top_p` is applied to the probabilities of only the `top_k` tokens. Of two equal logits, the one
    with the lower index is kept first. Top-p is "nucleus sampling": Holtzman et al., https://arxiv.org/abs/1904.09751.

    Example:
        >>> logits = jnp.log(jnp.array([0.1, 0.4, 0.3, 0.2]))
        >>> jnp.exp(filter_logits(logits, top_k=2)).round(1)
        Array([0. , 0.4, 0.3, 0. ], dtype=float32)
        >>> jnp.exp(filter_logits(logits, top_p=0.8)).round(1)
        Array([0. , 0.4, 0.3, 0.2], dtype=float32)

    Args:
        logits: an array of shape `(*batch, vocabulary)`.
        top_k: the number of tokens to keep, `(*batch,)` or one number for all. By default, or if it is larger than the
            vocabulary, all.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to this, `(*batch,)` or one number.
            At least one token is kept; with 1, the default, all.

    Raises:
        LiftArgumentError: if a limit is known and out of range: `top_k` below 1, `top_p` not above 0 and at most 1; or
            if its shape does not fit the logits.
    """
    logits = jnp.asarray(logits)
    check_limits("filter_logits", logits.shape[:-1], top_k=top_k, top_p=top_p)
    order = jnp.argsort(logits, axis=-1, stable=True, descending=True)
    ranked = jnp.take_along_axis(_wide(logits), order, -1)
    first = jnp.arange(logits.shape[-1]) == 0
    is_kept = jnp.ones(logits.shape, bool)
    if top_k is not None:
        is_kept &= jnp.arange(logits.shape[-1]) < jnp.expand_dims(jnp.asarray(top_k), -1)
    if top_p is not None:
        limit = jnp.expand_dims(jnp.asarray(top_p), -1)
        probabilities = jax.nn.softmax(jnp.where(is_kept, ranked, -jnp.inf))
        before = jnp.cumsum(probabilities, -1) - probabilities
        is_kept &= (before < limit) | (limit >= 1)  # the sum may round to 1 before the last token
    is_kept = jnp.take_along_axis(is_kept | first, jnp.argsort(order, axis=-1), -1)
    return jnp.where(is_kept, logits, -jnp.inf)


def sample_tokens(
    logits: ArrayLike,
    keys: Key,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
) -> Array:
    """Draw a token for each example from `softmax(filter_logits(logits / temperature, top_k, top_p))`.

    All limits may be traced. If no example needs them, nothing is sorted.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> logits = jnp.array([[1.0, 3.0, 2.0], [0.0, 0.0, 9.0]])
        >>> sample_tokens(logits, keys, temperature=0.0)
        Array([1, 2], dtype=int32)
        >>> sample_tokens(logits, keys, top_k=1)
        Array([1, 2], dtype=int32)

    Args:
        logits: an array of shape `(batch, vocabulary)`.
        keys: a key for each example, `(batch,)`, so that a draw does not depend on the rest of the batch.
        temperature: the logits are divided by this, `(batch,)` or one number; 0 selects the most probable token.
        top_k: draw only from this many of the most probable tokens, `(batch,)` or one number; see `filter_logits`.
        top_p: draw only from the most probable tokens with this total probability, `(batch,)` or one number; see
            `filter_logits`.

    Returns:
        Integers of shape `(batch,)`.

    Raises:
        LiftArgumentError: if the logits have another number of dimensions, if there is not a key for each example, or
            if a limit has another shape, or is known and out of range.
    """
    logits = jnp.asarray(logits)
    if logits.ndim != 2:
        raise LiftArgumentError(
            "sample_tokens",
            Expected("logits of shape (batch, vocabulary)", given=logits.shape),
            "Pass the logits of one position: `logits[:, -1]`.",
        )
    batch, vocabulary = logits.shape
    if np.shape(keys)[:1] != (batch,):
        raise LiftArgumentError(
            "sample_tokens",
            Expected(f"a key for each of {batch} examples", given=keys),
            f"Pass `jax.random.split(key, {batch})`.",
        )
    check_limits("sample_tokens", (batch,), temperature=temperature, top_k=top_k, top_p=top_p)
    temperature, top_k, top_p = (
        jnp.broadcast_to(jnp.asarray(default if one is None else one), (batch,))
        for one, default in ((temperature, 1.0), (top_k, vocabulary), (top_p, 1.0))
    )
    draws = temperature > 0

    def drawn() -> Array:
        # Shift the greatest logit to 0, so that it stays finite however small the temperature is.
        scaled = _wide(logits) - _wide(logits).max(-1, keepdims=True)
        scaled = scaled / jnp.where(draws, temperature, 1)[:, None].astype(scaled.dtype)
        is_limited = jnp.any(draws & ((top_k < vocabulary) | (top_p < 1)))
        scaled = lax.cond(is_limited, lambda: filter_logits(scaled, top_k, top_p), lambda: scaled)
        return jax.vmap(jax.random.categorical)(keys, scaled)

    likeliest = jnp.argmax(logits, -1)
    return jnp.where(draws, lax.cond(jnp.any(draws), drawn, lambda: likeliest), likeliest).astype(jnp.int32)


_LIMITS: Mapping[str, tuple[Callable[[Any], Any], str, str]] = {
    "temperature": (lambda one: (one >= 0) & (one < np.inf), "0 or a positive number", "0.8"),
    "top_k": (lambda one: one >= 1, "1 or more", "40"),
    "top_p": (lambda one: (one > 0) & (one <= 1), "a number above 0 and at most 1", "0.9"),
    "max_new_tokens": (lambda one: one >= 1, "1 or more", "50"),
}
"""Which numbers are right for each limit, the words for them in errors, and an example."""


def check_limits(where: str, batch: Shape, **limits: Any) -> None:
    """Check that each limit is one number or one for each example, and that numbers that are not traced are right.

    Args:
        where: the caller, for errors.
        batch: the shape of the examples.
        **limits: `temperature`, `top_k`, `top_p` and `max_new_tokens`. None is no limit, but no temperature either.

    Raises:
        LiftArgumentError: if one has another shape, or is wrong.
    """
    for name, given in limits.items():
        if given is None and name != "temperature":
            continue
        if not broadcasts(np.shape(given), batch):
            raise LiftArgumentError(
                where,
                Expected(f"one number or an array of shape {tuple(batch)}", given=given),
                "Pass one number, or one for each example.",
                option=name,
            )
        if isinstance(given, jax.core.Tracer):
            continue
        numbers, (is_right, expected, example) = np.atleast_1d(np.asarray(given)), _LIMITS[name]
        wrong = numbers[~is_right(numbers)].tolist() if jnp.issubdtype(numbers.dtype, jnp.number) else [given]
        if wrong:
            fix = f"Pass a value such as `{name}={example}`."
            raise LiftArgumentError(where, Expected(expected, given=wrong[0]), fix, option=name)


def _wide(logits: Array) -> Array:
    """Convert logits to float32 at least: a sum of thousands of probabilities needs more than 16 bits."""
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
