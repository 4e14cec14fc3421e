"""`generate`: checks what is given, and runs the program for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import LiftArgumentError, shown
from ..typing import ArrayLike, Key
from .caches import all_counts
from .loop import Generated, empty_cache, run
from .models import Model
from .options import make_options
from .prompts import Prompts, make_prompts

__all__ = ["generate"]


def generate(
    module: Any,
    variables: Mapping[str, Any],
    prompt: Any,
    *,
    max_new_tokens: ArrayLike,
    lengths: ArrayLike | None = None,
    key: Key | None = None,
    temperature: ArrayLike | None = None,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
    stop_tokens: Sequence[int] = (),
    pad_token: int = 0,
    bucket: int | None = None,
    max_length: int | None = None,
) -> Generated:
    """Continues prompts with the tokens that a model gives, the most probable ones or drawn ones.

    The whole prompt goes through the model at once, padded to the length of its bucket; then one token after the other,
    in a loop that ends when all examples have ended. That is one program for all prompts of a bucket: lengths, keys,
    temperatures, limits and stop tokens are arguments of it. Each example is generated as it is alone, whatever else is
    in the batch: with its own position, if the model has `ragged_cache`, and with its own key.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> from liftcore import nn
        >>> def model(scope, tokens):
        ...     x = scope.child(nn.embedding, "words")(7, 8).lookup(tokens)[..., None, :]  # one head
        ...     cache = scope.child(nn.decode_cache, "cache")(x, x, ragged=True)
        ...     query, key, value, mask = (x, x, x, None) if cache is None else cache.append(x, x, x)
        ...     x = x + nn.dot_product_attention(query, key, value, mask=mask)
        ...     return scope.child(nn.dense, "head")(x[..., 0, :], 7)
        >>> _, variables = liftcore.init(model)(jax.random.key(0), jnp.zeros((1, 4), int))
        >>> drawn = generate(
        ...     model, variables, [[1, 2, 3], [4]], max_new_tokens=5, key=jax.random.key(1), temperature=0.7, top_k=3
        ... )
        >>> drawn.tokens.shape, drawn.lengths
        ((2, 5), Array([5, 5], dtype=int32))

    Args:
        module: an unbound module whose layers decode, or another object with such a method `apply`; or a function of a
            scope. It maps tokens, `(batch, length)`, to logits, `(batch, length, vocabulary)`. To fix other arguments,
            pass `functools.partial(module, train=False)`. Models that are equal by value share one program.
        variables: those of the module; a `cache` among them is not used, since an empty one is made.
        prompt: integers of shape `(batch, length)`, or a list of sequences of integers, perhaps of different lengths.
        max_new_tokens: how many tokens are added at most; `(batch,)`, or one number for all.
        lengths: `(batch,)`: for an array that is padded on the right, how many tokens of each prompt count.
        key: what tokens are drawn with: one, into which example `i` folds `i`, or `(batch,)` of them. The n-th new
            token of an example is drawn with its key and n alone.
        temperature: what logits are divided by before one is drawn, `(batch,)` or one number; 0 takes the most probable
            token. By default 1 with a key, and 0 without one.
        top_k: how many tokens may be drawn, the most probable ones, `(batch,)` or one number; by default all.
        top_p: the fewest most probable tokens may be drawn whose probabilities sum to that, at a temperature and of the
            `top_k`; `(batch,)` or one number, by default 1, which means all. See `filter_logits`.
        stop_tokens: an example ends with the first of these that it gets.
        pad_token: what the tokens of the result are filled up with.
        bucket: the length that prompts are padded to; by default the next power of two, at least 16.
        max_length: the number of positions that the cache has room for, and that the model may see; by default what
            bucket and new tokens need.

    Returns:
        The new tokens, how many there are of each example, and the logarithms of their probabilities.

    Raises:
        LiftArgumentError: where prompts or options are not as described, prompts and new tokens exceed `max_length`,
            the module has no cache, or prompts differ in length and its cache has no index for each example.
    """
    where = "generate"
    _check_model(where, module, variables)
    model = Model.of(where, module)
    prompts = make_prompts(where, prompt, lengths, bucket, max_length)
    batch, padded = prompts.tokens.shape
    options = make_options(
        where,
        batch,
        key=key,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        stop_tokens=stop_tokens,
        pad_token=pad_token,
    )
    size = int(options.limits.max())
    room = _room(where, int(prompts.lengths.max()), padded, size, max_length)
    variables = {name: collection for name, collection in variables.items() if name != "cache"}
    _check_cache(where, empty_cache.eval_shape(model, variables, batch, room), prompts)  # type: ignore[no-untyped-call]
    return run(model, variables, prompts, options, room, size)  # type: ignore[no-any-return]


def _room(where: str, longest: int, bucket: int, size: int, max_length: int | None) -> int:
    """How many positions the cache has room for."""
    if max_length is None:
        return bucket + size
    needed = longest + size - 1  # the last new token goes through the model no more
    if needed > max_length or bucket > max_length:
        raise LiftArgumentError(
            where,
            f"prompts of up to {longest} tokens, in a bucket of {bucket}, and {size} new ones need "
            f"{max(needed, bucket)} positions; max_length is {max_length}.",
            f"Shorten the prompts, pass `max_new_tokens={max(max_length - longest + 1, 1)}`, or let the model see "
            f"more: `max_length={max(needed, bucket)}`.",
        )
    return max(max_length, 2)  # inputs of one position would be a step, which makes no cache


def _check_model(where: str, module: Any, variables: Any) -> None:
    if not isinstance(variables, Mapping):
        raise LiftArgumentError(
            where,
            f"expected variables, a dict of collections, given {shown(variables)}.",
            'Pass those that `init` returned, or `{"params": params}`.',
        )
    if not callable(getattr(module, "apply", module)):
        raise LiftArgumentError(
            where,
            f"expected a module, an object with `apply`, or a function of a scope, given {shown(module)}.",
            "Pass the module first, then its variables, then the prompts.",
        )


def _check_cache(where: str, cache: Any, prompts: Prompts) -> None:
    ragged = list(all_counts(cache, prompts.lengths.shape))
    if not ragged:
        raise LiftArgumentError(
            where,
            "the module has no cache to decode with, a `cache_index` in the collection `cache`.",
            "Make its attention layers with `decode=True`: `generate(model.clone(decode=True), variables, …)` where "
            "that is a field of the model; a function of a scope uses `nn.decode_cache`.",
        )
    if not all(ragged) and np.ptp(prompts.lengths):
        raise LiftArgumentError(
            where,
            f"the prompts have from {prompts.lengths.min()} to {prompts.lengths.max()} tokens, and the cache counts "
            "the positions of all examples together.",
            "Make its attention layers with `ragged_cache=True`; a function of a scope, `nn.decode_cache(…, "
            "ragged=True)`.",
        )
