"""Recurrent layers: run a cell over a sequence, in one direction or in both.

The cells themselves are in `cells`; their names are available here, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import jax

from liftcore import FrozenDict, nn
from liftcore.nn import Sequences, flip_sequences
from liftcore.typing import Array, ArrayLike, Filter, InOutAxes, Key, PyTree, Shape

from .cells import (
    ConvLSTMCell,
    DenseParams,
    GRUCell,
    LSTMCell,
    MGUCell,
    OptimizedLSTMCell,
    RNNCellBase,
    SimpleCell,
)
from .lifecycle.binding import place
from .lifecycle.fields import options
from .module import Module
from .transforms.control_flow import scan

__all__ = [
    "RNN",
    "Bidirectional",
    "Carry",
    "CarryHistory",
    "ConvLSTMCell",
    "DenseParams",
    "GRUCell",
    "LSTMCell",
    "MGUCell",
    "OptimizedLSTMCell",
    "RNNBase",
    "RNNCellBase",
    "SimpleCell",
    "flip_sequences",
]


Carry: TypeAlias = Any
"""Type: the carry of a cell, a pytree of arrays."""

CarryHistory: TypeAlias = Any
"""Type: the carries of all steps, stacked."""


class RNNBase(Protocol):
    """The type of `Bidirectional`'s two layers: a module that is called like `RNN`."""

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        init_key: Key | None = None,
        seq_lengths: ArrayLike | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Return the outputs, or the last carry and the outputs; see `RNN`."""
        ...


class RNN(Module):
    """Runs a cell over a sequence: `carry, y[t] = cell(carry, x[t])` for each `t`, by `nn.scan`.

    Shapes: inputs `(*batch, time, *features)`, or `(time, *batch, *features)` if `time_major`; outputs have the same
    layout. The attribute `num_feature_axes` of the cell is the number of axes in `features`.
    Parameters: those of the cell, below `cell`.

    Sequences in a batch may end early: `seq_lengths`, `(*batch)`, counts their steps, from 0 to all of them. Later
    steps are padding. Padding stays at the end if `reverse`, its outputs are not set to zero, and it changes no carry.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((10, 50, 32))
        >>> (carry, y), variables = RNN(LSTMCell(64), return_carry=True).init_with_output(jax.random.key(0), x)
        >>> y.shape, jax.tree.map(jnp.shape, carry)
        ((10, 50, 64), ((10, 64), (10, 64)))

    Attributes:
        cell: a cell, such as an `RNNCellBase`.
        time_major: whether time is the first axis, before those of the batch.
        return_carry: whether the result is a pair, the carry after the last step of each sequence and the outputs.
        reverse: whether to run from the last step to the first; outputs are in the order in which they were made.
        keep_order: whether outputs are in the order of the inputs even if `reverse`.
        unroll: the number of iterations in one step of the compiled loop; True for all of them.
        variable_axes: maps filters of stacked variables to axes: an int, or `In`, `Out`, `InOut`, `InPlace`.
        variable_broadcast: a filter of the shared variables.
        variable_carry: a filter of the carried variables.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams. A cell with dropout needs `split_rngs={"params": False, "dropout": True}`, one with statistics
            `variable_carry="batch_stats"`.
    """

    cell: RNNCellBase
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int = 1
    variable_axes: Mapping[Any, InOutAxes] = FrozenDict()
    variable_broadcast: Filter = "params"
    variable_carry: Filter = False
    split_rngs: Mapping[Any, bool] = FrozenDict({"params": False})

    def __post_init__(self) -> None:
        nn.check_cell(self.cell, Module, "module", "LSTMCell(features)", "RNNCellBase")
        super().__post_init__()

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        init_key: Key | None = None,
        seq_lengths: ArrayLike | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Run the cell over a sequence.

        Args:
            inputs: the sequence.
            initial_carry: the carry before the first step; by default the result of `cell.initialize_carry`.
            init_key: the key for `cell.initialize_carry`; by default `jax.random.key(0)`.
            seq_lengths: the number of steps of each sequence. Traced lengths are not checked; one beyond the end counts
                as the end.
            return_carry: whether to also return the last carry; used instead of the attribute, if given.
            time_major: whether time is the first axis; used instead of the attribute, if given.
            reverse: whether to run from the last step to the first; used instead of the attribute, if given.
            keep_order: whether the outputs of a reversed run are in the order of the inputs; used instead of the
                attribute, if given.

        Raises:
            LiftArgumentError: if the shapes of inputs, carry and lengths do not match.
            CarryTypeError: if the cell changes the type of the carry.
        """

        def make_carry(shape: Shape) -> PyTree:
            return self.cell.initialize_carry(jax.random.key(0) if init_key is None else init_key, shape)

        def loop(time: Sequences, keeps_all: bool, out_axes: Any) -> Callable[..., Any]:
            def step(cell: Any, carry: PyTree, x: Array) -> tuple[PyTree, PyTree]:
                return time.step(place(cell), cell(carry, x), carry, keeps_all)

            run = scan(step, in_axes=time.axis, out_axes=out_axes, **options(self, scan, reverse=False))
            return functools.partial(run, self.cell)

        given: Any = (self, place(self), inputs, initial_carry, seq_lengths, make_carry, loop)
        switches: Any = {"return_carry": return_carry, "time_major": time_major, "reverse": reverse}
        return nn.run_cell(*given, **switches, keep_order=keep_order)


