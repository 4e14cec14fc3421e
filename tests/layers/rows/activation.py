"""Rows of activations that learn."""

from __future__ import annotations

from tests.layers.row import BF16, IMAGE, ROWS, Row

TABLE = {
    "prelu": Row("PReLU", {}, ROWS),
    "prelu, slope": Row("PReLU", {"negative_slope_init": 0.3}, IMAGE),
    "prelu, bfloat16 slope": Row("PReLU", {"param_dtype": BF16}, ROWS),
    "prelu, bfloat16 inputs": Row("PReLU", {}, ROWS.astype(BF16)),
}
