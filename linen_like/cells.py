"""Recurrent cells: one step of a recurrent network, from a carry and inputs to the next carry and outputs.

In formulas `x` is the input, `h` the output of the previous step, and `*` multiplies element by element. Parameters are
named after their weights: `ir` for `W_ir` and `b_ir`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from liftcore import nn
from liftcore.errors import Expected, LiftArgumentError
from liftcore.nn import PaddingLike
from liftcore.typing import Array, ArrayLike, Dtype, Initializer, Key, PyTree, Shape

from .convolution import Conv
from .dense import Dense, default_kernel_init
from .dtypes import promote_dtype
from .initializers import ones_init, orthogonal, zeros_init
from .lifecycle.binding import place
from .lifecycle.calling import compact, nowrap
from .lifecycle.fields import options
from .module import Module

__all__ = [
    "ConvLSTMCell",
    "DenseParams",
    "GRUCell",
    "LSTMCell",
    "MGUCell",
    "OptimizedLSTMCell",
    "RNNCellBase",
    "SimpleCell",
]

Activation: TypeAlias = Callable[[Any], Any]


# The functions in default fields are defined here, since those that JAX makes by a call or by `jit` cannot be pickled.
_orthogonal = orthogonal()


def _default_recurrent_init(key: Key, *args: Any, **kwargs: Any) -> Array:
    return _orthogonal(key, *args, **kwargs)


def _sigmoid(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def _tanh(x: Array) -> Array:
    return jnp.tanh(x)


class RNNCellBase(Module):
    """Base of recurrent cells: modules that are called as `cell(carry, inputs)` and return `(carry, outputs)`.

    A cell of your own may carry any pytree. `RNN` runs it over a sequence.

    Example:
        >>> import jax, linen_like as nn
        >>> class Sum(nn.RNNCellBase):
        ...     num_feature_axes = 1
        ...     def __call__(self, carry, inputs):
        ...         return carry + inputs, carry + inputs
        ...     def initialize_carry(self, rng, input_shape):
        ...         return jnp.zeros(input_shape)
        >>> nn.RNN(Sum()).apply({}, jnp.array([[1.0], [2.0], [4.0]]))
        Array([[1.], [3.], [7.]], dtype=float32)
    """

    @nowrap
    def initialize_carry(self, rng: Key, input_shape: Shape) -> PyTree:
        """Make the carry before the first step. Override this in a subclass.

        Args:
            rng: a key, for carries that start with random numbers.
            input_shape: the shape of the inputs of one step, such as `(*batch, features)`.
        """
        fix = "Write it, or pass a carry: `RNN(cell)(inputs, initial_carry=…)`."
        raise LiftArgumentError(
            place(self), "the class defines no `initialize_carry(rng, input_shape)`.", fix, expected="initialize_carry"
        )

    @property
    def num_feature_axes(self) -> int:
        """The number of feature axes of the inputs, after those of the batch. A subclass defines it."""
        fix = "Write `num_feature_axes = 1` in the class; for images, the number of spatial axes plus one."
        raise LiftArgumentError(
            place(self), "the class defines no `num_feature_axes`.", fix, expected="num_feature_axes"
        )


class _Cell(RNNCellBase):
    """A cell whose states have the shape of its inputs, except for the last axis.

    `initialize_carry` gives the last axis the size `features`; a call takes its size from the carry.
    """

    features: int

    @nowrap
    def initialize_carry(self, rng: Key, input_shape: Shape) -> Any:
        """Make the state before the first step, `(*batch, features)`, with `carry_init`."""
        return self.carry_init(rng, _state_shape(self, input_shape), self.param_dtype)

    @property
    def num_feature_axes(self) -> int:
        """One: the features are the last axis."""
        return 1


class _GatedCell(_Cell):
    """The fields of a cell that has one activation function for all gates."""

    gate_fn: Activation = _sigmoid
    activation_fn: Activation = _tanh
    kernel_init: Initializer = default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    bias_init: Initializer = zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = zeros_init()


class _MemoryCell(_Cell):
    """A cell with two states: a memory `c` and the output `h`."""

    @nowrap
    def initialize_carry(self, rng: Key, input_shape: Shape) -> tuple[Array, Array]:
        """Make the pair `(c, h)` before the first step, each with `carry_init`."""
        shape = _state_shape(self, input_shape)
        of_c, of_h = jax.random.split(rng)
        return self.carry_init(of_c, shape, self.param_dtype), self.carry_init(of_h, shape, self.param_dtype)


class _LSTM(_MemoryCell, _GatedCell):
    """The base of both forms of the cell."""

    @compact
    def __call__(self, carry: tuple[Array, Array], inputs: ArrayLike) -> tuple[tuple[Array, Array], Array]:
        """Run one step: maps `(c, h)` and inputs to the next `(c, h)` and to `h`, each `(*batch, features)`.

        Args:
            carry: `(c, h)`, each `(*batch, features)`.
            inputs: `(*batch, in)`.
        """
        _check_pair(self, carry, inputs)
        c, h = carry
        return nn.lstm_step(c, self._sums(inputs, h), self.gate_fn, self.activation_fn)

    @nowrap
    def _sums(self, inputs: ArrayLike, h: Array) -> Sequence[Array]:
        raise NotImplementedError


class LSTMCell(_LSTM):
    """Long short-term memory, with two products for each gate.

        i = σ(W_ii x + W_hi h + b_hi)       c' = f * c + i * g
        f = σ(W_if x + W_hf h + b_hf)       h' = o * tanh(c')
        g = tanh(W_ig x + W_hg h + b_hg)
        o = σ(W_io x + W_ho h + b_ho)

    Source: Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997; with the forget gate of Gers et al., 2000.

    Shapes: the carry is `(c, h)`, each `(*batch, features)`; inputs `(*batch, in)`, outputs `(*batch, features)`.
    Parameters: `ii`, `if`, `ig` and `io` with a `kernel`, `(in, features)`; `hi`, `hf`, `hg` and `ho` with a `kernel`,
    `(features, features)`, and a `bias`, `(features,)`.

    Example:
        >>> import jax
        >>> cell, x = LSTMCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> ((c, h), y), variables = cell.init_with_output(jax.random.key(1), carry, x)
        >>> c.shape, y is h, jax.tree.map(jnp.shape, variables["params"]["hi"])
        ((2, 4), True, {'bias': (4,), 'kernel': (4, 4)})

    Attributes:
        features: the size of each state, and of the outputs.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate and of the memory.
        kernel_init: makes the kernels for inputs.
        recurrent_kernel_init: makes the kernels for the previous output.
        bias_init: makes the biases.
        dtype: the dtype of the products; by default what inputs, states and parameters promote to.
        param_dtype: the dtype of new parameters and of the first carry.
        carry_init: makes each part of the first carry.
    """

    @nowrap
    def _sums(self, inputs: ArrayLike, h: Array) -> list[Array]:
        """Compute the inputs of the activations of the gates and the candidate: `i`, `f`, `g`, `o`."""
        products = _products(self, h, inputs, "ifgo", dict.fromkeys(("hi", "hf", "hg", "ho"), self.bias_init))
        return [of_x + of_h for of_x, of_h in products]


class DenseParams(Module):
    """The parameters of a `Dense` layer, without its product.

    Example:
        >>> import jax
        >>> (kernel, bias), _ = DenseParams(4).init_with_output(jax.random.key(0), jnp.ones((2, 3)))
        >>> kernel.shape, bias.shape
        ((3, 4), (4,))

    Attributes:
        features: the size of the last axis of the result.
        use_bias: whether there is a bias.
        param_dtype: the dtype of new parameters.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        precision: has no effect.
    """

    features: int
    use_bias: bool = True
    param_dtype: Dtype = jnp.float32
    precision: lax.PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()

    @compact
    def __call__(self, inputs: ArrayLike) -> tuple[Array, Array | None]:
        """Return the kernel, and the bias or None, for inputs `(..., in)`."""
        if jnp.ndim(inputs) == 0:
            what = Expected("inputs of shape (..., in)", given="a scalar", words="a scalar")
            raise LiftArgumentError(place(self), what, "Add a dimension: `inputs[None]`.")
        kernel = self.param("kernel", self.kernel_init, (jnp.shape(inputs)[-1], self.features), self.param_dtype)
        return kernel, self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None


class OptimizedLSTMCell(_LSTM):
    """`LSTMCell` with one product for the inputs and one for `h`, instead of eight.

    Parameters are the same, and results are equal up to rounding. It is faster unless `features` is large.

    Example:
        >>> import jax
        >>> x, key = jnp.ones((2, 3)), jax.random.key(0)
        >>> carry = LSTMCell(4).initialize_carry(key, x.shape)
        >>> variables = LSTMCell(4).init(key, carry, x)
        >>> _, y = OptimizedLSTMCell(4).apply(variables, carry, x)
        >>> bool(jnp.allclose(y, LSTMCell(4).apply(variables, carry, x)[1]))
        True

    Attributes:
        features: the size of each state, and of the outputs.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate and of the memory.
        kernel_init: makes the kernels for inputs.
        recurrent_kernel_init: makes the kernels for the previous output.
        bias_init: makes the biases.
        dtype: the dtype of the products; by default what inputs, states and parameters promote to.
        param_dtype: the dtype of new parameters and of the first carry.
        carry_init: makes each part of the first carry.
    """

    @nowrap
    def _sums(self, inputs: ArrayLike, h: Array) -> list[Array]:
        """See `LSTMCell`."""
        params = functools.partial(DenseParams, h.shape[-1], param_dtype=self.param_dtype)
        old = functools.partial(params, kernel_init=self.recurrent_kernel_init, bias_init=self.bias_init)
        of_inputs = [params(False, kernel_init=self.kernel_init, name=f"i{gate}")(inputs) for gate in "ifgo"]
        of_h = [old(name=f"h{gate}")(h) for gate in "ifgo"]
        sums = _side_by_side(self, h, of_h) + _side_by_side(self, inputs, of_inputs)
        return jnp.split(sums, 4, axis=-1)


class GRUCell(_GatedCell):
    """Gated recurrent unit. The reset gate is applied after the product.

        r = σ(W_ir x + b_ir + W_hr h)
        z = σ(W_iz x + b_iz + W_hz h)
        n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
        h' = (1 - z) * n + z * h

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", https://arxiv.org/abs/1406.1078.

    Shapes: the carry is `h`, `(*batch, features)`; inputs are `(*batch, in)`; outputs are the next `h`.
    Parameters: `ir`, `iz` and `in` with a `kernel`, `(in, features)`, and a `bias`, `(features,)`; `hr`, `hz` and `hn`
    with a `kernel`, `(features, features)`; `hn` with a `bias` too.

    Example:
        >>> import jax
        >>> cell, x = GRUCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (h, y), variables = cell.init_with_output(jax.random.key(1), carry, x)
        >>> h.shape, y is h, jax.tree.map(jnp.shape, variables["params"]["hr"])
        ((2, 4), True, {'kernel': (4, 4)})

    Attributes:
        features: the size of each state, and of the outputs.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate state.
        kernel_init: makes the kernels for inputs.
        recurrent_kernel_init: makes the kernels for the previous output.
        bias_init: makes the biases.
        dtype: the dtype of the products; by default what inputs, states and parameters promote to.
        param_dtype: the dtype of new parameters and of the first carry.
        carry_init: makes the first carry.
    """

    @compact
    def __call__(self, carry: Array, inputs: ArrayLike) -> tuple[Array, Array]:
        """Run one step: maps `h` and inputs `(*batch, in)` to the next `h`, twice.

        Args:
            carry: `h`, `(*batch, features)`.
            inputs: `(*batch, in)`.
        """
        _check(self, carry, inputs)
        products = _products(self, carry, inputs, "rzn", dict.fromkeys(("ir", "iz", "in", "hn"), self.bias_init))
        h = nn.gru_step(carry, products, self.gate_fn, self.activation_fn)
        return h, h


class MGUCell(_Cell):
    """A minimal gated unit: a gated recurrent unit with one gate.

        f = σ(W_if x + b_if + W_hf h)
        n = tanh(W_in x + b_in + f * (W_hn h + b_hn))       or, without `reset_gate`, tanh(W_in x + b_in + W_hn h)
        h' = (1 - f) * n + f * h

    Source: Zhou et al., "Minimal Gated Unit for Recurrent Neural Networks", 2016.

    Shapes: those of `GRUCell`.
    Parameters: `if` and `in` with a `kernel`, `(in, features)`, and a `bias`, `(features,)`; `hf` and `hn` with a
    `kernel`, `(features, features)`; `hn` with a `bias` too, if there is a `reset_gate`.

    Example:
        >>> import jax
        >>> cell, x = MGUCell(4, reset_gate=False), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (h, y), variables = cell.init_with_output(jax.random.key(1), carry, x)
        >>> h.shape, y is h, jax.tree.map(jnp.shape, variables["params"]["hn"])
        ((2, 4), True, {'kernel': (4, 4)})

    Attributes:
        features: the size of each state, and of the outputs.
        gate_fn: the activation `σ` of the gate.
        activation_fn: the activation `tanh` of the candidate state.
        kernel_init: makes the kernels for inputs.
        recurrent_kernel_init: makes the kernels for the previous output.
        dtype: the dtype of the products; by default what inputs, states and parameters promote to.
        param_dtype: the dtype of new parameters and of the first carry.
        carry_init: makes the first carry.
        forget_bias_init: makes `b_if`; by default ones, so that the cell starts by remembering (Jozefowicz et al.,
            2015).
        activation_bias_init: makes `b_in` and `b_hn`.
        reset_gate: whether `f` also gates the contribution of `h` to `n`.
    """

    gate_fn: Activation = _sigmoid
    activation_fn: Activation = _tanh
    kernel_init: Initializer = default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    forget_bias_init: Initializer = ones_init()
    activation_bias_init: Initializer = zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = zeros_init()
    reset_gate: bool = True

    @compact
    def __call__(self, carry: Array, inputs: ArrayLike) -> tuple[Array, Array]:
        """Run one step: maps `h` and inputs `(*batch, in)` to the next `h`, twice.

        Args:
            carry: `h`, `(*batch, features)`.
            inputs: `(*batch, in)`.
        """
        _check(self, carry, inputs)
        biases = {"if": self.forget_bias_init, "in": self.activation_bias_init}
        if self.reset_gate:
            biases["hn"] = self.activation_bias_init
        (f_x, f_h), (n_x, n_h) = _products(self, carry, inputs, "fn", biases)
        f = self.gate_fn(f_x + f_h)
        n = self.activation_fn(n_x + (n_h * f if self.reset_gate else n_h))
        h = (1.0 - f) * n + f * carry
        return h, h


class SimpleCell(_Cell):
    """A cell with one activation: `h' = tanh(W_i x + b_i + W_h h)`. With `residual`, `h` is added inside `tanh`.

    Source: Elman, "Finding Structure in Time", 1990; the residual connection is from Kim et al., 2018
    (https://arxiv.org/abs/1801.06105).

    Shapes: those of `GRUCell`.
    Parameters: `i` with a `kernel`, `(in, features)`, and a `bias`, `(features,)`; `h` with a `kernel`,
    `(features, features)`.

    Example:
        >>> import jax
        >>> cell, x = SimpleCell(4), jnp.ones((2, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> (h, y), variables = cell.init_with_output(jax.random.key(1), carry, x)
        >>> h.shape, y is h, jax.tree.map(jnp.shape, variables["params"]["h"])
        ((2, 4), True, {'kernel': (4, 4)})

    Attributes:
        features: the size of each state, and of the outputs.
        activation_fn: the activation `tanh`.
        kernel_init: makes the kernels for inputs.
        recurrent_kernel_init: makes the kernels for the previous output.
        bias_init: makes the bias.
        dtype: the dtype of the products; by default what inputs, states and parameters promote to.
        param_dtype: the dtype of new parameters and of the first carry.
        carry_init: makes the first carry.
        residual: whether to add the previous state to the input of the activation.
    """

    activation_fn: Activation = _tanh
    kernel_init: Initializer = default_kernel_init
    recurrent_kernel_init: Initializer = _default_recurrent_init
    bias_init: Initializer = zeros_init()
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = zeros_init()
    residual: bool = False

    @compact
    def __call__(self, carry: Array, inputs: ArrayLike) -> tuple[Array, Array]:
        """Run one step: maps `h` and inputs `(*batch, in)` to the next `h`, twice.

        Args:
            carry: `h`, `(*batch, features)`.
            inputs: `(*batch, in)`.
        """
        _check(self, carry, inputs)
        [(of_x, of_h)] = _products(self, carry, inputs, [""], {"i": self.bias_init})
        h = of_x + of_h
        h = self.activation_fn(h + carry if self.residual else h)
        return h, h


class ConvLSTMCell(_MemoryCell):
    """`LSTMCell` with convolutions, written `@`, instead of matrix products, and with a forget gate that starts open.

        i = σ(W_ii @ x + W_hi @ h + b_i)            c' = f * c + i * g
        f = σ(W_if @ x + W_hf @ h + b_f + 1)        h' = o * tanh(c')
        g = tanh(W_ig @ x + W_hg @ h + b_g)
        o = σ(W_io @ x + W_ho @ h + b_o)

    Source: Shi et al., "Convolutional LSTM Network", 2015; the 1 in the forget gate is from Jozefowicz et al., 2015.

    Shapes: the carry is `(c, h)`, each `(*batch, *spatial, features)`; inputs are `(*batch, *spatial, in)`; outputs are
    `h`.
    Parameters: `ih` with a `kernel`, `(*kernel_size, in, 4 * features)`, and a `bias`, `(4 * features,)`, in the order
    i, g, f, o; `hh` likewise, with `features` for `in`.

    Example:
        >>> import jax
        >>> cell, x = ConvLSTMCell(4, kernel_size=(2, 2)), jnp.ones((1, 5, 5, 3))
        >>> carry = cell.initialize_carry(jax.random.key(0), x.shape)
        >>> ((c, h), y), variables = cell.init_with_output(jax.random.key(1), carry, x)
        >>> c.shape, y is h, jax.tree.map(jnp.shape, variables["params"]["hh"])
        ((1, 5, 5, 4), True, {'bias': (16,), 'kernel': (2, 2, 4, 16)})

    Attributes:
        features: the size of each state, and of the outputs.
        dtype: the dtype of the products; by default what inputs, states and parameters promote to.
        param_dtype: the dtype of new parameters and of the first carry.
        carry_init: makes each part of the first carry.
        kernel_size: the kernels' size along each spatial axis.
        strides: the step of the window; None means 1. Here and below, one int applies to every axis.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"` (periodic), `"REFLECT"`, `"CAUSAL"` (one axis, only before), an int,
            or for each axis an int or a pair `(low, high)`. The convolutions must keep the spatial sizes.
        use_bias: whether both convolutions have a bias.
    """

    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = None
    padding: PaddingLike = "SAME"
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    carry_init: Initializer = zeros_init()

    @property
    def num_feature_axes(self) -> int:
        """The number of spatial axes plus one."""
        return 2 if isinstance(self.kernel_size, int) else len(self.kernel_size) + 1

    @compact
    def __call__(self, carry: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
        """Run one step: maps `(c, h)` and inputs `(*batch, *spatial, in)` to the next `(c, h)`, and to `h`.

        Args:
            carry: `(c, h)`, each `(*batch, *spatial, features)`.
            inputs: `(*batch, *spatial, in)`.
        """
        _check_pair(self, carry, inputs, memory=self.features)
        c, h = carry
        i, g, f, o = jnp.split(self._convolved("ih", inputs) + self._convolved("hh", h), 4, axis=-1)
        return nn.lstm_step(c, [i, f + 1, g, o], _sigmoid, _tanh)

    @nowrap
    def _convolved(self, name: str, x: Array) -> Array:
        y: Array = Conv(name=name, **options(self, Conv, features=4 * self.features))(x)
        if y.shape[:-1] != x.shape[:-1]:
            raise LiftArgumentError(
                place(self),
                f"the convolution changes the spatial sizes, from shape {x.shape} to {y.shape}, but the states of all "
                "steps must have one shape.",
                'Leave `strides` out, and pass `padding="SAME"`, or pairs that add up to the kernel\'s size minus one.',
                expected=x.shape,
                given=y.shape,
            )
        return y


def _products(
    cell: Any, h: Array, inputs: ArrayLike, gates: Sequence[str], biases: Mapping[str, Initializer]
) -> list[tuple[Array, Array]]:
    """Compute the products of the inputs, and of the state, for each gate, with the biases that are listed."""

    def product(name: str, x: ArrayLike, kernel_init: Initializer) -> Array:
        inits: Any = {"kernel_init": kernel_init, "bias_init": biases.get(name, zeros_init())}
        return Dense(h.shape[-1], name in biases, cell.dtype, cell.param_dtype, **inits, name=name)(x)

    new, old = cell.kernel_init, cell.recurrent_kernel_init
    return [(product(f"i{gate}", inputs, new), product(f"h{gate}", h, old)) for gate in gates]


def _side_by_side(cell: Any, x: ArrayLike, params: Sequence[tuple[Array, Array | None]]) -> Array:
    """Compute the results of several dense layers for the same input with one product."""
    kernel = jnp.concatenate([kernel for kernel, _ in params], axis=-1)
    biases = [bias for _, bias in params if bias is not None]
    x, kernel, bias = promote_dtype(x, kernel, jnp.concatenate(biases) if biases else None, dtype=cell.dtype)
    return nn.affine(x, kernel, bias, where=place(cell))


def _state_shape(cell: _Cell, input_shape: Shape) -> tuple[int, ...]:
    """Return the shape of each state, for inputs of a shape."""
    spatial = cell.num_feature_axes - 1
    if len(input_shape) <= spatial:
        layout = f"(*batch, {spatial} spatial sizes, in)" if spatial else "(*batch, in)"
        what = Expected(f"the inputs of one step, of shape {layout}", given=tuple(input_shape))
        raise LiftArgumentError(place(cell), what, "Add a feature dimension: `inputs[..., None]`.")
    return (*input_shape[:-1], cell.features)


def _check(cell: _Cell, carry: Array, inputs: ArrayLike) -> None:
    """Check that the carry is a state of any width that fits the inputs."""
    expected = _state_shape(cell, jnp.shape(inputs))
    nn.check_carry(place(cell), carry, inputs, expected, _MAKE, fitting=_widened(expected, carry))


def _check_pair(cell: _Cell, carry: tuple[Array, Array], inputs: ArrayLike, memory: int | None = None) -> None:
    """Check that the carry is a pair: `h` has any width, and `c` has the same one, or the width `memory`."""
    expected = _state_shape(cell, jnp.shape(inputs))
    h = _widened(expected, carry[-1]) if isinstance(carry, tuple | list) and carry else expected
    c = h if memory is None else (*expected[:-1], memory)
    nn.check_carry(place(cell), carry, inputs, (expected,) * 2, _MAKE, fitting=(c, h))


_MAKE = "cell.initialize_carry(key, inputs.shape)"


def _widened(expected: Shape, state: Any) -> Shape:
    """Return the shape that a state should have, with the width that this one has."""
    width = getattr(state, "shape", ())[-1:]
    return (*expected[:-1], *width) if width else expected
