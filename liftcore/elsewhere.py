"""Names of flax, PyTorch and Keras, and what to write here: for errors, and for the tables of `docs`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from .lazy import without_links

__all__ = ["FLAX", "INSTEAD", "KERAS", "METHODS", "PYTORCH", "instead_of", "instead_of_option"]

FLAX: dict[str, dict[str, str]] = {
    "flax": {
        "core": "`liftcore`, see below",
        "experimental": "left out: it is not stable in flax",
        "ids": "left out: it is internal to flax; use `id`",
        "io": "`pathlib`, or `etils.epath`, which orbax uses",
        "jax_utils": "JAX itself, see below",
        "linen": "`linen_like`, see below",
        "metrics": "see below",
        "nnx": "`nnx_like`, see [From NNX](from-nnx.md)",
        "testing": "left out: it is a harness for flax's own benchmarks",
        "traceback_util": "not needed: JAX filters tracebacks by itself, see `JAX_TRACEBACK_FILTERING`",
        "version": '`importlib.metadata.version("liftcore")`',
    },
    "flax.core": {
        "axes_scan": "`liftcore.scan`; its `broadcast` is `liftcore.broadcast`",
        "check_trace_level": "not needed: a scope that is used under a raw transformation raises an error",
        "current_trace": "not needed: a scope that is used under a raw transformation raises an error",
        "lift": "`liftcore`, which has all lifts",
        "map_axis_meta": "`jax.tree.map(fn, tree, is_leaf=liftcore.meta.is_box)`, with a test of `is_box` in `fn`",
        "partial_eval": "`liftcore.lazy_init`, or `jax.eval_shape`",
        "spmd": "`linen_like.spmd`",
        "tracers": "not needed: a scope that is used under a raw transformation raises an error",
        "variables": "`liftcore.Variable`",
    },
    "flax.serialization": {
        "is_serializable": "not needed: `to_state_dict` accepts every pytree that JAX knows",
    },
    "flax.training": {
        "checkpoints": (
            "`liftcore.checkpoints`; for sharded arrays and background saves, its `OrbaxCheckpoints`; for "
            "old folders, its `load_orbax`"
        ),
        "common_utils": (
            "`jax.device_put(batch, sharding)` for `shard`, `jax.random.split` for `shard_prng_key`, "
            "`jax.nn.one_hot`, `jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)` for "
            "`stack_forest`, `jax.device_get`"
        ),
        "lr_schedule": "`optax.warmup_cosine_decay_schedule` and `optax.join_schedules`",
        "prefetch_iterator": "`grain`, or any loader that prefetches",
    },
    "flax.metrics": {
        "tensorboard": "`SummaryWriter` of `tensorboardX`, or `metric_writers` of `clu`",
    },
    "flax.jax_utils": {
        "pad_shard_unpad": "`jnp.pad` and `jax.device_put` with a sharding",
        "partial_eval_by_shape": "`liftcore.lazy_init`, or `jax.eval_shape`",
        "pmean": "`jax.lax.pmean`",
        "prefetch_to_device": "a loader that calls `jax.device_put` early; the call returns at once",
        "replicate": "`jax.device_put(tree, sharding)` with `jax.sharding.PartitionSpec()`",
        "scan_in_dim": "`liftcore.scan` or `jax.lax.scan`, after `jnp.moveaxis` to the front",
        "unreplicate": "not needed: read replicated arrays directly",
    },
}
"""For each part of flax, what to use in place of the names that are not here."""


def instead_of(*parts: str) -> dict[str, str]:
    """Return the sentence of the error for each name of some parts of flax.

    Args:
        *parts: the parts, such as `flax.core`.
    """
    return {
        name: without_links(f"Instead of {part}.{name}: {text}") for part in parts for name, text in FLAX[part].items()
    }


INSTEAD = instead_of("flax", "flax.core", "flax.serialization")

_POOL = "(x, (2, 2), strides=(2, 2)), a function: the length of the window is the number of spatial axes"
_LOSS = "Losses are functions of Optax, one loss for each example: "

PYTORCH = {
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "Use BatchNorm: channels come last"),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), "Use InstanceNorm: channels come last"),
    **dict.fromkeys(("MaxPool1d", "MaxPool2d", "MaxPool3d"), f"Use max_pool{_POOL}"),
    **dict.fromkeys(("AvgPool1d", "AvgPool2d", "AvgPool3d"), f"Use avg_pool{_POOL}"),
    "AdaptiveAvgPool2d": "For one value per channel, use x.mean((1, 2))",
    "ReLU": "Use relu, a function",
    "GELU": "Use gelu, a function; gelu(x, approximate=False) is exact",
    "SiLU": "Use silu, a function",
    "Tanh": "Use tanh, a function",
    "Sigmoid": "Use sigmoid, a function",
    "Softmax": "Use softmax, a function",
    "LeakyReLU": "Use leaky_relu, a function",
    "Identity": "Use a function: lambda x: x",
    "Flatten": "Use x.reshape(x.shape[0], -1)",
    "CrossEntropyLoss": f"{_LOSS}optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()",
    "MSELoss": f"{_LOSS}optax.squared_error(predictions, targets).mean()",
    "BCEWithLogitsLoss": f"{_LOSS}optax.sigmoid_binary_cross_entropy(logits, labels).mean()",
}
"""For names of PyTorch's layers and losses, what to write in a style that has layers. A style adds its constructors."""


