"""Mapped modules: each element is a module of its own, with its variables and keys, or shares them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from linen_like.errors import (
    AxisSizeError,
    LiftArgumentError,
    LoopInvarianceError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from tests.linen.lifted import KEY, OWN, RNGS, Block, X, assert_close, assert_same, element, shapes

PARAMS = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
SHARED = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
XS = jnp.arange(12.0).reshape(2, 2, 3) / 6 - 1


def test_elements_have_parameters_of_their_own_and_equal_the_loop() -> None:
    model = nn.vmap(nn.Dense, **PARAMS)(4)
    y, variables = model.init_with_output(KEY, XS)
    assert shapes(variables) == {"params": {"bias": (2, 4), "kernel": (2, 3, 4)}}
    keys = jax.random.split(KEY, 2)
    for index in range(2):
        assert_same(element(variables, index), nn.Dense(4).init(keys[index], XS[index]))
        assert_close(nn.Dense(4).apply(element(variables, index), XS[index]), y[index])
    assert_same(model.apply(variables, XS), y)


def test_gradients_equal_those_of_the_loop() -> None:
    model = nn.vmap(nn.Dense, **PARAMS)(4)
    variables = model.init(KEY, XS)

    def loop(variables: Any, xs: Any) -> Any:
        return sum((nn.Dense(4).apply(element(variables, index), xs[index]) ** 2).sum() for index in range(2))

    def mapped(variables: Any, xs: Any) -> Any:
        return (model.apply(variables, xs) ** 2).sum()

    assert_close(jax.grad(mapped, (0, 1))(variables, XS), jax.grad(loop, (0, 1))(variables, XS))


def test_elements_share_parameters_without_an_axis() -> None:
    model = nn.vmap(nn.Dense, **SHARED)(4)
    y, variables = model.init_with_output(KEY, XS)
    plain, expected = nn.Dense(4).init_with_output(KEY, XS)
    assert_same(variables, expected)
    assert_close(y, plain)


def test_elements_with_unsplit_sequences_start_equal() -> None:
    model = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": False})(4)
    variables = model.init(KEY, XS)
    for index in range(2):
        assert_same(element(variables, index), nn.Dense(4).init(KEY, XS[0]))


def test_parameters_may_lie_along_another_axis() -> None:
    first = nn.vmap(nn.Dense, **PARAMS)(4, use_bias=False)
    second = nn.vmap(nn.Dense, variable_axes={"params": 1}, split_rngs={"params": True})(4, use_bias=False)
    y, variables = second.init_with_output(KEY, XS)
    assert shapes(variables) == {"params": {"kernel": (3, 2, 4)}}
    assert_same(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), variables), first.init(KEY, XS))
    assert_close(y, first.init_with_output(KEY, XS)[0])
    last = nn.vmap(nn.Dense, variable_axes={"params": -1}, split_rngs={"params": True})(4, use_bias=False)
    assert shapes(last.init(KEY, XS)) == {"params": {"kernel": (3, 4, 2)}}


def test_in_axes_and_out_axes_are_those_of_jax_without_the_module() -> None:
    class Add(nn.Module):
        @nn.compact
        def __call__(self, tree: Any, shift: Any, unused: Any) -> Any:
            return nn.Dense(4)(tree["a"]) + tree["b"], shift

    mapped = nn.vmap(Add, in_axes=({"a": 1, "b": None}, 0, None), out_axes=(1, 0), **PARAMS)()
    tree, shift = {"a": jnp.swapaxes(XS, 0, 1), "b": jnp.ones(4)}, jnp.arange(2.0)
    (y, passed), variables = mapped.init_with_output(KEY, tree, shift, "not an array")
    assert (y.shape, variables["params"]["Dense_0"]["kernel"].shape) == ((2, 2, 4), (2, 3, 4))
    assert_same(passed, shift)
    plain, expected = nn.vmap(Add, in_axes=({"a": 0, "b": None}, 0, None), **PARAMS)().init_with_output(
        KEY, {"a": XS, "b": jnp.ones(4)}, shift, None
    )
    assert_same(variables, expected)
    assert_close(jnp.swapaxes(y, 0, 1), plain[0])


def test_without_mapped_arguments_the_size_is_given() -> None:
    ensemble = nn.vmap(nn.Dense, in_axes=None, axis_size=3, **PARAMS)(4)
    y, variables = ensemble.init_with_output(KEY, X)
    assert (y.shape, variables["params"]["kernel"].shape) == ((3, 2, 4), (3, 3, 4))
    assert nn.vmap(nn.Dense, in_axes=None, **PARAMS)(4).apply(variables, X).shape == (3, 2, 4)  # from the parameters


def test_keyword_arguments_are_mapped_too_unless_kw_axes_says_otherwise() -> None:
    class Add(nn.Module):
        @nn.compact
        def __call__(self, x: Any, *, shift: Any, train: bool = False) -> Any:
            assert isinstance(train, bool)
            return nn.Dense(4)(x) + shift

    variables = nn.vmap(Add, **PARAMS)().init(KEY, XS, shift=jnp.zeros((2, 4)), train=True)
    plain = nn.vmap(nn.Dense, **PARAMS)(4).apply({"params": variables["params"]["Dense_0"]}, XS)
    shift = jnp.array([[1.0], [2.0]])
    assert_close(nn.vmap(Add, **PARAMS)().apply(variables, XS, shift=shift), plain + shift[:, None])
    once = nn.vmap(Add, kw_axes={"shift": None, "train": None}, **PARAMS)()
    assert_close(once.apply(variables, XS, shift=shift, train=False), plain + shift)
    assert_close(nn.vmap(Add, **PARAMS)().apply(variables, x=XS, shift=shift), plain + shift[:, None])


def test_dropout_differs_between_elements_only_if_its_sequence_is_split() -> None:
    class Drop(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(x)

    ones = jnp.ones((2, 64))
    split = nn.vmap(Drop, split_rngs={"dropout": True})().apply({}, ones, rngs={"dropout": KEY})
    same = nn.vmap(Drop, split_rngs={"dropout": False})().apply({}, ones, rngs={"dropout": KEY})
    assert (split[0] != split[1]).any()
    assert_same(same[0], same[1])
    assert_same(same[0], Drop().apply({}, ones[0], rngs={"dropout": KEY}))
    keys = jax.random.split(KEY, 2)
    assert_same(split[1], Drop().apply({}, ones[1], rngs={"dropout": keys[1]}))


class Counting(nn.Module):
    """Counts its calls, and sums what it was given."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        calls = self.variable("state", "calls", lambda: jnp.zeros((), jnp.int32))
        total = self.variable("state", "total", lambda: jnp.zeros(()))
        if not self.is_initializing():
            calls.value += 1
            total.value += x.sum()
        return x * self.param("scale", nn.initializers.ones, ())


