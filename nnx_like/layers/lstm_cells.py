"""Recurrent cells with a memory in addition to their state: `LSTMCell`, `OptimizedLSTMCell`.

In formulas `x` is the input, `h` the output of the previous step, and `*` multiplies element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax.nn import initializers

from liftcore import nn
from liftcore.typing import Array, Dtype, Initializer

from ..rnglib.streams import Rngs
from .cell_base import (
    Activation,
    Cell,
    default_activation_fn,
    default_gate_fn,
    default_kernel_init,
    default_recurrent_init,
    modified_orthogonal,
)
from .dtypes import PromoteDtypeFn, promote_dtype

__all__ = ["LSTMCell", "OptimizedLSTMCell"]

_Told: TypeAlias = tuple[Initializer, Mapping[str, Any]]


class _LSTM(Cell):
    """The base of both forms of the cell."""

    _states = 2

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

    def _make(self, rngs: Rngs, kernel: _Told, recurrent: _Told, bias: _Told) -> None:
        """Make the layers, each with its initializer and metadata."""
        raise NotImplementedError

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
        i, f, g, o = self._sums(inputs, h)
        c = self.gate_fn(f) * c + self.gate_fn(i) * self.activation_fn(g)
        h = self.gate_fn(o) * self.activation_fn(c)
        return (c, h), h

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

    def _make(self, rngs: Rngs, kernel: _Told, recurrent: _Told, bias: _Told) -> None:
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

    def _make(self, rngs: Rngs, kernel: _Told, recurrent: _Told, bias: _Told) -> None:
        self.dense_i = self._dense(self.in_features, 4, rngs, *kernel, None)
        self.dense_h = self._dense(self.hidden_features, 4, rngs, *recurrent, bias)

    def _sums(self, inputs: Array, h: Array) -> Sequence[Array]:
        return jnp.split(self.dense_i(inputs) + self.dense_h(h), 4, axis=-1)
