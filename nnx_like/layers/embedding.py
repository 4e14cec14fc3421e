"""`Embed`: a table with one vector for each integer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..objects.module import Module
from ..rnglib.streams import Rngs
from .initializers import variance_scaling
from .parameters import PromoteDtypeFn, new_param, promote_dtype, unpacked, value_of

__all__ = ["Embed"]

_UNIT_VECTORS = variance_scaling(1.0, "fan_in", "normal", out_axis=0)  # of expected length 1


class Embed(Module):
    """A table that maps the integers from 0 to `num_embeddings - 1` to vectors.

    Negative indices count from the end, and an index out of range gives NaN; a table of one vector always gives that
    vector. To share the table with the last layer of a language model (Press & Wolf, https://arxiv.org/abs/1608.05859),
    call `attend`.

    Variables: `Param` `embedding`, `(num_embeddings, features)`.

    Example:
        >>> import nnx_like as nnx
        >>> words = nnx.Embed(5, 3, rngs=nnx.Rngs(0))
        >>> vectors = words(jnp.array([[0, 4]]))
        >>> vectors.shape, words.attend(vectors).shape
        ((1, 2, 3), (1, 2, 5))

    Args:
        num_embeddings: the number of vectors.
        features: the size of each vector.
        dtype: the dtype of the results; by default that of the table.
        param_dtype: the dtype of the table.
        embedding_init: makes the table.
        promote_dtype: converts `(table,)`, or `(query, table)`, to one dtype.
        rngs: the table draws a key from `params`.
        embedding_metadata: the metadata of the table.

    Raises:
        LiftArgumentError: if `rngs` has no streams.
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        embedding_init: Initializer = _UNIT_VECTORS,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        embedding_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        shape = (num_embeddings, features)
        self.embedding = new_param("Embed", rngs, param_dtype, embedding_init, shape, embedding_metadata)
        self.num_embeddings = num_embeddings
        self.features = features
        self.dtype = dtype or self.embedding.dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    def __call__(self, inputs: ArrayLike, out_sharding: Any = None) -> Array:
        """Look up the vectors at integers: `(...)` to `(..., features)`.

        Args:
            inputs: the integers.
            out_sharding: the sharding of the result, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if the inputs are not integers.
        """
        return self._table().lookup(inputs, out_sharding)

    def attend(self, query: ArrayLike, out_sharding: Any = None) -> Array:
        """Compute the inner products with all vectors: `(..., features)` to `(..., num_embeddings)`.

        Args:
            query: vectors to compare with those of the table.
            out_sharding: the sharding of the result, on a mesh of explicit axes.

        Raises:
            LiftArgumentError: if the vectors have another size.
        """
        return self._table().attend(query, out_sharding)

    def _table(self) -> nn.Embedding:
        return nn.Embedding(value_of(self.embedding), self.dtype, unpacked(self.promote_dtype), type(self).__name__)