def test_each_element_writes_a_state_of_its_own() -> None:
    model = nn.vmap(Counting, **OWN)()
    variables = model.init(KEY, X)
    assert_same(variables["state"], {"calls": jnp.zeros(2, jnp.int32), "total": jnp.zeros(2)})
    for count in (1, 2):
        _, variables = model.apply(variables, X, mutable=True)
        assert_same(variables["state"]["calls"], jnp.full(2, count))
        assert_close(variables["state"]["total"], count * X.sum(1))


def test_shared_state_may_be_written_with_what_all_elements_agree_on() -> None:
    class Step(nn.Module):
        differ: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            steps = self.variable("state", "steps", lambda: jnp.zeros(()))
            steps.value += x.sum() if self.differ else 1.0
            return x

    shared = functools.partial(nn.vmap, variable_axes={"state": None})
    _, mutated = shared(Step)(False).apply({"state": {"steps": jnp.zeros(())}}, X, mutable=["state"])
    assert_same(mutated, {"state": {"steps": jnp.ones(())}})
    with pytest.raises(LoopInvarianceError, match=r"vmap\(Step\).*'state/steps'.*variable_axes=\{\"state\": 0\}"):
        shared(Step)(True).apply({"state": {"steps": jnp.zeros(())}}, X, mutable=["state"])


def test_batch_norm_averages_over_elements_by_the_axis_name() -> None:
    class Normed(nn.Module):
        axis_name: str | None = None

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, axis_name=self.axis_name)(x)

    axes = {"params": None, "batch_stats": None}
    mapped = nn.vmap(Normed, variable_axes=axes, split_rngs={"params": False}, axis_name="element")("element")
    variables = mapped.init(KEY, XS)
    y, mutated = mapped.apply(variables, XS, mutable=["batch_stats"])
    whole, expected = Normed().apply(variables, XS.reshape(4, 3), mutable=["batch_stats"])
    assert_close(y.reshape(4, 3), whole)
    assert_close(mutated, expected)


