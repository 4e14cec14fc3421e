"""Rows of models that are made of other modules."""

from __future__ import annotations

from typing import Any

from tests.layers.row import IMAGE, ROWS, TRAIN, Row


def _chain(nn: Any) -> dict[str, Any]:
    return {"layers": [nn.Dense(3), nn.relu, lambda x: nn.Dense(x.shape[-1] + 1)(x), nn.log_softmax]}


def _forked(nn: Any) -> dict[str, Any]:
    return {"layers": (lambda x: (x, nn.Dense(4)(x)), lambda x, y: {"y": y, "x": x}, lambda x, y: x + nn.Dense(4)(y))}


def _nested(nn: Any) -> dict[str, Any]:
    return {"layers": [nn.Sequential([nn.Conv(3, (2, 2)), nn.BatchNorm(**TRAIN)]), nn.PReLU()]}


TABLE = {
    "sequential": Row("Sequential", _chain, ROWS),
    "sequential, tuples and dicts": Row("Sequential", _forked, ROWS),
    "sequential, nested": Row("Sequential", _nested, IMAGE),
}
