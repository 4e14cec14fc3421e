"""`reseed`: gives the streams of a graph new seeds, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax

from liftcore.errors import LiftArgumentError, shown

from ..graph.definition import path_text
from .splitting import check_changeable, set_keys, streams_of
from .streams import RngStream, RngValue

__all__ = ["ReseedPolicy", "reseed"]

ReseedPolicy = Callable[[tuple[Any, ...], jax.Array, tuple[int, ...]], jax.Array]
"""A function that makes the new keys of a stream: `policy(path, key, shape)`, with one key and the stream's shape."""


def reseed(
    node: Any,
    /,
    *,
    policy: Literal["scalars_only", "match_shape"] | ReseedPolicy = "scalars_only",
    **stream_keys: RngValue | RngStream,
) -> None:
    """Give the streams of a graph new seeds, in place, and set their counts to zero.

    Each stream gets a key that is drawn from the seed of its name, so several streams with one name differ. The
    same seeds give the same keys again. If one stream cannot be reseeded, none is.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(params=0, dropout=1)
        >>> nnx.reseed(rngs, dropout=42)
        >>> first = rngs.dropout()
        >>> nnx.reseed(rngs, dropout=42)
        >>> first == rngs.dropout()
        Array(True, dtype=bool)

    Args:
        node: an object, or a pytree of objects.
        policy: `"scalars_only"` refuses streams of several keys; `"match_shape"` splits the new key into their shape;
            a function `(path, key, shape) -> keys` makes the new keys.
        **stream_keys: seeds, keys or streams by name. A stream that is given here counts the keys drawn from it.

    Raises:
        LiftArgumentError: if a stream has several keys, or a seed or the policy is not valid.
        TraceContextError: if a stream belongs to another trace.
    """
    new_keys = _policy(policy)
    sources = {name: _source(value, name) for name, value in stream_keys.items()}
    chosen = [(path, stream) for path, stream in streams_of(node) if stream.tag in sources]
    for _, stream in chosen:
        check_changeable(stream)
    if policy == "scalars_only":
        for path, stream in chosen:
            _check_scalar(path, stream)
    made = [(stream, new_keys(path, sources[stream.tag](), stream.key.get_value().shape)) for path, stream in chosen]
    for stream, keys in made:
        set_keys(stream, keys)


def _source(value: Any, name: str) -> RngStream:
    return value if isinstance(value, RngStream) else RngStream(value, tag=name)


def _policy(policy: Any) -> ReseedPolicy:
    if callable(policy):
        return policy
    if policy not in ("scalars_only", "match_shape"):
        raise LiftArgumentError(
            "reseed",
            f'policy must be "scalars_only", "match_shape" or a callable, given {shown(policy)}.',
            'Write `policy="match_shape"` for streams that are split.',
        )
    return _matching


def _matching(path: tuple[Any, ...], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.split(key, shape) if shape else key


def _check_scalar(path: tuple[Any, ...], stream: RngStream) -> None:
    shape = stream.key.get_value().shape
    if shape:
        raise LiftArgumentError(
            f"reseed of the stream at {path_text(path)}",
            f"the stream has a non-scalar key, of shape {shape}.",
            'Write `policy="match_shape"` if its keys should all differ, or give a function as the policy.',
        )
