"""Normalization by statistics of the batch, of each example, or of groups of its features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
from jax.nn import initializers

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..objects.module import Module
from ..rnglib.streams import Rngs
from ..variablelib.kinds import BatchStat
from .parameters import PromoteDtypeFn, chosen, new_param, promote_dtype, value_of

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]

_Learned: TypeAlias = tuple[bool, Initializer, Mapping[str, Any]]
"""Type: whether there is a parameter, what makes it, and its metadata."""


class _Norm(Module):
    """Base of the normalization layers. A subclass chooses the axes to average over."""

    num_features: int
    _learned: ClassVar[tuple[str, ...]] = ("scale", "bias")

    def _begin(
        self,
        num_features: int,
        rngs: Rngs,
        epsilon: float,
        dtype: Dtype | None,
        param_dtype: Dtype,
        axis_name: Any,
        axis_index_groups: Sequence[Sequence[int]] | None,
        use_fast_variance: bool,
        promote_dtype: PromoteDtypeFn,
        **learned: _Learned,
    ) -> None:
        """Set the options that all norms have, and make the scale and the bias, each of which draws a key."""
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype
        for name, (used, init_fn, own) in learned.items():
            made = new_param(type(self).__name__, rngs, param_dtype, init_fn, (num_features,), own) if used else None
            setattr(self, name, made)
            setattr(self, f"use_{name}", used)

    def _promoted(self, *arrays: ArrayLike | None) -> list[Any]:
        """Promote these arrays, scale and bias to the dtype of the computation; None for arrays that do not exist."""
        params = [value_of(getattr(self, name)) for name in self._learned]
        return list(self.promote_dtype((*arrays, *params), dtype=self.dtype))

    def _axes(self, name: str, x: Array) -> tuple[int, ...]:
        """Check the axes of an array that an attribute selects, and count them from the front."""
        return nn.normalize_axes(type(self).__name__, name, getattr(self, name), x.ndim)

    def _normalization(self) -> nn.Normalization:
        how = (self.axis_name, self.axis_index_groups, self.use_fast_variance)
        return nn.Normalization(type(self).__name__, self.epsilon, self.dtype, *how)

    def _check_features(self, x: Array, feature_axes: tuple[int, ...], *params: Array | None) -> None:
        """Check that the inputs have as many features as the parameters, if there are any."""
        found = math.prod(x.shape[axis] for axis in feature_axes)
        if found != self.num_features and any(one is not None for one in params):
            where = type(self).__name__
            what = (
                f"num_features is {self.num_features}, but the inputs, of shape {x.shape}, have {found} features along "
                f"axes {feature_axes}."
            )
            fix = f"Make the layer with `num_features={found}`, or check the inputs."
            raise LiftArgumentError(where, what, fix, option="num_features", expected=self.num_features, given=found)


class BatchNorm(_Norm):
    """Normalizes with the moments of the batch, or with their running averages.

    `(x - mean) / sqrt(var + epsilon) * scale + bias`, with moments over all axes but `axis`. In training, it updates
    the running averages, `r = momentum * r + (1 - momentum) * batch`; in evaluation, it uses them. `train()` and
    `eval()` of the model set `use_running_average`. Source: Ioffe & Szegedy, https://arxiv.org/abs/1502.03167.

    Shapes: any, unchanged. Variables: `Param` `scale` and `bias`, `BatchStat` `mean` and `var`, each `(num_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.BatchNorm(2, momentum=0.5, rngs=nnx.Rngs(0))
        >>> y = layer(jnp.array([[1.0, 2.0], [3.0, 6.0]]))
        >>> layer.mean[...]
        Array([1., 2.], dtype=float32)

    Args:
        num_features: the number of features, the size of `axis`.
        use_running_average: whether to normalize with the running averages, as in evaluation; None if each call gives
            it.
        axis: the axis of features, which is not averaged over.
        momentum: the weight of the old running averages.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of scale and bias.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        axis_name: a mapped axis to average over as well, such as the axis of devices that share a batch.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, instead of `E|x - E x|²`,
            which is slower and more accurate.
        promote_dtype: converts `(inputs, mean, var, scale, bias)` to one dtype.
        rngs: each of scale and bias draws a key from `params`.
        bias_metadata: the metadata of the bias.
        scale_metadata: the metadata of the scale.
    """

    @nn.checks_options
    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        axis: int | Sequence[int] = -1,
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
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        scale_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        how = (epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype)
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))
        scale, bias = (use_scale, scale_init, scale_metadata), (use_bias, bias_init, bias_metadata)
        self._begin(num_features, rngs, *how, scale=scale, bias=bias)
        self.use_running_average = use_running_average
        self.axis = axis
        self.momentum = momentum

    @nn.checks_options
    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array.

        Args:
            x: `(..., num_features)`, or with the features at `axis`.
            use_running_average: used instead of the attribute, if given.
            mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

        Raises:
            LiftArgumentError: if `use_running_average` is not given, or shapes do not match.
        """
        use_running_average = chosen(self, "use_running_average", use_running_average)
        x, mean, var, *params = self._promoted(x, self.mean[...], self.var[...])
        features, norm = self._axes("axis", x), self._normalization()
        nn.check_mask("BatchNorm", mask, x.shape)
        self._check_features(x, features, mean)
        axes = tuple(axis for axis in range(x.ndim) if axis not in features)
        mean, var = (nn.reshape(one, tuple(x.shape[axis] for axis in features)) for one in (mean, var))
        if not use_running_average:
            mean, var = norm.moments(x, axes, mask)
            for running, batch in ((self.mean, mean), (self.var, var)):
                old = running[...]  # keeps its sharding, as a value that a loop carries must
                flat = nn.shard_like(nn.reshape(batch, old.shape), old)
                running[...] = (self.momentum * old + (1 - self.momentum) * flat).astype(running.dtype)
        return norm.standardize(x, mean, var, axes, features, *params)

    @nn.checks_options
    def set_view(self, use_running_average: bool | None = None) -> None:
        """Change the mode of the layer; `nnx.view` calls this.

        Args:
            use_running_average: the new value of the attribute; None leaves it unchanged.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


class LayerNorm(_Norm):
    """Normalizes each example with its own moments, over `reduction_axes`.

    `(x - mean) / sqrt(var + epsilon) * scale + bias`. Source: Ba, Kiros & Hinton, https://arxiv.org/abs/1607.06450.

    Shapes: any, unchanged. Variables: `Param` `scale` and `bias`, `(num_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.LayerNorm(2, rngs=nnx.Rngs(0))(jnp.array([[1.0, 3.0]])).round(3)
        Array([[-1.,  1.]], dtype=float32)

    Args:
        num_features: the number of features, the product of the sizes of `feature_axes`.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of scale and bias.
        use_bias: whether there is a bias.
        use_scale: whether there is a scale.
        bias_init: makes the bias.
        scale_init: makes the scale.
        reduction_axes: the axes to average over.
        feature_axes: the axes along which scale and bias have separate values.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: whether to compute `E|x|² - |E x|²`, which reads the inputs once, instead of `E|x - E x|²`,
            which is slower and more accurate.
        promote_dtype: called as `promote_dtype((inputs, scale, bias), dtype=dtype)`; returns the three in one dtype.
        rngs: each of scale and bias draws a key from `params`.
        bias_metadata: the metadata of the bias.
        scale_metadata: the metadata of the scale.
    """

    @nn.checks_options
    def __init__(
        self,
        num_features: int,
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
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        scale_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        how = (epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype)
        scale, bias = (use_scale, scale_init, scale_metadata), (use_bias, bias_init, bias_metadata)
        self._begin(num_features, rngs, *how, scale=scale, bias=bias)
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes

    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array.

        Args:
            x: `(..., num_features)`, or with other feature axes.
            mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

        Raises:
            LiftArgumentError: if an axis, the number of features or the mask does not match the inputs.
        """
        x, *params = self._promoted(x)
        axes, features = self._axes("reduction_axes", x), self._axes("feature_axes", x)
        self._check_features(x, features, *params)
        norm = self._normalization()
        return norm.standardize(x, *norm.moments(x, axes, mask), axes, features, *params)


class RMSNorm(_Norm):
    """Computes `x / sqrt(mean(|x|²) + epsilon) * scale`, with the mean over `reduction_axes`, without centering.

    Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", https://arxiv.org/abs/1910.07467.

    Shapes: any, unchanged. Variables: `Param` `scale`, `(num_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.RMSNorm(4, rngs=nnx.Rngs(0))(jnp.array([[3.0, 0.0, 0.0, 0.0]])).round(3)
        Array([[2., 0., 0., 0.]], dtype=float32)

    Args:
        num_features: the number of features, the product of the sizes of `feature_axes`.
        epsilon: added to the mean square, so that zeros give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of the scale.
        use_scale: whether there is a scale.
        scale_init: makes the scale.
        reduction_axes: the axes to average over.
        feature_axes: the axes along which the scale has separate values.
        axis_name: a mapped axis to average over as well, where one example is spread over devices or elements.
        axis_index_groups: groups of indices along `axis_name`, each averaged separately, as in `jax.lax.pmean`.
        use_fast_variance: has no effect: without a mean there is only one way to compute the mean square.
        promote_dtype: converts `(inputs, scale)` to one dtype.
        rngs: the scale draws a key from `params`.
        scale_metadata: the metadata of the scale.
    """

    _learned = ("scale",)

    @nn.checks_options
    def __init__(
        self,
        num_features: int,
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
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        scale_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        how = (epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype)
        self._begin(num_features, rngs, *how, scale=(use_scale, scale_init, scale_metadata))
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes

    def __call__(self, x: Array, mask: ArrayLike | None = None) -> Array:
        """Normalize an array.

        Args:
            x: `(..., num_features)`, or with other feature axes.
            mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

        Raises:
            LiftArgumentError: if an axis, the number of features or the mask does not match the inputs.
        """
        x, *params = self._promoted(x)
        axes, features = self._axes("reduction_axes", x), self._axes("feature_axes", x)
        self._check_features(x, features, *params)
        norm = self._normalization()
        return norm.standardize(x, *norm.moments(x, axes, mask, centered=False), axes, features, *params)


class GroupNorm(_Norm):
    """Normalizes with the moments of each group of features, over all axes but the first.

    Source: Wu & He, "Group Normalization", https://arxiv.org/abs/1803.08494.

    Shapes: `(batch, ..., num_features)`, unchanged. Variables: `Param` `scale` and `bias`, `(num_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0))(jnp.array([[1.0, 3.0, 4.0, 8.0]])).round(3)
        Array([[-1.,  1., -1.,  1.]], dtype=float32)

    Args:
        num_features: the number of features, the size of the last axis.
        num_groups: the number of groups; None if `group_size` is given.
        group_size: the number of features in a group; None if `num_groups` is given.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of scale and bias.
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
        promote_dtype: converts `(inputs, scale, bias)` to one dtype.
        rngs: each of scale and bias draws a key from `params`.
        bias_metadata: the metadata of the bias.
        scale_metadata: the metadata of the scale.

    Raises:
        LiftArgumentError: if the number of features cannot be divided into groups.
    """

    @nn.checks_options
    def __init__(
        self,
        num_features: int,
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
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        scale_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.feature_axis = -1
        how = (epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype)
        what = f"num_features is {num_features}"
        self.num_groups, self.group_size = nn.group_sizes("GroupNorm", num_features, num_groups, group_size, what)
        scale, bias = (use_scale, scale_init, scale_metadata), (use_bias, bias_init, bias_metadata)
        self._begin(num_features, rngs, *how, scale=scale, bias=bias)
        self.reduction_axes = reduction_axes

    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array.

        Args:
            x: `(batch, ..., num_features)`.
            mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

        Raises:
            LiftArgumentError: if an axis, the number of features or the mask does not match the inputs, or
                `reduction_axes` lacks the last axis.
        """
        x, *params = self._promoted(x)
        features, axes = self._axes("feature_axis", x), nn.group_axes("GroupNorm", self.reduction_axes, x.shape)
        self._check_features(x, features, x)
        norm = self._normalization()
        moments = norm.group_moments(x, axes, self.num_groups, self.group_size, mask)
        return norm.standardize(x, *moments, axes[:-1], features, *params)


class InstanceNorm(_Norm):
    """Normalizes each feature with its own moments, over all axes but the first and `feature_axes`.

    Source: Ulyanov, Vedaldi & Lempitsky, "Instance Normalization", https://arxiv.org/abs/1607.08022.

    Shapes: `(batch, ..., num_features)`, unchanged. Variables: `Param` `scale` and `bias`, `(num_features,)`.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.InstanceNorm(1, rngs=nnx.Rngs(0))(jnp.array([[[1.0], [3.0]]]))[..., 0].round(3)
        Array([[-1.,  1.]], dtype=float32)

    Args:
        num_features: the number of features, the product of the sizes of `feature_axes`.
        epsilon: added to the variance, so that constant inputs give zeros.
        dtype: the dtype of the result; by default what inputs and parameters promote to.
        param_dtype: the dtype of scale and bias.
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
        promote_dtype: converts `(inputs, scale, bias)` to one dtype.
        rngs: each of scale and bias draws a key from `params`.
        bias_metadata: the metadata of the bias.
        scale_metadata: the metadata of the scale.
    """

    @nn.checks_options
    def __init__(
        self,
        num_features: int,
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
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
        scale_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        how = (epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype)
        scale, bias = (use_scale, scale_init, scale_metadata), (use_bias, bias_init, bias_metadata)
        self._begin(num_features, rngs, *how, scale=scale, bias=bias)
        self.feature_axes = feature_axes

    def __call__(self, x: Array, *, mask: ArrayLike | None = None) -> Array:
        """Normalize an array.

        Args:
            x: `(batch, ..., num_features)`, or with other feature axes.
            mask: the elements to use for the statistics, broadcast to the inputs; all elements are normalized.

        Raises:
            LiftArgumentError: if an axis, the number of features or the mask does not match the inputs.
        """
        x, *params = self._promoted(x)
        features = self._axes("feature_axes", x)
        axes = nn.instance_axes("InstanceNorm", features, x.shape)
        self._check_features(x, features, *params)
        norm = self._normalization()
        return norm.standardize(x, *norm.moments(x, axes, mask), axes, features, *params)
