"""Rows of normalisation layers."""

from __future__ import annotations

import jax
import numpy as np

from tests.layers.row import BF16, EVAL, IMAGE, MASK, ROWS, TRAIN, Row

TABLE = {
    "batch norm": Row("BatchNorm", {}, IMAGE, TRAIN),
    "batch norm, running": Row("BatchNorm", {"epsilon": 0.1}, IMAGE, EVAL),
    "batch norm, axes": Row("BatchNorm", {"axis": (-1, 1), "momentum": 0.5}, IMAGE, TRAIN),
    "batch norm, bias only": Row("BatchNorm", {"use_scale": False}, ROWS, TRAIN),
    "batch norm, scale only": Row("BatchNorm", {"use_bias": False, "use_fast_variance": False}, ROWS, TRAIN),
    "batch norm, initializers": Row(
        "BatchNorm",
        {"bias_init": jax.nn.initializers.normal(), "scale_init": jax.nn.initializers.uniform()},
        ROWS,
        TRAIN,
    ),
    "batch norm, bfloat16": Row("BatchNorm", {"dtype": BF16}, ROWS.astype(BF16), TRAIN),
    "batch norm, all bfloat16": Row(
        "BatchNorm", {"param_dtype": BF16, "force_float32_reductions": False}, ROWS.astype(BF16), TRAIN
    ),
    "batch norm, all bfloat16, running": Row(
        "BatchNorm", {"param_dtype": BF16, "force_float32_reductions": False}, ROWS.astype(BF16), EVAL
    ),
    "batch norm, mask": Row("BatchNorm", {}, ROWS, {**TRAIN, "mask": MASK}),
    "layer norm": Row("LayerNorm", {}, ROWS),
    "layer norm, axes": Row("LayerNorm", {"reduction_axes": (1, -1), "feature_axes": (-1, -2)}, IMAGE),
    "layer norm, plain": Row(
        "LayerNorm", {"use_bias": False, "use_scale": False, "epsilon": 0.1, "use_fast_variance": False}, ROWS
    ),
    "layer norm, bfloat16": Row("LayerNorm", {"param_dtype": BF16}, ROWS.astype(BF16)),
    "layer norm, all bfloat16": Row("LayerNorm", {"dtype": BF16, "force_float32_reductions": False}, ROWS),
    "layer norm, integers and mask": Row("LayerNorm", {}, np.arange(12).reshape(3, 4), {"mask": MASK}),
}
