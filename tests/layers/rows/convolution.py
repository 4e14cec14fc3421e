"""Rows of convolutional layers."""

from __future__ import annotations

import jax
import numpy as np

from tests.layers.row import BF16, IMAGE, SERIES, Row, array, doubled, widening

TABLE = {
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
}
