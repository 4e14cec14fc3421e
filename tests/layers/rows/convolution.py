"""Rows of convolutional layers."""

from __future__ import annotations

import jax
import numpy as np

from tests.layers.row import BF16, IMAGE, SERIES, Row, array, doubled, widening

NORMAL = jax.nn.initializers.normal()
HALF = np.array([[[1.0], [0.5]], [[0.0], [2.0]]], np.float32)  # a mask for two elements of kernel and two features


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
    "conv, lower same": Row(
        "Conv", {"features": 3, "kernel_size": (4,), "strides": 2, "padding": "SAME_LOWER"}, SERIES
    ),
    "conv, valid and dilated": Row(
        "Conv", {"features": 3, "kernel_size": (2, 2), "padding": "VALID", "kernel_dilation": (2, 3)}, IMAGE
    ),
    "conv, circular and strides": Row(
        "Conv", {"features": 3, "kernel_size": (3, 2), "padding": "CIRCULAR", "strides": (2, 3)}, IMAGE
    ),
    "conv, circular beyond one period": Row(
        "Conv", {"features": 2, "kernel_size": (4,), "padding": "CIRCULAR", "kernel_dilation": 3}, array(1, 3, 2)
    ),
    "conv, reflect, strides and dilated": Row(
        "Conv", {"features": 3, "kernel_size": 3, "padding": "REFLECT", "strides": 2, "kernel_dilation": 2}, SERIES
    ),
    "conv, causal and strides": Row(
        "Conv", {"features": 3, "kernel_size": (2,), "padding": "CAUSAL", "strides": 2}, SERIES
    ),
    "conv, both dilations, groups and mask": Row(
        "Conv",
        {
            "features": 4,
            "kernel_size": (2, 3),
            "strides": (1, 2),
            "padding": ((1, 0), 2),
            "input_dilation": (2, 3),
            "kernel_dilation": (3, 1),
            "feature_group_count": 2,
            "mask": np.arange(48).reshape(2, 3, 2, 4) % 3,
        },
        IMAGE,
    ),
    "conv, one group for each feature": Row(
        "Conv", {"features": 8, "kernel_size": (3, 3), "feature_group_count": 4, "strides": 2}, IMAGE
    ),
    "conv, negative padding": Row("Conv", {"features": 3, "kernel_size": (2,), "padding": ((-1, 2),)}, SERIES),
    "conv, float mask": Row("Conv", {"features": 1, "kernel_size": (2,), "mask": HALF}, array(2, 4, 2)),
    "conv, integers": Row("Conv", {"features": 3, "kernel_size": (2,)}, np.arange(12).reshape(1, 4, 3)),
    "conv, bfloat16 inputs": Row("Conv", {"features": 3, "kernel_size": (2,)}, SERIES.astype(BF16)),
    "conv, initializers and precision": Row(
        "Conv",
        {
            "features": 3,
            "kernel_size": (2,),
            "kernel_init": jax.nn.initializers.he_uniform(),
            "bias_init": NORMAL,
            "precision": "highest",
        },
        SERIES,
    ),
    "conv, no inputs": Row("Conv", {"features": 3, "kernel_size": (2,)}, array(0, 4, 2)),
    "conv, empty inputs": Row("Conv", {"features": 3, "kernel_size": (2,), "padding": "VALID"}, array(2, 1, 2)),
    "conv, one of each": Row("Conv", {"features": 1, "kernel_size": (1,)}, array(1, 1, 1)),
    "conv local": Row("ConvLocal", {"features": 3, "kernel_size": (3, 2)}, IMAGE),
    "conv local, int and stride": Row(
        "ConvLocal", {"features": 3, "kernel_size": 3, "strides": 2, "padding": "VALID"}, SERIES
    ),
    "conv local, None": Row(
        "ConvLocal",
        {"features": 3, "kernel_size": (3,), "strides": None, "input_dilation": None, "kernel_dilation": None},
        SERIES,
    ),
    "conv local, one example": Row("ConvLocal", {"features": 2, "kernel_size": (2, 3), "strides": (1, 2)}, IMAGE[0]),
    "conv local, two batch dimensions": Row("ConvLocal", {"features": 2, "kernel_size": (3,)}, IMAGE),
    "conv local, circular": Row("ConvLocal", {"features": 2, "kernel_size": (4,), "padding": "CIRCULAR"}, SERIES),
    "conv local, reflect": Row(
        "ConvLocal", {"features": 2, "kernel_size": (3,), "padding": "REFLECT", "kernel_dilation": 2}, SERIES
    ),
    "conv local, causal": Row("ConvLocal", {"features": 2, "kernel_size": 3, "padding": "CAUSAL"}, SERIES),
    "conv local, both dilations": Row(
        "ConvLocal",
        {"features": 2, "kernel_size": (3,), "padding": [(1, 2)], "input_dilation": 2, "kernel_dilation": 3},
        SERIES,
    ),
    "conv local, mask": Row(
        "ConvLocal", {"features": 3, "kernel_size": (2,), "mask": np.arange(168).reshape(7, 8, 3) % 2}, SERIES
    ),
    "conv local, no bias": Row("ConvLocal", {"features": 3, "kernel_size": (2,), "use_bias": False}, SERIES),
    "conv local, bfloat16": Row("ConvLocal", {"features": 2, "kernel_size": (2,), "dtype": BF16}, SERIES),
    "conv local, bfloat16 parameters": Row(
        "ConvLocal", {"features": 2, "kernel_size": (2,), "param_dtype": BF16}, SERIES.astype(BF16)
    ),
    "conv local, initializers and precision": Row(
        "ConvLocal",
        {"features": 3, "kernel_size": (2,), "kernel_init": NORMAL, "bias_init": NORMAL, "precision": "highest"},
        SERIES,
    ),
    "conv local, three dimensions": Row("ConvLocal", {"features": 2, "kernel_size": (2, 1, 2)}, array(1, 3, 2, 3, 2)),
    "conv local, hook": Row("ConvLocal", {"features": 2, "kernel_size": (2,), "promote_dtype": widening}, SERIES),
    "conv transpose": Row("ConvTranspose", {"features": 3, "kernel_size": (3, 2)}, IMAGE),
    "conv transpose, strides": Row("ConvTranspose", {"features": 3, "kernel_size": (3, 2), "strides": (2, 3)}, IMAGE),
    "conv transpose, ints": Row(
        "ConvTranspose", {"features": 3, "kernel_size": 3, "strides": 2, "kernel_dilation": 2}, SERIES
    ),
    "conv transpose, valid": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (3,), "strides": (2,), "padding": "VALID"}, SERIES
    ),
    "conv transpose, valid with gaps": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (2,), "strides": (3,), "padding": "VALID"}, SERIES
    ),
    "conv transpose, circular": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (4,), "strides": (2,), "padding": "CIRCULAR"}, SERIES
    ),
    "conv transpose, circular in two dimensions": Row(
        "ConvTranspose",
        {"features": 2, "kernel_size": (2, 3), "strides": (3, 2), "padding": "CIRCULAR", "kernel_dilation": (1, 2)},
        IMAGE,
    ),
    "conv transpose, circular and transposed": Row(
        "ConvTranspose",
        {"features": 2, "kernel_size": (4, 3), "strides": (1, 2), "padding": "CIRCULAR", "transpose_kernel": True},
        IMAGE,
    ),
    "conv transpose, circular beyond one period": Row(
        "ConvTranspose", {"features": 2, "kernel_size": (6,), "padding": "CIRCULAR"}, array(1, 2, 3)
    ),
    "conv transpose, int padding": Row("ConvTranspose", {"features": 3, "kernel_size": (3, 3), "padding": 2}, IMAGE),
    "conv transpose, pairs": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (3, 3), "padding": (1, (0, 2)), "strides": (2, 1)}, IMAGE
    ),
    "conv transpose, transposed": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (3,), "strides": (2,), "transpose_kernel": True}, SERIES
    ),
    "conv transpose, mask": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (2,), "mask": np.arange(24).reshape(2, 4, 3) % 2}, SERIES
    ),
    "conv transpose, transposed and mask": Row(
        "ConvTranspose",
        {
            "features": 3,
            "kernel_size": (2,),
            "mask": np.arange(24).reshape(2, 3, 4) % 2,
            "transpose_kernel": True,
        },
        SERIES,
    ),
    "conv transpose, one example": Row("ConvTranspose", {"features": 3, "kernel_size": (2, 3)}, IMAGE[0]),
    "conv transpose, two batch dimensions": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (3,), "padding": "CIRCULAR"}, IMAGE
    ),
    "conv transpose, three dimensions": Row(
        "ConvTranspose", {"features": 2, "kernel_size": (2, 1, 2), "strides": (1, 2, 1)}, array(1, 3, 2, 3, 2)
    ),
    "conv transpose, no bias": Row("ConvTranspose", {"features": 3, "kernel_size": (2,), "use_bias": False}, SERIES),
    "conv transpose, bfloat16": Row("ConvTranspose", {"features": 3, "kernel_size": (2,), "dtype": BF16}, SERIES),
    "conv transpose, bfloat16 parameters": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (2,), "param_dtype": BF16}, SERIES.astype(BF16)
    ),
    "conv transpose, initializers and precision": Row(
        "ConvTranspose",
        {"features": 3, "kernel_size": (2,), "kernel_init": NORMAL, "bias_init": NORMAL, "precision": "highest"},
        SERIES,
    ),
    "conv transpose, hook": Row(
        "ConvTranspose", {"features": 3, "kernel_size": (2,), "promote_dtype": widening}, SERIES
    ),
    "conv transpose, no inputs": Row("ConvTranspose", {"features": 3, "kernel_size": (2,)}, array(0, 4, 2)),
    "conv transpose, one of each": Row("ConvTranspose", {"features": 1, "kernel_size": 1}, array(1, 1, 1)),
}
