"""Rows of low-rank updates, which `flax.linen` does not have."""

from __future__ import annotations

import jax

from tests.layers.row import BF16, ROWS, SERIES, Row

RANDOM = jax.nn.initializers.normal()

TABLE = {
    "lora dense": Row("LoRADense", {"features": 5, "rank": 2, "b_init": RANDOM}, ROWS),
    "lora dense, alpha": Row("LoRADense", {"features": 5, "rank": 2, "alpha": 6.0, "b_init": RANDOM}, SERIES),
    "lora dense, no bias": Row("LoRADense", {"features": 5, "rank": 2, "use_bias": False, "b_init": RANDOM}, ROWS),
    "lora dense, bfloat16": Row("LoRADense", {"features": 5, "rank": 2, "dtype": BF16, "b_init": RANDOM}, ROWS),
    "lora": Row("LoRA", lambda nn: {"base": nn.Dense(5), "rank": 2, "alpha": 3.0, "b_init": RANDOM}, ROWS),
    "lora, attention": Row(
        "LoRA", lambda nn: {"base": nn.MultiHeadDotProductAttention(2), "rank": 1, "b_init": RANDOM}, SERIES
    ),
    "lora, convolution": Row(
        "LoRA", lambda nn: {"base": nn.Conv(4, (2,), padding="VALID"), "rank": 2, "b_init": RANDOM}, SERIES
    ),
    "lora, equation": Row(
        "LoRA",
        lambda nn: {"base": nn.Einsum((2, 4, 3), "bti,nio->btno"), "rank": 2, "b_init": RANDOM, "collection": "params"},
        SERIES,
    ),
    "lora, targets": Row(
        "LoRA",
        lambda nn: {
            "base": nn.Sequential([nn.Dense(3), nn.relu, nn.DenseGeneral((2, 2))]),
            "rank": 1,
            "targets": lambda path, kernel: kernel.ndim == 3,
        },
        ROWS,
    ),
}
