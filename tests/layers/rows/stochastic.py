"""Rows of layers that are random while training."""

from __future__ import annotations

from tests.layers.row import IMAGE, ROWS, Row

TABLE = {
    "dropout": Row("Dropout", {"rate": 0.3}, IMAGE, {"deterministic": False}),
    "dropout, broadcast": Row("Dropout", {"rate": 0.5, "broadcast_dims": (1, -1)}, IMAGE, {"deterministic": False}),
    "dropout, sequence": Row("Dropout", {"rate": 0.5, "rng_collection": "noise"}, ROWS, {"deterministic": False}),
    "dropout, deterministic": Row("Dropout", {"rate": 0.5}, ROWS, {"deterministic": True}),
    "dropout, never": Row("Dropout", {"rate": 0.0}, ROWS, {"deterministic": False}),
    "dropout, always": Row("Dropout", {"rate": 1.0}, ROWS, {"deterministic": False}),
}
