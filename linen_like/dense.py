"""Linear layers: affine maps of the last axis, or of any axes. Each calls one function of `liftcore.nn`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jax.lax import PrecisionLike

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype, Key

from .dtypes import PromoteDtypeFn, promote_dtype
from .initializers import Initializer, lecun_normal, zeros_init
from .lifecycle.calling import compact
from .lifecycle.fields import options
from .module import Module, merge_param

__all__ = ["Dense", "DenseGeneral", "Einsum", "default_kernel_init"]

_lecun_normal = lecun_normal()


def default_kernel_init(key: Key, *args: Any, **kwargs: Any) -> Array:
    """Make the kernels of linear and convolutional layers: `lecun_normal`, as a function that can be pickled."""
    return _lecun_normal(key, *args, **kwargs)


class Dense(Module):
    """An affine map of the last axis: `inputs @ kernel + bias`; see `liftcore.nn.dense`.

    Example:
        >>> import jax
        >>> y, variables = Dense(4).init_with_output(jax.random.key(0), jnp.ones((2, 3)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((2, 4), {'params': {'bias': (4,), 'kernel': (3, 4)}})

    Attributes:
        features: the size of the last axis of the result.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default.
        dot_general_cls: a function that makes the `dot_general` to use; a Module class makes a submodule.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.
    """

    features: int
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()
    promote_dtype: PromoteDtypeFn = promote_dtype
    dot_general: Callable[..., Array] | None = None
    dot_general_cls: Callable[[], Any] | None = None
    out_sharding: Any = field(default=None, kw_only=True)

    @compact
    def __call__(self, inputs: ArrayLike) -> Array:
        """Map `(..., in)` to `(..., features)`."""
        dot_general = self.dot_general if self.dot_general_cls is None else self.dot_general_cls()
        return nn.dense(self.scope, inputs, **options(self, nn.dense, dot_general=dot_general))


class DenseGeneral(Module):
    """An affine map of any axes to any number of new ones; see `liftcore.nn.dense_general`.

    Example:
        >>> import jax
        >>> layer = DenseGeneral((4, 5), axis=(1, -1))
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 3, 6, 7)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((2, 6, 4, 5), {'params': {'bias': (4, 5), 'kernel': (3, 7, 4, 5)}})

    Attributes:
        features: the sizes of the new axes, which come last.
        axis: the axes to sum over.
        batch_dims: the leading axes with separate parameters for each index: `()`, `(0,)`, `(0, 1)` and so on.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default.
        dot_general_cls: a function that makes the `dot_general` to use; a Module class makes a submodule.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.
    """

    features: int | Sequence[int]
    axis: int | Sequence[int] = -1
    batch_dims: Sequence[int] = ()
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()
    precision: PrecisionLike = None
    promote_dtype: PromoteDtypeFn = promote_dtype
    dot_general: Callable[..., Array] | None = None
    dot_general_cls: Callable[[], Any] | None = None
    out_sharding: Any = field(default=None, kw_only=True)

    @compact
    def __call__(self, inputs: ArrayLike) -> Array:
        """Map `(*batch, *rest and axis, in any order)` to `(*batch, *rest, *features)`."""
        dot_general = self.dot_general if self.dot_general_cls is None else self.dot_general_cls()
        return nn.dense_general(self.scope, inputs, **options(self, nn.dense_general, dot_general=dot_general))


class Einsum(Module):
    """Computes `einsum(einsum_str, inputs, kernel) + bias`; see `liftcore.nn.einsum`.

    Example:
        >>> import jax
        >>> layer = Einsum((5, 6, 7), "abc,cde->abde")
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((3, 4, 5)))
        >>> y.shape, jax.tree.map(jnp.shape, variables)
        ((3, 4, 6, 7), {'params': {'bias': (6, 7), 'kernel': (5, 6, 7)}})

    Attributes:
        shape: the shape of the kernel.
        einsum_str: an explicit equation with two operands, such as `"...a,ab->...b"`; given here or at the call.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        preferred_element_type: the dtype in which products are summed and returned, before the bias is added; by
            default the dtype of the operands.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.
    """

    shape: Sequence[int]
    einsum_str: str | None = None
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()
    promote_dtype: PromoteDtypeFn = promote_dtype
    preferred_element_type: Dtype | None = None
    out_sharding: Any = field(default=None, kw_only=True)

    @compact
    def __call__(self, inputs: ArrayLike, einsum_str: str | None = None) -> Array:
        """Compute the equation, with the inputs as its first operand."""
        equation = merge_param("einsum_str", self.einsum_str, einsum_str)
        return nn.einsum(self.scope, inputs, **options(self, nn.einsum, einsum_str=equation))
