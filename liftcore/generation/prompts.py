"""Prompts of different lengths as one padded array, checked before anything is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import Expected, LiftArgumentError
from ..typing import ArrayLike

__all__ = ["Prompts", "make_prompts"]

_SMALLEST = 16
_LARGEST = np.iinfo(np.int32).max


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
