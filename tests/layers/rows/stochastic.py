"""Rows of layers that are random while training."""

from __future__ import annotations

import numpy as np

from tests.layers.row import BF16, IMAGE, ROWS, Row

TABLE = {
    "dropout": Row("Dropout", {"rate": 0.3}, IMAGE, {"deterministic": False}),
    "dropout, broadcast": Row("Dropout", {"rate": 0.5, "broadcast_dims": (1, -1)}, IMAGE, {"deterministic": False}),
    "dropout, sequence": Row("Dropout", {"rate": 0.5, "rng_collection": "noise"}, ROWS, {"deterministic": False}),
    "dropout, deterministic": Row("Dropout", {"rate": 0.5}, ROWS, {"deterministic": True}),
    "dropout, evaluated": Row("Dropout", {"rate": 0.5, "deterministic": True}, ROWS),
    "dropout, trained": Row("Dropout", {"rate": 0.9, "deterministic": False}, ROWS),
    "dropout, bfloat16": Row("Dropout", {"rate": 0.3}, ROWS.astype(BF16), {"deterministic": False}),
    "dropout, complex": Row("Dropout", {"rate": 0.3}, ROWS.astype(np.complex64), {"deterministic": False}),
    "dropout, integers, deterministic": Row("Dropout", {"rate": 0.3}, np.arange(6), {"deterministic": True}),
    "dropout, all broadcast": Row("Dropout", {"rate": 0.5, "broadcast_dims": (0, 1)}, ROWS, {"deterministic": False}),
    "dropout, key": Row("Dropout", {"rate": 0.5}, ROWS, {"deterministic": False, "rng": np.array([1, 2], np.uint32)}),
    "dropout, never": Row("Dropout", {"rate": 0.0}, ROWS, {"deterministic": False}),
    "dropout, always": Row("Dropout", {"rate": 1.0}, ROWS, {"deterministic": False}),
}
