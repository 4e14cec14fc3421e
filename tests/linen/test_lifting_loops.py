"""`nn.while_loop`, `nn.fori_loop`, `nn.associative_scan` and `nn.remat_scan`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore import filters
from linen_like.errors import (
    CarryTypeError,
    LiftArgumentError,
    LoopInvarianceError,
    UnliftedStreamError,
)
from tests.linen.lifted import KEY, RNGS, X, assert_close, assert_same, dense_of, element, shapes


class While(nn.Module):
    """Multiplies by a layer until a limit, and counts."""

    steps: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def proceed(mdl: Any, value: Any) -> Any:
            return value[0] < mdl.variable("consts", "limit", lambda: jnp.int32(self.steps)).value

        def body(mdl: Any, value: Any) -> Any:
            mdl.variable("state", "count", lambda: jnp.int32(0)).value += 1
            return value[0] + 1, nn.tanh(nn.Dense(3)(value[1]))

        options = {"carry_variables": "state", "split_rngs": {"params": False}}
        return nn.while_loop(proceed, body, self, (jnp.int32(0), x), **options)[1]


def test_while_loop_makes_its_variables_in_condition_and_body() -> None:
    y, variables = While().init_with_output(KEY, X)
    assert shapes(variables["params"]) == {"Dense_0": {"bias": (3,), "kernel": (3, 3)}}
    assert variables["consts"] == {"limit": 3}
    assert variables["state"] == {"count": 3}
    dense, x = dense_of(variables, "Dense_0"), X
    for _ in range(3):
        x = nn.tanh(dense(x))
    assert_close(y, x)
    y, mutated = jax.jit(lambda variables: While().apply(variables, X, mutable="state"))(variables)
    assert_close(y, x)
    assert mutated["state"] == {"count": 6}
    tangent = jax.jvp(lambda x: While().apply(variables, x, mutable="state")[0], (X,), (X,))[1]
    expected = jax.jvp(lambda x: nn.tanh(dense(nn.tanh(dense(nn.tanh(dense(x)))))), (X,), (X,))[1]
    assert_close(tangent, expected)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("loop", ["while_loop", "fori_loop"])
def test_iterations_draw_different_keys_where_these_are_split(loop: str, split: bool) -> None:
    class Draws(nn.Module):
        def __call__(self) -> Any:
            def body(mdl: Any, i: Any, values: Any) -> Any:
                return values.at[i].set(jax.random.uniform(mdl.make_rng("noise")))

            if loop == "fori_loop":
                return nn.fori_loop(0, 4, body, self, jnp.zeros(4), split_rngs={"noise": split})

            def step(mdl: Any, value: Any) -> Any:
                return value[0] + 1, body(mdl, *value)

            options = {"split_rngs": {"noise": split}}
            return nn.while_loop(lambda mdl, value: value[0] < 4, step, self, (0, jnp.zeros(4)), **options)[1]

    values = Draws().apply({}, rngs={"noise": KEY})
    assert len(set(values.tolist())) == (4 if split else 1)
    root = [jax.random.fold_in(KEY, 2 * index) if split else KEY for index in range(4)]
    drawn = [Draw().apply({}, rngs={"noise": key}) for key in root]
    np.testing.assert_array_equal(values, drawn)


class Draw(nn.Module):
    def __call__(self) -> Any:
        return jax.random.uniform(self.make_rng("noise"))


def test_filters_of_loops_reach_single_variables() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def body(mdl: Any, i: Any, x: Any) -> Any:
                scale = mdl.param("scale", nn.initializers.ones, ())
                lora = mdl.variable("params", "lora", lambda: jnp.zeros(()))
                lora.value += 1
                return x * scale + lora.value

            lora = filters.All("params", filters.PathContains("lora"))
            return nn.fori_loop(0, 3, body, self, x, lora, split_rngs=False)

    y, variables = Model().init_with_output(KEY, X)
    assert variables["params"] == {"scale": 1, "lora": 3}
    assert_close(y, X + 6)


def test_fori_loop_gives_the_index_and_takes_a_bound_that_is_traced() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, upper: Any) -> Any:
            return nn.fori_loop(1, upper, lambda mdl, i, x: nn.Dense(3)(x) * i, self, x, split_rngs=False)

    y, variables = Model().init_with_output(KEY, X, 4)
    dense = dense_of(variables, "Dense_0")
    expected = dense(dense(dense(X)) * 2) * 3
    assert_close(y, expected)
    assert_close(jax.jit(Model().apply)(variables, X, 4), expected)
    grads = jax.grad(lambda x: Model().apply(variables, x, 4).sum())(X)
    assert_close(grads, jax.grad(lambda x: (dense(dense(dense(x)) * 2) * 3).sum())(X))


def test_loops_that_cannot_be_are_told() -> None:
    class Model(nn.Module):
        body: Any
        options: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("state", "seen", lambda: jnp.zeros(()))
            return nn.while_loop(lambda mdl, x: x.sum() < 9, self.body, self, x, **self.options)

    def write(mdl: Any, x: Any) -> Any:
        mdl.put_variable("state", "seen", x.sum())
        return x

    cases = [
        (write, {}, LoopInvarianceError, r'while_loop\(write\).*carry_variables="state"'),
        (lambda mdl, x: x[0], {}, CarryTypeError, r"while_loop\(<lambda>\) at /"),
        (lambda mdl, x: nn.Dense(3)(x), {}, UnliftedStreamError, r'split_rngs=\{"params": True\}'),
    ]
    for body, options, kind, text in cases:
        with pytest.raises(kind, match=text):
            Model(body, options).init(KEY, X)


# --- associative_scan -------------------------------------------------------------------------------------------------


class Decay(nn.Module):
    make: bool = True
    act: Any = None

    @nn.compact
    def __call__(self, xs: Any) -> Any:
        if self.make:
            self.param("by", nn.initializers.constant(0.5), ())

        def operator(mdl: Any, a: Any, b: Any) -> Any:
            if self.act is not None:
                self.act(mdl)
            return mdl.get_variable("params", "by", 1.0) * a * b

        return nn.associative_scan(operator, self, xs, reverse=True)


def test_associative_scan_reads_variables() -> None:
    xs = jnp.arange(1.0, 6.0)
    y, variables = Decay().init_with_output(KEY, xs)

    def plain(by: Any, xs: Any) -> Any:
        return jax.lax.associative_scan(lambda a, b: by * a * b, xs, reverse=True)

    assert_close(y, plain(0.5, xs))
    grads = jax.grad(lambda variables: Decay().apply(variables, xs).sum())(variables)
    assert_close(grads["params"]["by"], jax.grad(lambda by: plain(by, xs).sum())(0.5))


@pytest.mark.parametrize(
    "act",
    [
        lambda mdl: mdl.variable("state", "late", lambda: jnp.zeros(())),
        lambda mdl: mdl.make_rng("params"),
        lambda mdl: mdl.sow("state", "kept", 1.0),
    ],
    ids=["create", "draw", "sow"],
)
def test_operator_that_does_more_than_read_is_refused(act: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"associative_scan\(operator\) at /: the operator"):
        Decay(act=act).init(KEY, jnp.ones(4))


# --- remat_scan -------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    features: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dropout(0.5, deterministic=False)(nn.tanh(nn.Dense(self.features)(x)))

    @nn.compact
    def plain(self, x: Any) -> Any:
        return nn.tanh(nn.Dense(self.features)(x))


def test_remat_scan_is_the_loop_over_all_its_layers() -> None:
    Deep = nn.remat_scan(Layer, lengths=(2, 3), methods="plain")
    variables = Deep().init(KEY, X, method="plain")
    assert shapes(variables["params"]) == {"Dense_0": {"bias": (2, 3, 3), "kernel": (2, 3, 3, 3)}}

    def looped(variables: Any, x: Any) -> Any:
        for i in range(2):
            for j in range(3):
                x = Layer().apply(element(element(variables, i), j), x, method="plain")
        return x

    def loss(variables: Any, run: Any) -> Any:
        return run(variables, X).sum()

    lifted = functools.partial(Deep().apply, method="plain")
    assert_close(lifted(variables, X), looped(variables, X))
    assert_close(jax.grad(loss)(variables, lifted), jax.grad(loss)(variables, looped))


def test_remat_scan_splits_every_sequence_and_takes_the_options_of_scan() -> None:
    variables = nn.remat_scan(Layer, lengths=(4,))().init(RNGS, X)
    assert variables["params"]["Dense_0"]["bias"].shape == (4, 3)
    shared = nn.remat_scan(
        Layer, (2, 2), variable_broadcast="params", variable_axes={}, split_rngs={"params": False, "dropout": True},
        policy=jax.checkpoint_policies.dots_saveable,
    )  # fmt: skip
    variables = shared().init(RNGS, X)
    assert variables["params"]["Dense_0"]["bias"].shape == (3,)


def test_remat_scan_is_named_as_in_linen_and_asks_for_lengths() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.remat_scan(nn.Dense, (2,))(3)(x)

    assert list(Model().init(KEY, X)["params"]) == ["Remat_scanDense_0"]
    with pytest.raises(LiftArgumentError, match=r"lengths of remat_scan"):
        nn.remat_scan(nn.Dense)(3).init(KEY, X)


def test_lifted_methods_of_a_loop_share_their_class() -> None:
    deep = nn.remat_scan(Layer, lengths=(2,))
    assert deep is nn.remat_scan(Layer, lengths=(2,))
    assert_same(deep().init(RNGS, X), deep().init(RNGS, X))
