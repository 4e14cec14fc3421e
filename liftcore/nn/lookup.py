"""Embeddings: a table with a vector for each integer, to look up vectors or to compare vectors with."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.nn import initializers

from ..errors import Expected, LiftArgumentError
from ..scopes.scope import Scope
from ..struct import dataclass, field
from ..typing import Array, ArrayLike, Dtype, Initializer
from .layer import PromoteDtypeFn, checks_options, param_for, promote_dtype
from .linear import affine
from .sharding import check_out_sharding, on_auto_axes, sharding_entries, to_spec

__all__ = ["Embedding", "embedding"]

_UNIT_VECTORS = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)  # of expected length 1


@dataclass
class Embedding:
    """A table of vectors, and two ways to use it.

    Example:
        >>> table = Embedding(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
        >>> table.lookup(jnp.array([1, 0]))
        Array([[0., 2.],
               [1., 0.]], dtype=float32)
        >>> table.attend(jnp.array([3.0, 4.0]))
        Array([3., 8.], dtype=float32)

    Attributes:
        table: `(num_embeddings, features)`.
        dtype: the dtype of the results; by default that of the table, and for `attend` what table and query promote to.
        promote_dtype: converts table and query to one dtype.
        where: the place, for errors.
    """

    table: Array
    dtype: Dtype | None = field(pytree_node=False, default=None)
    promote_dtype: PromoteDtypeFn = field(pytree_node=False, default=promote_dtype)
    where: str = field(pytree_node=False, default="embedding")

    def lookup(self, indices: ArrayLike, out_sharding: Any = None) -> Array:
        """Look up the vectors at integers: `(...)` to `(..., features)`.

        Negative indices count from the end, and an index out of range gives NaN; a table of one vector always gives
        that vector.

        Args:
            indices: integers of any shape.
            out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`.
                By default it follows from the indices and, for the features, from the table.

        Raises:
            LiftArgumentError: if the indices are not integers, or `out_sharding` does not match the mesh.
        """
        check_out_sharding(self.where, out_sharding)
        indices = jnp.asarray(indices)
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise LiftArgumentError(
                self.where,
                Expected("indices of an integer dtype", given=indices.dtype),
                "Convert them: `inputs.astype(jnp.int32)`.",
            )
        (table,) = self.promote_dtype(self.table, dtype=self.dtype, inexact=False)
        entries = (*sharding_entries(indices), sharding_entries(table)[-1])
        return on_auto_axes(_rows, to_spec(*entries), table, indices, out_sharding=out_sharding)

    def attend(self, query: ArrayLike, out_sharding: Any = None) -> Array:
        """Compute the products with all vectors, `query @ table.T`: `(..., features)` to `(..., num_embeddings)`.

        Args:
            query: vectors to compare with those of the table.
            out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`.
                By default it follows from the query and, for the new axis, from the table.

        Raises:
            LiftArgumentError: if the last axis of the query does not have size `features`, or `out_sharding` does not
                match the mesh.
        """
        features = self.table.shape[-1]
        if jnp.shape(query)[-1:] != (features,):
            raise LiftArgumentError(
                f"attend of {self.where}",
                Expected(f"a query of shape (..., {features})", given=jnp.shape(query)),
                f"Map it to the size of the table first, for example with `dense(scope, query, {features})`.",
            )
        x, table = self.promote_dtype(query, self.table, dtype=self.dtype)
        return affine(x, table.T, out_sharding=out_sharding, where=f"attend of {self.where}")


def _rows(table: Array, indices: Array) -> Array:
    """Return the vector for each index; if there is only one, it is that."""
    if len(table) == 1:
        return jnp.broadcast_to(jnp.squeeze(table, 0), (*indices.shape, table.shape[-1]))
    return jnp.take(table, indices, axis=0)


@checks_options
def embedding(
    scope: Scope,
    num_embeddings: int,
    features: int,
    *,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    embedding_init: Initializer = _UNIT_VECTORS,
    promote_dtype: PromoteDtypeFn = promote_dtype,
) -> Embedding:
    """A table that maps the integers from 0 to `num_embeddings - 1` to vectors.

    Sharing it between the first and the last layer of a language model is the weight tying of Press & Wolf, "Using the
    Output Embedding to Improve Language Models" (https://arxiv.org/abs/1608.05859).

    Parameters: `embedding`, `(num_embeddings, features)`.

    Example:
        >>> import jax, liftcore
        >>> def logits(scope, tokens):
        ...     table = embedding(scope.push("words"), 5, 3)
        ...     return table.attend(table.lookup(tokens))
        >>> y, variables = liftcore.init(logits)(jax.random.key(0), jnp.array([[0, 4]]))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((1, 2, 5), {'params': {'words': {'embedding': (5, 3)}}})

    Args:
        scope: the scope of the table.
        num_embeddings: the number of vectors.
        features: the size of each vector.
        dtype: the dtype of the results; by default that of the table, and for `attend` what table and query promote to.
        param_dtype: the dtype of the table.
        embedding_init: makes the table.
        promote_dtype: converts table and query to one dtype: called as `promote_dtype(table, dtype=dtype)`, or with
            both.

    Returns:
        The table as an `Embedding`, with `lookup` for indices and `attend` for vectors.

    Raises:
        ScopeParamShapeError: if the stored table has other sizes.
    """
    where = f"embedding at {scope.path_text}"
    table = param_for(None, where, scope, "embedding", embedding_init, (num_embeddings, features), param_dtype)
    return Embedding(table, dtype, promote_dtype, where)
