"""Normalization layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import Variable, nn
from liftcore.errors import LiftArgumentError
from liftcore.problems import no_matrix
from liftcore.typing import Array, ArrayLike, Dtype

from .dtypes import canonicalize_dtype
from .initializers import Initializer, ones, zeros
from .lifecycle.calling import compact, nowrap
from .lifecycle.fields import options
from .module import Module, merge_param
from .reparametrized import call_with

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "SpectralNorm", "WeightNorm"]

_Found: TypeAlias = dict[str, tuple[Variable, Array]]
"""Variables by name, each with its next value."""


class BatchNorm(Module):
    """Normalizes with the moments of the batch, or with their running averages; see `liftcore.nn.batch_norm`.

    Example:
        >>> import jax
        >>> layer, x = BatchNorm(momentum=0.5), jnp.array([[1.0, 2.0], [3.0, 6.0]])
        >>> variables = layer.init(jax.random.key(0), x, use_running_average=False)
        >>> y, mutated = layer.apply(variables, x, use_running_average=False, mutable=["batch_stats"])
        >>> mutated["batch_stats"]["mean"]
        Array([1., 2.], dtype=float32)

    Attributes:
        use_running_average: whether to normalize with the running averages, as in evaluation; given here or at the
            call.
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
    """

    use_running_average: bool | None = None
    axis: int | Sequence[int] = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = zeros
    scale_init: Initializer = ones
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array; `mask` selects the elements that the moments are computed from."""
        average = merge_param("use_running_average", self.use_running_average, use_running_average)
        given = options(self, nn.batch_norm, use_running_average=average, mask=mask)
        return nn.batch_norm(self.scope, x, **given)


