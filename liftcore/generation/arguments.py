"""The arguments of `generate`: checked, and as arrays, so that other values need no other compiled program."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError
from ..typing import ArrayLike, Key
from .sampling import check_limits

__all__ = ["Options", "Prompts", "as_int", "make_options", "make_prompts"]


_LARGEST = np.iinfo(np.int32).max
_STOPS = 8  # stop tokens are padded to a multiple of this, so that one more rarely needs another program


class Options(NamedTuple):
    """The options of a compiled program of `generate`; all of them are traced.

    Attributes:
        key: one key, or one for each example.
        temperature: `(batch,)`, `float32`; 0 selects the most probable token.
        top_k: `(batch,)`, `int32`.
        top_p: `(batch,)`, `float32`.
        limits: `(batch,)`, `int32`: the greatest number of new tokens.
        stops: `(a multiple of 8,)`, `int32`: the stop tokens, padded with -1.
        pad: `()`, `int32`: the token after the end of an example.
    """

    key: Key
    temperature: np.ndarray[Any, Any]
    top_k: np.ndarray[Any, Any]
    top_p: np.ndarray[Any, Any]
    limits: np.ndarray[Any, Any]
    stops: np.ndarray[Any, Any]
    pad: np.ndarray[Any, Any]


def make_options(
    where: str,
    batch: int,
    key: Key | None,
    temperature: ArrayLike | None,
    top_k: ArrayLike | None,
    top_p: ArrayLike | None,
    max_new_tokens: ArrayLike,
    stop_tokens: Sequence[int],
    pad_token: int,
) -> Options:
    """Check the options of `generate`, and convert them to arrays.

    Args:
        where: the name of the function, for errors.
        batch: the number of examples.
        key: see `generate`, as for all other options.
        temperature: see `generate`.
        top_k: see `generate`.
        top_p: see `generate`.
        max_new_tokens: see `generate`.
        stop_tokens: see `generate`.
        pad_token: see `generate`.

    Raises:
        LiftArgumentError: if an option is not valid.
    """
    if temperature is None:
        temperature = 0.0 if key is None else 1.0
    numbers = _each(where, "temperature", temperature, batch, np.float32)
    limits = _each(where, "max_new_tokens", max_new_tokens, batch, np.int32)
    ks = _each(where, "top_k", _LARGEST if top_k is None else top_k, batch, np.int32)
    ps = _each(where, "top_p", 1.0 if top_p is None else top_p, batch, np.float32)
    check_limits(where, (batch,), temperature=numbers, max_new_tokens=limits, top_k=ks, top_p=ps)
    _check_draws(where, bool((numbers > 0).any()), key is not None, top_k is not None or top_p is not None)
    pad = np.asarray(as_int(where, "pad_token", pad_token, -_LARGEST), np.int32)
    return Options(_keys(where, key, batch), numbers, ks, ps, limits, _stops(where, stop_tokens), pad)


def as_int(where: str, name: str, given: Any, least: int = 1) -> int:
    """Return an option that is one integer of 32 bits.

    Args:
        where: the name of the function, for errors.
        name: the name of the option.
        given: its value.
        least: the least value that it may have.

    Raises:
        LiftArgumentError: if it is something else.
    """
    try:
        found = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        found = None
    if found is None or not least <= found <= _LARGEST:
        raise LiftArgumentError(
            where,
            Expected(f"an integer from {least} to {_LARGEST}", given=given),
            f"Pass one, such as `{name}={max(least, 0)}`.",
            option=name,
        )
    return found


def _each(where: str, name: str, given: Any, batch: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array with one number for each example."""
    try:
        found = np.asarray(given)
        kinds = (np.integer,) if dtype == np.int32 else (np.integer, np.floating)  # for JAX, bfloat16 is one of these
        exact = any(jnp.issubdtype(found.dtype, kind) for kind in kinds)
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):
        found, exact = np.asarray(0), False
    if not exact or found.shape not in ((), (batch,)):
        kind = "an integer" if dtype == np.int32 else "a number"
        raise LiftArgumentError(
            where,
            Expected(f"{kind} or one for each of {batch} examples", given=given),
            f"Pass `{name}=1`, or an array of shape ({batch},), outside `jax.jit`.",
            option=name,
        )
    if dtype == np.int32:
        found = found.astype(np.int64).clip(-1, _LARGEST)
    return np.broadcast_to(found.astype(dtype), (batch,))


def _check_draws(where: str, draws: bool, has_key: bool, has_limits: bool) -> None:
    if draws and not has_key:
        raise LiftArgumentError(
            where,
            "the temperature is above 0, but there is no key to draw tokens with.",
            "Pass `key=jax.random.key(0)`, or `temperature=0` for the most probable tokens.",
            option="key",
        )
    if has_limits and not draws and not has_key:  # with a key, it is a temperature of 0 that was chosen
        raise LiftArgumentError(
            where,
            "top_k or top_p was given, but no token is drawn: the most probable one is selected.",
            "Pass `key=jax.random.key(0)` and a temperature above 0 to draw tokens, or leave them out.",
            option="key",
        )


def _keys(where: str, key: Any, batch: int) -> Key:
    """Return one typed key, or one for each example."""
    if key is None:
        return jax.random.key(0)  # nothing is drawn with it
    if not _is_key(key) and getattr(key, "dtype", None) == np.uint32:
        key = jax.random.wrap_key_data(key)
    if not _is_key(key) or key.shape not in ((), (batch,)):
        raise LiftArgumentError(
            where,
            Expected(f"a key or one for each of {batch} examples", given=key),
            f"Pass `key=jax.random.key(0)`, or `jax.random.split(key, {batch})`.",
            option="key",
        )
    found: Key = key
    return found


