"""The base of normalization layers: statistics over some axes, and a scale and a bias along others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer

from ..objects.module import Module
from ..rnglib.streams import Rngs
from .dtypes import PromoteDtypeFn
from .parameters import new_param, value_of

__all__ = ["Norm"]


class Norm(Module):
    """Base of the normalization layers. A subclass chooses the axes to average over; `_standardized` does the rest."""

    num_features: int
    _learned: ClassVar[tuple[str, ...]] = ("scale", "bias")

    def _begin(
        self,
        num_features: int,
        epsilon: float,
        dtype: Dtype | None,
        param_dtype: Dtype,
        axis_name: Any,
        axis_index_groups: Sequence[Sequence[int]] | None,
        use_fast_variance: bool,
        promote_dtype: PromoteDtypeFn,
    ) -> None:
        """Set the options that all of them have."""
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def _learn(self, name: str, rngs: Rngs, used: bool, init_fn: Initializer, metadata: Mapping[str, Any]) -> None:
        """Make the scale or the bias, which draws a key; return None if it is not used."""
        made = None
        if used:
            made = new_param(type(self).__name__, rngs, init_fn, (self.num_features,), self.param_dtype, metadata)
        setattr(self, name, made)
        setattr(self, f"use_{name}", used)

    def _promoted(self, *arrays: ArrayLike | None) -> list[Any]:
        """Promote these arrays, scale and bias to the dtype of the computation; None for arrays that do not exist."""
        params = [value_of(getattr(self, name)) for name in self._learned]
        return list(self.promote_dtype((*arrays, *params), dtype=self.dtype))

    def _axes(self, name: str, axes: int | Iterable[int], x: Array) -> tuple[int, ...]:
        """Check axes of an array, and count them from the front."""
        return nn.normalize_axes(type(self).__name__, name, axes, x.ndim)

    def _averaged(self, x: Array, axes: Sequence[int], mask: ArrayLike | None) -> tuple[Array, Any]:
        """Return the array in the dtype of its statistics, and a function that averages it over axes."""
        if any(x.shape[axis] == 0 for axis in axes):
            raise LiftArgumentError(
                type(self).__name__,
                f"there is nothing to average over: the inputs have shape {x.shape}, the reduced axes are {(*axes,)}.",
                "Skip empty batches: their mean would be NaN, and so would everything computed from it.",
            )
        average = nn.averager(axes, mask, self.axis_name, self.axis_index_groups)
        return nn.to_reduction_dtype(x, self.dtype), average

    def _standardized(
        self,
        x: Array,
        mean: Array | None,
        variance: Array,
        axes: Sequence[int],
        feature_axes: tuple[int, ...],
        *params: Array | None,
    ) -> Array:
        """Return the result of the layer, from statistics without `axes` and parameters along `feature_axes`."""
        given = zip(self._learned, params, strict=True)
        laid: Any = {name: None if one is None else self._laid(x, feature_axes, one) for name, one in given}
        return nn.standardize(x, mean, variance, axes=axes, epsilon=self.epsilon, dtype=self.dtype, **laid)

    def _laid(self, x: Array, feature_axes: tuple[int, ...], value: Array) -> Array:
        """Reshape an array with a value for each feature to broadcast along the feature axes of another one."""
        self._check_features(x, feature_axes)
        return nn.reshape(value, tuple(size if axis in feature_axes else 1 for axis, size in enumerate(x.shape)))

    def _check_features(self, x: Array, feature_axes: tuple[int, ...]) -> None:
        found = math.prod(x.shape[axis] for axis in feature_axes)
        if found != self.num_features:
            raise LiftArgumentError(
                type(self).__name__,
                f"num_features is {self.num_features}, but the inputs, of shape {x.shape}, have {found} features along "
                f"axes {feature_axes}.",
                f"Make the layer with `num_features={found}`, or check the inputs.",
            )
