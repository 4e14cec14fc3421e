"""Rows of products in 8 bits, in layers that multiply; `Fp8DotGeneralOp`, of which Linen warns, is tested apart."""

from __future__ import annotations

from typing import Any

from tests.layers.row import BF16, ROWS, SERIES, Config, Row


def _with(op: str, **config: Any) -> Config:
    """The fields of a layer that multiplies with such a module."""
    return lambda nn: {**config, "dot_general_cls": getattr(nn, op)}


def _einsum(nn: Any) -> dict[str, Any]:
    return {"layers": [lambda x, k: nn.Fp8Einsum(4)("bia,ac->bic", x, k), lambda y: nn.Dense(2)(y)]}


TABLE = {
    "fp8 dense": Row("Dense", _with("Fp8DirectDotGeneralOp", features=5), ROWS),
    "fp8 dense, bfloat16": Row("Dense", _with("Fp8DirectDotGeneralOp", features=5, dtype=BF16), ROWS),
    "fp8 dense, older name": Row("Dense", _with("Fp8DotGeneral", features=5, use_bias=False), ROWS),
    "fp8 dense, simulated": Row("Dense", _with("NANOOFp8DotGeneralOp", features=5), ROWS),
    "fp8 dense general": Row("DenseGeneral", _with("Fp8DirectDotGeneralOp", features=(2, 3), axis=(-1, 1)), SERIES),
    "fp8 einsum": Row("Sequential", _einsum, (SERIES, ROWS.T)),
}
