"""Every layer in many configurations; whatever holds for all layers is tested over all rows."""

from __future__ import annotations

from tests.layers.row import Row
from tests.layers.rows import (
    activation,
    attention,
    batch_apply,
    combinators,
    convolution,
    embedding,
    fp8_ops,
    linear,
    lora,
    normalization,
    pooling,
    recurrent,
    stochastic,
)

__all__ = ["OWN", "TABLE"]

_FILES = (
    linear,
    attention,
    convolution,
    embedding,
    normalization,
    stochastic,
    activation,
    combinators,
    batch_apply,
    pooling,
    recurrent,
    fp8_ops,
)

TABLE: dict[str, Row] = {name: row for file in _FILES for name, row in file.TABLE.items()}
assert len(TABLE) == sum(len(file.TABLE) for file in _FILES), "two rows have one name"

OWN: dict[str, Row] = {**lora.TABLE, **attention.OWN}
"""Rows of layers, and of options, that `flax.linen` does not have."""
