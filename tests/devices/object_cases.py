"""The layers of nnx_like that have mathematics of their own, in sizes that divide among the devices of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import nnx_like as nnx
from tests.devices.mesh_cases import IMAGE, KINDS, LENGTHS, ROWS, SERIES, STATE, TOKENS

__all__ = ["OBJECTS", "Object", "object_cases"]


class Object(NamedTuple):
    """A layer, and one call of it."""

    make: Callable[[nnx.Rngs], Any]
    inputs: Any
    call: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


def _cell(name: str) -> Callable[[nnx.Rngs], Any]:
    return lambda rngs: getattr(nnx, name)(8, 8, rngs=rngs)


def _rnn(name: str, **config: Any) -> Callable[[nnx.Rngs], Any]:
    return lambda rngs: nnx.RNN(_cell(name)(rngs), rngs=rngs, **config)


def _both(rngs: nnx.Rngs) -> Any:
    return nnx.Bidirectional(_rnn("GRUCell")(rngs), _rnn("GRUCell")(rngs), rngs=rngs)


def _adapted(rngs: nnx.Rngs) -> Any:
    return nnx.LoRA(8, 8, 8, base_module=nnx.Linear(8, 8, rngs=rngs), rngs=rngs)


def _attention(**config: Any) -> Callable[[nnx.Rngs], Any]:
    return lambda rngs: nnx.MultiHeadAttention(4, 8, decode=False, rngs=rngs, **config)


OBJECTS: dict[str, Object] = {
    "Linear": Object(lambda rngs: nnx.Linear(8, 8, rngs=rngs), ROWS),
    "LinearGeneral": Object(lambda rngs: nnx.LinearGeneral((8, 8), (4, 8), axis=(1, 2), rngs=rngs), SERIES),
    "Einsum": Object(lambda rngs: nnx.Einsum("...a,abc->...bc", (8, 4, 8), (4, 8), rngs=rngs), SERIES),
    "Embed": Object(lambda rngs: nnx.Embed(16, 8, rngs=rngs), TOKENS),
    "LoRA": Object(_adapted, ROWS),
    "LoRALinear": Object(lambda rngs: nnx.LoRALinear(8, 8, lora_rank=8, rngs=rngs), ROWS),
    "Conv": Object(lambda rngs: nnx.Conv(8, 8, (3, 3), rngs=rngs), IMAGE),
    "ConvTranspose": Object(lambda rngs: nnx.ConvTranspose(8, 8, (3,), 2, rngs=rngs), SERIES),
    "BatchNorm": Object(lambda rngs: nnx.BatchNorm(8, rngs=rngs), IMAGE),
    "LayerNorm": Object(lambda rngs: nnx.LayerNorm(8, rngs=rngs), SERIES),
    "RMSNorm": Object(lambda rngs: nnx.RMSNorm(8, rngs=rngs), SERIES),
    "GroupNorm": Object(lambda rngs: nnx.GroupNorm(8, 2, rngs=rngs), IMAGE),
    "InstanceNorm": Object(lambda rngs: nnx.InstanceNorm(8, rngs=rngs), IMAGE),
    "SpectralNorm": Object(lambda rngs: nnx.SpectralNorm(nnx.Linear(8, 8, rngs=rngs), rngs=rngs), ROWS),
    "WeightNorm": Object(lambda rngs: nnx.WeightNorm(nnx.Linear(8, 8, rngs=rngs), rngs=rngs), ROWS),
    "Dropout": Object(lambda rngs: nnx.Dropout(0.5, broadcast_dims=(0,), rngs=rngs), SERIES),
    "PReLU": Object(lambda rngs: nnx.PReLU(), ROWS),
    "MultiHeadAttention": Object(_attention(), SERIES, {"is_causal": True}),
    "MultiHeadAttention, dropout": Object(_attention(dropout_rate=0.4), SERIES, {"deterministic": False}),
    "LSTMCell": Object(_cell("LSTMCell"), ((STATE, STATE), ROWS)),
    "OptimizedLSTMCell": Object(_cell("OptimizedLSTMCell"), ((STATE, STATE), ROWS)),
    "GRUCell": Object(_cell("GRUCell"), (STATE, ROWS)),
    "SimpleCell": Object(_cell("SimpleCell"), (STATE, ROWS)),
    "RNN": Object(_rnn("OptimizedLSTMCell", return_carry=True), SERIES, {"seq_lengths": LENGTHS}),
    "Bidirectional": Object(_both, SERIES),
}


def object_cases() -> list[tuple[str, str]]:
    """Each of them with each kind that says something of it."""

    def differs(one: Object, kind: str) -> bool:
        last = jax.tree.leaves(one.inputs)[-1]
        return last.ndim > {"features": 1, "length": 2}.get(kind, 0) and kind in KINDS

    return [(name, kind) for name, one in OBJECTS.items() for kind in KINDS if differs(one, kind)]