def _for_each(name: str, text: str) -> dict[str, str]:
    """Return a text for the names of a layer of Keras that ends with the number of axes."""
    return dict.fromkeys([name.format(axes) for axes in ("1D", "2D", "3D")], text)


_LEFT_OUT = "Leave it out: the shapes are those of the arrays that you pass to the model"

KERAS = {
    **_for_each("MaxPooling{}", f"Use max_pool{_POOL}"),
    **_for_each("MaxPool{}", f"Use max_pool{_POOL}"),
    **_for_each("AveragePooling{}", f"Use avg_pool{_POOL}"),
    **_for_each("AvgPool{}", f"Use avg_pool{_POOL}"),
    **_for_each("ZeroPadding{}", "Use padding= of Conv, or jnp.pad"),
    "GlobalAveragePooling1D": "Use x.mean(1)",
    "GlobalAveragePooling2D": "Use x.mean((1, 2))",
    "GlobalMaxPooling1D": "Use x.max(1)",
    "GlobalMaxPooling2D": "Use x.max((1, 2))",
    "UpSampling2D": 'Use jax.image.resize(x, shape, "nearest")',
    "BatchNormalization": "Use BatchNorm: its momentum is 0.99 too; write epsilon=1e-3 for the value of Keras",
    "LayerNormalization": "Use LayerNorm; write epsilon=1e-3 for the value of Keras",
    "GroupNormalization": "Use GroupNorm; write epsilon=1e-3 for the value of Keras",
    "Activation": "Use the function, such as relu, which a Sequential takes as a layer",
    "Lambda": "Use a function: lambda x: …",
    "Reshape": "Use x.reshape(x.shape[0], …)",
    "Permute": "Use x.transpose(0, …)",
    "Add": "Use x + y",
    "Concatenate": "Use jnp.concatenate([x, y], axis=-1)",
    "TimeDistributed": "Leave it out: layers work on the last axis, and take any number of axes before it",
    **dict.fromkeys(("Input", "InputLayer"), _LEFT_OUT),
    **dict.fromkeys(("Layer", "Model"), "Subclass Module"),
}
"""For names of Keras's layers, what to write in a style that has layers."""

_OPTIONS = {
    "units": ("features", "out_features", "hidden_features"),
    "filters": ("features", "out_features"),
    "kernel_initializer": ("kernel_init",),
    "bias_initializer": ("bias_init",),
    "gamma_initializer": ("scale_init",),
    "beta_initializer": ("bias_init",),
    "embeddings_initializer": ("embedding_init",),
    "input_dim": ("num_embeddings", "in_features"),
    "output_dim": ("features",),
    "axis": ("axis", "reduction_axes"),
    "center": ("use_bias",),
    "scale": ("use_scale",),
    "groups": ("feature_group_count", "num_groups"),
    "dilation_rate": ("kernel_dilation",),
}
"""For options of Keras's layers, the names that they may have here."""

_NO_OPTIONS = {
    "activation": "Call it after the layer: `relu({}(…)(x))`.",
    "input_shape": "Leave it out: the shape is that of the array that you pass.",
    "data_format": "Leave it out: channels come last.",
}
"""For options of Keras's layers that no layer has here, what to write."""


def instead_of_option(name: str, names: Sequence[str], layer: str = "Dense") -> str:
    """Return the sentence of an error about an option that a class lacks: Keras's name of one, or a similar name.

    Example:
        >>> instead_of_option("units", ["features", "use_bias"])
        'Write `features=…`.'
        >>> instead_of_option("feature", ["features"])
        'Write `features=…`.'

    Args:
        name: the name of the option.
        names: the names of the options that the class has.
        layer: the name of the class.

    Returns:
        The sentence; empty if no option is similar.
    """
    known = [one for one in _OPTIONS.get(name, ()) if one in names] or difflib.get_close_matches(name, names, 1)
    if known:
        return f"Write `{known[0]}=…`."
    return _NO_OPTIONS.get(name, "").format(layer) if {"features", "out_features"} & {*names} else ""


_SAVING = "of `liftcore.checkpoints`"

METHODS = {
    "fit": "Write a loop over `state, loss = state.minimize(loss_fn, x, y)`, with a `liftcore.training.TrainState`.",
    "compile": "Pass the optimizer to `liftcore.training.TrainState.create(…, tx=…)`, and the loss to its `minimize`.",
    "evaluate": "Write `liftcore.training.evaluate(measure, state, batches)`.",
    "predict": "Write `model.apply(variables, x)`.",
    "summary": "Write `print(model.tabulate(key, x))`.",
    "build": "Write `variables = model.init(key, x)`.",
    "save": f"Write `save_file(path, variables)` {_SAVING}.",
    "save_weights": f"Write `save_file(path, variables)` {_SAVING}.",
    "load_weights": f"Write `variables = load_file(path, variables)` {_SAVING}.",
    **dict.fromkeys(
        ("get_weights", "weights", "trainable_variables"),
        'They are in the variables that `init` returns: `variables["params"]`.',
    ),
    "trainable": "To freeze a part, pass `trainable=filter` to `liftcore.training.TrainState.create`.",
    "add": "Pass all layers at once: `nn.Sequential([first, second])`.",
}
"""For methods and attributes of Keras's models, what to write for a module that holds no variables."""
