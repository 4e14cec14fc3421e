"""Recurrent cells with one state: `SimpleCell`, `GRUCell`.

In formulas `x` is the input, `h` the output of the previous step, and `*` multiplies element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
)
from .dtypes import PromoteDtypeFn, promote_dtype

__all__ = ["GRUCell", "SimpleCell"]


class SimpleCell(Cell):
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


class GRUCell(Cell):
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
        bias = (bias_init, bias_metadata)
        self.dense_i = self._dense(in_features, 3, rngs, kernel_init, kernel_metadata, bias)
        self.dense_h = self._dense(hidden_features, 3, rngs, recurrent_kernel_init, recurrent_kernel_metadata, None)

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
        r, z = (self.gate_fn(x + h) for x, h in zip(of_x[:2], of_h[:2], strict=True))
        n = self.activation_fn(of_x[2] + r * of_h[2])
        h = (1.0 - z) * n + z * carry
        return h, h
