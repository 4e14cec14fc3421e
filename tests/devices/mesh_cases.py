"""Each layer once or a few times, in sizes that divide among the devices of a mesh, and what of it is sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from tests.layers.row import Row, array

__all__ = ["CASES", "KINDS", "Kind", "cases"]

ROWS, SERIES, IMAGE = array(8, 8), array(8, 8, 8), array(8, 4, 8, 8)
TOKENS = np.arange(64).reshape(8, 8) % 16
STATE = array(8, 8)[:, ::-1].copy()
MASK = np.arange(8) < np.array([3, 8, 1, 2, 5, 8, 7, 4])[:, None]
LENGTHS = np.array([3, 8, 1, 2, 5, 8, 7, 0])
TRAIN, DROP = {"use_running_average": False}, {"deterministic": False}
HEADS = {"num_heads": 4}


def _of(layer: str, **config: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda nn: {"layers": [getattr(nn, layer)(**config)]}


def _rnn(cell: str = "LSTMCell", **config: Any) -> Callable[[Any], dict[str, Any]]:
    fields = {"kernel_size": (3,)} if cell == "ConvLSTMCell" else {}
    return lambda nn: {"cell": getattr(nn, cell)(8, **fields), **config}


def _both(nn: Any) -> dict[str, Any]:
    return {f"{name}_rnn": nn.RNN(nn.GRUCell(8)) for name in ("forward", "backward")}


def _function(name: str, *args: Any, **options: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda nn: {"layers": [lambda x: getattr(nn, name)(x, *args, **options)]}


def _eight_bits(nn: Any) -> dict[str, Any]:
    return {"features": 8, "dot_general_cls": nn.Fp8DirectDotGeneralOp}


def _merged(nn: Any) -> dict[str, Any]:
    return {"layers": [lambda x: nn.BatchApply(nn.Dense(8))(x)]}


def _deep(nn: Any) -> dict[str, Any]:
    return {"layers": [nn.Dense(16), nn.gelu, nn.Dense(8)]}


def _attention(call: Mapping[str, Any] | None = None, inputs: Any = SERIES, **config: Any) -> Row:
    return Row("MultiHeadDotProductAttention", {**HEADS, **config}, inputs, dict(call or {}))


def _rotary(nn: Any) -> dict[str, Any]:
    return {**HEADS, "num_kv_heads": 2, "is_causal": True, "rotary": nn.rotary_embedding}


def _normed(layer: str) -> Callable[[Any], dict[str, Any]]:
    return lambda nn: {"layer_instance": nn.Dense(8) if layer == "Dense" else nn.Conv(8, (3,))}


CASES: dict[str, Row] = {
    "Dense": Row("Dense", {"features": 8}, ROWS),
    "Dense, two layers": Row("Sequential", _deep, SERIES),
    "Dense, fp8": Row("Dense", _eight_bits, ROWS),
    "DenseGeneral": Row("DenseGeneral", {"features": (4, 8)}, SERIES),
    "DenseGeneral, two axes": Row("DenseGeneral", {"features": 8, "axis": (1, -1)}, SERIES),
    "DenseGeneral, batch": Row("DenseGeneral", {"features": 8, "batch_dims": (0,)}, SERIES),
    "Einsum": Row("Einsum", {"shape": (8, 4, 8), "einsum_str": "...a,abc->...bc"}, SERIES),
    "Einsum, batch": Row("Einsum", {"shape": (8, 8, 8), "einsum_str": "bta,bac->btc"}, SERIES),
    "LoRADense": Row("LoRADense", {"features": 8, "rank": 8}, ROWS),
    "LoRA": Row("LoRA", lambda nn: {"base": nn.MultiHeadDotProductAttention(4), "rank": 8}, SERIES),
    "LoRA, Conv": Row("LoRA", lambda nn: {"base": nn.Conv(8, (3,), feature_group_count=2), "rank": 8}, SERIES),
    "Embed": Row("Embed", {"num_embeddings": 16, "features": 8}, TOKENS),
    "Embed, one vector": Row("Embed", {"num_embeddings": 1, "features": 8}, np.zeros_like(TOKENS)),
    "Conv": Row("Conv", {"features": 8, "kernel_size": (3, 3)}, IMAGE),
    "Conv, strides": Row("Conv", {"features": 8, "kernel_size": (2,), "strides": 2, "padding": "VALID"}, SERIES),
    "Conv, circular": Row("Conv", {"features": 8, "kernel_size": (3,), "padding": "CIRCULAR"}, SERIES),
    "Conv, groups": Row("Conv", {"features": 8, "kernel_size": (3,), "feature_group_count": 8}, SERIES),
    "Conv, two batch dimensions": Row("Conv", {"features": 8, "kernel_size": (3,)}, IMAGE),
    "ConvLocal": Row("ConvLocal", {"features": 8, "kernel_size": (3,)}, SERIES),
    "ConvTranspose": Row("ConvTranspose", {"features": 8, "kernel_size": (3,), "strides": (2,)}, SERIES),
    "ConvTranspose, circular": Row(
        "ConvTranspose", {"features": 8, "kernel_size": (3,), "strides": (2,), "padding": "CIRCULAR"}, SERIES
    ),
    "BatchNorm": Row("BatchNorm", TRAIN, IMAGE),
    "BatchNorm, running": Row("BatchNorm", {"use_running_average": True}, IMAGE),
    "BatchNorm, mask": Row("BatchNorm", TRAIN, SERIES, {"mask": MASK[..., None]}),
    "LayerNorm": Row("LayerNorm", {}, SERIES),
    "RMSNorm": Row("RMSNorm", {}, SERIES),
    "GroupNorm": Row("GroupNorm", {"num_groups": 4}, IMAGE),
    "GroupNorm, large groups": Row("GroupNorm", {"num_groups": 2}, SERIES),
    "InstanceNorm": Row("InstanceNorm", {}, IMAGE),
    "SpectralNorm": Row("SpectralNorm", _normed("Dense"), ROWS, {"update_stats": True}),
    "SpectralNorm, Conv": Row("SpectralNorm", _normed("Conv"), SERIES, {"update_stats": True}),
    "WeightNorm": Row("WeightNorm", _normed("Dense"), ROWS),
    "Dropout": Row("Dropout", {"rate": 0.5, **DROP}, SERIES),
    "Dropout, broadcast_dims": Row("Dropout", {"rate": 0.5, "broadcast_dims": (0,), **DROP}, SERIES),
    "Dropout, broadcast features": Row("Dropout", {"rate": 0.5, "broadcast_dims": (1, -1), **DROP}, SERIES),
    "PReLU": Row("PReLU", {}, ROWS),
    "MultiHeadDotProductAttention": _attention(),
    "MultiHeadDotProductAttention, mask": _attention({"mask": MASK[:, None, None]}),
    "MultiHeadDotProductAttention, cross": _attention(inputs=(SERIES, array(8, 4, 8))),
    "MultiHeadDotProductAttention, dropout": _attention(DROP, dropout_rate=0.4, broadcast_dropout=False),
    "MultiHeadDotProductAttention, shared dropout": _attention(DROP, dropout_rate=0.4),
    "MultiHeadDotProductAttention, normalized": _attention(normalize_qk=True, qkv_features=32),
    "MultiHeadDotProductAttention, rotary": Row("MultiHeadDotProductAttention", _rotary, SERIES),
    "MultiHeadDotProductAttention, xla": _attention(implementation="xla", is_causal=True),
    "MultiHeadAttention": Row("MultiHeadAttention", HEADS, SERIES),
    "LSTMCell": Row("LSTMCell", {"features": 8}, ((STATE, STATE), ROWS)),
    "OptimizedLSTMCell": Row("OptimizedLSTMCell", {"features": 8}, ((STATE, STATE), ROWS)),
    "GRUCell": Row("GRUCell", {"features": 8}, (STATE, ROWS)),
    "MGUCell": Row("MGUCell", {"features": 8}, (STATE, ROWS)),
    "SimpleCell": Row("SimpleCell", {"features": 8}, (STATE, ROWS)),
    "ConvLSTMCell": Row("ConvLSTMCell", {"features": 8, "kernel_size": (3,)}, ((SERIES, SERIES), SERIES)),
    "RNN": Row("RNN", _rnn(return_carry=True), SERIES),
    "RNN, optimized": Row("RNN", _rnn("OptimizedLSTMCell"), SERIES),
    "RNN, convolutions": Row("RNN", _rnn("ConvLSTMCell"), IMAGE),
    "RNN, lengths": Row(
        "RNN", _rnn("GRUCell", return_carry=True, reverse=True, keep_order=True), SERIES, {"seq_lengths": LENGTHS}
    ),
    "Bidirectional": Row("Bidirectional", _both, SERIES),
    "max_pool": Row("Sequential", _function("max_pool", (2,), (2,)), SERIES),
    "avg_pool": Row("Sequential", _function("avg_pool", (2, 2), (2, 2), "SAME", count_include_pad=False), IMAGE),
    "BatchApply": Row("Sequential", _merged, SERIES),
}

Specs: TypeAlias = Callable[[Any], P]


class Kind(NamedTuple):
    """What of a layer is sharded.

    Attributes:
        mesh: the sizes of the mesh, by axis.
        inputs: the spec of an input of the call.
        params: the spec of a parameter.
    """

    mesh: dict[str, int]
    inputs: Specs
    params: Specs


def _nothing(x: Any) -> P:
    return P()


def _at(axis: int, name: str) -> Specs:
    """Shards one axis, where the array has it and it divides; vectors only along their last."""

    def spec(x: Any) -> P:
        if not -x.ndim <= axis < x.ndim or x.shape[axis] % 4:
            return P()
        entries = [None] * x.ndim
        entries[axis] = name
        return P(*entries)

    return spec


def _both_axes(x: Any) -> P:
    return P("data", *[None] * (x.ndim - 2), "model") if x.ndim > 1 else P("data")


_TWO = {"data": 2, "model": 4}
KINDS: dict[str, Kind] = {
    "batch": Kind({"data": 8}, lambda x: P("data"), _nothing),
    "features": Kind({"model": 4}, _at(-1, "model"), _nothing),
    "length": Kind({"model": 4}, _at(1, "model"), _nothing),
    "columns": Kind(_TWO, lambda x: P("data"), _at(-1, "model")),
    "rows": Kind(_TWO, _both_axes, _at(-2, "model")),
    "batch and parameters": Kind({"data": 4}, lambda x: P("data"), _at(0, "data")),
}
"""Data parallel; features, or places of a sequence or image, of the inputs; parameters by their last axis, or, beside
the features of the inputs, by the one that is summed over; and parameters along the axis of the batch (FSDP)."""


def cases() -> list[tuple[str, str]]:
    """Each layer with each kind that says something else of it than another one."""
    return [(name, kind) for name, row in CASES.items() for kind in KINDS if _differs(row, kind)]


def _differs(row: Row, kind: str) -> bool:
    first = jax.tree.leaves(row.args)[-1]
    axis = {"features": -1, "length": 1}.get(kind)
    if axis is None:
        return True
    return first.ndim > (1 if axis == -1 else 2) and any(KINDS[kind].inputs(first))
