"""Recurrent layers against `flax.linen`, where rows of the table do not say it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from linen_like import recurrent
from tests.layers.bits import assert_same_bits, quick
from tests.layers.row import array
from tests.layers.rows.recurrent import WAVES, wave
from tests.parity.recurrent_styles import STYLES

linen = pytest.importorskip("flax.linen")

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


@pytest.mark.parametrize("name", STYLES)
def test_style_is_that_of_linen(name: str) -> None:
    def results(nn: Any, x: Any) -> Any:
        model = STYLES[name](nn)
        y, variables = model.init_with_output(RNGS, x)
        return y, variables, model.apply(variables, x, rngs=RNGS)

    assert_same_bits(*quick(lambda x: (results(linen_like, x), results(linen, x)))(X))


NAMES = ["RNNCellBase", "DenseParams", "LSTMCell", "OptimizedLSTMCell", "GRUCell", "MGUCell", "SimpleCell"]
NAMES += ["ConvLSTMCell", "RNN", "Bidirectional"]


@pytest.mark.parametrize("name", NAMES)
def test_fields_defaults_and_arguments_are_those_of_linen(name: str) -> None:
    ours, theirs = getattr(recurrent, name), getattr(linen.recurrent, name)

    def described(layer: Any) -> dict[str, Any]:
        fields = [field for field in dataclasses.fields(layer) if field.init and field.name not in ("parent", "name")]
        return {field.name: field.default for field in fields}

    mine, other = described(ours), described(theirs)
    assert list(mine) == list(other)
    for field, default in mine.items():
        if isinstance(other[field], linen.FrozenDict):
            assert dict(default) == dict(other[field])
        elif field in ("gate_fn", "activation_fn"):  # ours can be pickled, so it is another object
            assert str(jax.make_jaxpr(default)(X)) == str(jax.make_jaxpr(other[field])(X))
        elif callable(default):
            assert callable(other[field])
        else:
            assert default is other[field] or default == other[field], field
    for method in ("__call__", "initialize_carry"):
        if "__call__" in vars(theirs) and hasattr(theirs, method):
            assert arguments(getattr(ours, method)) == arguments(getattr(theirs, method))


def arguments(fn: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(fn).parameters.values()]


def test_public_names_are_those_of_linen() -> None:
    things = vars(linen.recurrent).items()
    own = {name for name, thing in things if getattr(thing, "__module__", None) == linen.recurrent.__name__}
    aliases = {"Carry", "CarryHistory"}  # names for typing.Any, which do not say where they were defined
    assert {name for name in own if name.lstrip("_") == name and len(name) > 1} | aliases == set(recurrent.__all__)
    assert aliases <= vars(linen.recurrent).keys()
    for name in recurrent.__all__:
        assert hasattr(linen, name) == hasattr(linen_like, name), name


@pytest.mark.parametrize("time_major", [False, True])
def test_flipping_is_that_of_linen(time_major: bool) -> None:
    x, lengths = array(2, 3, 4, 2), np.array([[1, 2, 3], [4, 4, 1]])
    cases = [(x, lengths, 2), (x[0], lengths[0], 1), (x[0, 0], None, 0), (x, None, 2), (x[0, 0], np.int8(3), 0)]
    for inputs, given, batch in cases:
        if time_major:
            inputs = np.moveaxis(inputs, batch, 0)
        sides = [side.flip_sequences(inputs, given, batch, time_major) for side in (recurrent, linen.recurrent)]
        assert_same_bits(*sides)


DTYPES = [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64]


@pytest.mark.parametrize("name", ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "MGUCell", "SimpleCell", "ConvLSTMCell"])
def test_dtypes_are_those_of_linen(name: str) -> None:
    config = {"features": 2, "kernel_size": (2,)} if name == "ConvLSTMCell" else {"features": 2, **WAVES}

    def result(nn: Any, given: Any, told: Any, stored: Any) -> Any:
        cell = getattr(nn, name)(**config, dtype=told, param_dtype=stored)
        carry = jax.eval_shape(lambda: cell.initialize_carry(jax.random.key(0), (4, 3)))
        return carry, jax.eval_shape(cell.init_with_output, RNGS, carry, jax.ShapeDtypeStruct((4, 3), given))

    with jax.enable_x64(True):
        for case in [
            *((given, None, jnp.float32) for given in [jnp.int8, jnp.int64, *DTYPES]),
            *((jnp.float32, told, stored) for told in DTYPES[1:] for stored in DTYPES),
        ]:
            assert result(linen_like, *case) == result(linen, *case), case


@pytest.fixture
def _one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Linen trace a loop once, without which it draws keys more often than it uses them."""
    scan = functools.partial(linen.scan, check_constancy_invariants=False)
    monkeypatch.setattr(linen.recurrent.transforms, "scan", scan)


