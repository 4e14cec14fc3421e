"""Recurrent layers: run a cell over a sequence, in one direction or in both.

The cells themselves are in `cells`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from liftcore import nn
from liftcore.nn import Sequences, flip_sequences
from liftcore.typing import Array, ArrayLike, PyTree, Shape

from ..filterlib import All, Filter
from ..graph.functions import state
from ..objects.module import Module
from ..rnglib.splitting import split_rngs
from ..rnglib.streams import Rngs, RngStream
from ..transforms.loops import Carry, scan
from ..transforms.mapping import StateAxes
from ..variablelib.kinds import RngState
from .parameters import stream_of, wrong_rngs

__all__ = ["RNN", "Bidirectional", "RNNBase", "flip_sequences"]


class RNNBase(Protocol):
    """The type of `Bidirectional`'s two layers: an object that is called like `RNN`."""

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        seq_lengths: ArrayLike | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | RngStream | None = None,
    ) -> Any:
        """Return the outputs, or the last carry and the outputs; see `RNN`."""
        ...


class RNN(Module):
    """Runs a cell over a sequence: `carry, y[t] = cell(carry, x[t])` for each `t`, by `scan`.

    Shapes: inputs `(*batch, time, *features)`, or `(time, *batch, *features)` if `time_major`; outputs have the same
    layout. The attribute `num_feature_axes` of the cell is the number of axes in `features`. Variables: those of the
    cell, below `cell`.

    Sequences in a batch may end early: `seq_lengths`, `(*batch)`, counts their steps, from 0 to all of them. Later
    steps are padding. Padding stays at the end if `reverse`, its outputs are not set to zero, and it changes no carry.

    Example:
        >>> import jax.numpy as jnp, nnx_like as nnx
        >>> layer = nnx.RNN(nnx.LSTMCell(32, 64, rngs=nnx.Rngs(0)), return_carry=True)
        >>> carry, y = layer(jnp.ones((10, 5, 32)))
        >>> y.shape, jax.tree.map(jnp.shape, carry)
        ((10, 5, 64), ((10, 64), (10, 64)))

    Args:
        cell: a cell, such as an `RNNCellBase`.
        time_major: whether time is the first axis, before those of the batch.
        return_carry: whether the result is a pair, the carry after the last step of each sequence and the outputs.
        reverse: whether to run from the last step to the first; outputs are in the order in which they were made.
        keep_order: whether outputs are in the order of the inputs even if `reverse`.
        unroll: the number of iterations in one step of the compiled loop.
        state_axes: for each filter, how `scan` handles variables of the cell: an axis, `Carry`, or None for variables
            that no step writes; see `StateAxes`. By default all are carried, and each step draws new keys.
        broadcast_rngs: a filter of streams of the cell that give the same keys in all steps, and other keys in each
            call, such as `"dropout"` for one mask of a whole sequence.
        rngs: the source of keys for first carries: `Rngs`, whose stream `carry` is forked, or a stream. True means a
            new stream with seed 0; False means the stream that the cell kept, or that the call is given.

    Raises:
        LiftArgumentError: if `cell` is not a cell, or `rngs` has another type.
    """

    @nn.checks_options
    def __init__(
        self,
        cell: Any,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int = 1,
        state_axes: Mapping[Any, Any] | StateAxes | None = None,
        broadcast_rngs: Filter = None,
        rngs: Rngs | RngStream | bool = True,
    ) -> None:
        nn.check_cell(cell, Module, "layer", "nnx.LSTMCell(3, 4, rngs=rngs)", "nnx.RNNCellBase")
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.unroll = unroll
        self.rngs = _kept_stream("RNN", rngs)
        self.state_axes = StateAxes({...: Carry} if state_axes is None else state_axes.items())
        self.broadcast_rngs = broadcast_rngs

    @nn.checks_options
    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: PyTree | None = None,
        seq_lengths: ArrayLike | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | RngStream | None = None,
    ) -> Any:
        """Run the cell over a sequence.

        Args:
            inputs: the sequence.
            initial_carry: the carry before the first step; by default the result of `cell.initialize_carry`.
            seq_lengths: the number of steps of each sequence. Traced lengths are not checked; one beyond the end counts
                as the end.
            return_carry: whether to also return the last carry; used instead of the attribute.
            time_major: whether time is the first axis; used instead of the attribute.
            reverse: whether to run from the last step to the first; used instead of the attribute.
            keep_order: whether the outputs of a reversed run are in the order of the inputs; used instead of the
                attribute.
            rngs: the source of the key for the first carry.

        Raises:
            LiftArgumentError: if the shapes of inputs, carry and lengths do not match.
            CarryTypeError: if the cell changes the type of the carry.
        """
        stream = stream_of("RNN", rngs.carry.fork() if isinstance(rngs, Rngs) else rngs, "carry")

        def make_carry(shape: Shape) -> PyTree:
            return self.cell.initialize_carry(shape, self.rngs if stream is None else stream)

        given: Any = (self, "RNN", inputs, initial_carry, seq_lengths, make_carry, self._loop)
        switches: Any = {"return_carry": return_carry, "time_major": time_major, "reverse": reverse}
        return nn.run_cell(*given, **switches, keep_order=keep_order)

    def _loop(self, time: Sequences, keeps_all: bool, out_axes: Any) -> Callable[..., Any]:
        """Return a function that runs the cell; see `nn.run_cell`."""
        same_keys = All(RngState, self.broadcast_rngs)

        def step(cell: Any, carry: PyTree, x: Array) -> tuple[PyTree, PyTree]:
            kept = [(variable, variable.get_value()) for _, variable in state(cell, (same_keys, None)).flat_state()]
            result = cell(carry, x)
            for variable, value in kept:  # restore the count, so that the next step draws the same keys
                variable.set_value(value)
            return time.step(type(cell).__name__, result, carry, keeps_all)

        state_axes = StateAxes([(same_keys, None), *self.state_axes.items()])
        run = scan(step, in_axes=(state_axes, Carry, time.axis), out_axes=(Carry, out_axes), unroll=self.unroll)
        # A new key for each stream: the same in all steps of a call, but different in the next call.
        splitting: Any = split_rngs(splits=1, only=self.broadcast_rngs, squeeze=True)
        return functools.partial(splitting(run), self.cell)


