"""Products in 8 bits, for `Dense(…, dot_general_cls=Fp8DirectDotGeneralOp)` and the like.

Scales and histories are variables of the collection `_overwrite_with_gradient`. Pass it to `apply` and differentiate
with respect to it, as for parameters. Then *overwrite* each of its variables with its gradient, which is its next
value. Call a module only once in each step: the gradients of two calls would be added.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from liftcore import nn
from liftcore.typing import Array, ArrayLike, Dtype

from .lifecycle.calling import nowrap
from .module import Module

__all__ = [
    "OVERWRITE_WITH_GRADIENT",
    "Fp8DirectDotGeneralOp",
    "Fp8DotGeneral",
    "Fp8DotGeneralBase",
    "Fp8DotGeneralOp",
    "Fp8Einsum",
    "NANOOFp8DotGeneralOp",
]

OVERWRITE_WITH_GRADIENT = "_overwrite_with_gradient"
"""The collection of variables that a training loop overwrites with their gradients."""


class Fp8DotGeneralBase(Module):
    """The scales and histories of the two operands of a product and of its gradient: the base of the classes below.

    Collection `_overwrite_with_gradient`: `input_scale`, `kernel_scale`, `output_grad_scale`, `(1,)`, and
    `input_amax_history`, `kernel_amax_history`, `output_grad_amax_history`, `(amax_history_length,)`.

    Attributes:
        amax_history_length: the number of steps whose largest values are kept.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
    """

    amax_history_length: int = 1024
    e4m3_dtype: Dtype = jnp.float8_e4m3fn
    e5m2_dtype: Dtype = jnp.float8_e5m2

    def setup(self) -> None:
        """Make the variables."""
        for kind, init_fn, size in (("amax_history", jnp.zeros, self.amax_history_length), ("scale", jnp.ones, 1)):
            for name in (f"input_{kind}", f"kernel_{kind}", f"output_grad_{kind}"):
                setattr(self, name, self.variable(OVERWRITE_WITH_GRADIENT, name, init_fn, (size,), jnp.float32))

    @nowrap
    def _options(self) -> dict[str, Any]:
        return {
            "lhs_meta": nn.Fp8Meta(self.input_scale.value, self.input_amax_history.value),
            "rhs_meta": nn.Fp8Meta(self.kernel_scale.value, self.kernel_amax_history.value),
            "grad_meta": nn.Fp8Meta(self.output_grad_scale.value, self.output_grad_amax_history.value),
            "e4m3_dtype": self.e4m3_dtype,
            "e5m2_dtype": self.e5m2_dtype,
        }


class Fp8DirectDotGeneralOp(Fp8DotGeneralBase):
    """A product of numbers in 8 bits, called like `jax.lax.dot_general`; see `liftcore.nn.fp8_dot_general`.

    Example:
        >>> import jax, linen_like as nn
        >>> layer, x = nn.Dense(4, dot_general_cls=nn.Fp8DirectDotGeneralOp), jnp.ones((2, 3))
        >>> variables = layer.init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda variables: layer.apply(variables, x).sum())(variables)
        >>> updated = {name: grads[name] for name in ["_overwrite_with_gradient"]}  # for `params`, ask the optimizer
        >>> updated["_overwrite_with_gradient"]["Fp8DirectDotGeneralOp_0"]["input_amax_history"][:3]
        Array([1., 0., 0.], dtype=float32)

    Attributes:
        amax_history_length: the number of steps whose largest values are kept.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
    """

    def __call__(self, lhs: ArrayLike, rhs: Array, dimension_numbers: Any, *args: Any, **kwargs: Any) -> Array:
        """Multiply in the dtype of `rhs`; a precision and a preferred element type are ignored."""
        sharding = kwargs.get("out_sharding")
        return nn.fp8_dot_general(lhs, rhs, dimension_numbers, **self._options(), out_sharding=sharding)


Fp8DotGeneral = Fp8DirectDotGeneralOp  # an older name


class Fp8DotGeneralOp(Fp8DotGeneralBase):
    """A product of numbers rounded to 8 bits and back; see `liftcore.nn.fp8_simulated_dot_general`.

    Example:
        >>> import jax, linen_like as nn
        >>> layer = nn.Dense(4, dot_general_cls=nn.Fp8DotGeneralOp)
        >>> layer.init_with_output(jax.random.key(0), jnp.ones((2, 3)))[0].shape
        (2, 4)

    Attributes:
        amax_history_length: the number of steps whose largest values are kept.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
    """

    def __call__(self, lhs: ArrayLike, rhs: Array, dimension_numbers: Any, *args: Any, **kwargs: Any) -> Array:
        """Multiply in the dtype of `rhs`; a precision and a preferred element type are ignored."""
        sharding = kwargs.get("out_sharding")
        return nn.fp8_simulated_dot_general(lhs, rhs, dimension_numbers, **self._options(), out_sharding=sharding)


class NANOOFp8DotGeneralOp(Fp8DotGeneralOp):
    """`Fp8DotGeneralOp` in the formats of some AMD hardware, which have no infinities and no negative zero.

    Attributes:
        amax_history_length: the number of steps whose largest values are kept.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
    """

    e4m3_dtype: Dtype = jnp.float8_e4m3fnuz
    e5m2_dtype: Dtype = jnp.float8_e5m2fnuz


class Fp8Einsum(Fp8DotGeneralBase):
    """`jax.numpy.einsum` of two operands in 8 bits; the second one is the kernel. See `liftcore.nn.fp8_einsum`.

    Example:
        >>> import jax
        >>> x, kernel = jnp.ones((2, 3)), jnp.ones((3, 4))
        >>> Fp8Einsum().init_with_output(jax.random.key(0), "ij,jk->ik", x, kernel)[0].shape
        (2, 4)

    Attributes:
        amax_history_length: the number of steps whose largest values are kept.
        e4m3_dtype: the format of the operands.
        e5m2_dtype: the format of the gradient.
    """

    def __call__(
        self, eqn: str, lhs: Array, rhs: Array, precision: Any = None, preferred_element_type: Dtype | None = None
    ) -> Array:
        """Multiply in the dtype of `rhs`.

        Args:
            eqn: an explicit equation, such as `"...a,ab->...b"`, in which no operand has a letter twice.
            lhs: the inputs, of a floating dtype.
            rhs: the kernel, of a floating dtype.
            precision: ignored.
            preferred_element_type: the dtype of the result.
        """
        return nn.fp8_einsum(eqn, lhs, rhs, preferred_element_type, **self._options())
