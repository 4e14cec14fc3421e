"""Rotary positions of objects: `RoPE`, and attention over queries and keys that it has rotated."""

from __future__ import annotations

from typing import Any

import numpy as np

from liftcore import nn
from liftcore.errors import Expected, LiftArgumentError
from liftcore.typing import Array, ArrayLike

from ..objects.module import Module
from ..variablelib.variable import Variable
from .attention import dot_product_attention

__all__ = ["RoPE", "dot_product_attention_with_rope"]


class RoPE(Module):
    """Rotates features by their positions: the product of two vectors depends only on the distance of their positions.

    The i-th feature of the first half and the i-th of the second form a pair, as in Llama; `liftcore.nn` has
    `rotary_embedding`, which also has pairs of neighbors. Source: Su et al., "RoFormer",
    https://arxiv.org/abs/2104.09864.

    Shapes: `(*batch, length, features)`, unchanged; the dtype too, with angles of at least `float32`.

    Example:
        >>> import functools
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> attend = functools.partial(nnx.dot_product_attention_with_rope, rope=nnx.RoPE())
        >>> layer = nnx.MultiHeadAttention(2, 8, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 5, 8))).shape
        (1, 5, 8)

    Args:
        theta: the larger it is, the more slowly the last pairs rotate.
        embedding_size: the number of features, to compute the table of rotations once.
        max_seq_len: the number of positions in this table; it goes with `embedding_size`.

    Attributes:
        cached_sin: the sines of the table, `(max_seq_len, embedding_size / 2)`, in a `Variable`; or None.
        cached_cos: the cosines.

    Raises:
        LiftArgumentError: if only one of the sizes is given, or the number of features is not even and positive.
    """

    @nn.checks_options
    def __init__(
        self, theta: float = 10_000.0, embedding_size: int | None = None, max_seq_len: int | None = None
    ) -> None:
        self.theta = theta
        self.cached_sin: Variable[Array] | None = None
        self.cached_cos: Variable[Array] | None = None
        if embedding_size is None and max_seq_len is None:
            return
        if embedding_size is None or max_seq_len is None:
            what = f"embedding_size is {embedding_size} and max_seq_len is {max_seq_len}; a table needs both."
            missing = "embedding_size" if embedding_size is None else "max_seq_len"
            raise LiftArgumentError("RoPE", what, "Pass both of them, or neither.", option=missing, given="None")
        _check_even(embedding_size)
        cos, sin = nn.rotation_table(np.arange(max_seq_len), embedding_size, theta)
        self.cached_cos, self.cached_sin = Variable(cos), Variable(sin)

    @nn.checks_options
    def __call__(self, x: Array, input_positions: ArrayLike | None = None) -> Array:
        """Rotate the features of an array.

        Args:
            x: `(*batch, length, features)`; integers become floating.
            input_positions: the positions, `(*batch, length)`, or broadcast to it; by default counted from 0, and then
                the rotations are those of the table, if there is one.

        Raises:
            LiftArgumentError: if the number of features is not even and positive, or sizes do not match.
        """
        if x.ndim < 2:
            what = Expected("x of shape (*batch, length, features)", given=x.shape)
            raise LiftArgumentError("RoPE", what, "Add an axis for the positions: `x[None]`.")
        return _rotated(self, x[..., None, :], input_positions)[..., 0, :]


def _rotated(rope: RoPE, x: Array, positions: ArrayLike | None) -> Array:
    """Rotate the features of each head of `(*batch, length, heads, features)`."""
    length, features = x.shape[-3], x.shape[-1]
    _check_even(features)
    if positions is not None or rope.cached_cos is None or rope.cached_sin is None:
        positions = np.arange(length) if positions is None else positions
        return nn.rotary_embedding(x, positions, base=rope.theta, interleaved=False)
    cos, sin = rope.cached_cos.get_value(), rope.cached_sin.get_value()
    if length > cos.shape[0] or features != 2 * cos.shape[1]:
        table, given = f"({cos.shape[0]}, {2 * cos.shape[1]})", f"({length}, {features})"
        what = f"the table is for (positions, features) up to {table}; the inputs have {given}."
        fix = f"Make it for them, `nnx.RoPE(embedding_size={features}, max_seq_len={length})`."
        raise LiftArgumentError("RoPE", what, fix, option="max_seq_len", expected=table, given=given)
    return nn.rotate_pairs(x, cos[:length, None], sin[:length, None], interleaved=False)


def _check_even(features: int) -> None:
    if features <= 0 or features % 2:
        what = f"it rotates pairs of features; {features} is not a positive even number."
        fix = f"Choose an even number of features, such as {max(features + 1, 2)}."
        raise LiftArgumentError("RoPE", what, fix, given=str(features))


@nn.checks_options
def dot_product_attention_with_rope(
    query: Array, key: Array, value: Array, *, rope: RoPE, input_positions: ArrayLike | None = None, **kwargs: Any
) -> Array:
    """Compute `dot_product_attention` of queries and keys that are rotated by their positions.

    To use it in a layer, write `attention_fn=functools.partial(nnx.dot_product_attention_with_rope, rope=rope)`.

    Shapes: those of `dot_product_attention`.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> x = jnp.ones((3, 1, 2))  # three positions, one head
        >>> nnx.dot_product_attention_with_rope(x, x, x, rope=nnx.RoPE()).shape
        (3, 1, 2)

    Args:
        query: the queries.
        key: the keys.
        value: the values.
        rope: rotates queries and keys.
        input_positions: the positions of the queries, `(*batch, queries)`. They are those of the keys too, if there are
            as many; else the keys count from 0, as in the cache of a layer that decodes. By default, both count from 0.
        **kwargs: the other arguments of `dot_product_attention`.

    Raises:
        LiftArgumentError: if there are other numbers of queries and keys, as in decoding, and no positions.
    """
    queries, keys = query.shape[-3], key.shape[-3]
    if input_positions is None and queries != keys:
        what = f"there are {queries} queries and {keys} keys; from which position on do the queries count?"
        counted = f"jnp.arange({queries})"
        fix = f"Pass `input_positions={counted}`; in decoding, `layer.cache_index[..., None] + {counted}`."
        raise LiftArgumentError("dot_product_attention_with_rope", what, fix, option="input_positions")
    query = _rotated(rope, query, input_positions)
    key = _rotated(rope, key, input_positions if queries == keys else None)
    return dot_product_attention(query, key, value, **kwargs)
