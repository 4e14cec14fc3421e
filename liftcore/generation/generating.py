"""`generate`: check the arguments, and run the compiled program for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..calls import boundary, raise_interrupt
from ..errors import Expected, LiftArgumentError
from ..typing import ArrayLike, Key
from .arguments import Prompts, as_int, make_options, make_prompts
from .caches import all_counts
from .loop import Generated, Programs
from .models import Model

__all__ = ["generate"]


@boundary
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
    """Continue prompts with the tokens of a model, either drawn or the most probable ones.

    The whole prompt passes through the model at once, padded to the length of its bucket. Then one token follows the
    other, in a loop that ends when all examples have ended. One compiled program serves all prompts of a bucket:
    lengths, keys, temperatures, limits and stop tokens are its arguments. The result of an example does not depend on
    the rest of the batch: it has its own key and, if the model has `ragged_cache`, its own position.

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
        variables: the variables of the module; they and the key may be traced. A collection `cache` is ignored:
            `generate` creates an empty one.
        prompt: integers of shape `(batch, length)`, or a list of sequences of integers, whose lengths may differ.
        max_new_tokens: the greatest number of new tokens, `(batch,)` or one number for all.
        lengths: the number of tokens of each prompt, `(batch,)`, if `prompt` is an array that is padded on the right.
        key: the key to draw tokens with. Either one, into which the number of the example is folded, or `(batch,)`
            keys. The n-th new token of an example depends only on its key and n.
        temperature: the logits are divided by this before a token is drawn, `(batch,)` or one number; 0 selects the
            most probable token. By default 1 with a key, and 0 without one.
        top_k: draw only from this many of the most probable tokens, `(batch,)` or one number; by default all.
        top_p: draw only from the smallest set of most probable tokens whose probabilities, after `temperature` and
            `top_k`, sum to this; `(batch,)` or one number. By default 1, which means all. See `filter_logits`.
        stop_tokens: an example ends when it gets one of these tokens.
        pad_token: the token that fills the result after the end of an example.
        bucket: the length to which prompts are padded; by default the next power of two, at least 16.
        max_length: the number of positions in the cache, and the most that the model can handle; by default as many as
            the bucket and the new tokens need.

    Returns:
        The new tokens, their number for each example, and the logarithms of their probabilities.

    Raises:
        LiftArgumentError: if prompts or options are not valid, the cache does not fit them, or known logits are NaN.
    """
    where = "generate"
    _check_model(where, module, variables)
    model = Model.of(where, module)
    bucket = None if bucket is None else as_int(where, "bucket", bucket)
    max_length = None if max_length is None else as_int(where, "max_length", max_length)
    prompts = make_prompts(where, prompt, lengths, bucket, max_length)
    batch, padded = prompts.tokens.shape
    options = make_options(where, batch, key, temperature, top_k, top_p, max_new_tokens, stop_tokens, pad_token)
    size = int(options.limits.max())
    room = _room(where, int(prompts.lengths.max()), padded, size, max_length)
    variables = {name: collection for name, collection in variables.items() if name != "cache"}
    programs = Programs.of(model)
    try:
        if np.ptp(prompts.lengths):
            _check_uneven(where, programs.empty_cache.eval_shape(variables, batch, room), prompts)
        found, is_nan = programs.run(variables, prompts, options, room, size)
    except ValueError as error:
        raise_interrupt(error)
        raise
    if not isinstance(is_nan, jax.core.Tracer) and is_nan:
        raise _no_number(where, prompts, room)
    return found  # type: ignore[no-any-return]


def _no_number(where: str, prompts: Prompts, room: int) -> LiftArgumentError:
    return LiftArgumentError(
        where,
        f"the logits of the model are NaN. Prompts were padded to {prompts.tokens.shape[1]} tokens, the cache has "
        f"{room} positions, and the greatest token of a prompt is {prompts.tokens.max()}.",
        "If the model has fewer positions than that, pass their number: `max_length=…`. If its vocabulary has no such "
        "token, pass other prompts. Otherwise, look for NaN in the variables.",
        option="max_length",
    )


def _room(where: str, longest: int, bucket: int, size: int, max_length: int | None) -> int:
    """Return the number of positions in the cache."""
    if max_length is None:
        return bucket + size
    needed = longest + size - 1  # the last new token does not pass through the model again
    if needed > max_length or bucket > max_length:
        raise LiftArgumentError(
            where,
            f"prompts of up to {longest} tokens, in a bucket of {bucket}, and {size} new ones need "
            f"{max(needed, bucket)} positions; max_length is {max_length}.",
            f"Shorten the prompts, pass `max_new_tokens={max(max_length - longest + 1, 1)}`, or allow more positions: "
            f"`max_length={max(needed, bucket)}`.",
            option="max_length",
            given=max_length,
            expected=max(needed, bucket),
        )
    return max(max_length, 2)  # inputs of one position would be a decoding step, which does not create a cache


def _check_model(where: str, module: Any, variables: Any) -> None:
    if not isinstance(variables, Mapping):
        raise LiftArgumentError(
            where,
            Expected("variables, a dict of collections", given=variables),
            'Pass the result of `init`, or `{"params": params}`.',
        )
    if not callable(getattr(module, "apply", module)):
        raise LiftArgumentError(
            where,
            Expected("a module, an object with `apply`, or a function of a scope", given=module),
            "Pass the module first, then its variables, then the prompts.",
        )


def _check_uneven(where: str, cache: Any, prompts: Prompts) -> None:
    """Check that a cache takes prompts of different lengths."""
    if not all(all_counts(cache, prompts.lengths.shape)):
        raise LiftArgumentError(
            where,
            f"the prompts have from {prompts.lengths.min()} to {prompts.lengths.max()} tokens, but the cache has one "
            "position for all examples.",
            "Create its attention layers with `ragged_cache=True`. In a function of a scope, use `nn.decode_cache(…, "
            "ragged=True)`.",
            option="ragged_cache",
        )