def test_filters_choose_single_variables() -> None:
    class Adapted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4, name="base")(x) + nn.Dense(4, name="lora")(x)

    is_lora = liftcore.filters.All("params", liftcore.filters.PathContains("lora"))
    mapped = nn.vmap(Adapted, variable_axes={is_lora: 0, "params": None}, split_rngs={"params": False})()
    y, variables = mapped.init_with_output(KEY, XS)
    assert shapes(variables["params"]) == {
        "base": {"bias": (4,), "kernel": (3, 4)},
        "lora": {"bias": (2, 4), "kernel": (2, 3, 4)},
    }
    own = variables["params"] | {"lora": element(variables["params"]["lora"], 1)}
    assert_close(y[1], Adapted().apply({"params": own}, XS[1]))


def test_variables_may_go_in_and_come_out_along_different_axes() -> None:
    moved = nn.vmap(nn.Dense, variable_axes={"params": liftcore.InOut(0, 1)}, split_rngs={"params": True})(4, False)
    made = moved.init(KEY, XS)
    assert shapes(made) == {"params": {"kernel": (3, 2, 4)}}
    taken = nn.vmap(nn.Dense, variable_axes={"params": liftcore.In(1)})(4, False).apply(made, XS)
    assert_close(taken, nn.vmap(nn.Dense, **PARAMS)(4, False).init_with_output(KEY, XS)[0])


def test_modules_in_fields_are_mapped_with_the_module() -> None:
    class Twice(nn.Module):
        inner: nn.Module

        def __call__(self, x: Any) -> Any:
            return self.inner(self.inner(x))

    y, variables = nn.vmap(Twice, **PARAMS)(nn.Dense(3)).init_with_output(KEY, XS)
    assert shapes(variables) == {"params": {"inner": {"bias": (2, 3), "kernel": (2, 3, 3)}}}
    assert_close(Twice(nn.Dense(3)).apply(element(variables, 1), XS[1]), y[1])


