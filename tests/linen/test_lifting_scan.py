"""Modules in loops: parameters that are stacked, shared or carried, and bodies that run once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore.filters import All, Not, PathContains
from linen_like.errors import (
    AxisSizeError,
    CarryTypeError,
    LoopInvarianceError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from tests.linen.lifted import KEY, RNGS, Block, X, assert_close, assert_same, element, shapes

STACKED = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
SHARED = {"variable_broadcast": "params", "split_rngs": {"params": False}}


class Step(nn.Module):
    """A recurrent step: takes a carry and a slice."""

    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        carry = jnp.tanh(nn.Dense(3)(carry) + x)
        return carry, carry.sum()


SLICES = jnp.arange(12.0).reshape(4, 3) / 12
START = jnp.array([0.1, -0.2, 0.3])


def loop(params_of: Any, carry: Any, slices: Any) -> Any:
    sums = []
    for index, x in enumerate(slices):
        carry, total = Step().apply({"params": params_of(index)}, carry, x)
        sums.append(total)
    return carry, jnp.stack(sums)


def test_layers_have_parameters_of_their_own_and_equal_the_loop() -> None:
    layers = nn.scan(Block, length=3, **STACKED)()
    (y, sums), variables = layers.init_with_output(KEY, X, None)
    assert shapes(variables) == {"params": {"Dense_0": {"bias": (3, 3), "kernel": (3, 3, 3)}}}
    keys = jax.random.split(KEY, 3)
    x = X
    for index in range(3):
        assert_same(element(variables, index), Block().init(keys[index], x))
        x, total = Block().apply(element(variables, index), x)
        assert_close(sums[index], total)
    assert_close(y, x)
    assert_same(layers.apply(variables, X, None), (y, sums))


def test_recurrent_module_shares_its_parameters() -> None:
    rnn = nn.scan(Step, **SHARED)()
    out, variables = rnn.init_with_output(KEY, START, SLICES)
    assert_same(variables, Step().init(KEY, START, SLICES[0]))
    assert_close(out, loop(lambda _: variables["params"], START, SLICES))


def test_gradients_equal_those_of_the_loop() -> None:
    rnn, layers = nn.scan(Step, **SHARED)(), nn.scan(Step, **STACKED)()
    for model, params_of in ((rnn, lambda params, _: params), (layers, element)):
        params = model.init(KEY, START, SLICES)["params"]

        def lifted(params: Any, slices: Any, model: Any = model) -> Any:
            carry, sums = model.apply({"params": params}, START, slices)
            return carry @ carry + sums.sum()

        def plain(params: Any, slices: Any, params_of: Any = params_of) -> Any:
            carry, sums = loop(functools.partial(params_of, params), START, slices)
            return carry @ carry + sums.sum()

        assert_close(jax.grad(lifted, (0, 1))(params, SLICES), jax.grad(plain, (0, 1))(params, SLICES))


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 2}, {"reverse": True, "unroll": True}])
def test_loops_run_as_jax_runs_them(options: dict[str, Any]) -> None:
    params = Step().init(KEY, START, SLICES[0])["params"]
    carry, sums = nn.scan(Step, **SHARED, **options)().apply({"params": params}, START, SLICES)
    order = SLICES[::-1] if "reverse" in options else SLICES
    expected, totals = loop(lambda _: params, START, order)
    assert_close(carry, expected)
    assert_close(sums, totals[::-1] if "reverse" in options else totals)


def test_reversed_stack_belongs_to_the_slices_it_was_made_with() -> None:
    layers = nn.scan(Step, reverse=True, **STACKED)()
    out, variables = layers.init_with_output(KEY, START, SLICES)
    carry = START
    for index in reversed(range(4)):
        carry, total = Step().apply(element(variables, index), carry, SLICES[index])
        assert_close(out[1][index], total)
    assert_close(out[0], carry)


def test_axes_of_slices_parameters_and_outputs() -> None:
    class Many(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, x: Any, whole: Any) -> Any:
            carry = jnp.tanh(nn.Dense(3, use_bias=False)(carry) + x + whole.sum())
            return carry, (carry, whole.sum())

    scanned = nn.scan(
        Many,
        variable_axes={"params": 1},
        split_rngs={"params": True},
        in_axes=(1, nn.broadcast),
        out_axes=(1, nn.broadcast),
    )()
    (carry, (every, total)), variables = scanned.init_with_output(KEY, START, SLICES.T, SLICES)
    assert shapes(variables) == {"params": {"Dense_0": {"kernel": (3, 4, 3)}}}
    assert (every.shape, total.shape) == ((3, 4), ())
    own = carry_now = START
    for index in range(4):
        carry_now, (own, _) = Many().apply(element(variables, index, 1), carry_now, SLICES[index], SLICES)
        assert_close(every[:, index], own)
    assert_close(carry, carry_now)


def test_keyword_arguments_are_sliced_unless_kw_axes_says_otherwise() -> None:
    class Keywords(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, *, x: Any, scale: Any = 1.0, train: bool = False) -> Any:
            assert isinstance(train, bool)
            return nn.Dense(3)(carry) + scale * x, None

    scale = jnp.array([1.0, 2.0, 3.0])
    scanned = nn.scan(Keywords, kw_axes={"x": 0, "scale": None, "train": None}, **SHARED)()
    (carry, _), variables = scanned.init_with_output(KEY, START, x=SLICES, scale=scale, train=True)
    expected = START
    for x in SLICES:
        expected, _ = Keywords().apply(variables, expected, x=x, scale=scale)
    assert_close(carry, expected)
    sliced, _ = nn.scan(Keywords, **SHARED)().apply(variables, carry=START, x=SLICES)
    assert_close(sliced, functools.reduce(lambda carry, x: Keywords().apply(variables, carry, x=x)[0], SLICES, START))


class Normed(nn.Module):
    train: bool = True

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        x = nn.BatchNorm(use_running_average=not self.train, momentum=0.5)(nn.Dense(3)(x))
        return x, None


def test_stacked_statistics_belong_to_the_layers() -> None:
    axes = {"params": 0, "batch_stats": 0}
    layers = nn.scan(Normed, variable_axes=axes, split_rngs={"params": True}, length=2)()
    variables = layers.init(KEY, X, None)
    assert shapes(variables["batch_stats"]) == {"BatchNorm_0": {"mean": (2, 3), "var": (2, 3)}}
    (y, _), mutated = layers.apply(variables, X, None, mutable=["batch_stats"])
    x = X
    for index in range(2):
        (x, _), own = Normed().apply(element(variables, index), x, mutable=["batch_stats"])
        assert_close(element(mutated, index), own)
    assert_close(y, x)


def test_carried_statistics_go_from_one_iteration_to_the_next() -> None:
    recurrent = nn.scan(Normed, variable_carry="batch_stats", length=2, **SHARED)()
    variables = recurrent.init(KEY, X, None)
    assert_same(variables, Normed().init(KEY, X))
    (y, _), mutated = recurrent.apply(variables, X, None, mutable=["batch_stats"])
    x, state = X, variables
    for _ in range(2):
        (x, _), own = Normed().apply(state, x, mutable=["batch_stats"])
        state = {**variables, **own}
    assert_close(y, x)
    assert_close(mutated["batch_stats"], state["batch_stats"])


def test_shared_statistics_may_be_read_and_not_written() -> None:
    shared = {"variable_broadcast": ["params", "batch_stats"], "split_rngs": {"params": False}, "length": 2}
    variables = nn.scan(Normed, **shared)(train=False).init(KEY, X, None)
    nn.scan(Normed, **shared)(train=False).apply(variables, X, None)
    with pytest.raises(LoopInvarianceError, match=r"scan\(Normed\).*batch_stats.*variable_carry=\"batch_stats\""):
        nn.scan(Normed, **shared)().apply(variables, X, None, mutable=["batch_stats"])


class Counter(nn.Module):
    """Counts iterations, and starts from the first slice."""

    @nn.compact
    def __call__(self, x: Any, y: Any) -> Any:
        count = self.variable("counter", "count", lambda: jnp.zeros((), jnp.int32))
        first = self.variable("counter", "first", lambda: y)
        count.value += 1
        return x + nn.Dense(3)(x), (count.value, first.value)


def test_counter_is_carried_from_its_creation_on() -> None:
    model = nn.scan(Counter, variable_carry="counter", **STACKED)()
    (_, (counts, firsts)), variables = model.init_with_output(KEY, X, SLICES)
    assert_same(counts, jnp.arange(1, 5))
    assert_same(firsts, jnp.stack([SLICES[0]] * 4))
    assert_same(variables["counter"]["count"], jnp.array(4))
    (_, (counts, _)), mutated = model.apply(variables, X, SLICES, mutable=["counter"])
    assert_same(counts, jnp.arange(5, 9))
    assert_same(mutated["counter"]["first"], SLICES[0])


def test_dropout_differs_between_iterations_only_if_its_sequence_is_split() -> None:
    class Drop(nn.Module):
        @nn.compact
        def __call__(self, x: Any, ones: Any) -> Any:
            return x, nn.Dropout(0.5, deterministic=False)(ones)

    ones = jnp.ones((2, 64))
    for split in (True, False):
        _, y = nn.scan(Drop, split_rngs={"dropout": split})().apply({}, 0.0, ones, rngs={"dropout": KEY})
        keys = jax.random.split(KEY, 2) if split else [KEY, KEY]
        for index in range(2):
            assert_same(y[index], Drop().apply({}, 0.0, ones[index], rngs={"dropout": keys[index]})[1])


def test_length_is_given_or_found() -> None:
    assert shapes(nn.scan(Block, length=5, **STACKED)().init(KEY, X, None)["params"]["Dense_0"]["bias"]) == (5, 3)
    assert shapes(nn.scan(Step, **STACKED)().init(KEY, START, SLICES)["params"]["Dense_0"]["bias"]) == (4, 3)
    variables = nn.scan(Block, length=5, **STACKED)().init(KEY, X, None)
    nn.scan(Block, **STACKED)().apply(variables, X, None)  # found from the parameters


OUTSIDE = All("params", Not(PathContains("layer")))


def test_method_is_scanned_with_the_parameters_that_lie_in_it_stacked() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.layers(nn.Dense(3)(x), None)[0]

        @functools.partial(nn.scan, variable_broadcast=OUTSIDE, length=2, **STACKED)
        @nn.compact
        def layers(self, x: Any, _: Any) -> Any:
            return nn.relu(nn.Dense(3, name="layer")(x)), None

    y, variables = Model().init_with_output(KEY, X)
    assert shapes(variables["params"]) == {
        "Dense_0": {"bias": (3,), "kernel": (3, 3)},
        "layer": {"bias": (2, 3), "kernel": (2, 3, 3)},
    }
    x = nn.Dense(3).apply({"params": variables["params"]["Dense_0"]}, X)
    for index in range(2):
        x = nn.relu(nn.Dense(3).apply({"params": element(variables["params"]["layer"], index)}, x))
    assert_close(y, x)


def test_variables_made_before_the_loop_are_used_in_it() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.cell = nn.Dense(3)

        def __call__(self, start: Any, slices: Any) -> Any:
            start = self.cell(start)
            body = nn.scan(lambda mdl, carry, x: (jnp.tanh(mdl.cell(carry) + x), None), variable_broadcast="params")
            return body(self, start, slices)[0]

    y, variables = Model().init_with_output(KEY, START, SLICES)
    cell = functools.partial(nn.Dense(3).apply, {"params": variables["params"]["cell"]})
    assert_close(y, functools.reduce(lambda carry, x: jnp.tanh(cell(carry) + x), SLICES, cell(START)))


# --- once -------------------------------------------------------------------------------------------------------------


class Counted(nn.Module):
    """Creates stacked, shared and carried variables, and counts how often its Python runs."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        RUNS.append(self.path)
        shift = self.variable("consts", "shift", lambda: jnp.full((), 0.5))
        steps = self.variable("counter", "steps", lambda: jnp.zeros((), jnp.int32))
        steps.value += 1
        return jnp.tanh(nn.Dense(3)(x) + shift.value), None


