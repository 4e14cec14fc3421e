"""Recurrent cells: one step of a recurrent network, from a carry and inputs to the next carry and outputs.

In formulas `x` is the input, `h` the output of the previous step, and `*` multiplies element by element.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax.nn import initializers

from liftcore import nn
from liftcore.errors import Expected, LiftArgumentError
from liftcore.typing import Array, ArrayLike, Dtype, Initializer, Key, PyTree, Shape

from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from .linear import Linear
from .parameters import PromoteDtypeFn, promote_dtype, stream_of

__all__ = [
    "GRUCell",
    "LSTMCell",
    "OptimizedLSTMCell",
    "RNNCellBase",
    "SimpleCell",
    "default_activation_fn",
    "default_gate_fn",
    "default_kernel_init",
    "default_recurrent_init",
    "modified_orthogonal",
]

Activation: TypeAlias = Callable[..., Any]
"""Type: an activation function."""

_Param: TypeAlias = tuple[Initializer, Mapping[str, Any]]
"""Type: how to make a parameter, its initializer and metadata."""

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


# The default activations are defined here, since functions made by `jax.jit`, and cells with them, cannot be pickled.
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


class _UndefinedError(LiftArgumentError, NotImplementedError):
    """A cell lacks what its class must define."""


def _undefined(cell: RNNCellBase, name: str, signature: str, fix: str) -> _UndefinedError:
    return _UndefinedError(type(cell).__name__, f"the class defines no `{name}{signature}`.", fix, expected=name)


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
        fix = "Write it, or pass a carry: `RNN(cell)(inputs, initial_carry=…)`."
        raise _undefined(self, "initialize_carry", "(input_shape, rngs)", fix)

    def __call__(self, carry: PyTree, inputs: Any) -> tuple[PyTree, Any]:
        """Run one step. Override this in a subclass.

        Args:
            carry: the carry that the previous step returned.
            inputs: the inputs of this step.
        """
        fix = "Write `def __call__(self, carry, inputs)`, which returns the next carry and the outputs."
        raise _undefined(self, "__call__", "", fix)

    @property
    def num_feature_axes(self) -> int:
        """The number of feature axes of the inputs, after those of the batch. A subclass defines it."""
        fix = "Write `num_feature_axes = 1` in the class; for images, the number of spatial axes plus one."
        raise _undefined(self, "num_feature_axes", "", fix)


class _Cell(RNNCellBase):
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
        stream = stream_of(type(self).__name__, self.rngs if rngs is None else rngs, "carry")
        if stream is None:
            what = "there is no stream to draw a key for the first carry from."
            raise LiftArgumentError(type(self).__name__, what, "Pass `rngs=nnx.Rngs(0)`.", option="rngs")
        shape, init = self._state_shape(input_shape), carry_init or self.carry_init or initializers.zeros
        states = tuple(init(stream(), shape, self.param_dtype) for _ in range(self._states))
        return states if self._states > 1 else states[0]

    @property
    def num_feature_axes(self) -> int:
        """One."""
        return 1

    def _state_shape(self, input_shape: Shape) -> tuple[int, ...]:
        if not len(input_shape):
            what = Expected("the inputs of one step, of shape (*batch, in_features)", given=tuple(input_shape))
            raise LiftArgumentError(type(self).__name__, what, "Add a feature dimension: `inputs[..., None]`.")
        return (*input_shape[:-1], self.hidden_features)

    def _check(self, carry: PyTree, inputs: ArrayLike) -> None:
        shape = self._state_shape(jnp.shape(inputs))
        expected = (shape,) * self._states if self._states > 1 else shape
        nn.check_carry(type(self).__name__, carry, inputs, expected, "cell.initialize_carry(inputs.shape, rngs)")


class SimpleCell(_Cell):
    """A cell with one activation: `h' = tanh(W_i x + b_i + W_h h)`. With `residual`, `h` is added inside `tanh`.

    Source: Elman, "Finding Structure in Time", 1990.

    Shapes: carry `(*batch, hidden_features)` and inputs `(*batch, in_features)`; returns the next carry twice.
    Variables: `Linear` `dense_i`, and `dense_h` without a bias.

    Example:
        >>> import nnx_like as nnx
        >>> cell, x = nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
        >>> carry, y = cell(cell.initialize_carry(x.shape, nnx.Rngs(1)), x)
        >>> y.shape
        (2, 4)

    Args:
        in_features: the features of the inputs.
        hidden_features: the features of the state.
        dtype: the dtype of the computation; None means the promoted dtype of inputs and parameters.
        param_dtype: the dtype of the parameters and of the first carry.
        carry_init: makes the first carry; passing it to `initialize_carry` is preferred.
        residual: whether to add the previous state to the input of the activation.
        activation_fn: the activation.
        kernel_init: makes the kernel of `dense_i`.
        recurrent_kernel_init: makes the kernel of `dense_h`.
        bias_init: makes the bias.
        promote_dtype: converts inputs and parameters to one dtype.
        keep_rngs: whether to keep a stream for first carries, forked from `carry`; deprecated.
        rngs: each parameter draws a key from `params`.
        kernel_metadata: the metadata of the kernel of `dense_i`.
        recurrent_kernel_metadata: the metadata of the kernel of `dense_h`.
        bias_metadata: the metadata of the bias.
    """

    @nn.checks_options
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        dtype: Dtype | None = jnp.float32,
        param_dtype: Dtype = jnp.float32,
        carry_init: Initializer | None = None,
        residual: bool = False,
        activation_fn: Activation = default_activation_fn,
        kernel_init: Initializer = default_kernel_init,
        recurrent_kernel_init: Initializer = default_recurrent_init,
        bias_init: Initializer = initializers.zeros,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        recurrent_kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        stream = rngs if keep_rngs else None
        self._begin(in_features, hidden_features, dtype, param_dtype, promote_dtype, carry_init, stream)
        self.residual = residual
        self.activation_fn = activation_fn
        bias = (bias_init, bias_metadata)
        self.dense_h = self._dense(hidden_features, 1, rngs, recurrent_kernel_init, recurrent_kernel_metadata, None)
        self.dense_i = self._dense(in_features, 1, rngs, kernel_init, kernel_metadata, bias)

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """Run one step.

        Args:
            carry: the state, `(*batch, hidden_features)`.
            inputs: `(*batch, in_features)`.

        Returns:
            The next state, twice: as the carry and as the output.
        """
        self._check(carry, inputs)
        h = self.dense_i(inputs) + self.dense_h(carry)
        h = self.activation_fn(h + carry if self.residual else h)
        return h, h


class _GatedCell(_Cell):
    """A cell that has one activation function for all gates."""

    @nn.checks_options
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        gate_fn: Activation = default_gate_fn,
        activation_fn: Activation = default_activation_fn,
        kernel_init: Initializer = default_kernel_init,
        recurrent_kernel_init: Initializer = default_recurrent_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        carry_init: Initializer | None = None,
        promote_dtype: PromoteDtypeFn = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        recurrent_kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        stream = rngs if keep_rngs else None
        self._begin(in_features, hidden_features, dtype, param_dtype, promote_dtype, carry_init, stream)
        self.gate_fn = gate_fn
        self.activation_fn = activation_fn
        kernel, recurrent = (kernel_init, kernel_metadata), (recurrent_kernel_init, recurrent_kernel_metadata)
        self._make(rngs, kernel, recurrent, (bias_init, bias_metadata))

    def _make(self, rngs: Rngs, kernel: _Param, recurrent: _Param, bias: _Param) -> None:
        """Make the layers, each with its initializer and metadata."""
        raise NotImplementedError


class GRUCell(_GatedCell):
    """Gated recurrent unit. The reset gate is applied after the product, so that all products are computed at once.

        r = σ(W_ir x + b_ir + W_hr h)       n = tanh(W_in x + b_in + r * (W_hn h))
        z = σ(W_iz x + b_iz + W_hz h)       h' = (1 - z) * n + z * h

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", https://arxiv.org/abs/1406.1078.

    Shapes: carry `(*batch, hidden_features)` and inputs `(*batch, in_features)`; returns the next carry twice.
    Variables: `Linear` `dense_i`, to `3 * hidden_features` for `r`, `z` and `n`, and `dense_h` without a bias.

    Example:
        >>> import nnx_like as nnx
        >>> cell, x = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
        >>> carry, y = cell(cell.initialize_carry(x.shape, nnx.Rngs(1)), x)
        >>> y.shape
        (2, 4)

    Args:
        in_features: the features of the inputs.
        hidden_features: the features of the state.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate state.
        kernel_init: makes the kernel of `dense_i`.
        recurrent_kernel_init: makes the kernel of `dense_h`.
        bias_init: makes the bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters and of the first carry.
        carry_init: makes the first carry; passing it to `initialize_carry` is preferred.
        promote_dtype: converts inputs and parameters to one dtype.
        keep_rngs: whether to keep a stream for first carries, forked from `carry`; deprecated.
        rngs: each parameter draws a key from `params`.
        kernel_metadata: the metadata of the kernel of `dense_i`.
        recurrent_kernel_metadata: the metadata of the kernel of `dense_h`.
        bias_metadata: the metadata of the bias.
    """

    def _make(self, rngs: Rngs, kernel: _Param, recurrent: _Param, bias: _Param) -> None:
        self.dense_i = self._dense(self.in_features, 3, rngs, *kernel, bias)
        self.dense_h = self._dense(self.hidden_features, 3, rngs, *recurrent, None)

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """Run one step.

        Args:
            carry: the state, `(*batch, hidden_features)`.
            inputs: `(*batch, in_features)`.

        Returns:
            The next state, twice: as the carry and as the output.
        """
        self._check(carry, inputs)
        of_x, of_h = jnp.split(self.dense_i(inputs), 3, axis=-1), jnp.split(self.dense_h(carry), 3, axis=-1)
        h = nn.gru_step(carry, zip(of_x, of_h, strict=True), self.gate_fn, self.activation_fn)
        return h, h


class _LSTM(_GatedCell):
    """The base of both forms of the cell."""

    _states = 2

    def __call__(self, carry: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
        """Run one step.

        Args:
            carry: the pair `(c, h)`, the memory and the output of the previous step, each `(*batch, hidden_features)`.
            inputs: `(*batch, in_features)`.

        Returns:
            The next `(c, h)`, and `h`.
        """
        self._check(carry, inputs)
        c, h = carry
        return nn.lstm_step(c, self._sums(inputs, h), self.gate_fn, self.activation_fn)

    def _sums(self, inputs: Array, h: Array) -> Sequence[Array]:
        """Compute the inputs of the activations of the gates and the candidate: `i`, `f`, `g`, `o`."""
        raise NotImplementedError


class LSTMCell(_LSTM):
    """Long short-term memory, with two products for each gate.

        i = σ(W_ii x + W_hi h + b_hi)       c' = f * c + i * g
        f = σ(W_if x + W_hf h + b_hf)       h' = o * tanh(c')
        g = tanh(W_ig x + W_hg h + b_hg)
        o = σ(W_io x + W_ho h + b_ho)

    Source: Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997.

    Shapes: carry `(c, h)`, each `(*batch, hidden_features)`, and inputs `(*batch, in_features)`; returns the next
    `(c, h)` and `h`.
    Variables: `Linear` `ii`, `if_`, `ig` and `io` without biases, and `hi`, `hf`, `hg` and `ho`.

    Example:
        >>> import nnx_like as nnx
        >>> cell, x = nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
        >>> (c, h), y = cell(cell.initialize_carry(x.shape, nnx.Rngs(1)), x)
        >>> y.shape
        (2, 4)

    Args:
        in_features: the features of the inputs.
        hidden_features: the features of memory and output.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate and of the memory.
        kernel_init: makes the kernels for inputs.
        recurrent_kernel_init: makes the kernels for the previous output.
        bias_init: makes the biases.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters and of the first carry.
        carry_init: makes each part of the first carry; passing it to `initialize_carry` is preferred.
        promote_dtype: returns inputs and parameters in one dtype.
        keep_rngs: whether to keep a stream, forked from `carry`, for first carries; deprecated.
        rngs: each parameter draws a key from `params`.
        kernel_metadata: the metadata of the kernels for inputs.
        recurrent_kernel_metadata: the metadata of the kernels for the previous output.
        bias_metadata: the metadata of the biases.
    """

    def _make(self, rngs: Rngs, kernel: _Param, recurrent: _Param, bias: _Param) -> None:
        if recurrent[0] is default_recurrent_init:  # for this cell it is computed in the default dtype, as in NNX
            recurrent = (modified_orthogonal, recurrent[1])
        for name in ("ii", "if_", "ig", "io"):  # a sum needs only one bias, and the recurrent layers have it
            setattr(self, name, self._dense(self.in_features, 1, rngs, *kernel, None))
        for name in ("hi", "hf", "hg", "ho"):
            setattr(self, name, self._dense(self.hidden_features, 1, rngs, *recurrent, bias))

    def _sums(self, inputs: Array, h: Array) -> Sequence[Array]:
        pairs = (("ii", "hi"), ("if_", "hf"), ("ig", "hg"), ("io", "ho"))
        return [getattr(self, of_x)(inputs) + getattr(self, of_h)(h) for of_x, of_h in pairs]


class OptimizedLSTMCell(_LSTM):
    """`LSTMCell` with one product for all gates: faster up to about 2,000 features. Initial values differ.

    Shapes: those of `LSTMCell`. Variables: `Linear` `dense_i` without a bias, and `dense_h`, each to
    `4 * hidden_features`, for `i`, `f`, `g` and `o`.

    Example:
        >>> import nnx_like as nnx
        >>> cell, x = nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
        >>> (c, h), y = cell(cell.initialize_carry(x.shape, nnx.Rngs(1)), x)
        >>> y.shape
        (2, 4)

    Args:
        in_features: the features of the inputs.
        hidden_features: the features of memory and output.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate and of the memory.
        kernel_init: makes the kernel for inputs.
        recurrent_kernel_init: makes the kernel for the previous output.
        bias_init: makes the bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters and of the first carry.
        carry_init: makes each part of the first carry; passing it to `initialize_carry` is preferred.
        promote_dtype: returns inputs and parameters in one dtype.
        keep_rngs: whether to keep a stream, forked from `carry`, for first carries; deprecated.
        rngs: each parameter draws a key from `params`.
        kernel_metadata: the metadata of the kernel for inputs.
        recurrent_kernel_metadata: the metadata of the kernel for the previous output.
        bias_metadata: the metadata of the bias.
    """

    def _make(self, rngs: Rngs, kernel: _Param, recurrent: _Param, bias: _Param) -> None:
        self.dense_i = self._dense(self.in_features, 4, rngs, *kernel, None)
        self.dense_h = self._dense(self.hidden_features, 4, rngs, *recurrent, bias)

    def _sums(self, inputs: Array, h: Array) -> Sequence[Array]:
        return jnp.split(self.dense_i(inputs) + self.dense_h(h), 4, axis=-1)