def noisy(nn: Any, **options: Any) -> Any:
    """A layer with dropout and running statistics inside of its cell."""

    class Noisy(nn.RNNCellBase):
        num_feature_axes = 1

        @nn.compact
        def __call__(self, carry: Any, x: Any) -> Any:
            x = nn.BatchNorm(use_running_average=False, momentum=0.5)(x)
            carry, y = nn.SimpleCell(2, **WAVES)(carry, nn.Dropout(0.5, deterministic=False)(x))
            return carry, nn.Dropout(0.25, deterministic=False)(y)

        @nn.nowrap
        def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
            return wave(rng, (*input_shape[:-1], 2))

    return nn.RNN(Noisy(), return_carry=True, **options)


@pytest.mark.usefixtures("_one_trace")
@pytest.mark.parametrize(
    "options",
    [
        {"variable_carry": "batch_stats", "split_rngs": {"params": False, "dropout": True}},
        {"variable_carry": "batch_stats", "split_rngs": {"params": False, "dropout": False}, "reverse": True},
        {"variable_axes": {"batch_stats": 0}, "split_rngs": {"params": False, "dropout": True}, "unroll": 2},
    ],
)
def test_noise_and_statistics_of_a_cell_are_those_of_linen(options: dict[str, Any]) -> None:
    x = array(2, 3, 4)
    variables = quick(noisy(linen_like, **options).init)(RNGS, x)

    def results(nn: Any, x: Any) -> Any:
        model = noisy(nn, **options)

        def loss(params: Any, x: Any) -> Any:
            (carry, y), state = model.apply({**variables, "params": params}, x, rngs=RNGS, mutable=["batch_stats"])
            return jnp.sum(y * jnp.cos(jnp.arange(y.size)).reshape(y.shape)) + carry.sum(), (carry, y, state)

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(variables["params"], x)

    assert_same_bits(*quick(lambda x: (results(linen_like, x), results(linen, x)))(x))


@pytest.mark.usefixtures("_one_trace")
def test_parameters_of_each_step_are_those_of_linen() -> None:
    def results(nn: Any, x: Any) -> Any:
        own = {"variable_axes": {"params": 0}, "variable_broadcast": False, "split_rngs": {"params": True}}
        model = nn.RNN(nn.SimpleCell(2), **own)
        variables = model.init(jax.random.key(0), x)
        return variables, model.apply(variables, x)

    assert_same_bits(*quick(lambda x: (results(linen_like, x), results(linen, x)))(array(2, 3, 4)))


CELLS = {
    "LSTMCell": 2,
    "OptimizedLSTMCell": 2,
    "GRUCell": 1,
    "MGUCell": 1,
    "SimpleCell": 1,
}
"""The cells that carry vectors, and how many."""


@pytest.mark.parametrize("width", [3, 6])
@pytest.mark.parametrize("name", CELLS)
def test_cell_takes_its_size_from_the_carry(name: str, width: int) -> None:
    states = tuple(array(2, width) + number for number in range(CELLS[name]))
    carry = states if len(states) > 1 else states[0]

    def results(nn: Any, x: Any) -> Any:
        cell = getattr(nn, name)(4, **WAVES)
        (after, y), variables = cell.init_with_output(RNGS, carry, x)
        params = {"params": {"cell": variables["params"]}}
        whole = nn.RNN(cell, return_carry=True).apply(params, x[:, None], initial_carry=carry)
        return after, y, variables, cell.apply(variables, carry, x), whole

    assert_same_bits(*quick(lambda x: (results(linen_like, x), results(linen, x)))(X))


def test_convolutional_cell_takes_an_output_of_any_width() -> None:
    carry = (array(2, 5, 4), array(2, 5, 3))

    def results(nn: Any, x: Any) -> Any:
        return nn.ConvLSTMCell(4, kernel_size=(2,)).init_with_output(RNGS, carry, x)

    assert_same_bits(*quick(lambda x: (results(linen_like, x), results(linen, x)))(array(2, 5, 2)))
