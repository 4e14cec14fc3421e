"""Rows of embeddings."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.layers.row import BF16, Row


def doubling(table: Any, *, dtype: Any = None, inexact: bool = True) -> list[Any]:
    """A hook for `promote_dtype`: twice the table, in bfloat16."""
    assert not inexact, "indices are no operand, so the table may be of integers"
    return [jax.numpy.asarray(2 * table, BF16)]


TABLE = {
    "embed": Row("Embed", {"num_embeddings": 5, "features": 3}, np.array([[0, 4], [-1, 7]])),
    "embed, one vector": Row("Embed", {"num_embeddings": 1, "features": 3}, np.array([0, 3])),
    "embed, bfloat16": Row("Embed", {"num_embeddings": 5, "features": 3, "dtype": BF16}, np.array([1])),
    "embed, bfloat16 parameters": Row(
        "Embed", {"num_embeddings": 5, "features": 3, "param_dtype": BF16}, np.array([1])
    ),
    "embed, far out of range": Row("Embed", {"num_embeddings": 2, "features": 3}, np.array([[-9, -3], [2, 99]])),
    "embed, one index": Row("Embed", {"num_embeddings": 5, "features": 3}, np.array(2)),
    "embed, bytes": Row("Embed", {"num_embeddings": 5, "features": 3}, np.array([[0, 4, 255]], np.uint8)),
    "embed, no indices": Row("Embed", {"num_embeddings": 5, "features": 3}, np.zeros((2, 0), np.int32)),
    "embed, initializer": Row(
        "Embed", {"num_embeddings": 5, "features": 3, "embedding_init": jax.nn.initializers.uniform()}, np.array([1])
    ),
    "embed, hook": Row("Embed", {"num_embeddings": 5, "features": 3, "promote_dtype": doubling}, np.array([1, 3])),
    "embed, one vector, bfloat16": Row(
        "Embed", {"num_embeddings": 1, "features": 3, "dtype": BF16}, np.array([[0, 1]])
    ),
}
