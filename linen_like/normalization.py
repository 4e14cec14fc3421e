"""Normalisation layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from liftcore import Variable, nn
from liftcore.errors import LiftArgumentError
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
    """Normalises with the moments of the batch, or with their running averages; see `liftcore.nn.batch_norm`.

    Example:
        >>> import jax
        >>> layer, x = BatchNorm(momentum=0.5), jnp.array([[1.0, 2.0], [3.0, 6.0]])
        >>> variables = layer.init(jax.random.key(0), x, use_running_average=False)
        >>> y, mutated = layer.apply(variables, x, use_running_average=False, mutable=["batch_stats"])
        >>> mutated["batch_stats"]["mean"]
        Array([1., 2.], dtype=float32)

    Attributes:
        use_running_average: whether to use the running averages; given here or at the call.
        axis: the axes that are not averaged over.
        momentum: how much of the running statistics stays.
        epsilon: is added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        axis_name: a mapped axis to average over as well, such as that of a batch over devices.
        axis_index_groups: groups of indices along `axis_name`, each of which is averaged over by itself, as in
            `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, and not `E|x - E x|²`,
            slower and more exact.
        force_float32_reductions: whether statistics are at least `float32`, where inputs or `dtype` are less.
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
        """Maps an array to one of its shape; `mask` says which elements count for the moments."""
        average = merge_param("use_running_average", self.use_running_average, use_running_average)
        given = options(self, nn.batch_norm, use_running_average=average, mask=mask)
        return nn.batch_norm(self.scope, x, **given)


class LayerNorm(Module):
    """Normalises each example by its own moments; see `liftcore.nn.layer_norm`.

    Example:
        >>> import jax
        >>> y, variables = LayerNorm().init_with_output(jax.random.key(0), jnp.array([[1.0, 3.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1.]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Attributes:
        epsilon: is added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes that are averaged over.
        feature_axes: the axes for which scale and bias have values of their own.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each of which is averaged over by itself, as in
            `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, and not `E|x - E x|²`,
            slower and more exact.
        force_float32_reductions: whether statistics are at least `float32`, where inputs or `dtype` are less.
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
        """Maps an array to one of its shape; `mask` says which elements count for the moments."""
        return nn.layer_norm(self.scope, x, **options(self, nn.layer_norm), mask=mask)


class RMSNorm(Module):
    """Divides each example by the root of its mean square; see `liftcore.nn.rms_norm`.

    Example:
        >>> import jax
        >>> y, variables = RMSNorm().init_with_output(jax.random.key(0), jnp.array([[3.0, 0.0, 0.0, 0.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[2., 0., 0., 0.]], dtype=float32), {'params': {'scale': (4,)}})

    Attributes:
        epsilon: is added to the mean square, so that zeros give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of a new scale.
        use_scale: whether there is a scale.
        scale_init: makes the scale.
        reduction_axes: the axes that are averaged over.
        feature_axes: the axes for which the scale has values of their own.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each of which is averaged over by itself, as in
            `jax.lax.pmean`.
        force_float32_reductions: whether the mean square is at least `float32`, where inputs or `dtype` are less.
        use_fast_variance: changes nothing, since nothing is centred.
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
        """Maps an array to one of its shape; `mask` says which elements count for the mean."""
        return nn.rms_norm(self.scope, x, **options(self, nn.rms_norm), mask=mask)


class GroupNorm(Module):
    """Normalises groups of features of each example by their own moments; see `liftcore.nn.group_norm`.

    Example:
        >>> import jax
        >>> y, variables = GroupNorm(2).init_with_output(jax.random.key(0), jnp.array([[1.0, 3.0, 4.0, 8.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1., -1.,  1.]], dtype=float32), {'params': {'bias': (4,), 'scale': (4,)}})

    Attributes:
        num_groups: the number of groups; None where their size is given.
        group_size: the number of features in a group, in place of that.
        epsilon: is added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes that are averaged over, the last one, of features, among them; by default all but the
            first. Give them where there may be other than one batch dimension.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each of which is averaged over by itself, as in
            `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, and not `E|x - E x|²`,
            slower and more exact.
        force_float32_reductions: whether statistics are at least `float32`, where inputs or `dtype` are less.
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
        """Maps an array to one of its shape; `mask` says which elements count for the moments."""
        return nn.group_norm(self.scope, x, **options(self, nn.group_norm), mask=mask)


class InstanceNorm(Module):
    """Normalises each feature of each example by its own moments; see `liftcore.nn.instance_norm`.

    Example:
        >>> import jax
        >>> x = jnp.array([[[1.0, 2.0], [3.0, 6.0]]])
        >>> y, variables = InstanceNorm().init_with_output(jax.random.key(0), x)
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[[-1., -1.],
                [ 1.,  1.]]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Attributes:
        epsilon: is added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        feature_axes: the axes with moments, scale and bias of their own; not the first, which is that of examples.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each of which is averaged over by itself, as in
            `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, and not `E|x - E x|²`,
            slower and more exact.
        force_float32_reductions: whether statistics are at least `float32`, where inputs or `dtype` are less.
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
        """Maps an array to one of its shape; `mask` says which elements count for the moments."""
        return nn.instance_norm(self.scope, x, **options(self, nn.instance_norm), mask=mask)


