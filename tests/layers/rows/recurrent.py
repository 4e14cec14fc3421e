"""Rows of recurrent cells, and of what runs them over sequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.layers.row import BF16, ROWS, Row, array


def wave(key: Any, shape: Any, dtype: Any = jnp.float32) -> Any:
    """An initializer that takes little time to compile, with other numbers for each key."""
    phase = jax.random.key_data(key)[-1] / np.float32(2**32)
    return jnp.sin(7 * (jnp.arange(np.prod(shape, dtype=int)) + phase)).reshape(shape).astype(dtype)


WAVES = {"kernel_init": wave, "recurrent_kernel_init": wave}
STATE = array(3, 5)[:, ::-1]
PAIR = (array(3, 5), STATE)
DEFAULTS = {"features": 5}
ONE = {**DEFAULTS, **WAVES}
FUNCTIONS = {**ONE, "gate_fn": jax.nn.hard_sigmoid, "activation_fn": jax.nn.soft_sign}
INITIALIZERS = {**ONE, "bias_init": wave}
HALF = {**ONE, "dtype": BF16, "param_dtype": BF16}
INTEGERS = np.arange(12).reshape(3, 4)


def _half(state: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(BF16), state)


CELLS = {
    "lstm cell": Row("LSTMCell", DEFAULTS, (PAIR, ROWS)),
    "lstm cell, one example": Row("LSTMCell", ONE, ((PAIR[0][0], STATE[0]), ROWS[0])),
    "lstm cell, two batch dimensions": Row(
        "LSTMCell", {**WAVES, "features": 1}, ((array(2, 3, 1),) * 2, array(2, 3, 1))
    ),
    "lstm cell, functions": Row("LSTMCell", FUNCTIONS, (PAIR, ROWS)),
    "lstm cell, initializers": Row("LSTMCell", INITIALIZERS, (PAIR, ROWS)),
    "lstm cell, integers": Row("LSTMCell", ONE, (PAIR, INTEGERS)),
    "lstm cell, bfloat16 products": Row("LSTMCell", {**ONE, "dtype": BF16}, (PAIR, ROWS)),
    "lstm cell, bfloat16": Row("LSTMCell", {**HALF}, (_half(PAIR), ROWS)),
    "lstm cell, bfloat16 parameters": Row("LSTMCell", {**ONE, "param_dtype": BF16}, (PAIR, ROWS.astype(BF16))),
    "optimized lstm cell": Row("OptimizedLSTMCell", DEFAULTS, (PAIR, ROWS)),
    "optimized lstm cell, functions": Row("OptimizedLSTMCell", FUNCTIONS, (PAIR, ROWS)),
    "optimized lstm cell, initializers": Row("OptimizedLSTMCell", INITIALIZERS, (PAIR, ROWS)),
    "optimized lstm cell, integers": Row("OptimizedLSTMCell", ONE, (PAIR, INTEGERS)),
    "optimized lstm cell, bfloat16": Row("OptimizedLSTMCell", HALF, (_half(PAIR), ROWS)),
    "optimized lstm cell, bfloat16 inputs": Row("OptimizedLSTMCell", ONE, (PAIR, ROWS.astype(BF16))),
    "gru cell": Row("GRUCell", DEFAULTS, (STATE, ROWS)),
    "gru cell, functions": Row("GRUCell", FUNCTIONS, (STATE, ROWS)),
    "gru cell, initializers": Row("GRUCell", INITIALIZERS, (STATE, ROWS)),
    "gru cell, bfloat16": Row("GRUCell", HALF, (_half(STATE), ROWS)),
    "mgu cell": Row("MGUCell", DEFAULTS, (STATE, ROWS)),
    "mgu cell, without reset": Row("MGUCell", {**ONE, "reset_gate": False}, (STATE, ROWS)),
    "mgu cell, functions": Row("MGUCell", FUNCTIONS, (STATE, ROWS)),
    "mgu cell, initializers": Row(
        "MGUCell", {**ONE, "forget_bias_init": wave, "activation_bias_init": wave}, (STATE, ROWS)
    ),
    "mgu cell, bfloat16": Row("MGUCell", HALF, (_half(STATE), ROWS)),
    "simple cell": Row("SimpleCell", DEFAULTS, (STATE, ROWS)),
    "simple cell, residual": Row("SimpleCell", {**ONE, "residual": True}, (STATE, ROWS)),
    "simple cell, function": Row("SimpleCell", {**ONE, "activation_fn": jax.nn.relu}, (STATE, ROWS)),
    "simple cell, initializers": Row("SimpleCell", INITIALIZERS, (STATE, ROWS)),
    "simple cell, bfloat16": Row("SimpleCell", HALF, (_half(STATE), ROWS)),
    "conv lstm cell": Row(
        "ConvLSTMCell", {"features": 2, "kernel_size": (3, 2)}, ((array(2, 4, 3, 2),) * 2, array(2, 4, 3, 2))
    ),
    "conv lstm cell, one example": Row(
        "ConvLSTMCell", {"features": 2, "kernel_size": (3,), "use_bias": False}, ((array(4, 2),) * 2, array(4, 3))
    ),
    "conv lstm cell, pairs and strides": Row(
        "ConvLSTMCell",
        {"features": 2, "kernel_size": (3,), "padding": [(2, 0)], "strides": (1,)},
        ((array(2, 4, 2),) * 2, array(2, 4, 3)),
    ),
    "conv lstm cell, bfloat16": Row(
        "ConvLSTMCell",
        {"features": 2, "kernel_size": (2,), "dtype": BF16, "param_dtype": BF16},
        (_half((array(1, 4, 2),) * 2), array(1, 4, 3)),
    ),
}

SEQUENCES, LENGTHS = array(3, 4, 2), np.array([2, 4, 1])
BY_TIME = SEQUENCES.swapaxes(0, 1)
START = array(3, 2, dtype=np.float64) / 2
RETURN = {"return_carry": True}
PADDED = {"seq_lengths": LENGTHS, **RETURN}
BACK = {"reverse": True, "keep_order": True}
KEY = np.array([0, 3], np.uint32)


def rest(key: Any, shape: Any, dtype: Any) -> Any:
    """Zeros in which inputs of any precision can be carried on."""
    return jnp.zeros(shape, jnp.promote_types(dtype, jnp.result_type(float)))


def start(key: Any, shape: Any, dtype: Any) -> Any:
    """The same with numbers."""
    return wave(key, shape, jnp.promote_types(dtype, jnp.result_type(float)))


SMALL = {"features": 2, **WAVES, "carry_init": rest}


def _cell(name: str = "SimpleCell", carry_init: Any = rest, **config: Any) -> Any:
    """The fields of an `RNN` with a cell of that name, and with options of one or of the other."""
    options = {field: config.pop(field) for field in list(config) if field in OPTIONS}
    fields = {**({} if "Conv" in name else WAVES), "features": 2, "carry_init": carry_init, **config}
    return lambda nn: {"cell": getattr(nn, name)(**fields), **options}


OPTIONS = ("return_carry", "time_major", "reverse", "keep_order", "unroll")
SIMPLE = _cell()
HALF_SIZE = {"carry_init": jax.nn.initializers.zeros, "param_dtype": BF16}


def _stack(nn: Any) -> dict[str, Any]:
    """A cell of two cells, which carries a dict."""

    class Stacked(nn.RNNCellBase):
        def setup(self) -> None:
            self.low, self.high = nn.SimpleCell(2, **WAVES), nn.LSTMCell(2, **WAVES)

        def __call__(self, carry: Any, x: Any) -> Any:
            low, x = self.low(carry["low"], x)
            high, x = self.high(carry["high"], x)
            return {"low": low, "high": high}, {"y": x, "sum": x.sum(-1)}

        @nn.nowrap
        def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
            state = jnp.zeros(input_shape)
            return {"low": state, "high": (state, state)}

        num_feature_axes = 1

    return {"cell": Stacked()}


def _nest(nn: Any) -> dict[str, Any]:
    """A cell that reads rows of an image by a recurrent layer of its own."""

    class Rows(nn.RNNCellBase):
        @nn.compact
        def __call__(self, carry: Any, x: Any) -> Any:
            read = nn.RNN(nn.SimpleCell(2, **WAVES), return_carry=True)
            carry, y = read(x, initial_carry=carry)
            return carry, y

        @nn.nowrap
        def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
            return jnp.zeros((*input_shape[:-2], 2))

        num_feature_axes = 2

    return {"cell": Rows(), "return_carry": True}


LAYERS = {
    "rnn": Row("RNN", _cell("LSTMCell"), SEQUENCES),
    "rnn, one sequence": Row("RNN", SIMPLE, SEQUENCES[0]),
    "rnn, two batch dimensions": Row("RNN", _cell(return_carry=True), array(2, 1, 3, 2)),
    "rnn, one step": Row("RNN", SIMPLE, SEQUENCES[:, :1]),
    "rnn, carry": Row("RNN", _cell("LSTMCell", return_carry=True), SEQUENCES),
    "rnn, optimized": Row("RNN", _cell("OptimizedLSTMCell", return_carry=True), SEQUENCES),
    "rnn, gated": Row("RNN", _cell("GRUCell", return_carry=True), SEQUENCES),
    "rnn, reverse": Row("RNN", _cell(reverse=True, return_carry=True), SEQUENCES),
    "rnn, reverse and order": Row("RNN", _cell(**BACK), SEQUENCES),
    "rnn, time major": Row("RNN", _cell(time_major=True), BY_TIME),
    "rnn, time major, reverse": Row("RNN", _cell(time_major=True, **BACK), BY_TIME),
    "rnn, overridden": Row(
        "RNN",
        _cell(time_major=True, return_carry=True, **BACK),
        SEQUENCES,
        {"time_major": False, "reverse": False, "keep_order": False, "return_carry": False},
    ),
    "rnn, given at the call": Row("RNN", SIMPLE, BY_TIME, {**RETURN, **BACK, "time_major": True}),
    "rnn, lengths": Row("RNN", SIMPLE, SEQUENCES, {"seq_lengths": LENGTHS}),
    "rnn, lengths and carry": Row("RNN", _cell("LSTMCell"), SEQUENCES, PADDED),
    "rnn, lengths, reverse": Row("RNN", _cell(reverse=True), SEQUENCES, PADDED),
    "rnn, lengths, reverse and order": Row("RNN", _cell(**BACK), SEQUENCES, PADDED),
    "rnn, lengths, time major": Row("RNN", _cell(time_major=True, **BACK), BY_TIME, PADDED),
    "rnn, lengths of one sequence": Row("RNN", SIMPLE, SEQUENCES[0], {"seq_lengths": np.int32(3), **BACK, **RETURN}),
    "rnn, initial carry": Row("RNN", SIMPLE, SEQUENCES, {"initial_carry": START, **RETURN}),
    "rnn, initial carry and lengths": Row("RNN", SIMPLE, SEQUENCES, {"initial_carry": START, **PADDED}),
    "rnn, key": Row("RNN", _cell(carry_init=start), SEQUENCES, {"init_key": KEY}),
    "rnn, default key": Row("RNN", _cell("LSTMCell", carry_init=start), SEQUENCES),
    "rnn, unrolled": Row("RNN", _cell(unroll=3), SEQUENCES),
    "rnn, bfloat16": Row("RNN", _cell("LSTMCell", dtype=BF16, **HALF_SIZE), SEQUENCES),
    "rnn, bfloat16 inputs": Row("RNN", _cell("GRUCell", **HALF_SIZE), SEQUENCES.astype(BF16)),
    "rnn, integers": Row("RNN", SIMPLE, np.arange(6).reshape(1, 2, 3)),
    "rnn, conv lstm": Row("RNN", _cell("ConvLSTMCell", kernel_size=(2,), return_carry=True), array(2, 3, 4, 1)),
    "rnn, conv lstm, time major": Row(
        "RNN", _cell("ConvLSTMCell", kernel_size=(2, 2), time_major=True, **BACK), array(4, 3, 3, 2, 1), PADDED
    ),
    "rnn, cell of cells": Row("RNN", _stack, SEQUENCES, PADDED),
    "rnn of rnn": Row("RNN", _nest, array(1, 2, 2, 3)),
}


def _both(second: str = "SimpleCell", **options: Any) -> Any:
    """The fields of a `Bidirectional` with two cells."""
    return lambda nn: {
        "forward_rnn": nn.RNN(nn.SimpleCell(**SMALL)),
        "backward_rnn": nn.RNN(getattr(nn, second)(**SMALL)),
        **options,
    }


def _same(nn: Any) -> dict[str, Any]:
    rnn = nn.RNN(nn.SimpleCell(**SMALL))
    return {"forward_rnn": rnn, "backward_rnn": rnn}


def _same_cell(nn: Any) -> dict[str, Any]:
    cell = nn.SimpleCell(**SMALL)
    return {"forward_rnn": nn.RNN(cell), "backward_rnn": nn.RNN(cell)}


def _random_carries(nn: Any) -> dict[str, Any]:
    fields = {**SMALL, "carry_init": start}
    return {name: nn.RNN(nn.SimpleCell(**fields)) for name in ("forward_rnn", "backward_rnn")}


def _deep(nn: Any) -> dict[str, Any]:
    return {"layers": [nn.Bidirectional(**BOTH(nn)), nn.Bidirectional(**BOTH(nn))]}


BOTH = _both()
DIRECTIONS = {
    "bidirectional": Row("Bidirectional", _both("GRUCell"), SEQUENCES),
    "bidirectional, carry": Row("Bidirectional", _both(return_carry=True), SEQUENCES),
    "bidirectional, merged": Row("Bidirectional", _both(merge_fn=jnp.add), SEQUENCES),
    "bidirectional, time major": Row("Bidirectional", _both(time_major=True), BY_TIME),
    "bidirectional, lengths": Row("Bidirectional", BOTH, SEQUENCES, {"seq_lengths": LENGTHS}),
    "bidirectional, lengths and carry": Row("Bidirectional", BOTH, BY_TIME, {**PADDED, "time_major": True}),
    "bidirectional, initial carry": Row("Bidirectional", BOTH, SEQUENCES, {"initial_carry": (START, -START)}),
    "bidirectional, key": Row("Bidirectional", _random_carries, SEQUENCES, {"init_key": KEY}),
    "bidirectional, shared": Row("Bidirectional", _same, SEQUENCES),
    "bidirectional, shared cell": Row("Bidirectional", _same_cell, SEQUENCES),
    "bidirectional, deep": Row("Sequential", _deep, SEQUENCES),
}

TABLE = {**CELLS, **LAYERS, **DIRECTIONS}
