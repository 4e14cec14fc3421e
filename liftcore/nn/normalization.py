"""Normalisation layers: each takes mean and variance over some axes, and learns a scale and a bias for others."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.nn import initializers

from ..errors import LiftArgumentError
from ..scope import Scope
from ..typing import Array, ArrayLike, Dtype, Initializer
from .axes import check_mask, normalize_axes
from .statistics import averager, moments, standardize, to_reduction_dtype

__all__ = ["batch_norm", "layer_norm"]


def batch_norm(
    scope: Scope,
    inputs: Array,
    use_running_average: bool | None = None,
    *,
    axis: int | Iterable[int] = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-5,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    use_bias: bool = True,
    use_scale: bool = True,
    bias_init: Initializer = initializers.zeros,
    scale_init: Initializer = initializers.ones,
    axis_name: Any = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    use_fast_variance: bool = True,
    force_float32_reductions: bool = True,
    mask: ArrayLike | None = None,
) -> Array:
    """`(x - mean) / sqrt(var + epsilon) * scale + bias`, with moments over all axes but `axis`: those of the batch.

    It also moves the running ones, `r = momentum * r + (1 - momentum) * batch`, or uses them instead; an `init` leaves
    them at 0 and 1 and needs no `axis_name`. Source: Ioffe & Szegedy, https://arxiv.org/abs/1502.03167.

    Shapes: any, unchanged; with `features` the sizes of `axis`, one number by default:
    Parameters: `scale` and `bias`, `(*features)`. Collection `batch_stats`: `mean` and `var`, `(*features)`.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.array([[1.0, 2.0], [3.0, 6.0]])
        >>> y, variables = liftcore.init(batch_norm)(jax.random.key(0), x, use_running_average=False)
        >>> train = liftcore.apply(batch_norm, mutable=["batch_stats"])
        >>> train(variables, x, use_running_average=False, momentum=0.5)[1]["batch_stats"]["mean"]
        Array([1., 2.], dtype=float32)

    Args:
        scope: where parameters and running statistics live.
        inputs: the array.
        use_running_average: whether to normalise with the running statistics, as when the model is evaluated.
        axis: the axes that are not averaged over.
        momentum: how much of the running statistics stays.
        epsilon: see `layer_norm`, also for what follows.
        dtype: that of the result.
        param_dtype: that of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        axis_name: a mapped axis to average over as well.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: whether to read the inputs only once.
        force_float32_reductions: whether statistics are at least `float32`.
        mask: which elements count for the statistics.

    Raises:
        LiftArgumentError: where `use_running_average` is missing, or an axis or the mask does not fit the inputs.
        ModifyScopeVariableError: where the running statistics are to move and are immutable.
    """
    where = f"batch_norm at {scope.path_text}"
    if use_running_average is None:
        raise LiftArgumentError(
            where,
            "`use_running_average` is missing, so it is open which statistics to use.",
            "Pass `use_running_average=not train`.",
        )
    feature_axes = normalize_axes(where, "axis", axis, inputs.ndim)
    check_mask(where, mask, inputs.shape)
    axes = tuple(i for i in range(inputs.ndim) if i not in feature_axes)
    shape = tuple(inputs.shape[i] for i in feature_axes)
    stored = jnp.float32 if force_float32_reductions else param_dtype
    running_mean = scope.variable("batch_stats", "mean", jnp.zeros, shape, stored)
    running_var = scope.variable("batch_stats", "var", jnp.ones, shape, stored)
    if use_running_average:
        mean, var = running_mean.value, running_var.value
        if not force_float32_reductions:
            mean, var = jnp.asarray(mean, param_dtype), jnp.asarray(var, param_dtype)
    else:
        average = averager(axes, mask, None if scope.is_initializing() else axis_name, axis_index_groups)
        x = to_reduction_dtype(inputs, dtype, force_float32_reductions)
        mean, var = moments(x, axes, average, use_fast_variance)
        if not scope.is_initializing():
            running_mean.value = momentum * running_mean.value + (1 - momentum) * mean
            running_var.value = momentum * running_var.value + (1 - momentum) * var
    param = functools.partial(_param, scope, inputs.shape, feature_axes, param_dtype, not force_float32_reductions)
    return standardize(
        inputs,
        jnp.expand_dims(mean, axes),
        jnp.expand_dims(var, axes),
        scale=param("scale", scale_init) if use_scale else None,
        bias=param("bias", bias_init) if use_bias else None,
        epsilon=epsilon,
        dtype=dtype,
    )


def layer_norm(
    scope: Scope,
    inputs: Array,
    *,
    epsilon: float = 1e-6,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    use_bias: bool = True,
    use_scale: bool = True,
    bias_init: Initializer = initializers.zeros,
    scale_init: Initializer = initializers.ones,
    reduction_axes: int | Iterable[int] = -1,
    feature_axes: int | Iterable[int] = -1,
    axis_name: Any = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    use_fast_variance: bool = True,
    force_float32_reductions: bool = True,
    mask: ArrayLike | None = None,
) -> Array:
    """`(x - mean) / sqrt(var + epsilon) * scale + bias`, with moments over `reduction_axes`: those of each example.

    Source: Ba, Kiros & Hinton, https://arxiv.org/abs/1607.06450.

    Shapes: any, unchanged. Parameters: `scale` and `bias`, `(*features)`, the sizes of `feature_axes`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(layer_norm)(jax.random.key(0), jnp.array([[1.0, 3.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1.]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Args:
        scope: where the parameters live.
        inputs: the array.
        epsilon: is added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes that are averaged over.
        feature_axes: the axes for which scale and bias have values of their own.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or lanes.
        axis_index_groups: see `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, and not `E|x - E x|²`, slower and more exact.
        force_float32_reductions: whether statistics are at least `float32`, where inputs or `dtype` are less.
        mask: which elements count for the statistics, broadcast to the inputs; all are normalised.

    Raises:
        LiftArgumentError: where an axis or the mask does not fit the inputs.
    """
    where = f"layer_norm at {scope.path_text}"
    axes = normalize_axes(where, "reduction_axes", reduction_axes, inputs.ndim)
    feature_axes = normalize_axes(where, "feature_axes", feature_axes, inputs.ndim)
    check_mask(where, mask, inputs.shape)
    x = to_reduction_dtype(inputs, dtype, force_float32_reductions)
    mean, var = moments(x, axes, averager(axes, mask, axis_name, axis_index_groups), use_fast_variance)
    param = functools.partial(_param, scope, inputs.shape, feature_axes, param_dtype, not force_float32_reductions)
    return standardize(
        inputs,
        jnp.expand_dims(mean, axes),
        jnp.expand_dims(var, axes),
        scale=param("scale", scale_init) if use_scale else None,
        bias=param("bias", bias_init) if use_bias else None,
        epsilon=epsilon,
        dtype=dtype,
    )


def _param(
    scope: Scope,
    shape: tuple[int, ...],
    feature_axes: tuple[int, ...],
    param_dtype: Dtype,
    cast: bool,
    name: str,
    init_fn: Initializer,
) -> Array:
    """A parameter with the sizes of some axes of a shape, laid along those axes."""
    value = scope.param(name, init_fn, tuple(shape[i] for i in feature_axes), param_dtype)
    laid = jnp.reshape(value, [size if i in feature_axes else 1 for i, size in enumerate(shape)])
    return jnp.asarray(laid, param_dtype) if cast else laid
