"""Rows of normalization layers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.layers.row import BF16, EVAL, IMAGE, MASK, ROWS, SERIES, TRAIN, Row, array

NORMAL, UNIFORM = jax.nn.initializers.normal(), jax.nn.initializers.uniform()
IMAGE_MASK = np.arange(2 * 5 * 6 * 4).reshape(2, 5, 6, 4) % 3 > 0
PLACES = IMAGE_MASK[..., :1]


def dense(**fields: Any) -> Any:
    """The fields of a wrapper: a dense layer in it, and these."""
    return lambda nn: {"layer_instance": nn.Dense(3), **fields}


def biased(**fields: Any) -> Any:
    """The fields of a wrapper: a dense layer whose bias does not begin with zeros in it, and these."""
    return lambda nn: {"layer_instance": nn.Dense(3, bias_init=nn.initializers.normal(1.0)), **fields}


def conv(**fields: Any) -> Any:
    """The fields of a wrapper: a convolution in it, and these."""
    return lambda nn: {"layer_instance": nn.Conv(3, (2, 2)), **fields}


def sequence(**fields: Any) -> Any:
    """The fields of a wrapper: two layers in it, and these."""
    return lambda nn: {"layer_instance": nn.Sequential([nn.Dense(3), jax.nn.relu, nn.Dense(2)]), **fields}


UPDATE, KEEP = {"update_stats": True}, {"update_stats": False}

TABLE = {
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
    "batch norm, mask": Row("BatchNorm", {}, ROWS, {**TRAIN, "mask": MASK | ~MASK[:1]}),
    "layer norm": Row("LayerNorm", {}, ROWS),
    "layer norm, axes": Row("LayerNorm", {"reduction_axes": (1, -1), "feature_axes": (-1, -2)}, IMAGE),
    "layer norm, plain": Row(
        "LayerNorm", {"use_bias": False, "use_scale": False, "epsilon": 0.1, "use_fast_variance": False}, ROWS
    ),
    "layer norm, bfloat16": Row("LayerNorm", {"param_dtype": BF16}, ROWS.astype(BF16)),
    "layer norm, all bfloat16": Row("LayerNorm", {"dtype": BF16, "force_float32_reductions": False}, ROWS),
    "layer norm, integers and mask": Row("LayerNorm", {}, np.arange(12).reshape(3, 4), {"mask": MASK}),
    "batch norm, mask of places": Row("BatchNorm", {}, IMAGE, {**TRAIN, "mask": PLACES}),
    "batch norm, mask, exact variance": Row(
        "BatchNorm", {"use_fast_variance": False}, IMAGE, {**TRAIN, "mask": IMAGE_MASK}
    ),
    "batch norm, option in the constructor": Row("BatchNorm", {"use_running_average": False}, SERIES),
    "batch norm, first axis": Row("BatchNorm", {"axis": 0, "use_bias": False}, SERIES, TRAIN),
    "batch norm, one example": Row("BatchNorm", {}, ROWS[0], TRAIN),
    "batch norm, no inputs, running": Row("BatchNorm", {}, array(0, 4), EVAL),
    "batch norm, integers": Row("BatchNorm", {"momentum": 0.3}, np.arange(12).reshape(3, 4), TRAIN),
    "batch norm, bfloat16 result, running": Row("BatchNorm", {"dtype": BF16, "use_bias": False}, ROWS, EVAL),
    "batch norm, bfloat16 parameters": Row("BatchNorm", {"param_dtype": BF16}, ROWS.astype(BF16), TRAIN),
    "layer norm, all axes": Row(
        "LayerNorm", {"reduction_axes": (0, 1, 2), "feature_axes": 1, "bias_init": NORMAL}, SERIES
    ),
    "layer norm, other feature axis": Row(
        "LayerNorm", {"reduction_axes": -1, "feature_axes": (0, 2), "scale_init": UNIFORM}, SERIES
    ),
    "layer norm, mask of places": Row("LayerNorm", {"reduction_axes": (1, 2, 3)}, IMAGE, {"mask": PLACES}),
    "layer norm, mask, exact variance": Row("LayerNorm", {"use_fast_variance": False}, ROWS, {"mask": MASK}),
    "layer norm, one feature": Row("LayerNorm", {}, array(3, 1)),
    "layer norm, one example": Row("LayerNorm", {"use_bias": False}, ROWS[0]),
    "layer norm, no inputs": Row("LayerNorm", {}, array(0, 4)),
    "layer norm, float16": Row("LayerNorm", {"dtype": np.float16, "use_scale": False}, ROWS),
    "rms norm": Row("RMSNorm", {}, ROWS),
    "rms norm, axes": Row("RMSNorm", {"reduction_axes": (1, -1), "feature_axes": (-1, -2)}, IMAGE),
    "rms norm, no scale": Row("RMSNorm", {"use_scale": False, "epsilon": 0.1}, ROWS),
    "rms norm, initializer": Row("RMSNorm", {"scale_init": UNIFORM, "epsilon": 1e-2}, ROWS),
    "rms norm, mask": Row("RMSNorm", {}, ROWS, {"mask": MASK}),
    "rms norm, mask of places": Row("RMSNorm", {"reduction_axes": (1, 2)}, IMAGE, {"mask": PLACES}),
    "rms norm, integers": Row("RMSNorm", {}, np.arange(12).reshape(3, 4)),
    "rms norm, bfloat16": Row("RMSNorm", {"dtype": BF16}, ROWS),
    "rms norm, bfloat16 inputs": Row("RMSNorm", {}, ROWS.astype(BF16)),
    "rms norm, bfloat16 parameters": Row("RMSNorm", {"param_dtype": BF16}, ROWS.astype(BF16)),
    "rms norm, all bfloat16": Row(
        "RMSNorm", {"param_dtype": BF16, "force_float32_reductions": False}, array(3, 5).astype(BF16)
    ),
    "rms norm, no inputs": Row("RMSNorm", {}, array(0, 4)),
    "rms norm, one feature": Row("RMSNorm", {}, array(3, 1)),
    "group norm": Row("GroupNorm", {"num_groups": 2}, IMAGE),
    "group norm, size": Row("GroupNorm", {"num_groups": None, "group_size": 1}, IMAGE),
    "group norm, one group": Row("GroupNorm", {"num_groups": 1, "scale_init": UNIFORM}, IMAGE),
    "group norm, default": Row("GroupNorm", {}, array(2, 3, 64)),
    "group norm, no places": Row("GroupNorm", {"num_groups": 2}, ROWS),
    "group norm, one example": Row("GroupNorm", {"num_groups": 2}, ROWS[0]),
    "group norm, axes": Row("GroupNorm", {"num_groups": 2, "reduction_axes": (2, -1)}, IMAGE),
    "group norm, two batch dimensions": Row("GroupNorm", {"num_groups": 2, "reduction_axes": (-2, -1)}, IMAGE),
    "group norm, bias only": Row(
        "GroupNorm", {"num_groups": 2, "use_scale": False, "bias_init": NORMAL, "epsilon": 0.1}, SERIES
    ),
    "group norm, scale only": Row(
        "GroupNorm", {"num_groups": 2, "use_bias": False, "use_fast_variance": False}, SERIES
    ),
    "group norm, mask": Row("GroupNorm", {"num_groups": 2}, IMAGE, {"mask": IMAGE_MASK}),
    "group norm, mask, exact variance": Row(
        "GroupNorm", {"num_groups": 4, "use_fast_variance": False}, IMAGE, {"mask": IMAGE_MASK}
    ),
    "group norm, integers": Row("GroupNorm", {"num_groups": 2}, np.arange(12).reshape(3, 4)),
    "group norm, bfloat16": Row("GroupNorm", {"num_groups": 2, "dtype": BF16}, SERIES),
    "group norm, bfloat16 parameters": Row("GroupNorm", {"num_groups": 2, "param_dtype": BF16}, ROWS.astype(BF16)),
    "group norm, all bfloat16": Row(
        "GroupNorm",
        {"num_groups": 2, "param_dtype": BF16, "force_float32_reductions": False},
        array(2, 3, 6).astype(BF16),
    ),
    "group norm, no inputs": Row("GroupNorm", {"num_groups": 2}, array(0, 3, 4)),
    "instance norm": Row("InstanceNorm", {}, IMAGE),
    "instance norm, features between": Row("InstanceNorm", {"feature_axes": 1, "bias_init": NORMAL}, IMAGE),
    "instance norm, two feature axes": Row("InstanceNorm", {"feature_axes": (-1, 2), "scale_init": UNIFORM}, IMAGE),
    "instance norm, bias only": Row("InstanceNorm", {"use_scale": False, "epsilon": 0.1}, SERIES),
    "instance norm, scale only": Row("InstanceNorm", {"use_bias": False, "use_fast_variance": False}, SERIES),
    "instance norm, mask": Row("InstanceNorm", {}, IMAGE, {"mask": IMAGE_MASK}),
    "instance norm, mask of places": Row("InstanceNorm", {}, IMAGE, {"mask": PLACES}),
    "instance norm, integers": Row("InstanceNorm", {}, np.arange(24).reshape(2, 4, 3) ** 2),
    "instance norm, bfloat16": Row("InstanceNorm", {"dtype": BF16}, SERIES),
    "instance norm, bfloat16 parameters": Row("InstanceNorm", {"param_dtype": BF16}, SERIES.astype(BF16)),
    "instance norm, all bfloat16": Row(
        "InstanceNorm", {"param_dtype": BF16, "force_float32_reductions": False}, SERIES.astype(BF16)
    ),
    "instance norm, one place": Row("InstanceNorm", {}, array(2, 1, 3)),
    "instance norm, no inputs": Row("InstanceNorm", {}, array(0, 3, 4)),
    "spectral norm": Row("SpectralNorm", dense(), ROWS, UPDATE),
    "spectral norm, no update": Row("SpectralNorm", dense(), ROWS, KEEP),
    "spectral norm, convolution": Row("SpectralNorm", conv(), IMAGE, UPDATE),
    "spectral norm, two layers": Row("SpectralNorm", sequence(), ROWS, UPDATE),
    "spectral norm, steps": Row("SpectralNorm", dense(n_steps=3, epsilon=0.1), ROWS, UPDATE),
    "spectral norm, no steps": Row("SpectralNorm", dense(n_steps=0), ROWS, UPDATE),
    "spectral norm, collection": Row("SpectralNorm", dense(collection_name="cache"), ROWS, UPDATE),
    "spectral norm, bfloat16 vectors": Row("SpectralNorm", dense(param_dtype=BF16), ROWS, UPDATE),
    "spectral norm, one output": Row(
        "SpectralNorm", lambda nn: {"layer_instance": nn.Dense(1), "error_on_non_matrix": True}, ROWS, UPDATE
    ),
    "spectral norm, no inputs": Row("SpectralNorm", dense(), array(0, 4), UPDATE),
    "weight norm": Row("WeightNorm", dense(), ROWS),
    "weight norm, convolution": Row("WeightNorm", conv(epsilon=0.1), IMAGE),
    "weight norm, two layers": Row("WeightNorm", sequence(), ROWS),
    "weight norm, one of two layers": Row("WeightNorm", sequence(variable_filter=["layers_2/kernel"]), ROWS),
    "weight norm, all": Row("WeightNorm", biased(variable_filter=None), ROWS),
    "weight norm, empty filter": Row("WeightNorm", biased(variable_filter=()), ROWS),
    "weight norm, no scale": Row("WeightNorm", dense(use_scale=False), ROWS),
    "weight norm, initializer": Row("WeightNorm", dense(scale_init=UNIFORM), ROWS),
    "weight norm, one length": Row("WeightNorm", conv(feature_axes=None), IMAGE),
    "weight norm, two feature axes": Row("WeightNorm", conv(feature_axes=(0, -1)), IMAGE),
    "weight norm, bfloat16 scale": Row("WeightNorm", dense(param_dtype=BF16), ROWS),
    "weight norm, one feature": Row("WeightNorm", lambda nn: {"layer_instance": nn.Dense(1)}, array(3, 1)),
    "weight norm, no inputs": Row("WeightNorm", dense(), array(0, 4)),
}
