"""The base of recurrent cells: one step, from a carry and inputs to the next carry and outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax.nn import initializers

from liftcore.errors import LiftArgumentError, shown
from liftcore.typing import Array, ArrayLike, Dtype, Initializer, Key, PyTree, Shape

from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from .dtypes import PromoteDtypeFn
from .linear import Linear

__all__ = [
    "Activation",
    "Cell",
    "RNNCellBase",
    "carry_stream",
    "default_activation_fn",
    "default_gate_fn",
    "default_kernel_init",
    "default_recurrent_init",
    "modified_orthogonal",
]

Activation: TypeAlias = Callable[..., Any]
"""Type: an activation function."""

default_kernel_init = initializers.lecun_normal()
_orthogonal = initializers.orthogonal()


def modified_orthogonal(key: Key, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
    """Initialize with an orthogonal matrix, computed in the default dtype and rounded, so that any dtype works.

    Example:
        >>> kernel = modified_orthogonal(jax.random.key(0), (3, 3), jnp.bfloat16)
        >>> kernel.dtype, jnp.allclose(kernel @ kernel.T, jnp.eye(3), atol=0.1)
        (dtype(bfloat16), Array(True, dtype=bool))

    Args:
        key: the key to draw with.
        shape: `(in, features)`.
        dtype: the dtype of the result.
    """
    return _orthogonal(key, shape).astype(dtype)


def default_recurrent_init(key: Key, shape: Shape, dtype: Dtype = jnp.float32) -> Array:
    """Initialize with an orthogonal matrix, computed in `dtype`; for half precision, computed in float32 and rounded.

    Example:
        >>> default_recurrent_init(jax.random.key(0), (3, 3), jnp.float16).dtype
        dtype('float16')

    Args:
        key: the key to draw with.
        shape: `(in, features)`.
        dtype: the dtype of the result.
    """
    half = jnp.dtype(dtype).itemsize < 4
    return modified_orthogonal(key, shape, dtype) if half else _orthogonal(key, shape, dtype)


# The default activations are defined here, since functions made by `jax.jit` cannot be pickled, nor cells with them.
def default_gate_fn(x: ArrayLike) -> Array:
    """`jax.nn.sigmoid`.

    Example:
        >>> default_gate_fn(0.0)
        Array(0.5, dtype=float32, weak_type=True)
    """
    return jax.nn.sigmoid(x)


def default_activation_fn(x: ArrayLike) -> Array:
    """`jnp.tanh`.

    Example:
        >>> default_activation_fn(0.0)
        Array(0., dtype=float32, weak_type=True)
    """
    return jnp.tanh(x)


class RNNCellBase(Module):
    """Base of recurrent cells: modules that are called as `cell(carry, inputs)` and return `(carry, outputs)`.

    A cell of your own may carry any pytree. `RNN` runs it over a sequence.

    Example:
        >>> import nnx_like as nnx
        >>> class Sum(nnx.RNNCellBase):
        ...     num_feature_axes = 1
        ...     def __call__(self, carry, inputs):
        ...         return carry + inputs, carry + inputs
        ...     def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        ...         return jnp.zeros(input_shape)
        >>> nnx.RNN(Sum())(jnp.array([[1.0], [2.0], [4.0]]))
        Array([[1.],
               [3.],
               [7.]], dtype=float32)
    """

    def initialize_carry(
        self, input_shape: Shape, rngs: Rngs | RngStream | None = None, carry_init: Initializer | None = None
    ) -> PyTree:
        """Make the carry before the first step. Override this in a subclass.

        Args:
            input_shape: the shape of the inputs of one step.
            rngs: the streams to draw keys from.
            carry_init: makes the carry, instead of the cell's own initializer.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no `initialize_carry`.")

    def __call__(self, carry: PyTree, inputs: Any) -> tuple[PyTree, Any]:
        """Run one step. Override this in a subclass.

        Args:
            carry: the carry that the previous step returned.
            inputs: the inputs of this step.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no `__call__`.")

    @property
    def num_feature_axes(self) -> int:
        """The number of feature axes of the inputs, after those of the batch. A subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} defines no `num_feature_axes`.")