class LayerNorm(Module):
    """Normalizes each example with its own moments, over `reduction_axes`; see `liftcore.nn.layer_norm`.

    Example:
        >>> import jax
        >>> y, variables = LayerNorm().init_with_output(jax.random.key(0), jnp.array([[1.0, 3.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1.]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Attributes:
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
    """

    epsilon: float = 1e-6
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = zeros
    scale_init: Initializer = ones
    reduction_axes: int | Sequence[int] = -1
    feature_axes: int | Sequence[int] = -1
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array; `mask` selects the elements that the moments are computed from."""
        return nn.layer_norm(self.scope, x, **options(self, nn.layer_norm), mask=mask)


class RMSNorm(Module):
    """Computes `x / sqrt(mean(|x|²) + epsilon) * scale`, without centering; see `liftcore.nn.rms_norm`.

    Example:
        >>> import jax
        >>> y, variables = RMSNorm().init_with_output(jax.random.key(0), jnp.array([[3.0, 0.0, 0.0, 0.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[2., 0., 0., 0.]], dtype=float32), {'params': {'scale': (4,)}})

    Attributes:
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
        use_fast_variance: has no effect: without a mean there is only one way to compute the mean square.
    """

    epsilon: float = 1e-6
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_scale: bool = True
    scale_init: Initializer = ones
    reduction_axes: int | Sequence[int] = -1
    feature_axes: int | Sequence[int] = -1
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array; `mask` selects the elements that the mean is computed from."""
        return nn.rms_norm(self.scope, x, **options(self, nn.rms_norm), mask=mask)


class GroupNorm(Module):
    """Normalizes each example with the moments of each group of features; see `liftcore.nn.group_norm`.

    Example:
        >>> import jax
        >>> y, variables = GroupNorm(2).init_with_output(jax.random.key(0), jnp.array([[1.0, 3.0, 4.0, 8.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1., -1.,  1.]], dtype=float32), {'params': {'bias': (4,), 'scale': (4,)}})

    Attributes:
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
    """

    num_groups: int | None = 32
    group_size: int | None = None
    epsilon: float = 1e-6
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = zeros
    scale_init: Initializer = ones
    reduction_axes: int | Sequence[int] | None = None
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array; `mask` selects the elements that the moments are computed from."""
        return nn.group_norm(self.scope, x, **options(self, nn.group_norm), mask=mask)


class InstanceNorm(Module):
    """Normalizes each feature of each example with its own moments; see `liftcore.nn.instance_norm`.

    Example:
        >>> import jax
        >>> x = jnp.array([[[1.0, 2.0], [3.0, 6.0]]])
        >>> y, variables = InstanceNorm().init_with_output(jax.random.key(0), x)
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[[-1., -1.],
                [ 1.,  1.]]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Attributes:
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
    """

    epsilon: float = 1e-6
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Initializer = zeros
    scale_init: Initializer = ones
    feature_axes: int | Sequence[int] = -1
    axis_name: Any = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array; `mask` selects the elements that the moments are computed from."""
        return nn.instance_norm(self.scope, x, **options(self, nn.instance_norm), mask=mask)


class SpectralNorm(Module):
    """Calls a layer after dividing each matrix of its parameters by its largest singular value, which becomes 1.

    `W / σ`, where `σ = v W uᵀ` for the singular vectors `u` and `v` that the power iteration has found so far. Arrays
    with more dimensions count as matrices of shape `(-1, features)`; scalars and vectors are not changed. `init` stores
    parameters that are already divided. The gradient treats `u` and `v` as constants.
    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks",
    https://arxiv.org/abs/1802.05957.

    Collection `collection_name`: for a matrix `Dense_0/kernel`, `(in, features)`, it has `Dense_0/kernel/u`, `(1,
    features)`, and `Dense_0/kernel/sigma`, `()`. Streams: one draw from `params` for each new `u`.

    Example:
        >>> import linen_like as nn
        >>> layer, x = SpectralNorm(nn.Dense(2, use_bias=False), n_steps=20), jnp.eye(2)
        >>> y, variables = layer.init_with_output(jax.random.key(0), x, update_stats=False)
        >>> jnp.linalg.svd(y, compute_uv=False).max().round(3)
        Array(1., dtype=float32)
        >>> jax.tree.map(jnp.shape, variables["batch_stats"])
        {'layer_instance/kernel/sigma': (), 'layer_instance/kernel/u': (1, 2)}

    Attributes:
        layer_instance: the layer.
        n_steps: the number of power iteration steps in each call; if below 1, nothing is divided.
        epsilon: added to the squared length of a vector before dividing by it.
        dtype: the dtype of the divided matrices; by default, what they and `u` promote to.
        param_dtype: the dtype of `u` and `sigma`.
        error_on_non_matrix: whether arrays of more than two dimensions are an error.
        collection_name: the collection of `u` and `sigma`.

    Raises:
        LiftArgumentError: if `error_on_non_matrix` is True, and a parameter has more than two dimensions.
    """

    layer_instance: Module
    n_steps: int = 1
    epsilon: float = 1e-12
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    error_on_non_matrix: bool = False
    collection_name: str = "batch_stats"

    @compact
    def __call__(self, *args: Any, update_stats: bool, **kwargs: Any) -> Any:
        """Call the layer.

        Args:
            *args: arguments of the layer.
            update_stats: whether to store what the power iteration found, so that the next call continues from it.
            **kwargs: keyword arguments of the layer.
        """
        found: _Found = {}
        y = call_with(functools.partial(self._change, found), self._seen_dtype, self, self.layer_instance, args, kwargs)
        if update_stats:  # the next power iteration continues from here
            for variable, value in found.values():
                variable.value = value
        return y

    @nowrap
    def _change(self, found: _Found, name: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
        """Return a function that divides a matrix and records what it found, or None."""
        if len(shape) < 2 or self.n_steps < 1:
            return None
        if len(shape) > 2 and self.error_on_non_matrix:
            where = f'"{name}" in SpectralNorm at {self.scope.path_text}'
            raise no_matrix(where, shape)
        start = functools.partial(jax.random.normal, shape=(1, shape[-1]), dtype=self.param_dtype)
        u = self.variable(self.collection_name, f"{name}/u", lambda: start(self.make_rng("params")))
        sigma = self.variable(self.collection_name, f"{name}/sigma", jnp.ones, (), self.param_dtype)

        def divided(value: Array) -> Array:
            result, new_u, new_sigma = nn.spectral_normalize(value, u.value, self.n_steps, self.epsilon, self.dtype)
            found[f"{name}/u"], found[f"{name}/sigma"] = (u, new_u), (sigma, new_sigma)
            return result

        return divided

    @nowrap
    def _seen_dtype(self, name: str, value: Array) -> Dtype | None:
        if value.ndim < 2 or self.n_steps < 1:
            return None
        return canonicalize_dtype(value, jnp.zeros((), self.param_dtype), dtype=self.dtype)


class WeightNorm(Module):
    """Calls a layer after scaling its parameters to length 1 for each feature, times a learned scale.

    `scale * w / |w|`, which learns length and direction separately. Source: Salimans & Kingma, "Weight Normalization",
    https://arxiv.org/abs/1602.07868.

    Parameters: for a parameter of the layer such as `Dense_0/kernel`, the scale `Dense_0/kernel/scale`, with the sizes
    of `feature_axes`. `init` stores the parameters of the layer scaled, in their own dtype; they are scaled again at
    each use.

    Example:
        >>> import linen_like as nn
        >>> layer = WeightNorm(nn.Dense(2, use_bias=False))
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.eye(3))
        >>> (y**2).sum(axis=0).round(3)
        Array([1., 1.], dtype=float32)
        >>> jax.tree.map(jnp.shape, variables["params"])
        {'layer_instance': {'kernel': (3, 2)}, 'layer_instance/kernel/scale': (2,)}

    Attributes:
        layer_instance: the layer.
        epsilon: added to the squared length, so that zeros stay zeros.
        dtype: the dtype of the scaled parameters; by default, what they and the scale promote to.
        param_dtype: the dtype of the scales.
        use_scale: whether there are scales.
        scale_init: makes a scale.
        feature_axes: the axes of a parameter with separate lengths; None for one length of the whole parameter.
        variable_filter: strings, such as `{"kernel"}`: parameters whose path contains one of them are scaled. If it is
            empty or None, all are.

    Raises:
        LiftArgumentError: if a parameter to scale lacks one of the axes.
    """

    layer_instance: Module
    epsilon: float = 1e-12
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    use_scale: bool = True
    scale_init: Initializer = ones
    feature_axes: int | Sequence[int] | None = -1
    variable_filter: Iterable[str] | None = dataclasses.field(default_factory=lambda: {"kernel"})

    def __post_init__(self) -> None:
        if isinstance(self.variable_filter, Iterator):  # an iterator would be empty the second time
            self.variable_filter = tuple(self.variable_filter)
        super().__post_init__()

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer with these arguments."""
        return call_with(self._change, self._seen_dtype, self, self.layer_instance, args, kwargs)

    @nowrap
    def _change(self, name: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
        """Return a function that scales a parameter, or None if it is not chosen."""
        if not self._chooses(name):
            return None
        scale, features = None, self._features(name, shape)
        if self.use_scale:
            sizes = tuple(shape[axis] for axis in features)
            scale = self.param(f"{name}/scale", self.scale_init, sizes, self.param_dtype)
        return functools.partial(self._scaled, features=features, scale=scale)

    @nowrap
    def _seen_dtype(self, name: str, value: Array) -> Dtype | None:
        scale = jnp.zeros((), self.param_dtype) if self.use_scale else None
        return canonicalize_dtype(value, scale, dtype=self.dtype) if self._chooses(name) else None

    @nowrap
    def _chooses(self, name: str) -> bool:
        chosen = self.variable_filter
        texts = (chosen,) if isinstance(chosen, str) else tuple(chosen or ())
        return not texts or any(text in name for text in texts)

    @nowrap
    def _scaled(self, value: Array, features: tuple[int, ...], scale: Array | None) -> Array:
        axes = tuple(axis for axis in range(value.ndim) if axis not in features)
        result = nn.unit_norm(value, axes, self.epsilon)
        if scale is not None:
            scale = nn.reshape(scale, tuple(size if axis in features else 1 for axis, size in enumerate(value.shape)))
            result = result * nn.align(scale, result)
        return jnp.asarray(result, canonicalize_dtype(value, scale, dtype=self.dtype))

    @nowrap
    def _features(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        given = () if self.feature_axes is None else self.feature_axes
        axes = (given,) if isinstance(given, int | np.integer) else tuple(given)
        if any(not -len(shape) <= axis < len(shape) for axis in axes):
            where = f'"{name}" in WeightNorm at {self.scope.path_text}'
            what = f"feature_axes is {axes}, but the parameter has shape {shape}."
            fix = "Pass other `feature_axes`, None for a single norm, or a `variable_filter` that leaves it out."
            raise LiftArgumentError(where, what, fix, option="feature_axes", given=str(axes))
        return tuple(sorted({axis % len(shape) for axis in axes}))