class Bidirectional(Module):
    """Runs two recurrent layers over a sequence, one from each end, and merges their outputs step by step.

    Source: Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", 1997.

    Shapes: those of `RNN`; by default, the last axis of the outputs holds the features of both directions.
    Variables: those of the layers, below `forward_rnn` and `backward_rnn`.

    Example:
        >>> import jax.numpy as jnp, nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> ahead, back = (nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs)) for _ in range(2))
        >>> nnx.Bidirectional(ahead, back)(jnp.ones((2, 5, 3))).shape
        (2, 5, 8)

    Args:
        forward_rnn: the layer that runs from the first step to the last, such as an `RNN`.
        backward_rnn: the layer that runs from the last step to the first; its outputs are put in the order of the
            inputs.
        merge_fn: called with the outputs of each layer; by default they are concatenated.
        time_major: whether time is the first axis, before those of the batch.
        return_carry: whether to return a pair: both carries, as a pair, and the outputs.
        rngs: the source of keys for both first carries, drawn one after the other: `Rngs`, whose stream `carry` is
            forked, or a stream. True means a new stream with seed 0; False means the streams of the layers.

    Raises:
        LiftArgumentError: if one of the layers cannot be called, or `rngs` has another type.
    """

    @nn.checks_options
    def __init__(
        self,
        forward_rnn: RNNBase,
        backward_rnn: RNNBase,
        *,
        merge_fn: Callable[[Array, Array], Array] = nn.concatenate_features,
        time_major: bool = False,
        return_carry: bool = False,
        rngs: Rngs | RngStream | bool = True,
    ) -> None:
        for name, given in (("forward_rnn", forward_rnn), ("backward_rnn", backward_rnn)):
            nn.check_layer(f"Bidirectional, {name}", given, "layer", "nnx.RNN(cell)")
        self.forward_rnn = forward_rnn
        self.backward_rnn = backward_rnn
        self.merge_fn = merge_fn
        self.time_major = time_major
        self.return_carry = return_carry
        self.rngs = _kept_stream("Bidirectional", rngs)

    @nn.checks_options
    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: tuple[PyTree, PyTree] | None = None,
        rngs: Rngs | RngStream | None = None,
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
            rngs: used instead of the attribute, if given.
            seq_lengths: the number of steps of each sequence.
            return_carry: whether to also return the last carries; used instead of the attribute.
            time_major: whether time is the first axis; used instead of the attribute.
            reverse: must not be True, since both directions are run.
            keep_order: must not be False, since outputs of both directions are merged step by step.

        Raises:
            LiftArgumentError: if `initial_carry` is not a pair, `reverse` is True, or `keep_order` is False.
        """
        first, second = Sequences.pair("Bidirectional", initial_carry, reverse, keep_order)
        self._warn_if_shared()
        return_carry = self.return_carry if return_carry is None else return_carry
        options: Any = {
            "rngs": self.rngs if rngs is None else stream_of("Bidirectional", rngs, "carry"),
            "seq_lengths": seq_lengths,
            "return_carry": return_carry,
            "time_major": self.time_major if time_major is None else time_major,
        }
        ahead = self.forward_rnn(inputs, initial_carry=first, reverse=False, **options)
        back = self.backward_rnn(inputs, initial_carry=second, reverse=True, keep_order=True, **options)
        if not return_carry:
            return jax.tree.map(self.merge_fn, ahead, back)
        return (ahead[0], back[0]), jax.tree.map(self.merge_fn, ahead[1], back[1])

    def _warn_if_shared(self) -> None:
        if self.forward_rnn is self.backward_rnn:
            warnings.warn(
                "forward_rnn and backward_rnn are the same object, so both directions share their parameters.",
                UserWarning,
                stacklevel=3,
            )


def _kept_stream(where: str, rngs: Any) -> RngStream | None:
    """Return the stream that a layer keeps."""
    if isinstance(rngs, bool):
        return RngStream(0, tag="carry") if rngs else None
    if isinstance(rngs, RngStream):
        return rngs
    if isinstance(rngs, Rngs):
        return rngs.carry.fork()
    raise wrong_rngs(where, rngs, "an Rngs, an RngStream or a bool", "Pass `rngs=nnx.Rngs(0)`, or leave it out.")