def test_method_of_a_setup_module_is_mapped_while_the_others_are_not() -> None:
    class Coder(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.rows(x), self.dense(x)

        @functools.partial(nn.vmap, **SHARED)
        def rows(self, x: Any) -> Any:
            assert x.shape == (3,)
            return self.dense(x)

    (rows, whole), variables = Coder().init_with_output(KEY, X)
    assert shapes(variables) == {"params": {"dense": {"bias": (3,), "kernel": (3, 3)}}}
    assert_close(rows, whole)


# --- wrong uses -------------------------------------------------------------------------------------------------------


def test_sizes_that_disagree_are_listed_by_argument_and_variable() -> None:
    class Add(nn.Module):
        @nn.compact
        def __call__(self, x: Any, y: Any) -> Any:
            return nn.Dense(4)(x) + y

    with pytest.raises(AxisSizeError, match=r"vmap\(Add\) at /: .*\(x: 2, y: 3\)"):
        nn.vmap(Add, **PARAMS)().init(KEY, XS, jnp.ones((3, 4)))
    variables = nn.vmap(nn.Dense, **PARAMS)(4).init(KEY, XS)
    with pytest.raises(AxisSizeError, match=r"inputs: 3, all 2 of variables\[\"params\"\]: 2"):
        nn.vmap(nn.Dense, **PARAMS)(4).apply(variables, jnp.ones((3, 5, 3)))


def test_flag_among_mapped_arguments_is_told_to_get_no_axis() -> None:
    class Train(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            return nn.Dense(4)(x)

    with pytest.raises(AxisSizeError, match=r"train has shape \(\) and no axis 0.* Give None"):
        nn.vmap(Train, **PARAMS)().init(KEY, XS, True)
    nn.vmap(Train, in_axes=(0, None), **PARAMS)().init(KEY, XS, True)


def test_axes_that_count_the_module_are_an_error_that_names_the_lift() -> None:
    with pytest.raises(LiftArgumentError, match=r"in_axes.*\(None, 0\)") as caught:
        nn.vmap(nn.Dense, in_axes=(None, 0), **PARAMS)(4).init(KEY, XS)
    assert "vmap(Dense)" in str(caught.value)


def test_out_axes_that_do_not_fit_are_an_error_that_shows_the_axes_as_given() -> None:
    with pytest.raises(ValueError, match=r"out_axes") as caught:
        nn.vmap(nn.Dense, out_axes=(0, 1), **PARAMS)(4).init(KEY, XS)
    assert "out_axes[0]" not in str(caught.value)  # the user gave `(0, 1)`, not a pair that holds it


def test_nothing_mapped_asks_for_the_size() -> None:
    with pytest.raises(AxisSizeError, match=r"vmap\(Dense\) at /: nothing is mapped.*axis_size="):
        nn.vmap(nn.Dense, in_axes=None, **PARAMS)(4).init(KEY, X)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({}, UnliftedCollectionError, r'collection "params" was created.*variable_axes=\{"params": 0\}'),
        (
            {"variable_axes": {"params": 0}},
            UnliftedStreamError,
            r'make_rng\("params"\).*split_rngs=\{"params": True\}',
        ),
        (
            {"variable_axes": {"params": None}, "split_rngs": {"params": True}},
            LoopInvarianceError,
            r"'params/Dense_0/kernel'.* differs between them.*variable_axes=\{\"params\": 0\}",
        ),
        ({"variable_axes": "params"}, LiftArgumentError, r"variable_axes: expected a mapping.*\{\"params\": 0\}"),
        ({"variable_axes": {"params": "0"}}, LiftArgumentError, r"variable_axes\['params'\]: expected an axis"),
        ({"split_rngs": "params"}, LiftArgumentError, r"split_rngs: expected one bool, or a mapping"),
    ],
)
def test_wrong_arguments_are_told_apart(arguments: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        nn.vmap(Block, **arguments)().init(RNGS, X)


def test_variables_of_an_unmapped_model_are_refused() -> None:
    variables = nn.Dense(4).init(KEY, XS)
    with pytest.raises(AxisSizeError, match=r"vmap\(Dense\) at /.*inputs: 2, variables\[\"params\"\]\['bias'\]: 4"):
        nn.vmap(nn.Dense, **PARAMS)(4).apply(variables, XS)


def test_sequence_of_dropout_must_be_listed() -> None:
    class Drop(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(x)

    with pytest.raises(UnliftedStreamError, match=r'make_rng\("dropout"\) at /vmap\(Drop\)/Dropout_0'):
        nn.vmap(Drop, split_rngs={"params": True})().apply({}, X, rngs=RNGS)


def test_state_that_no_group_takes_is_named_with_its_path() -> None:
    with pytest.raises(UnliftedCollectionError, match=r'"state/calls" at /vmap\(Counting\)'):
        nn.vmap(Counting, **PARAMS)().init(KEY, X)
    variables = nn.vmap(Counting, **OWN)().init(KEY, X)
    with pytest.raises(UnliftedCollectionError, match=r'"state/calls" at /vmap\(Counting\): it exists outside'):
        nn.vmap(Counting, **PARAMS)().apply(variables, X, mutable=["state"])


def test_nothing_given_is_changed() -> None:
    model = nn.vmap(Counting, **OWN)()
    variables = model.init(KEY, X)
    before = jax.tree.map(np.array, variables)
    model.apply(variables, X, mutable=True)
    assert_same(jax.tree.map(np.array, variables), before)


@pytest.mark.parametrize("lift", [nn.vmap, nn.scan])
@pytest.mark.parametrize("flag", [0, 1])
def test_split_rngs_of_one_method_may_be_numbers_as_those_of_all(lift: Any, flag: int) -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            return nn.Dense(3)(x), None

    options = {"variable_axes": {"params": 0}, **({"in_axes": 0} if lift is nn.vmap else {"length": 2})}
    x = jnp.ones((2, 3))
    for_all = lift(Layer, split_rngs={"params": bool(flag)}, **options)().init(jax.random.key(0), x)
    for methods in ({"__call__": {"split_rngs": {"params": flag}}}, {"__call__": {}}):
        lifted = lift(Layer, split_rngs={"params": flag}, methods=methods, **options)()
        made = lifted.init(jax.random.key(0), x)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, made, for_all))
