"""Rows of pooling, in models with nothing else."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.layers.row import BF16, IMAGE, SERIES, Row, array


def _pool(kind: str, inputs: Any, *args: Any, **options: Any) -> Row:
    return Row("Sequential", lambda nn: {"layers": [lambda x: getattr(nn, kind)(x, *args, **options)]}, inputs)


TABLE = {
    "max pool": _pool("max_pool", IMAGE, (2, 3)),
    "max pool, stride": _pool("max_pool", SERIES, (2,), (2,), "SAME"),
    "max pool, pairs": _pool("max_pool", IMAGE, (2, 2), (1, 2), ((1, 0), (0, 2))),
    "max pool, integers": _pool("max_pool", np.arange(-10, 14).reshape(2, 4, 3), (3,), None, "SAME"),
    "max pool, one example": _pool("max_pool", SERIES[0], (3,)),
    "max pool, three dimensions": _pool("max_pool", array(1, 3, 2, 3, 2), (2, 1, 3), (2, 1, 1)),
    "avg pool": _pool("avg_pool", IMAGE, (3, 2), (1, 2)),
    "avg pool, same": _pool("avg_pool", IMAGE, (3, 2), (2, 1), "SAME"),
    "avg pool, same, lower": _pool("avg_pool", SERIES, (2,), None, "SAME_LOWER"),
    "avg pool, without padding": _pool("avg_pool", IMAGE, (3, 2), (2, 1), "SAME", count_include_pad=False),
    "avg pool, pairs, without padding": _pool("avg_pool", SERIES, (3,), (2,), ((1, 2),), count_include_pad=False),
    "avg pool, two batch dimensions": _pool("avg_pool", IMAGE, (2,), None, "SAME", count_include_pad=False),
    "avg pool, one example": _pool("avg_pool", SERIES[0], (2,), None, "SAME", count_include_pad=False),
    "avg pool, bfloat16": _pool("avg_pool", SERIES.astype(BF16), (2,)),
    "pool, products": _pool("pool", np.arange(24).reshape(2, 4, 3), 1, jax.lax.mul, (2,), (2,), "VALID"),
}
