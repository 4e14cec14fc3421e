"""Names of flax that are elsewhere or left out, and what to write here: for errors, and for the tables of `docs`."""

from __future__ import annotations

from .lazy import without_links

__all__ = ["FLAX", "INSTEAD", "PYTORCH", "instead_of"]

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
