"""Rows of dense layers."""

from __future__ import annotations

import jax
import numpy as np

from tests.layers.row import BF16, ROWS, Row, doubled, widening

TABLE = {
    "dense": Row("Dense", {"features": 5}, ROWS),
    "dense, no bias": Row("Dense", {"features": 5, "use_bias": False}, ROWS),
    "dense, bfloat16": Row("Dense", {"features": 5, "dtype": BF16}, ROWS),
    "dense, bfloat16 parameters": Row("Dense", {"features": 5, "param_dtype": BF16}, ROWS),
    "dense, integers": Row("Dense", {"features": 5}, np.arange(12).reshape(3, 4)),
    "dense, one example": Row("Dense", {"features": 5}, ROWS[0]),
    "dense, precision": Row("Dense", {"features": 5, "precision": "highest"}, ROWS),
    "dense, initializers": Row(
        "Dense",
        {"features": 5, "kernel_init": jax.nn.initializers.orthogonal(), "bias_init": jax.nn.initializers.normal()},
        ROWS,
    ),
    "dense, hooks": Row(
        "Dense", {"features": 5, "promote_dtype": widening, "dot_general": doubled(jax.lax.dot_general)}, ROWS
    ),
}
