"""Normalization layers: each computes mean and variance over some axes, and learns a scale and a bias along others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.nn import initializers

from ..errors import LiftArgumentError
from ..scopes.scope import Scope
from ..scopes.scoped import Variable
from ..typing import Array, ArrayLike, Dtype, Initializer
from .axes import check_mask, normalize_axes, split_mask
from .options import checks_options
from .params import check_stored, param_for
from .sharding import on_auto_axes, reshape, shard_like, sharding_entries, to_spec
from .statistics import Average, abs_square, averager, moments, standardize, to_reduction_dtype

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


class _Recipe(NamedTuple):
    """The options that all layers here have; None instead of an initializer for a parameter that does not exist."""

    layer: str
    epsilon: float
    dtype: Dtype | None
    param_dtype: Dtype
    scale_init: Initializer | None
    bias_init: Initializer | None
    axis_name: Any
    axis_index_groups: Sequence[Sequence[int]] | None
    use_fast_variance: bool
    force_float32: bool

    def moments(self, scope: Scope, x: Array, axes: Sequence[int], mask: ArrayLike | None) -> tuple[Array, Array]:
        """Return mean and variance over axes."""
        x, average = self._averaged(scope, x, axes, mask)
        return moments(x, axes, average, self.use_fast_variance)

    def mean_square(self, scope: Scope, x: Array, axes: Sequence[int], mask: ArrayLike | None) -> Array:
        """Return the mean of `|x|²` over axes."""
        x, average = self._averaged(scope, x, axes, mask)
        return average(abs_square(x))[0]

    def _averaged(self, scope: Scope, x: Array, axes: Sequence[int], mask: ArrayLike | None) -> tuple[Array, Average]:
        """Return the array in the dtype of its statistics, and a function that averages it."""
        if not scope.is_initializing() and any(x.shape[axis] == 0 for axis in axes):
            raise LiftArgumentError(
                f"{self.layer} at {scope.path_text}",
                f"there is nothing to average over: the inputs have shape {x.shape}, the reduced axes are {(*axes,)}.",
                "Skip empty batches: their mean would be NaN, and so would everything computed from it.",
            )
        average = averager(axes, mask, self.axis_name, self.axis_index_groups)
        return to_reduction_dtype(x, self.dtype, self.force_float32), average

    def standardize(
        self,
        scope: Scope,
        x: Array,
        mean: Array | None,
        variance: Array,
        axes: Sequence[int],
        feature_axes: tuple[int, ...],
    ) -> Array:
        """Return the result of the layer, from statistics that lack some axes, and parameters along others."""

        def param(name: str, init_fn: Initializer | None) -> Array | None:
            if init_fn is None:
                return None
            shape = tuple(x.shape[i] for i in feature_axes)
            value = param_for(x, self.layer, scope, name, init_fn, shape, self.param_dtype)
            laid = reshape(value, tuple(size if i in feature_axes else 1 for i, size in enumerate(x.shape)))
            return laid if self.force_float32 else jnp.asarray(laid, self.param_dtype)

        scale, bias = param("scale", self.scale_init), param("bias", self.bias_init)
        return standardize(x, mean, variance, axes=axes, scale=scale, bias=bias, epsilon=self.epsilon, dtype=self.dtype)


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
        )
    feature_axes = normalize_axes(where, "axis", axis, inputs.ndim)
    check_mask(where, mask, inputs.shape)
    recipe = _Recipe(
        "batch_norm",
        epsilon,
        dtype,
        param_dtype,
        scale_init if use_scale else None,
        bias_init if use_bias else None,
        None if scope.is_initializing() else axis_name,
        axis_index_groups,
        use_fast_variance,
        force_float32_reductions,
    )
    axes = tuple(i for i in range(inputs.ndim) if i not in feature_axes)
    shape = tuple(inputs.shape[i] for i in feature_axes)
    stored = jnp.float32 if force_float32_reductions else param_dtype
    running_mean = _running(inputs, scope, "mean", jnp.zeros, shape, stored)
    running_var = _running(inputs, scope, "var", jnp.ones, shape, stored)
    if use_running_average:
        mean, var = running_mean.value, running_var.value
        if not force_float32_reductions:
            mean, var = jnp.asarray(mean, param_dtype), jnp.asarray(var, param_dtype)
    else:
        mean, var = recipe.moments(scope, inputs, axes, mask)
        if not scope.is_initializing():
            for running, new in ((running_mean, mean), (running_var, var)):
                old = running.value  # keeps its sharding, as a value that a loop carries must
                running.value = momentum * old + (1 - momentum) * shard_like(new, old)
    return recipe.standardize(scope, inputs, mean, var, axes, feature_axes)


def _running(
    inputs: Array, scope: Scope, name: str, init_fn: Initializer, shape: tuple[int, ...], dtype: Dtype
) -> Variable:
    """Return a running average, which must not broadcast to the inputs silently."""
    found = scope.variable("batch_stats", name, init_fn, shape, dtype)
    check_stored(inputs, "batch_norm", scope, f"batch_stats/{name}", found.value, shape)
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
    check_mask(where, mask, inputs.shape)
    recipe = _Recipe(
        "layer_norm",
        epsilon,
        dtype,
        param_dtype,
        scale_init if use_scale else None,
        bias_init if use_bias else None,
        axis_name,
        axis_index_groups,
        use_fast_variance,
        force_float32_reductions,
    )
    mean, var = recipe.moments(scope, inputs, axes, mask)
    return recipe.standardize(scope, inputs, mean, var, axes, feature_axes)


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
    check_mask(where, mask, inputs.shape)
    recipe = _Recipe(
        "rms_norm",
        epsilon,
        dtype,
        param_dtype,
        scale_init if use_scale else None,
        None,
        axis_name,
        axis_index_groups,
        True,
        force_float32_reductions,
    )
    square = recipe.mean_square(scope, inputs, axes, mask)
    return recipe.standardize(scope, inputs, None, square, axes, feature_axes)


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
    if 0 in feature_axes:
        raise LiftArgumentError(
            where,
            f"feature_axes are {feature_axes} for inputs of shape {inputs.shape}; the first axis is the batch.",
            "Leave the first axis out, or add an axis before it: `inputs[None]`.",
        )
    check_mask(where, mask, inputs.shape)
    axes = tuple(i for i in range(1, inputs.ndim) if i not in feature_axes)
    recipe = _Recipe(
        "instance_norm",
        epsilon,
        dtype,
        param_dtype,
        scale_init if use_scale else None,
        bias_init if use_bias else None,
        axis_name,
        axis_index_groups,
        use_fast_variance,
        force_float32_reductions,
    )
    mean, var = recipe.moments(scope, inputs, axes, mask)
    return recipe.standardize(scope, inputs, mean, var, axes, feature_axes)


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
    given = (*range(1, inputs.ndim - 1), -1) if reduction_axes is None else reduction_axes
    axes = normalize_axes(where, "reduction_axes", given, inputs.ndim)
    check_mask(where, mask, inputs.shape)
    groups, size = _groups(where, axes, inputs.shape, num_groups, group_size)
    recipe = _Recipe(
        "group_norm",
        epsilon,
        dtype,
        param_dtype,
        scale_init if use_scale else None,
        bias_init if use_bias else None,
        axis_name,
        axis_index_groups,
        use_fast_variance,
        force_float32_reductions,
    )

    def moments_of(inputs: Array, mask: ArrayLike | None) -> tuple[Array, Array]:
        x = jnp.reshape(inputs, (*inputs.shape[:-1], groups, size))
        mean, var = recipe.moments(scope, x, (*axes[:-1], x.ndim - 1), split_mask(mask, groups, size))
        return jnp.repeat(mean, size, axis=-1), jnp.repeat(var, size, axis=-1)

    spec = to_spec(*(entry for axis, entry in enumerate(sharding_entries(inputs)) if axis not in axes[:-1]))
    mean, var = on_auto_axes(moments_of, (spec, spec), inputs, mask)
    return recipe.standardize(scope, inputs, mean, var, axes[:-1], last)


def _groups(
    where: str, axes: tuple[int, ...], shape: tuple[int, ...], num_groups: int | None, group_size: int | None
) -> tuple[int, int]:
    """Return the number of groups and their size."""
    if len(shape) - 1 not in axes:
        raise LiftArgumentError(
            where,
            f"reduction_axes are {axes} for inputs of shape {shape}; the last axis, the features, is missing.",
            f"Add it: `reduction_axes={(*axes, -1)}`.",
        )
    if (num_groups is None) == (group_size is None):
        raise LiftArgumentError(
            where,
            f"expected num_groups or group_size, given num_groups={num_groups} and group_size={group_size}.",
            "Pass one of them: `num_groups=8`, or `num_groups=None, group_size=16`.",
        )
    name, given = ("group_size", group_size) if num_groups is None else ("num_groups", num_groups)
    if given is None or given < 1 or shape[-1] % given:
        raise LiftArgumentError(
            where,
            f"the inputs have {shape[-1]} features, which cannot be divided by {name}={given}.",
            f"Pass a `{name}` that divides {shape[-1]}.",
        )
    other = shape[-1] // given
    return (other, given) if num_groups is None else (given, other)
