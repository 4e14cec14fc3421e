"""The compiled program of `generate`: the prompts at once, then a loop that ends when all examples have ended."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..caches import bounded
from ..calls import raise_interrupt
from ..errors import LiftArgumentError, shown
from ..typing import Array
from .arguments import Options, Prompts
from .caches import all_counts, lengthened, recounted, shortened
from .models import Model
from .positions import at_positions
from .sampling import sample_tokens

__all__ = ["Generated", "Programs"]


class Generated(NamedTuple):
    """The result of `generate`.

    Attributes:
        tokens: `(batch, max_new_tokens)`, `int32`: the new tokens, including a stop token, followed by padding.
        lengths: `(batch,)`, `int32`: the number of new tokens of each example.
        log_probs: `(batch, max_new_tokens)`, `float32`: the logarithm of the model's probability of each new token,
            before temperature and limits; 0 for padding.
    """

    tokens: Array
    lengths: Array
    log_probs: Array


class _State(NamedTuple):
    """The state that one step of the loop passes to the next."""

    step: Array
    last: Array
    cache: Any
    ended: Array
    found: Generated


class Programs(NamedTuple):
    """The compiled functions of one model; see `_empty_cache` and `_run`, which take the model too."""

    empty_cache: Any
    run: Any

    @classmethod
    def of(cls, model: Model) -> Programs:
        """Return the programs of a model: new ones, if no equal model was passed before or too many others since.

        Those of a function are kept as long as the function. `jax.jit` with a static argument would keep it for ever.

        Args:
            model: the model.
        """
        owner = model.owner or cls
        found: Programs = _kept.setdefault(owner, bounded(_MODELS)(_compiled))(model)
        return found


_MODELS = 32
"""The number of models that are compared by value whose programs are kept."""

_kept: weakref.WeakKeyDictionary[Any, Callable[[Model], Programs]] = weakref.WeakKeyDictionary()


def _compiled(model: Model) -> Programs:
    empty_cache = jax.jit(functools.partial(_empty_cache, model), static_argnums=(1, 2))
    return Programs(empty_cache, jax.jit(functools.partial(_run, model, empty_cache), static_argnums=(3, 4)))


def _empty_cache(model: Model, variables: Any, batch: int, room: int) -> Any:
    """Return the empty `cache` that a model creates for inputs of the greatest length.

    Args:
        model: the model.
        variables: its variables, without a cache.
        batch: the number of examples.
        room: the number of positions.
    """
    cache = model(variables, jnp.zeros((batch, room), jnp.int32))[1].get("cache", {})
    return recounted(cache, (batch,), lambda index, _: jnp.zeros_like(index))


def _run(
    model: Model,
    empty_cache: Callable[..., Any],
    variables: Any,
    prompts: Prompts,
    options: Options,
    room: int,
    size: int,
) -> tuple[Generated, Array]:
    """Generate tokens; see `generate`. Also return whether a probability was NaN.

    The prompts pass through the model at once, which fills the cache and gives the logits of the first new token; see
    `at_positions`. If the model cannot give these alone, the last token of each prompt passes through it again, as the
    first step.

    Args:
        model: the model.
        empty_cache: makes its empty cache.
        variables: its variables, without a cache.
        prompts: the padded prompts.
        options: the checked options.
        room: the number of positions in the cache.
        size: the greatest number of new tokens.
    """
    batch, bucket = prompts.tokens.shape
    cache = empty_cache(variables, batch, room)
    _check_decodes(cache, batch)
    logits, filled = _filled(model, variables, cache, prompts, room)
    back = bucket - prompts.lengths + (logits is None)  # the padding, and the last token if it passes again
    cache = recounted(filled, (batch,), lambda index, is_ragged: index - (back if is_ragged else back[0]))
    last = jnp.take_along_axis(prompts.tokens, prompts.lengths[:, None] - 1, 1)[:, 0]
    keys = options.key
    if not keys.ndim:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(keys, jnp.arange(batch))
    found = Generated(
        jnp.full((batch, size), options.pad),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((batch, size), jnp.float32),
    )
    state = _State(jnp.zeros((), jnp.int32), last, cache, jnp.zeros(batch, bool), found)
    if logits is not None:
        state = _chosen(keys, options, state, logits, cache)
    if logits is None or size > 1:
        step = functools.partial(_step, model, variables, keys, options)
        state = lax.while_loop(lambda state: (state.step < size) & ~state.ended.all(), step, state)
    return state.found, jnp.isnan(state.found.log_probs).any()


def _check_decodes(cache: Any, batch: int) -> None:
    """Check that a model has a cache; when its program is traced, since later calls need not look again."""
    if not list(all_counts(cache, (batch,))):
        raise LiftArgumentError(
            "generate",
            "the module has no decode cache: there is no `cache_index` in the collection `cache`.",
            "Create its attention layers with `decode=True`: `generate(model.clone(decode=True), variables, …)` if "
            "`decode` is a field of the model. In a function of a scope, use `nn.decode_cache`.",
            option="decode",
            collection="cache",
        )


def _filled(model: Model, variables: Any, cache: Any, prompts: Prompts, room: int) -> tuple[Array | None, Any]:
    """Return the logits of the last token of each prompt, and the cache with the keys and values of the prompts.

    The prompts pass through a cache of their own length, which is lengthened afterwards, so they do not attend to the
    empty positions of the new tokens. A model with a mask for the whole room refuses this, and gets the whole cache.

    Args:
        model: the model.
        variables: its variables, without a cache.
        cache: its empty cache.
        prompts: the padded prompts.
        room: the number of positions in the cache.
    """

    def fill(cache: Any) -> tuple[Any, Any]:
        def run(cache: Any, tokens: Any) -> tuple[Any, Any]:
            return model({**variables, "cache": cache}, tokens)

        return at_positions(run, prompts.lengths - 1, prompts.tokens.shape[1], cache, prompts.tokens)

    try:
        logits, written = fill(shortened(cache, room, prompts.tokens.shape[1]))
    except Exception as error:  # such as an AssertionError about the room
        raise_interrupt(error)
        logits, written = fill(cache)
    return logits, lengthened(written["cache"], cache)


def _step(model: Model, variables: Any, keys: Array, options: Options, state: _State) -> _State:
    """Generate one more token for each example that has not ended."""
    logits, written = model({**variables, "cache": state.cache}, state.last[:, None])
    return _chosen(keys, options, state, logits, written["cache"])


def _chosen(keys: Array, options: Options, state: _State, logits: Any, cache: Any) -> _State:
    """Choose one more token for each example that has not ended."""
    step, last, _, ended, (tokens, lengths, log_probs) = state
    logits = _of_last(logits, len(last)).astype(jnp.float32)
    now = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)
    token = sample_tokens(logits, now, options.temperature, options.top_k, options.top_p)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], 1)[:, 0]
    found = Generated(
        tokens.at[:, step].set(jnp.where(ended, options.pad, token)),
        jnp.where(ended, lengths, step + 1),
        log_probs.at[:, step].set(jnp.where(ended, 0, log_prob)),
    )
    ended = ended | (token[:, None] == options.stops).any(-1) | (step + 1 >= options.limits)
    # The next input is the token, also of an example that has ended: the padding may be outside of the vocabulary.
    return _State(step + 1, token, cache, ended, found)


def _of_last(logits: Any, batch: int) -> Array:
    """Return the logits of the last position."""
    shape = getattr(logits, "shape", None)
    if shape is None or len(shape) != 3 or shape[:2] != (batch, 1):
        raise LiftArgumentError(
            "generate",
            "expected a model that maps tokens, (batch, length), to an array of logits, (batch, length, vocabulary); "
            f"for tokens of shape {(batch, 1)} it returned {shown(logits)}.",
            "Return only the logits, of all positions of the inputs.",
            given=logits,
            expected="an array of logits",
        )
    return logits[:, -1]  # type: ignore[no-any-return]
