"""Recurrent layers: the equations of cells, and the run of a cell over a batch of sequences of different lengths.

Everything after the end of a sequence is padding. It stays where it is.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import CarryTypeError, Expected, LiftArgumentError
from ..typing import Array, ArrayLike, PyTree, Shape
from .layer import checks_options
from .sharding import gather, is_sharded, on_auto_axes, place, shard_like, sharding_entries, to_spec

__all__ = [
    "Sequences",
    "check_carry",
    "check_cell",
    "check_layer",
    "concatenate_features",
    "flip_sequences",
    "gru_step",
    "lstm_step",
    "run_cell",
]

Activation: TypeAlias = Callable[..., Array]


def concatenate_features(ahead: Array, back: Array) -> Array:
    """Return the outputs of both directions of a bidirectional layer side by side, on the last axis.

    Example:
        >>> concatenate_features(jnp.ones((2, 3)), jnp.zeros((2, 3))).shape
        (2, 6)

    Args:
        ahead: the outputs of the layer that runs from the first step to the last.
        back: those of the layer that runs from the last step to the first.
    """
    return jnp.concatenate([ahead, back], axis=-1)


def lstm_step(
    c: Array, sums: Sequence[Array], gate_fn: Activation, activation_fn: Activation
) -> tuple[tuple[Array, Array], Array]:
    """Run one step of long short-term memory: `c' = σ(f) * c + σ(i) * tanh(g)`, `h' = σ(o) * tanh(c')`.

    Example:
        >>> zero = jnp.zeros(())
        >>> (c, h), y = lstm_step(jnp.ones(()), [zero] * 4, jax.nn.sigmoid, jnp.tanh)
        >>> float(c), round(float(h), 2)  # each gate is half open
        (0.5, 0.23)

    Args:
        c: the memory.
        sums: `i`, `f`, `g` and `o` before their activations.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate and of the memory.

    Returns:
        The next carry, `(c', h')`, and the output, `h'`.
    """
    i, f, g, o = sums
    c = gate_fn(f) * c + gate_fn(i) * activation_fn(g)
    h = gate_fn(o) * activation_fn(c)
    return (c, h), h


def gru_step(
    h: Array, products: Iterable[tuple[Array, Array]], gate_fn: Activation, activation_fn: Activation
) -> Array:
    """Run one step of a gated recurrent unit: `h' = (1 - z) * n + z * h`.

        r = σ(r_x + r_h)        z = σ(z_x + z_h)        n = tanh(n_x + r * n_h)

    Args:
        h: the state.
        products: for each of `r`, `z` and `n`, the products of the weights with the inputs and with the state.
        gate_fn: the activation `σ` of the gates.
        activation_fn: the activation `tanh` of the candidate.
    """
    (r_x, r_h), (z_x, z_h), (n_x, n_h) = products
    r, z = gate_fn(r_x + r_h), gate_fn(z_x + z_h)
    n = activation_fn(n_x + r * n_h)
    return (1.0 - z) * n + z * h


def check_carry(where: str, carry: PyTree, inputs: ArrayLike, expected: Any, make: str, fitting: Any = None) -> None:
    """Check that the states of a carry fit the inputs; they are not broadcast.

    Args:
        where: the cell, for errors.
        carry: the carry that was given.
        inputs: the inputs of one step.
        expected: a pytree of the shapes of the states.
        make: how to make such a carry, for errors.
        fitting: the shapes to compare with, if the error should name others.

    Raises:
        LiftArgumentError: if they do not fit.
    """
    given = jax.tree.map(jnp.shape, tuple(carry) if isinstance(carry, list) else carry)
    if given != (fitting or expected):
        raise LiftArgumentError(
            where,
            Expected(f"a carry of shape {expected} for inputs of shape {jnp.shape(inputs)}", given=given),
            f"Make it with `{make}`; for a sequence, leave out the time axis.",
        )


def check_layer(where: str, layer: Any, kind: str, example: str, module: type | None = None) -> None:
    """Check that an argument is a layer.

    Args:
        where: the argument, for errors.
        layer: its value.
        kind: what users call a layer, for errors.
        example: how to make one, for errors.
        module: the class that it must be an instance of; by default, any object that can be called will do.

    Raises:
        LiftArgumentError: if it is none.
    """
    if not (callable(layer) and not isinstance(layer, type) if module is None else isinstance(layer, module)):
        raise LiftArgumentError(where, Expected(f"a {kind}", given=layer), f"Pass one, such as `{example}`.")


def check_cell(cell: Any, module: type, kind: str, example: str, base: str) -> None:
    """Check the cell that a layer is to run over a sequence.

    Args:
        cell: the cell that was given.
        module: the class of all modules of this style.
        kind: what users call a layer, for errors.
        example: how to make a cell, for errors.
        base: the base class of cells, for errors.

    Raises:
        LiftArgumentError: if it is no module, or lacks `num_feature_axes`.
    """
    check_layer("RNN, cell", cell, kind, example, module)
    if not (hasattr(type(cell), "num_feature_axes") or "num_feature_axes" in vars(cell)):
        raise LiftArgumentError(
            "RNN, cell",
            Expected("an RNNCellBase, or another module with `num_feature_axes`", given=cell),
            f"Pass a cell, such as `{example}`; derive a cell of your own from `{base}`.",
        )


def run_cell(
    layer: Any,
    where: str,
    inputs: Array,
    initial_carry: PyTree | None,
    seq_lengths: ArrayLike | None,
    make_carry: Callable[[Shape], PyTree],
    loop: Callable[[Sequences, bool, Any], Callable[[PyTree, Array], Any]],
    **switches: bool | None,
) -> Any:
    """Run a cell over a batch of sequences, as the attributes of a recurrent layer say.

    Args:
        layer: an object with the attribute `cell`, and with one for each of the `switches`.
        where: the layer, for errors.
        inputs: the sequences.
        initial_carry: the carry before the first step; None means a new one.
        seq_lengths: the number of steps of each sequence.
        make_carry: makes a new carry, from the shape of the inputs of one step.
        loop: called as `loop(sequences, keeps_all, out_axes)`; returns a function of a carry and the inputs that scans
            over the time axis, and that returns from each iteration what `Sequences.step` returns.
        switches: `return_carry`, `time_major`, `reverse` and `keep_order`, each used instead of the attribute unless
            it is None.
    """
    chosen = {name: getattr(layer, name) if given is None else given for name, given in switches.items()}
    time = Sequences.of_inputs(where, inputs, layer.cell.num_feature_axes, chosen["time_major"], seq_lengths)
    carry = initial_carry
    if carry is None:
        carry = make_carry((*inputs.shape[: time.axis], *inputs.shape[time.axis + 1 :]))
        carry = time.first(carry, inputs)
    # Stacking all carries and picking the last one of each sequence later costs less than choosing in each step.
    keeps_all = chosen["return_carry"] and time.lengths is not None
    run = loop(time, keeps_all, (0, time.axis) if keeps_all else time.axis)
    with time.noting(initial_carry is None):
        last, outputs = run(carry, time.whole(time.flip(inputs) if chosen["reverse"] else inputs))
    if keeps_all:
        carries, outputs = outputs
        last = time.last(carry, carries)
    if chosen["reverse"] and chosen["keep_order"]:
        outputs = jax.tree.map(time.flip, outputs)
    return (last, outputs) if chosen["return_carry"] else outputs


@checks_options
def flip_sequences(inputs: Array, seq_lengths: ArrayLike | None, num_batch_dims: int, time_major: bool) -> Array:
    """Reverse sequences; the padding stays after them.

    Example:
        >>> flip_sequences(jnp.array([[1, 2, 3], [4, 5, 0]]), jnp.array([3, 2]), num_batch_dims=1, time_major=False)
        Array([[3, 2, 1],
               [5, 4, 0]], dtype=int32)

    Args:
        inputs: `(*batch, time, ...)`, or `(time, *batch, ...)` if `time_major`.
        seq_lengths: the number of steps of each sequence, `(*batch)`; None means that there is no padding.
        num_batch_dims: the number of batch axes.
        time_major: whether time is the first axis.

    Raises:
        LiftArgumentError: if the inputs have no such axes, or the lengths have another shape.
    """
    if jnp.ndim(inputs) <= num_batch_dims:
        raise LiftArgumentError(
            "flip_sequences",
            Expected(f"inputs with {num_batch_dims} batch axes and one of time", given=jnp.shape(inputs)),
            "Pass `num_batch_dims`, the number of axes of `seq_lengths`.",
        )
    return Sequences.of("flip_sequences", jnp.shape(inputs), num_batch_dims, time_major, seq_lengths).flip(inputs)


class Sequences(NamedTuple):
    """The time axis of a batch of sequences, and their numbers of steps; made by `Sequences.of`.

    Example:
        >>> x = jnp.array([[1, 2, 3], [4, 5, 0]])
        >>> sequences = Sequences.of("rnn", x.shape, batch_axes=1, time_major=False, seq_lengths=[3, 2])
        >>> sequences.flip(x)
        Array([[3, 2, 1],
               [5, 4, 0]], dtype=int32)
        >>> sequences.last(jnp.zeros(2, int), jnp.cumsum(x, axis=1).T)
        Array([6, 9], dtype=int32)

    Attributes:
        where: the layer, for errors.
        axis: the time axis.
        steps: its size.
        batch: the sizes of the batch.
        lengths: the steps of each sequence, `(*batch)`; None if all sequences have all steps.
    """

    where: str
    axis: int
    steps: int
    batch: tuple[int, ...]
    lengths: Array | None

    @classmethod
    def of(
        cls, where: str, shape: Shape, batch_axes: int, time_major: bool, seq_lengths: ArrayLike | None
    ) -> Sequences:
        """Read the shape of the inputs, and check the lengths.

        Args:
            where: the layer, for errors.
            shape: the shape of the inputs, `(*batch, time, ...)`, or `(time, *batch, ...)` if `time_major`.
            batch_axes: the number of batch axes.
            time_major: whether time is the first axis.
            seq_lengths: the number of steps of each sequence, `(*batch)`; None means all of them. Traced lengths are
                not checked; one beyond the end counts as the end.

        Raises:
            LiftArgumentError: if the lengths are not integers of that shape, or exceed the number of steps.
        """
        axis, first = (0, 1) if time_major else (batch_axes, 0)
        time = cls(where, axis, shape[axis], tuple(shape[first : first + batch_axes]), None)
        return time if seq_lengths is None else time._replace(lengths=time._checked(jnp.asarray(seq_lengths)))

    @classmethod
    def of_inputs(
        cls, where: str, inputs: Any, feature_axes: int, time_major: bool, seq_lengths: ArrayLike | None
    ) -> Sequences:
        """Check the inputs of a recurrent layer, and read their shape.

        Args:
            where: the layer, for errors.
            inputs: the sequences, `(*batch, time, *features)`, or `(time, *batch, *features)` if `time_major`.
            feature_axes: the number of feature axes.
            time_major: whether time is the first axis.
            seq_lengths: the number of steps of each sequence; see `Sequences.of`.

        Raises:
            LiftArgumentError: if the inputs have no such axes, or the lengths do not match.
        """
        if not hasattr(inputs, "shape") or len(inputs.shape) <= feature_axes:
            sizes = "features" if feature_axes == 1 else f"{feature_axes} sizes of features"
            layout = f"(time, *batch, {sizes})" if time_major else f"(*batch, time, {sizes})"
            raise LiftArgumentError(
                where,
                Expected(f"an array of shape {layout}", given=getattr(inputs, "shape", inputs)),
                "For a single step call the cell; for a sequence of numbers add a feature axis: `inputs[..., None]`.",
            )
        return cls.of(where, inputs.shape, len(inputs.shape) - feature_axes - 1, time_major, seq_lengths)

    def _checked(self, lengths: Array) -> Array:
        if lengths.shape != self.batch or not jnp.issubdtype(lengths.dtype, jnp.integer):
            raise LiftArgumentError(
                self.where,
                Expected(
                    f"seq_lengths to be integers of shape {self.batch}, one for each sequence of the batch",
                    given=lengths,
                ),
                f"Count the steps of each sequence; time is axis {self.axis} of the inputs, according to `time_major`.",
            )
        if not isinstance(lengths, jax.core.Tracer):  # traced lengths cannot be checked, so they are clipped
            wrong = np.asarray(lengths)[(np.asarray(lengths) < 0) | (np.asarray(lengths) > self.steps)]
            if wrong.size:
                raise LiftArgumentError(
                    self.where,
                    f"seq_lengths has {wrong[0]}, but the inputs have {self.steps} steps along axis {self.axis}.",
                    "Count the steps of each sequence, from 0 to all of them; `time_major` sets the time axis.",
                    option="seq_lengths",
                    given=int(wrong[0]),
                    expected=self.steps,
                )
        return jnp.clip(lengths.astype(int), 0, self.steps)

    def flip(self, array: Array) -> Array:
        """Reverse an array that has this time axis, from the last step of each sequence to its first.

        Args:
            array: an array with the time axis of the sequences.
        """
        if self.lengths is None:
            return jnp.flip(array, self.axis)
        descending = jnp.arange(self.steps - 1, -1, -1)
        others = [axis for axis in range(len(self.batch) + 1) if axis != self.axis]
        index = jnp.expand_dims(descending, others) + jnp.expand_dims(self.lengths, self.axis)
        return _picked(array, _with_axes(index % self.steps, array.ndim), self.axis)

    def whole(self, array: Array) -> Array:
        """Return an array with all steps on each device, as a loop over the steps needs it.

        Args:
            array: an array with the same time axis.
        """
        return gather(array, [self.axis])

    def first(self, carry: PyTree, inputs: Array) -> PyTree:
        """Shard the batch of a new carry like that of the inputs; arrays that are already sharded are unchanged.

        Args:
            carry: arrays that begin with the batch.
            inputs: the sequences.
        """
        if not is_sharded(inputs) or is_sharded(carry):
            return carry
        n = len(self.batch)
        entries = [entry for axis, entry in enumerate(sharding_entries(inputs)) if axis != self.axis][:n]

        fit = jax.tree.map(lambda leaf: jnp.shape(leaf)[:n] == self.batch, carry)
        return jax.tree.map(lambda leaf, fits: place(leaf, entries, inputs) if fits else leaf, carry, fit)

    @staticmethod
    def kept(carry: PyTree, before: PyTree) -> PyTree:
        """Shard a carry like the one before it; one of another structure or shape, which is an error, is unchanged.

        Args:
            carry: the new carry.
            before: the carry before it.
        """
        if not is_sharded(carry, before) or jax.tree.map(jnp.shape, carry) != jax.tree.map(jnp.shape, before):
            return carry
        return jax.tree.map(shard_like, carry, before)

    def step(self, where: str, result: Any, before: PyTree, keeps_all: bool) -> tuple[PyTree, PyTree]:
        """Check the result of one step of a cell, and return the carry and what is stacked along the time axis.

        Args:
            where: the cell, for errors.
            result: what the cell returned.
            before: the carry that it was given.
            keeps_all: whether the carries of all steps are stacked as well, to pick the last one of each sequence.

        Raises:
            LiftArgumentError: if the result is not a pair, or an output lacks the batch axes before the time axis.
        """
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise LiftArgumentError(
                where,
                Expected("the cell to return a pair, `(carry, outputs)`", given=result),
                "Write `return carry, outputs`.",
            )
        carry, y = self.kept(result[0], before), result[1]
        short = [jnp.shape(leaf) for leaf in jax.tree.leaves(y) if jnp.ndim(leaf) < self.axis]
        if short:
            raise LiftArgumentError(
                where,
                f"its outputs are stacked along axis {self.axis}, after the batch axes, but one has shape {short[0]}.",
                "Return outputs with the batch axes, or run it with `time_major=True`.",
                option="time_major",
                given=short[0],
            )
        return carry, (carry, y) if keeps_all else y

    @staticmethod
    @contextlib.contextmanager
    def noting(made_by_cell: bool) -> Iterator[None]:
        """Return a `with` block in which an error about the type of the carry says where the first one is from.

        Args:
            made_by_cell: whether the cell made the first carry, and not the user.
        """
        try:
            yield
        except CarryTypeError as error:
            if made_by_cell:
                error.add_note(_OWN_CARRY)
            raise

    @staticmethod
    def pair(where: str, initial_carry: PyTree, reverse: bool | None, keep_order: bool | None) -> tuple[PyTree, PyTree]:
        """Return the first carries of a layer that runs in both directions, each None by default.

        Args:
            where: the layer, for errors.
            initial_carry: a pair of carries, or None.
            reverse: the argument of that name, which must not be True.
            keep_order: the argument of that name, which must not be False.

        Raises:
            LiftArgumentError: if `initial_carry` is not a pair, `reverse` is True, or `keep_order` is False.
        """
        what: Any
        if initial_carry is not None and not (isinstance(initial_carry, tuple | list) and len(initial_carry) == 2):
            option, what = "initial_carry", Expected("a pair", given=initial_carry)
            fix = "Pass a carry for each direction: `(forward, backward)`."
        elif reverse:
            option, what = "reverse", "it was called with `reverse=True`, but it already runs in both directions."
            fix = "Leave it out, or swap `forward_rnn` and `backward_rnn`."
        elif keep_order is False:
            option, fix = "keep_order", "Leave it out."
            what = "it was called with `keep_order=False`, but merges the outputs of both directions step by step."
        else:
            return (None, None) if initial_carry is None else (initial_carry[0], initial_carry[1])
        raise LiftArgumentError(where, what, fix, option=option)

    def last(self, initial: PyTree, history: PyTree) -> PyTree:
        """Return the carry after the last step of each sequence.

        Args:
            initial: the carry before the first step, which is kept for a sequence without steps.
            history: the carries after each step, stacked along the first axis.
        """
        if self.steps == 0:
            return initial
        return jax.tree.map(self._last, initial, history)

    def _last(self, initial: Array, history: Array) -> Array:
        if history.shape[1 : len(self.batch) + 1] != self.batch:
            raise LiftArgumentError(
                self.where,
                f"with seq_lengths the last carry is chosen for each sequence, but a part of the carry has shape "
                f"{history.shape[1:]}, which does not begin with the shape of the batch, {self.batch}.",
                "Carry an array for each sequence, or leave out `return_carry` or `seq_lengths`.",
                option="seq_lengths",
                given=history.shape[1:],
                expected=self.batch,
            )
        lengths = _with_axes(self.lengths, history.ndim - 1)
        found = _picked(history, jnp.maximum(lengths - 1, 0)[None], 0)[0]
        return jnp.where(lengths > 0, found, initial)


_OWN_CARRY = (
    "The cell's `initialize_carry` made the first carry; a cell of this library uses `param_dtype` for it. "
    "The products have the dtype `dtype`: pass the same dtype for both, or cast the inputs."
)


def _picked(array: Array, index: Array, axis: int) -> Array:
    pick = functools.partial(jnp.take_along_axis, axis=axis)
    return on_auto_axes(pick, to_spec(*sharding_entries(array)), array, index)


def _with_axes(array: Any, ndim: int) -> Array:
    """Add axes to an array after its own."""
    return jnp.reshape(array, (*array.shape, *(1,) * (ndim - array.ndim)))
