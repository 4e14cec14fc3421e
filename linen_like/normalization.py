"""Normalisation layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from liftcore import Variable, nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype

from .dtypes import canonicalize_dtype
from .initializers import Initializer, ones, zeros
from .lifecycle.calling import compact, nowrap
from .module import Module, merge_param
from .reparametrized import call_with

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "SpectralNorm", "WeightNorm"]


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
        axis, momentum, epsilon, dtype, param_dtype, use_bias, use_scale, bias_init, scale_init, axis_name,
            axis_index_groups, use_fast_variance, force_float32_reductions: arguments of that function.
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
        return nn.batch_norm(
            self.scope,
            x,
            merge_param("use_running_average", self.use_running_average, use_running_average),
            axis=self.axis,
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            use_bias=self.use_bias,
            use_scale=self.use_scale,
            bias_init=self.bias_init,
            scale_init=self.scale_init,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            use_fast_variance=self.use_fast_variance,
            force_float32_reductions=self.force_float32_reductions,
            mask=mask,
        )


class LayerNorm(Module):
    """Normalises each example by its own moments; see `liftcore.nn.layer_norm`.

    Example:
        >>> import jax
        >>> y, variables = LayerNorm().init_with_output(jax.random.key(0), jnp.array([[1.0, 3.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[-1.,  1.]], dtype=float32), {'params': {'bias': (2,), 'scale': (2,)}})

    Attributes:
        epsilon, dtype, param_dtype, use_bias, use_scale, bias_init, scale_init, reduction_axes, feature_axes,
            axis_name, axis_index_groups, use_fast_variance, force_float32_reductions: arguments of that function.
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
        return nn.layer_norm(
            self.scope,
            x,
            epsilon=self.epsilon,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            use_bias=self.use_bias,
            use_scale=self.use_scale,
            bias_init=self.bias_init,
            scale_init=self.scale_init,
            reduction_axes=self.reduction_axes,
            feature_axes=self.feature_axes,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            use_fast_variance=self.use_fast_variance,
            force_float32_reductions=self.force_float32_reductions,
            mask=mask,
        )


class RMSNorm(Module):
    """Divides each example by the root of its mean square; see `liftcore.nn.rms_norm`.

    Example:
        >>> import jax
        >>> y, variables = RMSNorm().init_with_output(jax.random.key(0), jnp.array([[3.0, 0.0, 0.0, 0.0]]))
        >>> y.round(3), jax.tree.map(jnp.shape, variables)
        (Array([[2., 0., 0., 0.]], dtype=float32), {'params': {'scale': (4,)}})

    Attributes:
        epsilon, dtype, param_dtype, use_scale, scale_init, reduction_axes, feature_axes, axis_name, axis_index_groups,
            force_float32_reductions: arguments of that function.
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
        return nn.rms_norm(
            self.scope,
            x,
            epsilon=self.epsilon,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            use_scale=self.use_scale,
            scale_init=self.scale_init,
            reduction_axes=self.reduction_axes,
            feature_axes=self.feature_axes,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            force_float32_reductions=self.force_float32_reductions,
            mask=mask,
        )


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
        epsilon, dtype, param_dtype, use_bias, use_scale, bias_init, scale_init, reduction_axes, axis_name,
            axis_index_groups, use_fast_variance, force_float32_reductions: arguments of that function.
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
        return nn.group_norm(
            self.scope,
            x,
            self.num_groups,
            self.group_size,
            epsilon=self.epsilon,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            use_bias=self.use_bias,
            use_scale=self.use_scale,
            bias_init=self.bias_init,
            scale_init=self.scale_init,
            reduction_axes=self.reduction_axes,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            use_fast_variance=self.use_fast_variance,
            force_float32_reductions=self.force_float32_reductions,
            mask=mask,
        )


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
        epsilon, dtype, param_dtype, use_bias, use_scale, bias_init, scale_init, feature_axes, axis_name,
            axis_index_groups, use_fast_variance, force_float32_reductions: arguments of that function.
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
        return nn.instance_norm(
            self.scope,
            x,
            epsilon=self.epsilon,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            use_bias=self.use_bias,
            use_scale=self.use_scale,
            bias_init=self.bias_init,
            scale_init=self.scale_init,
            feature_axes=self.feature_axes,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            use_fast_variance=self.use_fast_variance,
            force_float32_reductions=self.force_float32_reductions,
            mask=mask,
        )


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
        """Calls the layer with these arguments; with `update_stats` the power iteration goes on from here next time."""
        spectrum = _Spectrum(self, {}, {})
        y = call_with(spectrum, self, self.layer_instance, args, kwargs)
        if update_stats:
            spectrum.update()
        return y

    @nowrap
    def _start(self, size: int) -> Array:
        return jax.random.normal(self.make_rng("params"), (1, size), self.param_dtype)

    @nowrap
    def _divided(self, value: Array, u: Array) -> tuple[Array, tuple[Array, Array]]:
        """A matrix divided by its largest singular value; the singular vector that was found, and that value."""
        matrix, v = jnp.reshape(value, (-1, value.shape[-1])), u
        for _ in range(self.n_steps):
            v = _unit(jnp.matmul(u, matrix.T), (0, 1), self.epsilon)
            u = _unit(jnp.matmul(v, matrix), (0, 1), self.epsilon)
        u, v = lax.stop_gradient(u), lax.stop_gradient(v)
        sigma = jnp.matmul(jnp.matmul(v, matrix), u.T)[0, 0]
        result = jnp.reshape(matrix / jnp.where(sigma != 0, sigma, 1), value.shape)
        return jnp.asarray(result, canonicalize_dtype(value, u, v, sigma, dtype=self.dtype)), (u, sigma)


class _Spectrum(NamedTuple):
    """What one call of a `SpectralNorm` knows of each matrix: the vector that it began with, and what it found."""

    norm: SpectralNorm
    stored: dict[str, tuple[Variable, Variable]]
    found: dict[str, tuple[Array, Array]]

    def change(self, name: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
        norm = self.norm
        if len(shape) < 2 or norm.n_steps < 1:
            return None
        if len(shape) > 2 and norm.error_on_non_matrix:
            raise LiftArgumentError(
                f'"{name}" in SpectralNorm at {norm.scope.path_text}',
                f"expected a matrix, given shape {shape}.",
                "Pass `error_on_non_matrix=False` to take all dimensions but the last as one.",
            )
        u = norm.variable(norm.collection_name, f"{name}/u", norm._start, shape[-1])
        sigma = norm.variable(norm.collection_name, f"{name}/sigma", jnp.ones, (), norm.param_dtype)
        self.stored[name] = u, sigma

        def divided(value: Array) -> Array:
            result, self.found[name] = norm._divided(value, u.value)
            return result

        return divided

    def seen_dtype(self, name: str, value: Array) -> Dtype | None:
        norm = self.norm
        if value.ndim < 2 or norm.n_steps < 1:
            return None
        return canonicalize_dtype(value, jnp.zeros((), norm.param_dtype), dtype=norm.dtype)

    def update(self) -> None:
        """Lets the power iteration go on from here next time."""
        for name, values in self.found.items():
            for variable, value in zip(self.stored[name], values, strict=True):
                variable.value = value


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
        return call_with(_Scales(self), self, self.layer_instance, args, kwargs)

    @nowrap
    def _chooses(self, name: str) -> bool:
        chosen = self.variable_filter
        texts = (chosen,) if isinstance(chosen, str) else tuple(chosen or ())
        return not texts or any(text in name for text in texts)

    @nowrap
    def _scaled(self, value: Array, features: tuple[int, ...], scale: Array | None) -> Array:
        result = _unit(value, tuple(axis for axis in range(value.ndim) if axis not in features), self.epsilon)
        if scale is not None:
            scale = jnp.reshape(scale, [size if axis in features else 1 for axis, size in enumerate(value.shape)])
            result = result * scale
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


class _Scales(NamedTuple):
    """The scales that a `WeightNorm` learns."""

    norm: WeightNorm

    def change(self, name: str, shape: tuple[int, ...]) -> Callable[[Array], Array] | None:
        norm, scale = self.norm, None
        if not norm._chooses(name):
            return None
        features = norm._features(name, shape)
        if norm.use_scale:
            sizes = tuple(shape[axis] for axis in features)
            scale = norm.param(f"{name}/scale", norm.scale_init, sizes, norm.param_dtype)
        return functools.partial(norm._scaled, features=features, scale=scale)

    def seen_dtype(self, name: str, value: Array) -> Dtype | None:
        norm = self.norm
        scale = jnp.zeros((), norm.param_dtype) if norm.use_scale else None
        return canonicalize_dtype(value, scale, dtype=norm.dtype) if norm._chooses(name) else None


def _unit(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    """Vectors of length 1, laid along axes."""
    return x * lax.rsqrt((x * x).sum(tuple(axes), keepdims=True) + epsilon)
