"""The rows of the table that a function of a scope computes as well."""

from __future__ import annotations

from typing import Any

import liftcore
from liftcore import nn
from tests.layers.row import MUTABLE, Layer, Row
from tests.layers.table import TABLE


def _embed(scope: liftcore.Scope, inputs: Any, num_embeddings: int, features: int, **config: Any) -> Any:
    return nn.embedding(scope, num_embeddings, features, **config).lookup(inputs)


FUNCTIONS = {
    "Dense": nn.dense,
    "Conv": nn.conv,
    "Embed": _embed,
    "BatchNorm": nn.batch_norm,
    "LayerNorm": nn.layer_norm,
    "Dropout": nn.dropout,
}

ROWS_OF_FUNCTIONS = [name for name, row in TABLE.items() if row.layer in FUNCTIONS and not callable(row.config)]


def functional(row: Row) -> Layer:
    """The function behind a module, which takes fields and arguments alike."""
    assert not callable(row.config)
    config = row.config

    def layer(scope: liftcore.Scope, *args: Any) -> Any:
        return FUNCTIONS[row.layer](scope, *args, **config, **row.call)

    applied = liftcore.apply(layer, mutable=MUTABLE)
    return Layer(liftcore.init(layer), lambda variables, rngs, *args: applied(variables, *args, rngs=rngs))