class Cell(RNNCellBase):
    """The base of the cells here: states of shape `(*batch, hidden_features)`, and functions that make their parts."""

    _states: ClassVar[int] = 1
    in_features: int
    hidden_features: int
    dtype: Dtype | None
    param_dtype: Dtype
    promote_dtype: PromoteDtypeFn
    rngs: RngStream | None
    carry_init: Initializer | None

    def _begin(
        self,
        in_features: int,
        hidden_features: int,
        dtype: Dtype | None,
        param_dtype: Dtype,
        promote_dtype: PromoteDtypeFn,
        carry_init: Initializer | None,
        stream: Rngs | None,
    ) -> None:
        """Set the attributes of all cells. The stream to keep is None if none is kept."""
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype
        self.carry_init = carry_init
        if carry_init is not None:
            warnings.warn(
                "carry_init is an attribute of the cell, and a function is equal only to itself: cells with "
                "different functions are traced separately. Pass it to `initialize_carry` instead.",
                UserWarning,
                stacklevel=3,
            )
        if stream is not None:
            warnings.warn(
                "keep_rngs is deprecated: pass `rngs=` to the call of the RNN, or to `initialize_carry`.",
                UserWarning,
                stacklevel=3,
            )
        self.rngs = None if stream is None else stream.carry.fork()

    def _dense(
        self,
        sources: int,
        gates: int,
        rngs: Rngs,
        kernel_init: Initializer,
        kernel_metadata: Mapping[str, Any],
        bias: tuple[Initializer, Mapping[str, Any]] | None,
    ) -> Linear:
        """Make a layer for all gates; it has a bias if an initializer and metadata for one are given."""
        bias_init, bias_metadata = bias or (initializers.zeros, {})
        return Linear(
            sources,
            gates * self.hidden_features,
            use_bias=bias is not None,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            promote_dtype=self.promote_dtype,
            rngs=rngs,
            kernel_metadata=kernel_metadata,
            bias_metadata=bias_metadata,
        )

    def initialize_carry(
        self, input_shape: Shape, rngs: Rngs | RngStream | None = None, carry_init: Initializer | None = None
    ) -> Any:
        """Make the state before the first step, `(*batch, hidden_features)`; a pair of two for a cell with a memory.

        Args:
            input_shape: the shape of the inputs of one step, `(*batch, in_features)`.
            rngs: a stream, or `Rngs` with a stream `carry`; each state draws a key from it. By default the stream that
                the cell kept.
            carry_init: makes a state; by default the initializer of the cell, or zeros.

        Raises:
            LiftArgumentError: if there is no stream, or the shape has no feature axis.
        """
        stream = carry_stream(self.rngs if rngs is None else rngs)
        if stream is None:
            raise LiftArgumentError(
                type(self).__name__,
                "there is no stream to draw a key for the first carry from.",
                "Pass `rngs=nnx.Rngs(0)`.",
            )
        shape, init = self._state_shape(input_shape), carry_init or self.carry_init or initializers.zeros
        states = tuple(init(stream(), shape, self.param_dtype) for _ in range(self._states))
        return states if self._states > 1 else states[0]

    @property
    def num_feature_axes(self) -> int:
        """One."""
        return 1

    def _state_shape(self, input_shape: Shape) -> tuple[int, ...]:
        if not len(input_shape):
            raise LiftArgumentError(
                type(self).__name__,
                "expected the inputs of one step, of shape (*batch, in_features), given a scalar.",
                "Add a feature dimension: `inputs[..., None]`.",
            )
        return (*input_shape[:-1], self.hidden_features)

    def _check(self, carry: PyTree, inputs: ArrayLike) -> None:
        """Check that states fit the inputs; they are not broadcast."""
        shape = self._state_shape(jnp.shape(inputs))
        expected = (shape,) * self._states if self._states > 1 else shape
        given = jax.tree.map(jnp.shape, tuple(carry) if isinstance(carry, list) else carry)
        if given != expected:
            raise LiftArgumentError(
                type(self).__name__,
                f"expected a carry of shape {expected} for inputs of shape {jnp.shape(inputs)}, given {given}.",
                "Make it with `cell.initialize_carry(inputs.shape, rngs)`; for a sequence, leave out the time axis.",
            )


def carry_stream(rngs: Any) -> RngStream | None:
    """Return the stream for first carries: the stream `carry` of `Rngs`, or the stream itself.

    Example:
        >>> carry_stream(Rngs(carry=3)).tag
        'carry'

    Args:
        rngs: `Rngs`, a stream, or None.

    Raises:
        LiftArgumentError: if it has another type.
    """
    if rngs is None or isinstance(rngs, RngStream):
        return rngs
    if isinstance(rngs, Rngs):
        return rngs.carry
    raise LiftArgumentError(
        "rngs",
        f"expected Rngs or an RNG stream, given {shown(rngs)}.",
        "Pass `rngs=nnx.Rngs(0)`.",
    )
