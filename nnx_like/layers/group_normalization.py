"""Normalization over groups of features, or over each feature separately: `GroupNorm`, `InstanceNorm`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax.nn import initializers
from jax.sharding import PartitionSpec as P

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..rnglib.streams import Rngs
from .dtypes import PromoteDtypeFn, promote_dtype
from .norms import Norm

__all__ = ["GroupNorm", "InstanceNorm"]


class GroupNorm(Norm):
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
        self._begin(
            num_features, epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype
        )
        self.num_groups, self.group_size = _groups(num_features, num_groups, group_size)
        self._learn("scale", rngs, use_scale, scale_init, scale_metadata)
        self._learn("bias", rngs, use_bias, bias_init, bias_metadata)
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
        features = self._axes("feature_axis", self.feature_axis, x)
        given = (*range(1, x.ndim - 1), -1) if self.reduction_axes is None else self.reduction_axes
        axes = self._axes("reduction_axes", given, x)
        if x.ndim - 1 not in axes:
            raise LiftArgumentError(
                "GroupNorm",
                f"reduction_axes are {axes} for inputs of shape {x.shape}; the last axis, the features, is missing.",
                f"Add it: `reduction_axes={(*axes, -1)}`.",
            )
        nn.check_mask("GroupNorm", mask, x.shape)
        self._check_features(x, features)
        spec = P(*(entry for axis, entry in enumerate(nn.sharding_entries(x)) if axis not in axes[:-1]))
        statistics = functools.partial(self._moments, axes=axes)
        mean, var = nn.on_auto_axes(statistics, (spec, spec), x, mask)
        return self._standardized(x, mean, var, axes[:-1], features, *params)

    def _moments(self, x: Array, mask: ArrayLike | None, axes: tuple[int, ...]) -> tuple[Array, Array]:
        """Compute the mean and variance of each feature's group."""
        grouped = jnp.reshape(x, (*x.shape[:-1], self.num_groups, self.group_size))
        split = nn.split_mask(mask, self.num_groups, self.group_size)
        within = (*axes[:-1], x.ndim)
        wide, average = self._averaged(grouped, within, split)
        mean, var = nn.moments(wide, within, average, self.use_fast_variance)
        return jnp.repeat(mean, self.group_size, axis=-1), jnp.repeat(var, self.group_size, axis=-1)


def _groups(features: int, num_groups: int | None, group_size: int | None) -> tuple[int, int]:
    """Return the number of groups and their size."""
    if (num_groups is None) == (group_size is None):
        raise LiftArgumentError(
            "GroupNorm",
            f"expected num_groups or group_size, given num_groups={num_groups} and group_size={group_size}.",
            "Pass one of them: `num_groups=8`, or `num_groups=None, group_size=16`.",
        )
    name, given = ("group_size", group_size) if num_groups is None else ("num_groups", num_groups)
    if not isinstance(given, Integral) or given < 1 or features % given:
        raise LiftArgumentError(
            "GroupNorm",
            f"num_features is {features}, which cannot be divided by {name}={given}.",
            f"Pass a `{name}` that divides {features}.",
        )
    other = features // given
    return (other, given) if num_groups is None else (given, other)


class InstanceNorm(Norm):
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
        self._begin(
            num_features, epsilon, dtype, param_dtype, axis_name, axis_index_groups, use_fast_variance, promote_dtype
        )
        self._learn("scale", rngs, use_scale, scale_init, scale_metadata)
        self._learn("bias", rngs, use_bias, bias_init, bias_metadata)
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
        features = self._axes("feature_axes", self.feature_axes, x)
        if 0 in features:
            raise LiftArgumentError(
                "InstanceNorm",
                f"feature_axes are {features} for inputs of shape {x.shape}; the first axis is the batch.",
                "Leave the first axis out, or add an axis before it: `inputs[None]`.",
            )
        nn.check_mask("InstanceNorm", mask, x.shape)
        axes = tuple(axis for axis in range(1, x.ndim) if axis not in features)
        wide, average = self._averaged(x, axes, mask)
        mean, var = nn.moments(wide, axes, average, self.use_fast_variance)
        return self._standardized(x, mean, var, axes, features, *params)