RUNS: list[Any] = []

NESTED = functools.partial(
    nn.scan,
    variable_axes={"params": 0},
    variable_broadcast="consts",
    variable_carry="counter",
    split_rngs={"params": True},
    length=2,
)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_body_runs_once_in_init_apply_and_grad(depth: int) -> None:
    layers = Counted
    for _ in range(depth):
        layers = NESTED(layers)
    RUNS.clear()
    variables = layers().init(KEY, X, None)
    assert len(RUNS) == 1
    assert shapes(variables["params"]["Dense_0"]["kernel"]) == (*[2] * depth, 3, 3)
    assert shapes(variables["consts"]) == {"shift": ()}
    assert_same(variables["counter"]["steps"], jnp.array(2**depth))

    layers().apply(variables, X, None, mutable=["counter"])
    assert len(RUNS) == 2

    def loss(params: Any) -> Any:
        (y, _), _ = layers().apply({**variables, "params": params}, X, None, mutable=["counter"])
        return y.sum()

    jax.grad(loss)(variables["params"])
    assert len(RUNS) == 3


# --- wrong uses -------------------------------------------------------------------------------------------------------


def test_carry_of_another_type_shows_both() -> None:
    class Widens(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.Dense(4)(x), None

    with pytest.raises(CarryTypeError, match=r"scan\(Widens\) at /: .*float32\[2,3\] in, float32\[2,4\] out"):
        nn.scan(Widens, length=2, **STACKED)().init(KEY, X, None)

    class Sums(nn.Module):
        def __call__(self, x: Any, _: Any) -> Any:
            return x.sum(), None

    with pytest.raises(CarryTypeError, match=r"(?s)scan\(Sums\) at /: .*float32\[2,\s?3\].*float32\[\]"):
        nn.scan(Sums, length=2)().apply({}, X, None)


def test_body_that_returns_no_pair_is_told_what_to_return() -> None:
    class Forgets(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.Dense(3)(x)

    for x in (X, START):
        with pytest.raises((TypeError, ValueError), match=r"scan\(Forgets\).*return"):
            nn.scan(Forgets, length=2, **STACKED)().init(KEY, x, None)


def test_call_without_a_carry_is_told_what_is_missing() -> None:
    with pytest.raises((TypeError, ValueError), match=r"carry") as caught:
        nn.scan(Block, length=2, **STACKED)().init(KEY)
    assert "transform" not in str(caught.value)  # a function of ours


def test_unknown_length_asks_for_it() -> None:
    with pytest.raises(AxisSizeError, match=r"scan\(Block\) at /: nothing is mapped.*length="):
        nn.scan(Block, **STACKED)().init(KEY, X, None)


def test_lengths_that_disagree_are_listed() -> None:
    with pytest.raises(AxisSizeError, match=r"scan\(Step\) at /: .*size given: 3, x: 4"):
        nn.scan(Step, length=3, **STACKED)().init(KEY, START, SLICES)
    variables = nn.scan(Step, **STACKED)().init(KEY, START, SLICES)
    with pytest.raises(AxisSizeError, match=r"x: 2, all 2 of variables\[\"params\"\]: 4"):
        nn.scan(Step, **STACKED)().apply(variables, START, SLICES[:2])


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({}, UnliftedCollectionError, r'"params/kernel" at /scan\(Block\)/Dense_0.*variable_axes=\{"params": 0\}'),
        (
            {"variable_axes": {"params": 0}},
            UnliftedStreamError,
            r'make_rng\("params"\).*split_rngs=\{"params": True\}',
        ),
        (
            {"variable_broadcast": "params", "split_rngs": {"params": True}},
            LoopInvarianceError,
            r"'params/Dense_0/kernel'.*variable_axes=\{\"params\": 0\}.*do not split",
        ),
    ],
)
def test_wrong_arguments_are_told_apart(arguments: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        nn.scan(Block, length=2, **arguments)().init(RNGS, X, None)


def test_missing_group_of_a_collection_names_all_three_ways_to_lift_it() -> None:
    with pytest.raises(UnliftedCollectionError, match=r'"batch_stats/mean" at /scan\(Normed\)/BatchNorm_0') as caught:
        nn.scan(Normed, length=2, **STACKED)().init(KEY, X, None)
    axes = 'variable_axes={"params": 0, "batch_stats": 0}'
    for way in (axes, 'variable_broadcast="batch_stats"', 'variable_carry="batch_stats"'):
        assert way in caught.value.fix


def test_nothing_given_is_changed() -> None:
    model = nn.scan(Counter, variable_carry="counter", **STACKED)()
    variables = model.init(KEY, X, SLICES)
    before = jax.tree.map(np.array, variables)
    model.apply(variables, X, SLICES, mutable=True)
    assert_same(jax.tree.map(np.array, variables), before)


@pytest.mark.parametrize("lift", [nn.jit, nn.remat, lambda cls: nn.jit(nn.remat(cls))], ids=["jit", "remat", "both"])
def test_a_shared_variable_may_be_written_with_a_constant_inside_another_lift(lift: Any) -> None:
    class Fixed(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("state", "n", jnp.zeros, (2,)).value = jnp.full((2,), 4.0)
            return 2 * x

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, x: Any) -> Any:
            return carry, lift(Fixed)(name="fixed")(x)

    loop = nn.scan(Outer, variable_broadcast="state")()
    (_, ys), variables = loop.init_with_output(KEY, None, jnp.arange(2.0))
    assert ys.tolist() == [0, 2]
    assert_same(variables, {"state": {"fixed": {"n": jnp.full((2,), 4.0)}}})
    assert_same(loop.apply({"state": {"fixed": {"n": jnp.zeros(2)}}}, None, ys, mutable=["state"])[1], variables)
