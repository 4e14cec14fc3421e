"""The rows of the table that a function of a scope computes as well."""

from __future__ import annotations

from typing import Any

import liftcore
from liftcore import nn
from tests.layers.row import MUTABLE, Layer, Row
from tests.layers.table import TABLE


def _embed(scope: liftcore.Scope, inputs: Any, num_embeddings: int, features: int, **config: Any) -> Any:
    return nn.embedding(scope, num_embeddings, features, **config).lookup(inputs)


def _dropout(scope: liftcore.Scope, inputs: Any, rng: Any = None, **config: Any) -> Any:
    return nn.dropout(scope, inputs, key=rng, **config)


FUNCTIONS = {
    "Dense": nn.dense,
    "DenseGeneral": nn.dense_general,
    "Einsum": nn.einsum,
    "Conv": nn.conv,
    "ConvLocal": nn.conv_local,
    "ConvTranspose": nn.conv_transpose,
    "Embed": _embed,
    "BatchNorm": nn.batch_norm,
    "LayerNorm": nn.layer_norm,
    "RMSNorm": nn.rms_norm,
    "GroupNorm": nn.group_norm,
    "InstanceNorm": nn.instance_norm,
    "Dropout": _dropout,
    "PReLU": nn.prelu,
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
