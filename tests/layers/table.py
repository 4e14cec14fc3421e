"""Every layer in many configurations; whatever holds for all layers is tested over all rows."""

from __future__ import annotations

from tests.layers.row import Row
from tests.layers.rows import convolution, embedding, linear, normalization, stochastic

__all__ = ["TABLE"]

_FILES = (linear, convolution, embedding, normalization, stochastic)

TABLE: dict[str, Row] = {name: row for file in _FILES for name, row in file.TABLE.items()}
assert len(TABLE) == sum(len(file.TABLE) for file in _FILES), "two rows have one name"