class Bidirectional(Module):
    """Runs two recurrent layers over a sequence, one from each end, and merges their outputs step by step.

    Source: Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", 1997.

    Parameters: those of the layers, below `forward_rnn` and `backward_rnn`; if both are the same module, they share
    them.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((2, 5, 3))
        >>> layer = Bidirectional(RNN(GRUCell(4)), RNN(GRUCell(4)))
        >>> y, variables = layer.init_with_output(jax.random.key(0), x)
        >>> y.shape, list(variables["params"])
        ((2, 5, 8), ['forward_rnn', 'backward_rnn'])

    Attributes:
        forward_rnn: the layer that runs from the first step to the last, such as an `RNN`.
        backward_rnn: the layer that runs from the last step to the first; its outputs are put in the order of the
            inputs.
        merge_fn: called with the outputs of each layer; by default they are concatenated.
        time_major: whether time is the first axis, before those of the batch.
        return_carry: whether to return a pair: both carries, as a pair, and the outputs.
    """

    forward_rnn: RNNBase
    backward_rnn: RNNBase
    merge_fn: Callable[[Array, Array], Array] = nn.concatenate_features
    time_major: bool = False
    return_carry: bool = False

    def __post_init__(self) -> None:
        for name in ("forward_rnn", "backward_rnn"):
            nn.check_layer(f"Bidirectional, {name}", getattr(self, name), "module", "RNN(cell)")
        super().__post_init__()

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        init_key: Key | None = None,
        seq_lengths: ArrayLike | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Run both layers.

        Args:
            inputs: the sequence.
            initial_carry: a pair of carries before the first step, of `forward_rnn` and of `backward_rnn`.
            init_key: split into a key for each layer, if given.
            seq_lengths: the number of steps of each sequence, `(*batch)`; later steps are padding.
            return_carry: whether to also return the last carries; used instead of the attribute, if given.
            time_major: whether time is the first axis; used instead of the attribute, if given.
            reverse: must not be True, since both directions are run.
            keep_order: must not be False, since outputs of both directions are merged step by step.

        Raises:
            LiftArgumentError: if `initial_carry` is not a pair, `reverse` is True, or `keep_order` is False.
        """
        first, second = Sequences.pair(place(self), initial_carry, reverse, keep_order)
        return_carry = self.return_carry if return_carry is None else return_carry
        keys = (None, None) if init_key is None else jax.random.split(init_key)
        options: Any = {
            "seq_lengths": seq_lengths,
            "return_carry": return_carry,
            "time_major": self.time_major if time_major is None else time_major,
        }
        ahead = self.forward_rnn(inputs, initial_carry=first, init_key=keys[0], reverse=False, **options)
        back = self.backward_rnn(
            inputs, initial_carry=second, init_key=keys[1], reverse=True, keep_order=True, **options
        )
        if not return_carry:
            return jax.tree.map(self.merge_fn, ahead, back)
        return (ahead[0], back[0]), jax.tree.map(self.merge_fn, ahead[1], back[1])
