"""Recurrent layers against the plain loop over each sequence; their runs, their modules, and mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore.filters import All, Not, PathContains
from linen_like.errors import CarryTypeError, LiftArgumentError, LiftError, ScopeParamShapeError, UnliftedStreamError
from linen_like.recurrent import flip_sequences
from tests.layers.bits import quick
from tests.layers.row import array
from tests.layers.rows.recurrent import WAVES
from tests.linen.lifted import KEY, assert_close, assert_same, element, shapes

SEQUENCES = array(2, 3, 4)


def ignore(_: Any) -> None:
    """Notes nothing."""


class Leak(nn.RNNCellBase):
    """Halves what it carries, adds the input, and notes that it ran; outputs and carries are pytrees."""

    num_feature_axes = 1
    note: Callable[[Any], None] = ignore

    def __call__(self, carry: Any, x: Any) -> Any:
        self.note(None)
        h = carry["h"] / 2 + x
        return {"h": h, "steps": carry["steps"] + 1}, {"y": h, "sum": h.sum(-1)}

    @nn.nowrap
    def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
        return {"h": jnp.ones(input_shape), "steps": jnp.zeros(input_shape[:-1], int)}


def looped(x: Any, length: int, reverse: bool, keep_order: bool) -> Any:
    """The carry and the outputs for one sequence, `(time, features)`; padding is run over too, and changes no carry."""
    order = [*reversed(range(length)), *reversed(range(length, len(x)))] if reverse else range(len(x))
    h, last, outputs = np.ones(x.shape[1:], np.float32), np.ones(x.shape[1:], np.float32), []
    for number, step in enumerate(order):
        h = h / 2 + x[step]
        outputs.append(h)
        last = h if number < length else last
    if reverse and keep_order:
        outputs = [outputs[order.index(step)] for step in range(len(x))]  # type: ignore[attr-defined]
    y = np.stack(outputs) if outputs else np.zeros(x.shape, np.float32)
    return {"h": last, "steps": np.int32(length)}, {"y": y, "sum": y.sum(-1)}


SIZES = [(), (2,), (2, 2), (0,)]


@pytest.mark.parametrize("batch", SIZES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_layer_is_the_loop_over_each_sequence(batch: tuple[int, ...], steps: int) -> None:
    x = array(*batch, steps, 3)
    lengths = np.resize([steps, 0, 2, 1], batch).astype(int)
    options = list(itertools.product([False, True], repeat=4))

    def runs(x: Any, lengths: Any) -> Any:
        layer, found = nn.RNN(Leak(), return_carry=True), []
        for time_major, reverse, keep_order, padded in options:
            given = jnp.moveaxis(x, len(batch), 0) if time_major else x
            call = {"time_major": time_major, "reverse": reverse, "keep_order": keep_order}
            carry, y = layer.apply({}, given, **call, seq_lengths=lengths if padded else None)
            found.append((carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, len(batch)), y) if time_major else y))
        return found

    found = quick(runs)(x, lengths)
    for (_, reverse, keep_order, padded), (carry, y) in zip(options, found, strict=True):
        assert shapes((carry, y)) == ({"h": (*batch, 3), "steps": batch}, {"y": x.shape, "sum": x.shape[:-1]})
        for place in np.ndindex(batch):
            length = min(int(lengths[place]), steps) if padded else steps
            expected = looped(x[place], length, reverse, keep_order)
            own = jax.tree.map(lambda leaf, place=place: np.asarray(leaf)[place], (carry, y))
            if not padded:
                expected[0]["steps"], own[0]["steps"] = 0, 0  # the counts of a batch are those of its steps
            assert_close(own, expected)


def test_time_after_any_number_of_steps_counts() -> None:
    """Where only the run can tell, a length beyond the end is that of the whole sequence, and one below 0 of none."""
    x = array(2, 3, 2)
    layer = nn.RNN(Leak(), return_carry=True, reverse=True)

    def both(x: Any, *lengths: Any) -> Any:
        return [layer.apply({}, x, seq_lengths=given) for given in lengths]

    assert_same(*quick(both)(x, jnp.array([100, -1], jnp.int8), jnp.array([3, 0], jnp.int8)))


@pytest.mark.parametrize(("lengths", "wrong"), [([3, 4], 4), ([-1, 2], -1), ([0, 100], 100)])
def test_lengths_that_no_sequence_has_are_told_of(lengths: Any, wrong: int) -> None:
    x = array(2, 3, 2)
    layer = nn.Bidirectional(nn.RNN(nn.LSTMCell(2)), nn.RNN(nn.LSTMCell(2)))
    for run in (nn.RNN(Leak()), layer):
        with pytest.raises(
            LiftArgumentError, match=rf"seq_lengths has {wrong}, but the inputs have 3 steps along axis 1"
        ):
            run.init(KEY, x, seq_lengths=np.array(lengths))
    with pytest.raises(LiftArgumentError, match="flip_sequences: seq_lengths has"):
        flip_sequences(x, jnp.array(lengths), 1, False)
    assert layer.init_with_output(KEY, x, seq_lengths=np.array([0, 3]))[0].shape == (2, 3, 4)


def test_flipping_keeps_padding_behind() -> None:
    x, lengths = np.arange(8).reshape(2, 4), np.array([3, 0])
    np.testing.assert_array_equal(flip_sequences(x, lengths, 1, False), [[2, 1, 0, 3], [7, 6, 5, 4]])
    np.testing.assert_array_equal(flip_sequences(x.T, lengths, 1, True), np.array([[2, 1, 0, 3], [7, 6, 5, 4]]).T)
    np.testing.assert_array_equal(flip_sequences(x, None, 0, False), x[::-1])


def test_gradients_leave_padding_alone() -> None:
    layer = nn.RNN(nn.GRUCell(2, **WAVES), return_carry=True)
    variables = quick(layer.init)(KEY, SEQUENCES)
    lengths = np.array([2, 0])

    def last(x: Any, start: Any) -> Any:
        return layer.apply(variables, x, initial_carry=start, seq_lengths=lengths)[0].sum()

    of_x, of_start = quick(jax.grad(last, (0, 1)))(SEQUENCES, array(2, 2))
    assert (np.abs(of_x).sum(-1) > 0).tolist() == [[True, True, False], [False, False, False]]
    np.testing.assert_array_equal(of_start[1], [1.0, 1.0])


# -- runs --------------------------------------------------------------------------------------------------------------


OPTIONS = [
    {},
    {"return_carry": True, "seq_lengths": np.array([1, 3]), "reverse": True, "keep_order": True},
    {"initial_carry": {"h": jnp.zeros((2, 4)), "steps": jnp.zeros(2, int)}, "return_carry": True},
]


@pytest.mark.parametrize("call", OPTIONS)
def test_cell_runs_once(call: dict[str, Any]) -> None:
    runs: list[None] = []
    layer = nn.RNN(Leak(runs.append), unroll=2)
    jax.eval_shape(lambda: layer.init(KEY, SEQUENCES, **call))
    assert len(runs) == 1
    jax.eval_shape(jax.grad(lambda x: jax.tree.leaves(layer.apply({}, x, **call))[-1].sum()), SEQUENCES)
    assert len(runs) == 2


class Reader(nn.RNNCellBase):
    """Reads rows by a layer of its own, the last carry of which it carries on."""

    num_feature_axes = 2
    note: Callable[[Any], None]

    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.ones, ())
        carry, y = nn.RNN(Leak(self.note), return_carry=True)(x * scale, initial_carry=carry)
        return carry, y["sum"]

    @nn.nowrap
    def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
        return Leak(parent=None).initialize_carry(rng, (*input_shape[:-2], input_shape[-1]))


def test_layer_in_the_cell_of_a_layer_runs_once() -> None:
    runs: list[None] = []
    layer, x = nn.RNN(Reader(runs.append), return_carry=True), array(2, 2, 3, 4)
    (carry, y), variables = layer.init_with_output(KEY, x)
    assert len(runs) == 1
    jax.eval_shape(jax.grad(lambda variables: layer.apply(variables, x)[1].sum()), variables)
    assert len(runs) == 2
    flat, out = nn.RNN(Leak(), return_carry=True).apply({}, x.reshape(2, 6, 4))
    assert_close((carry, y), (flat, out["sum"].reshape(2, 2, 3)))


def test_both_directions_run_once() -> None:
    ahead: list[None] = []
    back: list[None] = []
    layer = nn.Bidirectional(nn.RNN(Leak(ahead.append)), nn.RNN(Leak(back.append)), merge_fn=jnp.subtract)
    y = layer.apply({}, SEQUENCES, seq_lengths=np.array([1, 3]))
    assert (len(ahead), len(back)) == (1, 1)
    for place, length in ((0, 1), (1, 3)):
        sides = [looped(SEQUENCES[place], length, reverse, True)[1]["y"] for reverse in (False, True)]
        assert_close(y["y"][place], sides[0] - sides[1])


def test_layer_that_returns_no_carry_stacks_none() -> None:
    def loops(**call: Any) -> list[int]:
        text = str(jax.make_jaxpr(lambda x: nn.RNN(Leak()).apply({}, x, **call))(SEQUENCES))
        return [len(line.split("=")[0].split()) for line in text.splitlines() if " = scan[" in line]

    lengths = {"seq_lengths": np.array([1, 3])}
    assert loops() == loops(**lengths) == loops(return_carry=True) == [4]
    assert loops(return_carry=True, **lengths) == [6]


# -- modules -----------------------------------------------------------------------------------------------------------


def test_parameters_of_the_cell_are_its_own_wherever_it_is_run() -> None:
    cell = nn.GRUCell(2, **WAVES)
    variables = quick(nn.RNN(cell).init)(KEY, SEQUENCES)
    alone = cell.init(jax.random.key(1), cell.initialize_carry(KEY, (2, 4)), SEQUENCES[:, 0])
    assert shapes(variables["params"]["cell"]) == shapes(alone["params"])

    class Shared(nn.Module):
        def setup(self) -> None:
            self.cell = cell
            self.ahead, self.back = nn.RNN(self.cell), nn.RNN(self.cell, reverse=True)

        def __call__(self, x: Any) -> Any:
            return self.ahead(x) + self.back(x) + self.cell(jnp.zeros((2, 2)), x[:, 0])[1][:, None]

    made = jax.eval_shape(Shared().init, KEY, SEQUENCES)
    assert shapes(made) == {"params": {"cell": shapes(alone["params"])}}


def test_steps_may_have_parameters_of_their_own() -> None:
    own = {"variable_axes": {"params": 0}, "variable_broadcast": False, "split_rngs": {"params": True}}
    cell = nn.SimpleCell(2, **WAVES)
    layer = nn.RNN(cell, **own)
    y, variables = quick(layer.init_with_output)(KEY, SEQUENCES)
    carry = jnp.zeros((2, 2))
    inside = {"params": variables["params"]["cell"]}
    for index in range(3):
        carry, out = cell.apply(element(inside, index), carry, SEQUENCES[:, index])
        assert_close(y[:, index], out)
    params = variables["params"]["cell"]["h"]["kernel"]
    assert params.shape == (3, 2, 2)
    assert len({params[index].tobytes() for index in range(3)}) == 3


def test_single_parameters_may_differ_between_steps() -> None:
    recurrent = All("params", PathContains("h"))
    layer = nn.RNN(
        nn.SimpleCell(2, **WAVES),
        variable_axes={recurrent: 0},
        variable_broadcast=All("params", Not(PathContains("h"))),
        split_rngs={"params": False},
    )
    y, variables = quick(layer.init_with_output)(KEY, SEQUENCES)
    params, carry = variables["params"]["cell"], jnp.zeros((2, 2))
    assert shapes(params) == {"h": {"kernel": (3, 2, 2)}, "i": {"bias": (2,), "kernel": (4, 2)}}
    for index in range(3):
        here = {"i": params["i"], "h": element(params["h"], index)}
        carry, out = nn.SimpleCell(2).apply({"params": here}, carry, SEQUENCES[:, index])
        assert_close(y[:, index], out)


class Noisy(nn.RNNCellBase):
    """Dropout and running statistics inside of a cell."""

    num_feature_axes = 1

    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        x = nn.Dropout(0.5, deterministic=False)(jnp.ones_like(x))
        mean = self.variable("batch_stats", "mean", jnp.zeros, ())
        mean.value += x.mean()
        return carry, x

    @nn.nowrap
    def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
        return jnp.zeros(())


def test_cell_with_dropout_and_statistics() -> None:
    rngs = {"params": KEY, "dropout": jax.random.key(1)}
    x = jnp.ones((2, 3, 8))
    for split in (True, False):
        layer = nn.RNN(Noisy(), variable_carry="batch_stats", split_rngs={"params": False, "dropout": split})
        y, state = layer.apply({}, x, rngs=rngs, mutable=["batch_stats"])
        assert len({np.asarray(y[:, step]).tobytes() for step in range(3)}) == (3 if split else 1)
        np.testing.assert_allclose(state["batch_stats"]["cell"]["mean"], y.mean((0, 2)).sum(), rtol=1e-6)
    with pytest.raises(UnliftedStreamError, match=r'make_rng\("dropout"\) at /cell/scan\(step\)/Dropout_0'):
        nn.RNN(Noisy(), variable_carry="batch_stats").init(rngs, x)


def test_layers_are_values() -> None:
    layer = nn.RNN(nn.LSTMCell(3), reverse=True)
    assert layer == nn.RNN(nn.LSTMCell(3), reverse=True)
    assert hash(layer) == hash(nn.RNN(nn.LSTMCell(3), reverse=True))
    assert layer != nn.RNN(nn.LSTMCell(4), reverse=True)
    assert repr(layer) == "RNN(cell=LSTMCell(features=3), reverse=True)"


# -- mistakes ----------------------------------------------------------------------------------------------------------

LAYER = nn.RNN(nn.LSTMCell(4))
SHAPE = "RNN at /: expected an array of shape"
STEP = "For a single step call the cell; for a sequence of numbers add a feature axis: `inputs[..., None]`."
LENGTHS = "RNN at /: expected seq_lengths to be integers of shape"
EACH = "one for each sequence of the batch, given"
COUNT = "Count the steps of each sequence; time is axis 1 of the inputs, according to `time_major`."
MISTAKES: list[tuple[Any, Any, dict[str, Any], type[LiftError], str]] = [
    (LAYER, SEQUENCES[0, 0], {}, LiftArgumentError, f"{SHAPE} (*batch, time, features), given (4,). {STEP}"),
    (
        LAYER,
        [SEQUENCES],
        {},
        LiftArgumentError,
        f"{SHAPE} (*batch, time, features), given [a float32[2,3,4] array]. {STEP}",
    ),
    (
        nn.RNN(nn.ConvLSTMCell(2, (2, 2)), time_major=True),
        SEQUENCES,
        {},
        LiftArgumentError,
        f"{SHAPE} (time, *batch, 3 sizes of features), given (2, 3, 4). {STEP}",
    ),
    (
        LAYER,
        SEQUENCES,
        {"seq_lengths": np.ones((2, 3), bool)},
        LiftArgumentError,
        f"{LENGTHS} (2,), {EACH} a bool[2,3] array. {COUNT}",
    ),
    (
        LAYER,
        SEQUENCES,
        {"seq_lengths": np.ones(2)},
        LiftArgumentError,
        f"{LENGTHS} (2,), {EACH} a float32[2] array. {COUNT}",
    ),
    (
        LAYER,
        SEQUENCES,
        {"seq_lengths": np.ones(2, int), "time_major": True},
        LiftArgumentError,
        f"{LENGTHS} (3,), {EACH} a int32[2] array. {COUNT.replace('1', '0')}",
    ),
    (
        LAYER,
        SEQUENCES,
        {"initial_carry": (np.ones((3, 4)),) * 2},
        LiftArgumentError,
        "LSTMCell at /cell/scan(step): expected a carry of shape ((2, 4), (2, 4)) for inputs of shape (2, 4), given "
        "((3, 4), (3, 4)). Make it with `cell.initialize_carry(key, inputs.shape)`; for a sequence, leave out the "
        "time axis.",
    ),
    (
        LAYER,
        SEQUENCES,
        {"initial_carry": [np.ones((2, 4), np.float32)] * 2},
        CarryTypeError,
        "scan(step) at /cell: carry goes in with structure PyTreeDef([*, *]) and comes out with PyTreeDef((*, *)). "
        "Return a carry with the structure that the function received.",
    ),
    (
        nn.RNN(nn.SimpleCell(4, **WAVES, param_dtype=jnp.bfloat16)),
        SEQUENCES,
        {},
        CarryTypeError,
        "scan(step) at /cell: the type must stay the same from one iteration to the next (carry: bfloat16[2,4] in, "
        "float32[2,4] out). Cast one of them, such as `carry.astype(jnp.float32)`.",
    ),
]


@pytest.mark.parametrize(("layer", "x", "call", "error", "text"), MISTAKES)
def test_mistakes_at_a_layer(layer: Any, x: Any, call: dict[str, Any], error: type[LiftError], text: str) -> None:
    with pytest.raises(error) as raised:
        jax.eval_shape(lambda: layer.init(KEY, x, **call))
    assert str(raised.value) == text
    notes = getattr(raised.value, "__notes__", [])
    makes_it = error is CarryTypeError and "initial_carry" not in call
    assert any(note.startswith("The cell's `initialize_carry` made the first carry") for note in notes) == makes_it


def test_inputs_of_other_features_than_the_parameters_say_which() -> None:
    variables = jax.eval_shape(LAYER.init, KEY, SEQUENCES)
    with pytest.raises(ScopeParamShapeError, match=r'"kernel" at /cell/scan\(step\)/ii: .*\(4, 4\).*\(2, 4\)'):
        jax.eval_shape(LAYER.apply, variables, SEQUENCES[..., :2])


def test_cell_must_be_an_instance_of_a_cell() -> None:
    for given, shown in ((nn.LSTMCell, "the class LSTMCell"), (len, "the function len"), (None, "None")):
        with pytest.raises(
            LiftArgumentError, match=rf"^RNN, cell: expected a module, given {shown}\. Pass one, such as "
        ):
            nn.RNN(given)
    text = (
        r"expected an RNNCellBase, or another module with `num_feature_axes`, given Dense\(features=3\)\. Pass a cell"
    )
    with pytest.raises(LiftArgumentError, match=text):
        nn.RNN(nn.Dense(3))


class Scalar(nn.RNNCellBase):
    """A cell that forgets the batch."""

    num_feature_axes = 1

    def __call__(self, carry: Any, x: Any) -> Any:
        return carry + x.mean(), x.mean()

    @nn.nowrap
    def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
        return jnp.zeros(())


def test_cell_that_forgets_the_batch() -> None:
    text = r"Scalar at /cell/scan\(step\): its outputs are stacked along axis 1.* has shape \(\)\. Return outputs with "
    with pytest.raises(LiftArgumentError, match=text):
        nn.RNN(Scalar()).apply({}, SEQUENCES)
    assert nn.RNN(Scalar(), time_major=True).apply({}, SEQUENCES).shape == (2,)
    text = r"a part of the carry has shape \(\), which does not begin with the .* batch, \(3,\)\. Carry an array for "
    with pytest.raises(LiftArgumentError, match=text):
        nn.RNN(Scalar(), time_major=True, return_carry=True).apply({}, SEQUENCES, seq_lengths=np.ones(3, int))


def test_cell_that_returns_no_pair() -> None:
    class Broken(Scalar):
        def __call__(self, carry: Any, x: Any) -> Any:
            return x

    text = r"Broken at /cell/scan\(step\): expected the cell to return .* given a float32\[2,4\] array\. Write `ret"
    with pytest.raises(LiftArgumentError, match=text):
        nn.RNN(Broken()).apply({}, SEQUENCES)


def test_mistakes_at_both_directions() -> None:
    layer = nn.Bidirectional(nn.RNN(Leak()), nn.RNN(Leak()))
    with pytest.raises(
        LiftArgumentError, match=r"Bidirectional at /: expected a pair as `initial_carry`, given a float32"
    ):
        layer.apply({}, SEQUENCES, initial_carry=jnp.ones(2))
    with pytest.raises(
        LiftArgumentError, match=r"Bidirectional at /: it was called with `reverse=True`, but it already runs in "
    ):
        layer.apply({}, SEQUENCES, reverse=True)
    with pytest.raises(LiftArgumentError, match=r"Bidirectional at /: it was called with `keep_order=False`"):
        layer.apply({}, SEQUENCES, keep_order=False)
    with pytest.raises(LiftArgumentError, match="Bidirectional, backward_rnn: expected a module, given the class RNN"):
        nn.Bidirectional(nn.RNN(Leak()), nn.RNN)
    with pytest.raises(
        LiftArgumentError, match=r"Bidirectional, forward_rnn: expected a module, given None\. Pass one, such"
    ):
        nn.Bidirectional(None, nn.RNN(Leak()))  # type: ignore[arg-type]


def test_mistakes_at_flipping() -> None:
    with pytest.raises(LiftArgumentError, match=r"flip_sequences: expected inputs with 3 batch axes and one of time, "):
        flip_sequences(SEQUENCES, None, 3, False)
    with pytest.raises(LiftArgumentError, match=r"flip_sequences: expected seq_lengths to be integers of shape \(2,\)"):
        flip_sequences(SEQUENCES, np.ones(3, int), 1, False)
