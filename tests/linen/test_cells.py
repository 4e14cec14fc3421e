"""Recurrent cells against their formulas, written in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.cells import DenseParams
from linen_like.errors import LiftArgumentError
from tests.layers.bits import quick
from tests.layers.row import array
from tests.layers.rows.recurrent import WAVES, wave
from tests.linen.lifted import KEY, assert_close, assert_same, shapes

X, H = array(2, 3), array(2, 4)[::-1]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def weights(variables: Any) -> Callable[..., Any]:
    """The product with the kernel of that name, and its bias if there is one."""
    params = variables["params"]
    return lambda name, x: np.asarray(x) @ np.asarray(params[name]["kernel"]) + np.asarray(params[name].get("bias", 0))


def lstm(w: Any, carry: Any, x: Any) -> Any:
    i, f, g, o = (w(f"i{gate}", x) + w(f"h{gate}", carry[1]) for gate in "ifgo")
    c = sigmoid(f) * carry[0] + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def gru(w: Any, h: Any, x: Any) -> Any:
    r, z = (sigmoid(w(f"i{gate}", x) + w(f"h{gate}", h)) for gate in "rz")
    return (1 - z) * np.tanh(w("in", x) + r * w("hn", h)) + z * h


def mgu(w: Any, h: Any, x: Any) -> Any:
    f = sigmoid(w("if", x) + w("hf", h))
    return (1 - f) * np.tanh(w("in", x) + f * w("hn", h)) + f * h


def ungated_mgu(w: Any, h: Any, x: Any) -> Any:
    f = sigmoid(w("if", x) + w("hf", h))
    return (1 - f) * np.tanh(w("in", x) + w("hn", h)) + f * h


FORMULAS = [
    (nn.LSTMCell(4, **WAVES, bias_init=wave), (H + 1, H), lstm),
    (nn.OptimizedLSTMCell(4, **WAVES, bias_init=wave), (H + 1, H), lstm),
    (nn.GRUCell(4, **WAVES, bias_init=wave), H, gru),
    (nn.MGUCell(4, **WAVES, activation_bias_init=wave), H, mgu),
    (nn.MGUCell(4, **WAVES, activation_bias_init=wave, reset_gate=False), H, ungated_mgu),
    (nn.SimpleCell(4, **WAVES, bias_init=wave), H, lambda w, h, x: np.tanh(w("i", x) + w("h", h))),
    (nn.SimpleCell(4, **WAVES, residual=True), H, lambda w, h, x: np.tanh(w("i", x) + w("h", h) + h)),
]


@pytest.mark.parametrize(("cell", "carry", "formula"), FORMULAS)
def test_cell_is_its_formula(cell: Any, carry: Any, formula: Callable[..., Any]) -> None:
    (after, y), variables = quick(cell.init_with_output)(KEY, carry, X)
    expected = formula(weights(variables), carry, X)
    assert_close(after, jax.tree.map(np.float32, expected))
    np.testing.assert_array_equal(y, after[1] if isinstance(after, tuple) else after)


def test_convolutional_cell_of_one_pixel_is_an_lstm_that_remembers_more() -> None:
    cell = nn.ConvLSTMCell(4, (1,))
    carry, x = (H[:, None] + 1, H[:, None]), X[:, None]
    (after, _), variables = quick(cell.init_with_output)(KEY, carry, x)
    w = weights(jax.tree.map(lambda value: value[0] if value.ndim == 3 else value, variables))
    i, g, f, o = np.split(w("ih", X) + w("hh", H), 4, axis=-1)
    c = sigmoid(f + 1) * carry[0][:, 0] + sigmoid(i) * np.tanh(g)
    assert_close(after, (c[:, None], (sigmoid(o) * np.tanh(c))[:, None]))


def test_both_forms_of_the_lstm_take_the_same_parameters() -> None:
    plain, fast = nn.LSTMCell(4), nn.OptimizedLSTMCell(4)

    def both(x: Any) -> Any:
        sides = [cell.init_with_output(KEY, (H, H), x) for cell in (plain, fast)]
        return sides, plain.apply(sides[1][1], (H, H), x)

    ((y, variables), (fast_y, fast_variables)), again = quick(both)(X)
    assert_same(variables, fast_variables)
    assert_same(again, y)
    assert_close(fast_y, y)


def test_parameters_without_a_product() -> None:
    (kernel, bias), variables = DenseParams(4, False).init_with_output(KEY, X)
    assert_same((kernel, bias), (variables["params"]["kernel"], None))
    assert_same(DenseParams(4).init(KEY, X), nn.Dense(4).init(KEY, X))
    with pytest.raises(LiftArgumentError, match=r"DenseParams at /: expected inputs of shape .*, given .*\. Add "):
        DenseParams(4).init(KEY, 1.0)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.OptimizedLSTMCell, nn.GRUCell, nn.MGUCell, nn.SimpleCell])
def test_carry_begins_as_its_initializer_says(cell: Any) -> None:
    made = cell(4, carry_init=wave, param_dtype=jnp.bfloat16).initialize_carry(KEY, (2, 5, 3))
    pair = issubclass(cell, nn.LSTMCell | nn.OptimizedLSTMCell)
    keys = jax.random.split(KEY) if pair else KEY[None]
    states = tuple(wave(key, (2, 5, 4), jnp.bfloat16) for key in keys)
    assert_same(made, states if pair else states[0])
    assert cell(4).num_feature_axes == 1


def test_carry_of_a_convolutional_cell() -> None:
    cell = nn.ConvLSTMCell(4, (3, 3))
    assert shapes(cell.initialize_carry(KEY, (2, 5, 6, 3))) == ((2, 5, 6, 4),) * 2
    assert (cell.num_feature_axes, nn.ConvLSTMCell(4, 3).num_feature_axes) == (3, 2)


PAIR = "LSTMCell at /: expected a carry of shape ((2, 4), (2, 4)) for inputs of shape (2, 3), given "
SINGLE = "GRUCell at /: expected a carry of shape (2, 4) for inputs of shape (2, 3), given "
CARRY = "Make it with `cell.initialize_carry(key, inputs.shape)`; for a sequence, leave out the time axis."
STEP = "expected the inputs of one step, of shape"
FEATURES = "Add a feature dimension: `inputs[..., None]`."
MISTAKES = [
    (nn.LSTMCell(4), (H, H[:, :3]), X, f"{PAIR}((2, 4), (2, 3)). {CARRY}"),
    (nn.LSTMCell(4), (H[0], H[0]), X, f"{PAIR}((4,), (4,)). {CARRY}"),
    (nn.LSTMCell(4), H, X, f"{PAIR}(2, 4). {CARRY}"),
    (nn.LSTMCell(4), (H, None), X, f"{PAIR}((2, 4), None). {CARRY}"),
    (nn.GRUCell(4), (H, H), X, f"{SINGLE}((2, 4), (2, 4)). {CARRY}"),
    (nn.GRUCell(4), H[:1], X, f"{SINGLE}(1, 4). {CARRY}"),
    (nn.GRUCell(4), None, X, f"{SINGLE}None. {CARRY}"),
    (nn.SimpleCell(4), H, 1.0, f"SimpleCell at /: {STEP} (*batch, in), given (). {FEATURES}"),
    (
        nn.ConvLSTMCell(4, (2, 2)),
        (H, H),
        X,
        f"ConvLSTMCell at /: {STEP} (*batch, 2 spatial sizes, in), given (2, 3). {FEATURES}",
    ),
    (
        nn.ConvLSTMCell(2, (2,), padding="VALID"),
        (array(2, 2), array(2, 2)),
        array(2, 1),
        "ConvLSTMCell at /: the convolution changes the spatial sizes, from shape (2, 1) to (1, 8), but the states of "
        'all steps must have one shape. Leave `strides` out, and pass `padding="SAME"`, or pairs that add up to the '
        "kernel's size minus one.",
    ),
]


@pytest.mark.parametrize(("cell", "carry", "x", "text"), MISTAKES)
def test_mistakes_at_a_cell(cell: Any, carry: Any, x: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError) as raised:
        jax.eval_shape(lambda: cell.init(KEY, carry, x))
    assert str(raised.value) == text


def test_what_a_cell_of_ones_own_must_define() -> None:
    class Mine(nn.RNNCellBase):
        def __call__(self, carry: Any, x: Any) -> Any:
            return carry, x

    class Counted(Mine):
        num_feature_axes = 1

    text = "Mine at /cell: the class defines no `num_feature_axes`. Write `num_feature_axes = 1` in the"
    with pytest.raises(LiftArgumentError, match=text):
        nn.RNN(Mine()).apply({}, X)
    text = r"Counted at /cell: the class defines no `initialize_carry\(rng, input_shape\)`. Write it, or pass a carry: "
    with pytest.raises(LiftArgumentError, match=text):
        nn.RNN(Counted()).apply({}, X)
    np.testing.assert_array_equal(nn.RNN(Counted()).apply({}, X, initial_carry=()), X)
