"""Rows of embeddings."""

from __future__ import annotations

import numpy as np

from tests.layers.row import BF16, Row

TABLE = {
    "embed": Row("Embed", {"num_embeddings": 5, "features": 3}, np.array([[0, 4], [-1, 7]])),
    "embed, one vector": Row("Embed", {"num_embeddings": 1, "features": 3}, np.array([0, 3])),
    "embed, bfloat16": Row("Embed", {"num_embeddings": 5, "features": 3, "dtype": BF16}, np.array([1])),
}
