"""Embeddings."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax.numpy as jnp

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype, Key

from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import Initializer, variance_scaling
from .lifecycle.calling import nowrap
from .lifecycle.fields import options
from .module import Module

__all__ = ["Embed", "default_embed_init"]

_unit_vectors = variance_scaling(1.0, "fan_in", "normal", out_axis=0)


def default_embed_init(key: Key, *args: Any, **kwargs: Any) -> Array:
    """Make the tables of embeddings: vectors of expected length 1. It is a function that can be pickled."""
    return _unit_vectors(key, *args, **kwargs)


class Embed(Module):
    """A table that maps the integers from 0 to `num_embeddings - 1` to vectors; see `liftcore.nn.embedding`.

    Example:
        >>> import jax
        >>> y, variables = Embed(5, 3).init_with_output(jax.random.key(0), jnp.array([[0, 4]]))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 2, 3), {'params': {'embedding': (5, 3)}})
        >>> Embed(5, 3).apply(variables, y, method="attend").shape
        (1, 2, 5)

    The table is the attribute `embedding`.

    Attributes:
        num_embeddings: the number of vectors.
        features: the size of each vector.
        dtype: the dtype of the results; by default that of the table, and for `attend` what table and query promote to.
        param_dtype: the dtype of the table.
        embedding_init: makes the table.
        promote_dtype: converts table and query to one dtype: called as `promote_dtype(table, dtype=dtype)`, or with
            both.
        out_sharding: the sharding of the vectors that a call looks up, on a mesh of Explicit axes: a `PartitionSpec` or
            `NamedSharding`. By default it follows from the indices and, for the features, from the table.
    """

    num_embeddings: int
    features: int
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    embedding_init: Initializer = default_embed_init
    promote_dtype: PromoteDtypeFn = promote_dtype
    out_sharding: Any = field(default=None, kw_only=True)

    def setup(self) -> None:
        """Make the table `embedding`, `(num_embeddings, features)`. A subclass may make another one."""
        self.embedding = nn.embedding(self.scope, **options(self, nn.embedding)).table

    def __call__(self, inputs: ArrayLike) -> Array:
        """Look up the vectors at integers: `(...)` to `(..., features)`.

        Args:
            inputs: integers from 0 to `num_embeddings - 1`, of any shape.
        """
        return self._table().lookup(inputs, self.out_sharding)

    def attend(self, query: ArrayLike, *, out_sharding: Any = None) -> Array:
        """Compute the inner products with all vectors: `(..., features)` to `(..., num_embeddings)`.

        Args:
            query: vectors to compare with those of the table, `(..., features)`.
            out_sharding: the sharding of the result, on a mesh of Explicit axes; a `PartitionSpec` or `NamedSharding`.
        """
        return self._table().attend(query, out_sharding)

    @nowrap
    def _table(self) -> nn.Embedding:
        where = f"embedding at {self.scope.path_text}"
        return nn.Embedding(self.embedding, self.dtype, self.promote_dtype, where)