class SpectralNorm(Module):
    """Calls a layer with each matrix of its parameters divided by its largest singular value, so that this is 1.

    `W / σ`, where `σ = v W uᵀ` for the singular vectors `u` and `v` that a power iteration has found so far. Arrays of
    more dimensions count as matrices of shape `(-1, features)`; scalars and vectors stay as they are. `init` stores
    parameters that are divided already. The gradient takes `u` and `v` for constants.
    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", https://arxiv.org/abs/1802.05957.

    Collection `collection_name`, for a matrix `Dense_0/kernel`, `(in, features)`: `Dense_0/kernel/u`, `(1, features)`,
    and `Dense_0/kernel/sigma`, `()`. Streams: one draw from `params` for each new `u`.

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
        n_steps: the steps of the power iteration at each call; none is done, and nothing divided, where it is below 1.
        epsilon: is added to the squared length of a vector before it is divided by that.
        dtype: the dtype of the divided matrices; by default, what they and `u` promote to.
        param_dtype: the dtype of a new `u` and `sigma`.
        error_on_non_matrix: whether arrays of more than two dimensions are refused.
        collection_name: the collection of `u` and `sigma`.

    Raises:
        LiftArgumentError: where they are.
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
        """Calls the layer.

        Args:
            *args: arguments of the layer.
            update_stats: whether to store what the power iteration found, so that the next call continues from it.
            **kwargs: keyword arguments of the layer.
        """
        found: _Found = {}
        y = call_with(functools.partial(self._change, found), self._seen_dtype, self, self.layer_instance, args, kwargs)
        if update_stats:  # the power iteration goes on from here next time
            for variable, value in found.values():
                variable.value = value
        return y

    @nowrap
    def _change(self, found: _Found, name: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
        """What divides a matrix, and notes what it found for its variables."""
        if len(shape) < 2 or self.n_steps < 1:
            return None
        if len(shape) > 2 and self.error_on_non_matrix:
            raise LiftArgumentError(
                f'"{name}" in SpectralNorm at {self.scope.path_text}',
                f"expected a matrix, given shape {shape}.",
                "Pass `error_on_non_matrix=False` to take all dimensions but the last as one.",
            )
        u = self.variable(self.collection_name, f"{name}/u", self._start, shape[-1])
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

    @nowrap
    def _start(self, size: int) -> Array:
        return jax.random.normal(self.make_rng("params"), (1, size), self.param_dtype)


class WeightNorm(Module):
    """Calls a layer with its parameters scaled to length 1 for each feature, times a scale that is learned.

    `scale * w / |w|`, which learns length and direction apart. Source: Salimans & Kingma, "Weight Normalization",
    https://arxiv.org/abs/1602.07868.

    Parameters, for one of the layer such as `Dense_0/kernel`: `Dense_0/kernel/scale`, with the sizes of `feature_axes`.
    The layer's own are stored scaled by `init`, in their own dtype, and are scaled again whenever they are used.

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
        epsilon: is added to the squared length, so that zeros stay zeros.
        dtype: the dtype of the scaled parameters; by default, what they and the scale promote to.
        param_dtype: the dtype of new scales.
        use_scale: whether there are scales.
        scale_init: makes a scale.
        feature_axes: the axes of a parameter with lengths of their own; None for one length of it all.
        variable_filter: texts, such as `{"kernel"}`: the parameters whose path contains one of them are scaled. Where
            there are none, or it is None, all are.

    Raises:
        LiftArgumentError: where a parameter that is to be scaled lacks one of the axes.
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
        if isinstance(self.variable_filter, Iterator):  # which would be empty the second time
            self.variable_filter = tuple(self.variable_filter)
        super().__post_init__()

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer with these arguments."""
        return call_with(self._change, self._seen_dtype, self, self.layer_instance, args, kwargs)

    @nowrap
    def _change(self, name: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
        """What scales a parameter, if it is chosen."""
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
        axes = (given,) if isinstance(given, int) else tuple(given)
        if any(not -len(shape) <= axis < len(shape) for axis in axes):
            raise LiftArgumentError(
                f'"{name}" in WeightNorm at {self.scope.path_text}',
                f"feature_axes is {axes}, and the parameter has shape {shape}.",
                "Give other `feature_axes`, None for one length of it all, or a `variable_filter` that leaves it out.",
            )
        return tuple(sorted({axis % len(shape) for axis in axes}))
