"""Rows of functions of one batch dimension that are called with several."""

from __future__ import annotations

from typing import Any

from tests.layers.row import IMAGE, ROWS, SERIES, Config, Row


def _merged(layer: str, num_dims: int = 2, **config: Any) -> Config:
    """The fields of a model that calls one layer with its leading dimensions merged."""
    return lambda nn: {"layers": [lambda *xs: nn.BatchApply(getattr(nn, layer)(**config), num_dims)(*xs)]}


def _scaled(nn: Any) -> dict[str, Any]:
    return {"layers": [lambda x, by: nn.BatchApply(lambda x, by: {"y": x * by, "x": x})(x, by)]}


TABLE = {
    "batch apply": Row("Sequential", _merged("Dense", features=3), SERIES),
    "batch apply, three dimensions": Row("Sequential", _merged("Dense", 3, features=2), IMAGE),
    "batch apply, one dimension": Row("Sequential", _merged("Dense", 1, features=2), ROWS),
    "batch apply, convolution": Row("Sequential", _merged("Conv", features=2, kernel_size=(2,)), IMAGE),
    "batch apply, several results and a vector": Row("Sequential", _scaled, (SERIES, ROWS[0])),
}
