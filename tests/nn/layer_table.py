"""One row for each configuration of a layer; the tests of functions, of modules and of parity all run over it.

A row's `config` holds the fields of the module, its `call` what the module is called with; a functional layer takes
both as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore import nn


class Row(NamedTuple):
    layer: str
    config: dict[str, Any]
    inputs: Any
    call: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple shares its defaults, and nobody changes this one


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Numbers between -1.5 and 2.5 without a pattern, the same in every run."""
    return (0.5 + 2 * np.sin(1.7 * np.arange(1, np.prod(shape) + 1)).reshape(shape)).astype(dtype)


def widening(inputs: Any, kernel: Any, bias: Any = None, *, dtype: Any = None, inexact: bool = True) -> list[Any]:
    """A hook for `promote_dtype`: all in bfloat16, whatever `dtype` says."""
    return [None if x is None else jnp.asarray(x, jnp.bfloat16) for x in (inputs, kernel, bias)]


def doubled(product: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that multiplies or convolves: twice the usual result."""
    return lambda *args, **kwargs: 2 * product(*args, **kwargs)


IMAGE, SERIES, ROWS = array(2, 5, 6, 4), array(2, 7, 4), array(3, 4)
TRAIN, EVAL = {"use_running_average": False}, {"use_running_average": True}
MASK = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 1]], bool)
BF16 = jnp.bfloat16

TABLE = {
    "dense": Row("Dense", {"features": 5}, ROWS),
    "dense, no bias": Row("Dense", {"features": 5, "use_bias": False}, ROWS),
    "dense, bfloat16": Row("Dense", {"features": 5, "dtype": BF16}, ROWS),
    "dense, bfloat16 parameters": Row("Dense", {"features": 5, "param_dtype": BF16}, ROWS),
    "dense, integers": Row("Dense", {"features": 5}, np.arange(12).reshape(3, 4)),
    "dense, one example": Row("Dense", {"features": 5}, ROWS[0]),
    "dense, precision": Row("Dense", {"features": 5, "precision": "highest"}, ROWS),
    "dense, initializers": Row(
        "Dense",
        {"features": 5, "kernel_init": jax.nn.initializers.orthogonal(), "bias_init": jax.nn.initializers.normal()},
        ROWS,
    ),
    "dense, hooks": Row(
        "Dense", {"features": 5, "promote_dtype": widening, "dot_general": doubled(jax.lax.dot_general)}, ROWS
    ),
    "conv": Row("Conv", {"features": 3, "kernel_size": (3, 3)}, IMAGE),
    "conv, int and stride": Row("Conv", {"features": 3, "kernel_size": 3, "strides": 2, "padding": "VALID"}, SERIES),
    "conv, None": Row(
        "Conv",
        {"features": 3, "kernel_size": (3,), "strides": None, "input_dilation": None, "kernel_dilation": None},
        SERIES,
    ),
    "conv, one example": Row("Conv", {"features": 3, "kernel_size": (2, 3), "strides": (1, 2)}, IMAGE[0]),
    "conv, two batch dimensions": Row("Conv", {"features": 3, "kernel_size": (3,)}, IMAGE),
    "conv, circular": Row("Conv", {"features": 3, "kernel_size": (4,), "padding": "CIRCULAR"}, SERIES),
    "conv, circular and dilated": Row(
        "Conv", {"features": 3, "kernel_size": (2, 3), "padding": "CIRCULAR", "kernel_dilation": (3, 2)}, IMAGE
    ),
    "conv, reflect": Row("Conv", {"features": 3, "kernel_size": (3, 4), "padding": "REFLECT"}, IMAGE),
    "conv, causal": Row("Conv", {"features": 3, "kernel_size": 3, "padding": "CAUSAL", "kernel_dilation": 2}, SERIES),
    "conv, int padding": Row("Conv", {"features": 3, "kernel_size": (3, 3), "padding": 2}, IMAGE),
    "conv, pairs": Row("Conv", {"features": 3, "kernel_size": (3, 3), "padding": (1, (0, 2))}, IMAGE),
    "conv, input dilation": Row(
        "Conv", {"features": 3, "kernel_size": (3,), "padding": 2, "input_dilation": 2}, SERIES
    ),
    "conv, groups": Row("Conv", {"features": 6, "kernel_size": (3,), "feature_group_count": 2}, SERIES),
    "conv, mask": Row("Conv", {"features": 3, "kernel_size": (2,), "mask": np.arange(24).reshape(2, 4, 3) % 2}, SERIES),
    "conv, bfloat16, no bias": Row(
        "Conv", {"features": 3, "kernel_size": (2,), "use_bias": False, "dtype": BF16, "param_dtype": BF16}, SERIES
    ),
    "conv, three dimensions": Row("Conv", {"features": 2, "kernel_size": (2, 1, 2)}, array(1, 3, 2, 3, 2)),
    "conv, hooks": Row(
        "Conv",
        {
            "features": 3,
            "kernel_size": (2,),
            "promote_dtype": widening,
            "conv_general_dilated": doubled(jax.lax.conv_general_dilated),
        },
        SERIES,
    ),
    "embed": Row("Embed", {"num_embeddings": 5, "features": 3}, np.array([[0, 4], [-1, 7]])),
    "embed, one vector": Row("Embed", {"num_embeddings": 1, "features": 3}, np.array([0, 3])),
    "embed, bfloat16": Row("Embed", {"num_embeddings": 5, "features": 3, "dtype": BF16}, np.array([1])),
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
    "dropout": Row("Dropout", {"rate": 0.3}, IMAGE, {"deterministic": False}),
    "dropout, broadcast": Row("Dropout", {"rate": 0.5, "broadcast_dims": (1, -1)}, IMAGE, {"deterministic": False}),
    "dropout, sequence": Row("Dropout", {"rate": 0.5, "rng_collection": "noise"}, ROWS, {"deterministic": False}),
    "dropout, deterministic": Row("Dropout", {"rate": 0.5}, ROWS, {"deterministic": True}),
    "dropout, never": Row("Dropout", {"rate": 0.0}, ROWS, {"deterministic": False}),
    "dropout, always": Row("Dropout", {"rate": 1.0}, ROWS, {"deterministic": False}),
}


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


class Layer(NamedTuple):
    """Two pure functions: `init(rngs, x)` returns `(y, variables)`, `apply(variables, x, rngs)` `(y, mutated)`."""

    init: Callable[..., Any]
    apply: Callable[..., Any]


def functional(row: Row) -> Layer:
    def layer(scope: liftcore.Scope, x: Any) -> Any:
        return FUNCTIONS[row.layer](scope, x, **row.config, **row.call)

    applied = liftcore.apply(layer, mutable=["batch_stats"])
    return Layer(liftcore.init(layer), lambda variables, x, rngs: applied(variables, x, rngs=rngs))


def modular(module: Any, row: Row) -> Layer:
    """A module of `linen_like` or of its model."""

    def apply(variables: Any, x: Any, rngs: Any) -> Any:
        return module.apply(variables, x, **row.call, rngs=rngs, mutable=["batch_stats"])

    return Layer(lambda rngs, x: module.init_with_output(rngs, x, **row.call), apply)


def everything(layer: Layer, inputs: Any) -> dict[str, Any]:
    """All that can be compared of two layers: tree, values, outputs, gradients and mutated state."""
    keys = jax.random.split(jax.random.key(0), 3)
    rngs = dict(zip(("params", "dropout", "noise"), keys, strict=True))
    first, variables = layer.init(rngs, inputs)
    state = {name: found for name, found in variables.items() if name != "params"}

    def loss(params: Any, x: Any) -> tuple[Any, Any]:
        given = {"params": params, **state} if params else state
        y, mutated = layer.apply(given, x, rngs)
        weights = jnp.cos(jnp.arange(y.size)).reshape(y.shape)
        return jnp.sum(y * weights), (y, mutated)

    floats = jnp.issubdtype(inputs.dtype, jnp.inexact)
    grads, (y, mutated) = jax.grad(loss, (0, 1) if floats else 0, has_aux=True)(variables.get("params", {}), inputs)
    return {"init": first, "variables": variables, "y": y, "mutated": mutated, "grads": grads}
