"""Rotary positions of objects: `RoPE`, and attention over queries and keys that it has rotated."""

from __future__ import annotations

from typing import Any

import numpy as np

from liftcore import nn
from liftcore.errors import LiftArgumentError
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
        cos, sin = self._rotations(np.arange(max_seq_len), embedding_size)
        self.cached_cos, self.cached_sin = Variable(cos), Variable(sin)

    @nn.checks_options
    def __call__(self, x: Array, input_positions: Array | None = None) -> Array:
        """Rotate the features of an array.

        Args:
            x: `(*batch, length, features)`.
            input_positions: the positions, `(*batch, length)`, or broadcast to it; by default counted from 0, and then
                the rotations are those of the table, if there is one.

        Raises:
            LiftArgumentError: if the number of features is not even and positive, or sizes do not match.
        """
        return nn.rotated(x, *self._of(x.shape[-2], x.shape[-1], input_positions), interleaved=False)

    def of_heads(self, x: Array, input_positions: Array | None = None) -> Array:
        """Rotate the features of each head, `(*batch, length, heads, features)`.

        Args:
            x: queries or keys.
            input_positions: the positions, `(*batch, length)`, or broadcast to it; by default counted from 0.
        """
        cos, sin = self._of(x.shape[-3], x.shape[-1], input_positions)
        return nn.rotated(x, cos[..., None, :], sin[..., None, :], interleaved=False)

    def _of(self, length: int, features: int, positions: Array | None) -> tuple[Array, Array]:
        """Return the cosines and the sines for some positions, `(*batch, length, features / 2)`."""
        if positions is None and self.cached_cos is not None and self.cached_sin is not None:
            cos, sin = self.cached_cos.get_value(), self.cached_sin.get_value()
            if length > cos.shape[0] or features != 2 * cos.shape[1]:
                table, given = f"({cos.shape[0]}, {2 * cos.shape[1]})", f"({length}, {features})"
                what = f"the table is for (positions, features) up to {table}; the inputs have {given}."
                fix = f"Make it for them, `nnx.RoPE(embedding_size={features}, max_seq_len={length})`."
                raise LiftArgumentError("RoPE", what, fix, option="max_seq_len", expected=table, given=given)
            return cos[:length], sin[:length]
        if positions is None:
            return self._rotations(np.arange(length), features)
        if positions.shape[-1:] != (length,):
            what = f"`input_positions` has shape {positions.shape}; the inputs have length {length}."
            fix = f"Pass a position for each input, such as `jnp.arange({length})`."
            raise LiftArgumentError("RoPE", what, fix, option="input_positions", given=str(positions.shape))
        return self._rotations(positions, features)

    def _rotations(self, positions: ArrayLike, features: int) -> tuple[Array, Array]:
        if features <= 0 or features % 2:
            what = f"it rotates pairs of features; {features} is not a positive even number."
            fix = f"Choose an even number of features, such as {max(features + 1, 2)}."
            raise LiftArgumentError("RoPE", what, fix, given=str(features))
        return nn.rotations(positions, features, self.theta)


@nn.checks_options
def dot_product_attention_with_rope(
    query: Array, key: Array, value: Array, *, rope: RoPE, input_positions: Array | None = None, **kwargs: Any
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
        position = "`input_positions=layer.cache_index[..., None] + jnp.arange(length)`"
        fix = f"Pass the positions of the queries, in decoding {position}."
        raise LiftArgumentError("dot_product_attention_with_rope", what, fix, option="input_positions")
    query = rope.of_heads(query, input_positions)
    key = rope.of_heads(key, input_positions if queries == keys else None)
    return dot_product_attention(query, key, value, **kwargs)
