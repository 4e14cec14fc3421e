"""Normalization layers: each computes mean and variance over some axes, and learns a scale and a bias along others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.nn import initializers

from ..errors import LiftArgumentError
from ..scopes.scope import Scope
from ..scopes.scoped import Variable
from ..typing import Array, ArrayLike, Dtype, Initializer
from .layer import check_stored, checks_options, normalize_axes, param_for
from .masks import check_mask
from .sharding import shard_like
from .statistics import Normalization, group_axes, group_sizes, instance_axes

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


@checks_options
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
    """Compute `(x - mean) / sqrt(var + epsilon) * scale + bias`, with moments over all axes but `axis`.

    It also updates the running averages, `r = momentum * r + (1 - momentum) * batch`, or uses them instead. `init`
    leaves them at 0 and 1, and needs no `axis_name`. Source: Ioffe & Szegedy, https://arxiv.org/abs/1502.03167.

    Shapes: any, unchanged; `features` are the sizes of `axis`, one number by default.
    Parameters: `scale` and `bias`, `(*features)`. Collection `batch_stats`: `mean` and `var`, `(*features)`.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.array([[1.0, 2.0], [3.0, 6.0]])
        >>> y, variables = liftcore.init(batch_norm)(jax.random.key(0), x, use_running_average=False)
        >>> train = liftcore.apply(batch_norm, mutable=["batch_stats"])
        >>> train(variables, x, use_running_average=False, momentum=0.5)[1]["batch_stats"]["mean"]
        Array([1., 2.], dtype=float32)

    Args:
        scope: the scope of the parameters and of the running averages.
        inputs: the array.
        use_running_average: whether to normalize with the running averages, as in evaluation.
        axis: the axes that are not averaged over.
        momentum: the weight of the old running averages.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        axis_name: a mapped axis to average over as well, such as the axis of devices that share a batch.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, instead of `E|x - E x|²`,
            which is slower and more accurate.
        force_float32_reductions: whether to compute statistics in at least `float32`, whatever the dtypes.
        mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

    Raises:
        LiftArgumentError: if `use_running_average` is missing, or an axis or the mask does not match the inputs.
        ModifyScopeVariableError: if the running averages must be updated, but are immutable.
    """
    where = f"batch_norm at {scope.path_text}"
    if use_running_average is None:
        raise LiftArgumentError(
            where,
            "`use_running_average` is missing; it selects the averages to use.",
            "Pass `use_running_average=not train`.",
            option="use_running_average",
        )
    feature_axes = normalize_axes(where, "axis", axis, inputs.ndim)
    check_mask(where, mask, inputs.shape)
    how = (axis_index_groups, use_fast_variance, force_float32_reductions, scope.is_initializing())
    norm = Normalization(where, epsilon, dtype, None if scope.is_initializing() else axis_name, *how)
    axes = tuple(i for i in range(inputs.ndim) if i not in feature_axes)
    shape = tuple(inputs.shape[i] for i in feature_axes)
    stored = jnp.float32 if force_float32_reductions else param_dtype
    running_mean = _running(inputs, where, scope, "mean", jnp.zeros, shape, stored)
    running_var = _running(inputs, where, scope, "var", jnp.ones, shape, stored)
    if use_running_average:
        mean, var = running_mean.value, running_var.value
        if not force_float32_reductions:
            mean, var = jnp.asarray(mean, param_dtype), jnp.asarray(var, param_dtype)
    else:
        mean, var = norm.moments(inputs, axes, mask)
        if not scope.is_initializing():
            for running, new in ((running_mean, mean), (running_var, var)):
                old = running.value  # keeps its sharding, as a value that a loop carries must
                running.value = momentum * old + (1 - momentum) * shard_like(new, old)
    learned = {"scale": scale_init if use_scale else None, "bias": bias_init if use_bias else None}
    return _standardized(scope, norm, inputs, (mean, var), axes, feature_axes, param_dtype, learned)


def _running(
    inputs: Array, where: str, scope: Scope, name: str, init_fn: Initializer, shape: tuple[int, ...], dtype: Dtype
) -> Variable:
    """Return a running average, which must not broadcast to the inputs silently."""
    found = scope.variable("batch_stats", name, init_fn, shape, dtype)
    check_stored(inputs, where, scope, f"batch_stats/{name}", found.value, shape)
    return found


@checks_options
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
    """Compute `(x - mean) / sqrt(var + epsilon) * scale + bias`, with moments over `reduction_axes`, of each example.

    Source: Ba, Kiros & Hinton, https://arxiv.org/abs/1607.06450.

    Shapes: any, unchanged. Parameters: `scale` and `bias`, `(*features)`, the sizes of `feature_axes`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(layer_norm)(jax.random.key(0), jnp.array([[1.0, 3.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1.]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Args:
        scope: the scope of the parameters.
        inputs: the array.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes to average over.
        feature_axes: the axes along which scale and bias have separate values.
        axis_name: a mapped axis to average over as well, if one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, instead of `E|x - E x|²`,
            which is slower and more accurate.
        force_float32_reductions: whether to compute statistics in at least `float32`, whatever the dtypes.
        mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

    Raises:
        LiftArgumentError: if an axis or the mask does not match the inputs.
    """
    where = f"layer_norm at {scope.path_text}"
    axes = normalize_axes(where, "reduction_axes", reduction_axes, inputs.ndim)
    feature_axes = normalize_axes(where, "feature_axes", feature_axes, inputs.ndim)
    how = (axis_index_groups, use_fast_variance, force_float32_reductions, scope.is_initializing())
    norm = Normalization(where, epsilon, dtype, axis_name, *how)
    moments = norm.moments(inputs, axes, mask)
    learned = {"scale": scale_init if use_scale else None, "bias": bias_init if use_bias else None}
    return _standardized(scope, norm, inputs, moments, axes, feature_axes, param_dtype, learned)


@checks_options
def rms_norm(
    scope: Scope,
    inputs: Array,
    *,
    epsilon: float = 1e-6,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    use_scale: bool = True,
    scale_init: Initializer = initializers.ones,
    reduction_axes: int | Iterable[int] = -1,
    feature_axes: int | Iterable[int] = -1,
    axis_name: Any = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    force_float32_reductions: bool = True,
    mask: ArrayLike | None = None,
) -> Array:
    """Compute `x / sqrt(mean(|x|²) + epsilon) * scale`, with the mean over `reduction_axes`, without centering.

    Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", https://arxiv.org/abs/1910.07467.

    Shapes: any, unchanged. Parameters: `scale`, `(*features)`, the sizes of `feature_axes`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(rms_norm)(jax.random.key(0), jnp.array([[3.0, 0.0, 0.0, 0.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[2., 0., 0., 0.]], dtype=float32), {'params': {'scale': (4,)}})

    Args:
        scope: the scope of the scale.
        inputs: the array.
        epsilon: added to the mean square, so that zeros give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of the scale.
        use_scale: whether there is a scale.
        scale_init: makes the scale.
        reduction_axes: the axes to average over.
        feature_axes: the axes along which the scale has separate values.
        axis_name: a mapped axis to average over as well, if one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        force_float32_reductions: whether to compute the mean square in at least `float32`, whatever the dtypes.
        mask: the elements to use for the mean square, broadcast to the inputs; all elements are normalized.

    Raises:
        LiftArgumentError: if an axis or the mask does not match the inputs.
    """
    where = f"rms_norm at {scope.path_text}"
    axes = normalize_axes(where, "reduction_axes", reduction_axes, inputs.ndim)
    feature_axes = normalize_axes(where, "feature_axes", feature_axes, inputs.ndim)
    how = (axis_index_groups, True, force_float32_reductions, scope.is_initializing())
    norm = Normalization(where, epsilon, dtype, axis_name, *how)
    moments = norm.moments(inputs, axes, mask, centered=False)
    learned = {"scale": scale_init if use_scale else None}
    return _standardized(scope, norm, inputs, moments, axes, feature_axes, param_dtype, learned)


@checks_options
def instance_norm(
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
    feature_axes: int | Iterable[int] = -1,
    axis_name: Any = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    use_fast_variance: bool = True,
    force_float32_reductions: bool = True,
    mask: ArrayLike | None = None,
) -> Array:
    """`layer_norm` over all axes but the first and `feature_axes`: with the moments of each feature in each example.

    Source: Ulyanov, Vedaldi & Lempitsky, "Instance Normalization", https://arxiv.org/abs/1607.08022.

    Shapes: `(batch, ...)`, unchanged. Parameters: `scale` and `bias`, `(*features)`, the sizes of `feature_axes`.

    Example:
        >>> import jax, liftcore
        >>> x = jnp.array([[[1.0, 2.0], [3.0, 6.0]]])
        >>> y, variables = liftcore.init(instance_norm)(jax.random.key(0), x)
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[[-1., -1.],
                [ 1.,  1.]]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Args:
        scope: the scope of the parameters.
        inputs: the array.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        feature_axes: the axes that are not averaged over; scale and bias have separate values along them. The batch
            axis, the first one, is not among them.
        axis_name: a mapped axis to average over as well, if one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, instead of `E|x - E x|²`,
            which is slower and more accurate.
        force_float32_reductions: whether to compute statistics in at least `float32`, whatever the dtypes.
        mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

    Raises:
        LiftArgumentError: if an axis or the mask does not match the inputs, or the first axis is a feature axis.
    """
    where = f"instance_norm at {scope.path_text}"
    feature_axes = normalize_axes(where, "feature_axes", feature_axes, inputs.ndim)
    axes = instance_axes(where, feature_axes, inputs.shape)
    how = (axis_index_groups, use_fast_variance, force_float32_reductions, scope.is_initializing())
    norm = Normalization(where, epsilon, dtype, axis_name, *how)
    moments = norm.moments(inputs, axes, mask)
    learned = {"scale": scale_init if use_scale else None, "bias": bias_init if use_bias else None}
    return _standardized(scope, norm, inputs, moments, axes, feature_axes, param_dtype, learned)


@checks_options
def group_norm(
    scope: Scope,
    inputs: Array,
    num_groups: int | None = 32,
    group_size: int | None = None,
    *,
    epsilon: float = 1e-6,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    use_bias: bool = True,
    use_scale: bool = True,
    bias_init: Initializer = initializers.zeros,
    scale_init: Initializer = initializers.ones,
    reduction_axes: int | Iterable[int] | None = None,
    axis_name: Any = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    use_fast_variance: bool = True,
    force_float32_reductions: bool = True,
    mask: ArrayLike | None = None,
) -> Array:
    """`layer_norm` of groups of features: with the moments of each group, over all axes but the first.

    Source: Wu & He, "Group Normalization", https://arxiv.org/abs/1803.08494.

    Shapes: `(batch, ..., features)`, unchanged. Parameters: `scale` and `bias`, `(features,)`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(group_norm)(jax.random.key(0), jnp.array([[1.0, 3.0, 4.0, 8.0]]), 2)
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1., -1.,  1.]], dtype=float32), {'params': {'bias': (4,), 'scale': (4,)}})

    Args:
        scope: the scope of the parameters.
        inputs: the array.
        num_groups: the number of groups; None if `group_size` is given.
        group_size: the number of features in a group; None if `num_groups` is given.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes to average over, including the last one, the features; by default all but the first.
            Set it if there is not exactly one batch dimension.
        axis_name: a mapped axis to average over as well, if one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, instead of `E|x - E x|²`,
            which is slower and more accurate.
        force_float32_reductions: whether to compute statistics in at least `float32`, whatever the dtypes.
        mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

    Raises:
        LiftArgumentError: if an axis or the mask does not match the inputs, the last axis is not averaged over, or the
            features cannot be divided into groups.
    """
    where = f"group_norm at {scope.path_text}"
    last = normalize_axes(where, "the axis of features", -1, inputs.ndim)
    axes = group_axes(where, reduction_axes, inputs.shape)
    what = f"the inputs have {inputs.shape[-1]} features"
    groups, size = group_sizes(where, inputs.shape[-1], num_groups, group_size, what)
    how = (axis_index_groups, use_fast_variance, force_float32_reductions, scope.is_initializing())
    norm = Normalization(where, epsilon, dtype, axis_name, *how)
    moments = norm.group_moments(inputs, axes, groups, size, mask)
    learned = {"scale": scale_init if use_scale else None, "bias": bias_init if use_bias else None}
    return _standardized(scope, norm, inputs, moments, axes[:-1], last, param_dtype, learned)


def _standardized(
    scope: Scope,
    norm: Normalization,
    x: Array,
    moments: tuple[Any, Array],
    axes: tuple[int, ...],
    feature_axes: tuple[int, ...],
    dtype: Dtype,
    learned: Mapping[str, Initializer | None],
) -> Array:
    """Normalize; the parameters are those with an initializer, cast to the dtype unless float32 is forced."""
    shape = tuple(x.shape[axis] for axis in feature_axes)
    inits = {name: init_fn for name, init_fn in learned.items() if init_fn is not None}
    params = {name: param_for(x, norm.where, scope, name, init_fn, shape, dtype) for name, init_fn in inits.items()}
    if not norm.force_float32:
        params = {name: jnp.asarray(value, dtype) for name, value in params.items()}
    return norm.standardize(x, *moments, axes, feature_axes, **params)
