"""Rows of dense layers."""

from __future__ import annotations

import jax
import numpy as np

from tests.layers.row import BF16, IMAGE, ROWS, SERIES, Row, array, doubled, widening

NORMAL = jax.nn.initializers.normal()

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
    "dense, bfloat16 inputs": Row("Dense", {"features": 3}, ROWS.astype(BF16)),
    "dense, float16": Row("Dense", {"features": 3, "dtype": np.float16}, ROWS),
    "dense, one of each": Row("Dense", {"features": 1}, array(1, 1)),
    "dense, no inputs": Row("Dense", {"features": 3}, array(0, 4)),
    "dense, inputs without features": Row(
        "Dense", {"features": 3, "kernel_init": jax.nn.initializers.zeros}, array(2, 0)
    ),
    "dense, four dimensions": Row("Dense", {"features": 3}, IMAGE),
    "dense, hooks": Row(
        "Dense", {"features": 5, "promote_dtype": widening, "dot_general": doubled(jax.lax.dot_general)}, ROWS
    ),
    "dense general": Row("DenseGeneral", {"features": 3}, ROWS),
    "dense general, no bias": Row("DenseGeneral", {"features": 3, "use_bias": False}, SERIES),
    "dense general, features": Row("DenseGeneral", {"features": (2, 3)}, SERIES),
    "dense general, list of features": Row("DenseGeneral", {"features": [3], "axis": [0]}, SERIES),
    "dense general, axes": Row("DenseGeneral", {"features": (2, 3), "axis": (-1, 1)}, IMAGE),
    "dense general, all axes": Row("DenseGeneral", {"features": 3, "axis": (0, 1, 2)}, SERIES),
    "dense general, first axis": Row("DenseGeneral", {"features": 3, "axis": 0}, SERIES),
    "dense general, batch": Row("DenseGeneral", {"features": 3, "batch_dims": (0,), "bias_init": NORMAL}, SERIES),
    "dense general, two of batch": Row(
        "DenseGeneral", {"features": (2, 2), "axis": (-2, -1), "batch_dims": (1, 0), "bias_init": NORMAL}, IMAGE
    ),
    "dense general, axis between": Row(
        "DenseGeneral", {"features": 3, "axis": 1, "batch_dims": (0,), "bias_init": NORMAL}, IMAGE
    ),
    "dense general, bfloat16": Row("DenseGeneral", {"features": (2, 3), "dtype": BF16}, ROWS),
    "dense general, bfloat16 parameters": Row("DenseGeneral", {"features": 3, "param_dtype": BF16}, ROWS.astype(BF16)),
    "dense general, integers": Row("DenseGeneral", {"features": 3}, np.arange(12).reshape(3, 4)),
    "dense general, orthogonal": Row(
        "DenseGeneral", {"features": (2, 2), "kernel_init": jax.nn.initializers.orthogonal(), "bias_init": NORMAL}, ROWS
    ),
    "dense general, precision": Row("DenseGeneral", {"features": 3, "precision": "highest"}, ROWS),
    "dense general, no inputs": Row("DenseGeneral", {"features": (2, 3), "axis": (1, 2)}, array(0, 2, 3)),
    "dense general, hooks": Row(
        "DenseGeneral",
        {"features": (3, 2), "promote_dtype": widening, "dot_general": doubled(jax.lax.dot_general)},
        ROWS,
    ),
    "einsum": Row("Einsum", {"shape": (4, 5), "einsum_str": "ab,bc->ac"}, ROWS),
    "einsum, at the call": Row("Einsum", {"shape": (4, 2, 3)}, SERIES, {"einsum_str": "abc, cde -> abde"}),
    "einsum, no bias": Row("Einsum", {"shape": (4, 5), "einsum_str": "ab,bc->ac", "use_bias": False}, ROWS),
    "einsum, dots": Row("Einsum", {"shape": (4, 5), "einsum_str": "...b,bc->...c"}, SERIES),
    "einsum, dots on both sides": Row(
        "Einsum", {"shape": (7, 4, 5), "einsum_str": "...b,...bc->c...", "bias_init": NORMAL}, SERIES
    ),
    "einsum, kernel with more dimensions": Row(
        "Einsum", {"shape": (2, 3, 4, 5), "einsum_str": "a...b,...bc->a...c", "bias_init": NORMAL}, ROWS
    ),
    "einsum, kernel that broadcasts": Row(
        "Einsum", {"shape": (1, 4, 5), "einsum_str": "...b,...bc->...c", "bias_init": NORMAL}, SERIES
    ),
    "einsum, shared dimension": Row(
        "Einsum", {"shape": (7, 4, 3), "einsum_str": "abc,bcd->dba", "bias_init": NORMAL}, SERIES
    ),
    "einsum, kernel summed away": Row(
        "Einsum", {"shape": (4,), "einsum_str": "ab,b->a", "kernel_init": NORMAL, "bias_init": NORMAL}, ROWS
    ),
    "einsum, diagonal": Row("Einsum", {"shape": (4, 4), "einsum_str": "ab,cc->abc", "use_bias": False}, ROWS),
    "einsum, bfloat16": Row("Einsum", {"shape": (4, 5), "einsum_str": "ab,bc->ac", "dtype": BF16}, ROWS),
    "einsum, bfloat16 parameters": Row(
        "Einsum", {"shape": (4, 5), "einsum_str": "ab,bc->ac", "param_dtype": BF16}, ROWS.astype(BF16)
    ),
    "einsum, element type": Row(
        "Einsum",
        {"shape": (4, 5), "einsum_str": "ab,bc->ac", "dtype": BF16, "preferred_element_type": np.float32},
        ROWS,
    ),
    "einsum, integers": Row("Einsum", {"shape": (4, 5), "einsum_str": "ab,bc->ac"}, np.arange(12).reshape(3, 4)),
    "einsum, precision and initializer": Row(
        "Einsum",
        {
            "shape": (4, 4),
            "einsum_str": "ab,bc->ac",
            "precision": "highest",
            "kernel_init": jax.nn.initializers.orthogonal(),
        },
        ROWS,
    ),
    "einsum, hook": Row("Einsum", {"shape": (4, 5), "einsum_str": "ab,bc->ac", "promote_dtype": widening}, ROWS),
    "einsum, no inputs": Row("Einsum", {"shape": (4, 5), "einsum_str": "...b,bc->...c"}, array(0, 3, 4)),
}
