"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype

from .initializers import Initializer, ones, zeros
from .lifecycle.calling import compact
from .module import Module, merge_param

__all__ = ["BatchNorm", "LayerNorm"]


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