def _is_key(key: Any) -> bool:
    return isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def _stops(where: str, stop_tokens: Any) -> np.ndarray[Any, Any]:
    try:
        found = np.asarray(list(stop_tokens) if np.ndim(stop_tokens) else [stop_tokens])
    except (ValueError, jax.errors.TracerArrayConversionError):
        found = np.asarray([None])
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu" or found.min() < 0 or found.max() > _LARGEST):
        raise LiftArgumentError(
            where,
            Expected(f"tokens from 0 to {_LARGEST}", given=stop_tokens),
            "Pass a list of them: `stop_tokens=[0]`.",
            option="stop_tokens",
        )
    padded = np.full(-(-max(found.size, 1) // _STOPS) * _STOPS, -1, np.int32)
    padded[: found.size] = found
    return padded


# --- prompts of different lengths -------------------------------------------------------------------------------------


_SMALLEST = 16


class Prompts(NamedTuple):
    """Prompts, padded with zeros on the right.

    Attributes:
        tokens: `(batch, bucket)`, `int32`.
        lengths: `(batch,)`, `int32`: the number of tokens of each prompt.
    """

    tokens: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]


def make_prompts(
    where: str, prompt: Any, lengths: ArrayLike | None = None, bucket: int | None = None, longest: int | None = None
) -> Prompts:
    """Pad prompts to the length of their bucket.

    Example:
        >>> make_prompts("here", [[5, 6], [7]], bucket=4).tokens
        array([[5, 6, 0, 0],
               [7, 0, 0, 0]], dtype=int32)

    Args:
        where: the name of the function, for errors.
        prompt: integers of shape `(batch, length)`, or a list of sequences of integers.
        lengths: the number of tokens of each example, if `prompt` is a padded array; by default all.
        bucket: the length of the result; by default the next power of two, at least 16.
        longest: the greatest length of a default bucket.

    Raises:
        LiftArgumentError: if prompts are not integers of these shapes, or are empty, or are longer than the bucket.
    """
    rows = _rows(where, prompt, lengths)
    most = max(map(len, rows))
    if bucket is None:
        bucket = max(_SMALLEST, 1 << (most - 1).bit_length())
        bucket = bucket if longest is None or longest < most else min(bucket, longest)
    if most > bucket:
        raise LiftArgumentError(
            where,
            f"a prompt has {most} tokens, but the bucket is {bucket}.",
            f"Pass `bucket={most}` or more, or leave it out.",
            option="bucket",
            given=bucket,
            expected=most,
        )
    tokens = np.zeros((len(rows), bucket), np.int32)
    for to, row in zip(tokens, rows, strict=True):
        to[: len(row)] = row
    return Prompts(tokens, np.array([len(row) for row in rows], np.int32))


def _rows(where: str, prompt: Any, lengths: Any) -> list[np.ndarray[Any, Any]]:
    """Return the prompts one by one, without padding."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((prompt, lengths))):
        raise LiftArgumentError(
            where,
            "the prompts are traced, but their lengths must be known.",
            "Call it outside `jax.jit`: it compiles a program itself, one for all prompts of a bucket.",
            option="prompts",
        )
    given = prompt if isinstance(prompt, list | tuple) else np.atleast_1d(np.asarray(prompt))
    rows = [np.asarray(row) for row in given]
    if not rows or any(row.ndim != 1 for row in rows):
        raise LiftArgumentError(
            where,
            Expected("prompts of shape (batch, length), or a list of lists of tokens", given=prompt),
            "Make a batch of a single prompt: `[prompt]`.",
        )
    if lengths is not None:
        rows = _cut(where, rows, np.asarray(lengths))
    for i, row in enumerate(rows):
        if not row.size or not np.issubdtype(row.dtype, np.integer) or row.min() < 0 or row.max() > _LARGEST:
            wrong: Any = row.dtype if row.size else None
            what = f"has the dtype {wrong}" if row.size else "is empty"
            if row.size and np.issubdtype(row.dtype, np.integer):
                wrong = int(row.min() if row.min() < 0 else row.max())
                what = f"has the token {wrong}"
            raise LiftArgumentError(
                where,
                f"prompt {i} {what}, but a prompt is one or more tokens, each an integer from 0 to {_LARGEST}.",
                "Begin each prompt with a token, such as the one for the start of a text. Pass tokens as integers, "
                "`tokens.astype(int)`, and `lengths` if some of them are padding.",
                given=wrong,
                expected="one or more tokens",
            )
    return rows


def _cut(where: str, rows: list[np.ndarray[Any, Any]], lengths: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    width = len(rows[0])
    fit = lengths.shape == (len(rows),) and np.issubdtype(lengths.dtype, np.integer)
    if not fit or len({len(row) for row in rows}) > 1 or lengths.min() < 1 or lengths.max() > width:
        raise LiftArgumentError(
            where,
            f"lengths are {lengths.tolist()}, for prompts of shape ({len(rows)}, {width}).",
            f"Pass an integer from 1 to {width} for each row of an array; leave lengths out for a list of lists.",
            option="lengths",
            given=lengths.tolist(),
        )
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]
