"""Lifted `scan`: its arguments, and variables that are shared, carried and stacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import liftcore
from liftcore import In, InOut, Out, Scope, broadcast
from liftcore.errors import (
    AxisSizeError,
    CarryTypeError,
    LiftArgumentError,
    LoopInvarianceError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, Not, PathContains

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}


def pure(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A lifted function of no state."""
    lifted = liftcore.scan(lambda scope, *args, **kwargs: fn(*args, **kwargs), **options)
    return lambda *args, **kwargs: liftcore.apply(lifted)({}, *args, **kwargs)


def layer(scope: Scope, x: Any, _: Any = None) -> tuple[Any, Any]:
    return jnp.tanh(x @ scope.param("w", jax.random.normal, (3, 3))), x.sum()


STACKED = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}


def assert_same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
    types = [
        [(leaf.dtype, leaf.weak_type) for leaf in map(jnp.asarray, jax.tree.leaves(side))] for side in (ours, theirs)
    ]
    assert types[0] == types[1]


# -- the loop ----------------------------------------------------------------------------------------------------------


def step(carry: Any, x: Any) -> tuple[Any, Any]:
    return carry * 0.5 + x, {"before": carry, "x": jnp.stack([x, -x])}


@pytest.mark.parametrize(
    "options", [{}, {"reverse": True}, {"unroll": 2}, {"unroll": True}, {"length": 5}, {"reverse": True, "unroll": 3}]
)
def test_the_loop_is_that_of_jax(options: dict[str, Any]) -> None:
    xs = jnp.arange(5.0)
    assert_same(pure(step, **options)(jnp.float32(1), xs), jax.lax.scan(step, jnp.float32(1), xs, **options))


@pytest.mark.parametrize("unroll", ["all", -1, 1.5, None])
def test_a_wrong_unroll_is_an_error(unroll: Any) -> None:
    with pytest.raises(LiftArgumentError, match="Write an integer, or `unroll=True`"):
        pure(step, unroll=unroll)(jnp.float32(1), jnp.arange(5.0))


def test_unroll_reaches_jax() -> None:
    lifted = liftcore.scan(lambda scope, *args: step(*args), unroll=2, reverse=True)
    jaxpr = jax.make_jaxpr(lambda xs: liftcore.apply(lifted)({}, jnp.float32(1), xs))(jnp.arange(5.0))
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert (eqn.params["unroll"], eqn.params["reverse"], eqn.params["length"]) == (2, True, 5)


@pytest.mark.parametrize(
    "carry",
    [None, jnp.ones(2), (), {"a": (jnp.ones(2), None), "b": [jnp.zeros(())]}, KEY],
    ids=["none", "array", "empty", "pytree", "key"],
)
def test_a_carry_may_be_any_pytree(carry: Any) -> None:
    def keep(carry: Any, x: Any) -> Any:
        return carry, x

    after, ys = pure(keep)(carry, jnp.arange(3.0))
    assert jax.tree.structure(after) == jax.tree.structure(carry)
    assert all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(carry), strict=True))
    assert ys.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize(
    ("carry", "fn"),
    [
        (0, lambda carry, x: (carry + x, carry)),  # a weak int becomes a float
        (0, lambda carry, x: (carry + 1, carry)),  # a weak int stays one
        (1.5, lambda carry, x: (carry * 2, x)),
        (jnp.int32(0), lambda carry, x: (carry + 1, x)),
        ((0, 1.0), lambda carry, x: ((carry[1] * 2, carry[0] + x), x)),  # each becomes what the other was
        (0.0, lambda carry, x: (carry + jnp.bfloat16(1), x)),
    ],
)
def test_a_weakly_typed_carry_is_promoted_as_jax_does(carry: Any, fn: Callable[..., Any], mutable: bool) -> None:
    xs = jnp.arange(3.0)
    lifted = liftcore.scan(lambda scope, *args: fn(*args))
    result = liftcore.apply(lifted, mutable=mutable)({}, carry, xs)
    assert_same(result[0] if mutable else result, jax.lax.scan(fn, carry, xs))


@pytest.mark.parametrize("mutable", [False, True])
def test_a_carry_that_changes_its_type_is_an_error(mutable: bool) -> None:
    def wider(scope: Scope, carry: Any, x: Any) -> Any:
        return (carry[0], jnp.stack([carry[1], x])), x

    def other(scope: Scope, carry: Any, x: Any) -> Any:
        return [carry], x

    for fn, parts in ((wider, ["float32[]", "float32[2]"]), (other, ["structure"])):
        model = liftcore.apply(lambda scope, *args, fn=fn: liftcore.scan(fn)(scope.push("a"), *args), mutable=mutable)
        with pytest.raises(CarryTypeError) as caught:
            model({}, (jnp.float32(0), jnp.float32(0)), jnp.arange(3.0))
        assert caught.value.where == f"scan({fn.__name__}) at /a"
        assert all(part in caught.value.what for part in parts)
        assert isinstance(caught.value, TypeError)


def test_a_body_must_return_a_pair() -> None:
    with pytest.raises(LiftArgumentError, match=r"the body to return a pair.*`return carry, None`"):
        pure(lambda carry, x: carry)(0.0, jnp.arange(3.0))


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_in_axes_may_be_any_prefix() -> None:
    def fn(carry: Any, first: Any, second: Any, whole: Any) -> Any:
        assert first.shape == second["a"].shape == (2,)
        assert whole.shape == (4,)
        return carry + first.sum(), first * second["a"] + whole.sum()

    first, second, whole = jnp.arange(6.0).reshape(3, 2), jnp.arange(6.0).reshape(2, 3), jnp.arange(4.0)
    for axes in ((0, 1, broadcast), [0, {"a": -1}, None]):
        carry, ys = pure(fn, in_axes=axes)(0.0, first, {"a": second}, whole)
        assert carry == 15.0
        np.testing.assert_allclose(ys, first * second.T + 6)


def test_all_may_be_broadcast_if_the_length_is_given() -> None:
    carry, ys = pure(lambda carry, x: (carry + x, carry), in_axes=broadcast, length=4)(jnp.float32(0), jnp.float32(2))
    assert carry == 8.0
    assert ys.tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize("out_axes", [0, 1, -1, ((0, {"m": 1}),), (1, {"m": -1})])
def test_out_axes_say_where_results_are_stacked(out_axes: Any) -> None:
    axes = out_axes[0] if isinstance(out_axes, tuple) and len(out_axes) == 1 else out_axes

    def fn(carry: Any, x: Any) -> Any:
        return carry, (jnp.stack([x, x]), {"m": jnp.ones((2, 3)) * x})

    _, (rows, table) = pure(fn, out_axes=axes)(None, jnp.arange(4.0))
    first, second = (axes, axes) if isinstance(axes, int) else (axes[0], axes[1]["m"])
    np.testing.assert_array_equal(jnp.moveaxis(rows, first, 0), jnp.arange(4.0)[:, None] * jnp.ones(2))
    np.testing.assert_array_equal(
        jnp.moveaxis(table["m"], second, 0), jnp.arange(4.0)[:, None, None] * jnp.ones((2, 3))
    )


@pytest.mark.parametrize("mutable", [False, True])
def test_a_broadcast_output_is_what_every_iteration_gives(mutable: bool) -> None:
    def fn(scope: Scope, carry: Any, x: Any, whole: Any) -> Any:
        return carry + x, (whole * 2, x)

    lifted = liftcore.scan(fn, in_axes=(0, broadcast), out_axes=(broadcast, 0))
    result = liftcore.apply(lifted, mutable=mutable)({}, jnp.float32(0), jnp.arange(3.0), jnp.ones(2))
    carry, (whole, xs) = result[0] if mutable else result
    assert whole.tolist() == [2.0, 2.0]
    assert xs.tolist() == [0.0, 1.0, 2.0]
    assert carry == 3.0


@pytest.mark.parametrize("which", ["carry", "slice", "key"])
def test_a_broadcast_output_that_varies_is_an_error(which: str) -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        values = {"carry": lambda: carry, "slice": lambda: x, "key": lambda: jax.random.normal(scope.make_rng())}
        return carry, values[which]()

    lifted = liftcore.scan(fn, out_axes=broadcast, split_rngs=True)
    with pytest.raises(LoopInvarianceError, match=r"scan\(fn\) at /: an output with `broadcast` in `out_axes`"):
        liftcore.apply(lifted)({}, jnp.float32(0), jnp.arange(3.0), rngs=KEY)


def test_lengths_that_disagree_name_each_argument() -> None:
    def fn(scope: Scope, carry: Any, x: Any, table: Any) -> Any:
        return carry, None

    lifted = liftcore.scan(fn, variable_axes={"params": 0}, length=7)
    with pytest.raises(AxisSizeError) as caught:
        liftcore.apply(lifted)({"params": {"w": jnp.ones(4)}}, 0.0, jnp.ones(2), {"t": jnp.ones((3, 1))})
    assert caught.value.where == "scan(fn) at /"
    for part in ("the size given: 7", "x: 2", "table['t']: 3", "variables[\"params\"]['w']: 4"):
        assert part in caught.value.what


def test_no_length_at_all_says_how_to_give_it() -> None:
    with pytest.raises(AxisSizeError, match=r"nothing is mapped.*`length=…`"):
        pure(lambda carry, x: (carry, x))(0.0, None)


def test_keyword_arguments() -> None:
    seen: list[Any] = []

    def fn(carry: Any, x: Any, *, y: Any, scale: float, flag: bool) -> Any:
        seen.append((scale, flag))
        return carry + x * scale, y

    carry, ys = pure(fn)(jnp.float32(0), jnp.arange(3.0), y=jnp.arange(3.0), scale=2.0, flag=False)
    assert carry == 6.0
    assert ys.tolist() == [0.0, 1.0, 2.0]
    assert seen == [(2.0, False)]
    _, ys = pure(fn, kw_axes={"y": None, "scale": 0, "flag": 0})(
        0.0, jnp.arange(3.0), y=jnp.ones(2), scale=2.0, flag=False
    )
    assert ys.shape == (3, 2)


def test_the_carry_may_be_given_by_name() -> None:
    def fn(scope: Scope, total: Any, x: Any) -> Any:
        return total + x, x

    lifted = liftcore.apply(liftcore.scan(fn))
    assert lifted({}, total=jnp.float32(0), x=jnp.arange(3.0))[0] == 3.0
    with pytest.raises(LiftArgumentError, match="called without a carry"):
        lifted({}, x=jnp.arange(3.0))


# -- stacked variables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_parameters_are_made_on_their_axis(axis: int, reverse: bool) -> None:
    options: dict[str, Any] = {"length": 4, "variable_axes": {"params": axis}, "split_rngs": {"params": True}}
    lifted = liftcore.scan(layer, reverse=reverse, **options)
    (y, sums), variables = liftcore.init(lifted)(KEY, jnp.ones(3), None)
    w = variables["params"]["w"]
    assert w.shape[axis] == 4
    slices = jnp.moveaxis(w, axis, 0)
    for index, root in enumerate(jax.random.split(KEY, 4)):
        alone = jax.random.normal(liftcore.bind({}, root).make_rng(), (3, 3))
        np.testing.assert_allclose(slices[index], alone, rtol=1e-6)
    x, expected = jnp.ones(3), {}
    for index in reversed(range(4)) if reverse else range(4):
        expected[index] = x.sum()
        x = jnp.tanh(x @ slices[index])
    np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, [expected[index] for index in range(4)], rtol=1e-5, atol=1e-6)
    again = liftcore.apply(lifted)(variables, jnp.ones(3), None)
    np.testing.assert_allclose(again[0], y, rtol=1e-6)


def test_the_length_may_come_from_variables_alone() -> None:
    lifted = liftcore.scan(layer, variable_axes={"params": 0})
    assert liftcore.apply(lifted)({"params": {"w": jnp.ones((5, 3, 3))}}, jnp.ones(3), None)[1].shape == (5,)


def test_stacked_variables_are_written_slice_by_slice() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        state = scope.variable("state", "s", lambda: carry * jnp.ones(2))  # made from the carry
        first = state.value
        state.value = state.value + x
        return carry + 1, first

    lifted = liftcore.scan(fn, variable_axes={"state": 1})
    (_, firsts), variables = liftcore.init(lifted)(KEY, jnp.float32(0), jnp.arange(3.0))
    assert firsts.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert variables["state"]["s"].tolist() == [[0.0, 2.0, 4.0], [0.0, 2.0, 4.0]]
    (_, firsts), mutated = liftcore.apply(lifted, mutable=["state"])(variables, jnp.float32(9), jnp.arange(3.0))
    assert firsts.tolist() == [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]
    assert mutated["state"]["s"].tolist() == [[0.0, 3.0, 6.0], [0.0, 3.0, 6.0]]


def test_in_out_and_both_axes_of_stacked_variables() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        old = scope.get_variable("old", "v")
        scope.put_variable("new", "v", old * x)
        both = scope.variable("both", "v")
        both.value = both.value + 1
        return carry, old

    lifted = liftcore.scan(fn, variable_axes={"old": In(1), "new": Out(0), "both": InOut(0, 1)})
    given = {"old": {"v": jnp.arange(6.0).reshape(2, 3)}, "both": {"v": jnp.arange(6.0).reshape(3, 2)}}
    (_, ys), mutated = liftcore.apply(lifted, mutable=True)(given, None, jnp.arange(3.0))
    np.testing.assert_array_equal(ys, given["old"]["v"].T)
    np.testing.assert_array_equal(mutated["new"]["v"], given["old"]["v"].T * jnp.arange(3.0)[:, None])
    np.testing.assert_array_equal(mutated["both"]["v"], (given["both"]["v"] + 1).T)
    assert mutated["old"]["v"] is given["old"]["v"]


def test_an_axis_for_single_variables() -> None:
    def fn(scope: Scope, x: Any, _: Any) -> Any:
        lora = scope.push("lora").param("w", jax.random.normal, (3,))
        return x + scope.param("base", jax.random.normal, (3,)) + lora, None

    lora, base = All("params", PathContains("lora")), All("params", Not(PathContains("lora")))
    lifted = liftcore.scan(fn, length=4, variable_axes={lora: 0}, variable_broadcast=base, split_rngs={"params": False})
    with pytest.raises(AxisSizeError, match="4"):
        liftcore.apply(lifted)({"params": {"base": jnp.ones(3), "lora": {"w": jnp.ones((2, 3))}}}, jnp.zeros(3), None)
    (y, _), variables = liftcore.init(lifted)(KEY, jnp.zeros(3), None)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"base": (3,), "lora": {"w": (4, 3)}}
    expected = 4 * variables["params"]["base"] + variables["params"]["lora"]["w"].sum(0)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_captured_values_are_stacked_though_nobody_lists_them() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        scope.push("a").sow("intermediates", "y", carry + x)
        return carry + x, None

    _, mutated = liftcore.apply(liftcore.scan(fn), mutable=["intermediates"])({}, jnp.float32(0), jnp.arange(3.0))
    assert mutated["intermediates"]["a"]["y"][0].tolist() == [0.0, 1.0, 3.0]


# -- shared variables --------------------------------------------------------------------------------------------------


def test_shared_variables_are_made_once_and_have_no_axis() -> None:
    def fn(scope: Scope, x: Any, _: Any) -> Any:
        scale = scope.variable("consts", "scale", lambda: jnp.arange(3.0)).value
        return layer(scope, x * scale)

    lifted = liftcore.scan(fn, length=4, variable_broadcast=["params", "consts"], split_rngs={"params": False})
    (y, _), variables = liftcore.init(lifted)(KEY, jnp.ones(3), None)
    np.testing.assert_allclose(
        variables["params"]["w"], liftcore.init(layer)(KEY, jnp.ones(3))[1]["params"]["w"], rtol=1e-6
    )
    x = jnp.ones(3)
    for _ in range(4):
        x = jnp.tanh(x * variables["consts"]["scale"] @ variables["params"]["w"])
    np.testing.assert_allclose(y, x, rtol=1e-5)
    grads = jax.grad(lambda v: liftcore.apply(lifted)(v, jnp.ones(3), None)[0].sum())(variables)
    assert grads["params"]["w"].shape == (3, 3)


@pytest.mark.parametrize(
    ("init", "split"),
    [
        (lambda scope, carry, x: jax.random.normal(scope.make_rng()), True),
        (lambda scope, carry, x: carry, False),
        (lambda scope, carry, x: x * 2, False),
    ],
    ids=["key", "carry", "slice"],
)
def test_a_shared_variable_that_varies_is_an_error(init: Callable[..., Any], split: bool) -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        scope.push("inner").variable("consts", "c", lambda: init(scope, carry, x))
        return carry, None

    lifted = liftcore.scan(fn, variable_broadcast="consts", split_rngs=split)
    with pytest.raises(LoopInvarianceError) as caught:
        liftcore.init(lambda scope: lifted(scope.push("a"), jnp.float32(0), jnp.arange(3.0)))(KEY)
    assert caught.value.where == "scan(fn) at /a"
    assert "consts/inner/c" in caught.value.what
    fixes = 'Stack it, `variable_axes={"consts": 0}`', 'Carry it: `variable_carry="consts"`'
    assert caught.value.fix.startswith(fixes)


DIFFERING: dict[str, tuple[Callable[..., Any], str]] = {
    "a slice": (lambda old, carry, x: x, "writes values that differ"),
    "the carry": (lambda old, carry, x: carry, "writes values that differ"),
    "a dict": (lambda old, carry, x: {"a": 1.0, "b": x}, "writes values that differ"),
    "the old value": (lambda old, carry, x: old.value + 1, "reads it and then writes it"),
}


@pytest.mark.parametrize("name", DIFFERING)
@pytest.mark.parametrize("given", [True, False])
def test_a_shared_variable_cannot_be_written_differently(name: str, given: bool) -> None:
    written, what = DIFFERING[name]

    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        old = scope.push("inner").variable("consts", "c", lambda: 1.0)
        old.value = written(old, carry, x)
        return carry + x, None

    lifted = liftcore.scan(fn, variable_broadcast="consts")
    variables = {"consts": {"inner": {"c": 1.0}}} if given else {}
    root = liftcore.bind(variables, mutable=True)
    with pytest.raises(LoopInvarianceError, match=rf"consts/inner/c.*the body {what}.*`variable_carry=\"consts\"`"):
        lifted(root, 0.0, jnp.arange(3.0))
    assert root.variables() == variables


def test_a_shared_variable_that_an_output_reads_before_it_is_written_is_an_error() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        c = scope.variable("consts", "c", lambda: 1.0)
        before, c.value = c.value, 2.0
        return carry, before

    for out_axes in (0, liftcore.broadcast):
        lifted = liftcore.scan(fn, variable_broadcast="consts", out_axes=out_axes)
        for variables in ({}, {"consts": {"c": 1.0}}):
            with pytest.raises(LoopInvarianceError, match="reads it and then writes it"):
                liftcore.apply(lifted, mutable=True)(variables, 0.0, jnp.arange(3.0))


@pytest.mark.parametrize("new", [lambda: 7.0, lambda: (), lambda: {"a": None, "b": jnp.ones(2)}, lambda: jnp.ones(2)])
@pytest.mark.parametrize("lift", ["scan", "fori_loop"])
def test_a_shared_variable_may_be_written_the_same_in_all_iterations(lift: str, new: Callable[[], Any]) -> None:
    def fn(scope: Scope, carry: Any) -> Any:
        by = scope.param("by", lambda key: 2.0)
        c = scope.variable("consts", "c", lambda: 1.0)
        c.value = jax.tree.map(lambda leaf: by * leaf, new())
        return carry + sum(leaf.sum() for leaf in jax.tree.leaves(jax.tree.map(jnp.asarray, c.value)))

    def looped(length: int) -> Callable[..., Any]:
        if lift == "fori_loop":
            loop = liftcore.fori_loop(lambda scope, _, carry: fn(scope, carry), variable_broadcast=True)
            return lambda scope: loop(scope, 0, length, jnp.float32(0))
        loop = liftcore.scan(lambda scope, c, _: (fn(scope, c), None), length, variable_broadcast=True)
        return lambda scope: loop(scope, jnp.float32(0), None)[0]

    def plain(scope: Scope, length: int) -> Any:
        carry = jnp.float32(0)
        for _ in range(length):
            carry = fn(scope.rewound(), carry)
        return carry

    for variables in ({"params": {"by": 3.0}}, {"params": {"by": 3.0}, "consts": {"c": 1.0}}):
        for length in (3, 1):
            expected = liftcore.apply(plain, mutable=["consts"])(variables, length)
            for lifted in (looped(length), liftcore.remat(looped(length)), twice(looped(length), length)):
                y, changed = liftcore.apply(lifted, mutable=["consts"])(variables)
                np.testing.assert_allclose(y, expected[0])
                jax.tree.map(np.testing.assert_array_equal, changed, expected[1])
                assert jax.tree.structure(changed) == jax.tree.structure(expected[1])
    _, changed = liftcore.apply(looped(0), mutable=["consts"])({"params": {"by": 3.0}, "consts": {"c": 1.0}})
    assert changed == {"consts": {"c": 1.0}}


def twice(body: Callable[..., Any], length: int) -> Callable[..., Any]:
    """A body in a loop of one iteration."""
    loop = liftcore.scan(lambda scope, c, _: (c, body(scope)), 1, variable_broadcast=True)
    return lambda scope: loop(scope, 0.0, None)[1][0]


# -- carried variables -------------------------------------------------------------------------------------------------


def count(scope: Scope, by: Any = 1) -> Any:
    counter = scope.variable("counter", "n", lambda: jnp.zeros((), jnp.int32))
    if scope.is_mutable_collection("counter"):
        counter.value += by
    return counter.value


def test_a_carried_variable_goes_from_one_iteration_to_the_next() -> None:
    def fn(scope: Scope, x: Any, y: Any) -> Any:
        return x, count(scope)

    lifted = liftcore.scan(fn, variable_carry="counter")
    (_, counts), variables = liftcore.init(lifted)(KEY, None, jnp.arange(3.0))
    assert counts.tolist() == [1, 2, 3]
    assert variables == {"counter": {"n": 3}}
    (_, counts), mutated = liftcore.apply(lifted, mutable=["counter"])(variables, None, jnp.arange(3.0))
    assert counts.tolist() == [4, 5, 6]
    assert mutated == {"counter": {"n": 6}}
    _, counts = liftcore.apply(lifted)(variables, None, jnp.arange(3.0))
    assert counts.tolist() == [3, 3, 3]


@pytest.mark.parametrize("around", [lambda fn: fn, liftcore.jit, liftcore.remat])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_shared_variable_may_begin_as_a_carried_one_begins(around: Callable[..., Any], depth: int) -> None:
    def fn(scope: Scope, x: Any, _: Any) -> Any:
        n = scope.variable("state", "n", lambda: jax.random.uniform(scope.make_rng()))
        first = scope.variable("consts", "first", lambda: 3 * n.value).value
        n.value += x
        return x + first, n.value

    lifted: Callable[..., Any] = fn
    options: Any = {"variable_carry": "state", "variable_broadcast": "consts", "split_rngs": False}
    for _ in range(depth):
        lifted = liftcore.scan(around(lifted), length=2, **options)
    (y, ns), variables = liftcore.init(lifted)(KEY, jnp.float32(1), None)
    x, n = jnp.float32(1), jax.random.uniform(liftcore.bind({}, KEY).make_rng())
    seen, first = [], 3 * n
    for _ in range(2**depth):
        n, x = n + x, x + first
        seen.append(n)
    assert_same((y, ns.ravel(), variables), (x, jnp.stack(seen), {"consts": {"first": first}, "state": {"n": n}}))


@pytest.mark.parametrize("written", [False, True])
def test_what_is_the_same_in_all_iterations_cannot_follow_a_carried_variable(written: bool) -> None:
    def fn(scope: Scope, x: Any, _: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(3))
        n.value += 1
        if written:
            scope.variable("consts", "last", lambda: jnp.float32(0)).value = n.value
        return x, 0.0 if written else n.value

    lifted = liftcore.scan(
        fn, length=2, variable_carry="state", variable_broadcast="consts", out_axes=liftcore.broadcast
    )
    with pytest.raises(LoopInvarianceError, match="differ between iterations" if written else "`broadcast`"):
        liftcore.init(lifted)(KEY, jnp.float32(1), None)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_carried_variable_begins_as_the_first_iteration_makes_it(reverse: bool) -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        noise = jax.random.normal(scope.make_rng("dropout"))
        state = scope.variable("state", "s", lambda: 100 * carry + x + noise)
        state.value = state.value + x
        return carry + 1, state.value

    lifted = liftcore.scan(fn, reverse=reverse, variable_carry="state", split_rngs={"dropout": True})
    xs = jnp.arange(1.0, 4.0)
    (_, values), variables = liftcore.init(lifted)(RNGS, jnp.float32(5), xs)
    first = 2 if reverse else 0
    root = jax.random.split(RNGS["dropout"], 3)[first]
    noise = jax.random.normal(liftcore.bind({}, {"dropout": root}).make_rng("dropout"))
    expected = 500 + xs[first] + noise + jnp.cumsum(xs[::-1] if reverse else xs)
    np.testing.assert_allclose(values[::-1] if reverse else values, expected, rtol=1e-6)
    np.testing.assert_allclose(variables["state"]["s"], expected[-1], rtol=1e-6)


def test_a_carried_variable_may_be_given_beside_one_that_is_made() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        old = scope.variable("counter", "old")
        old.value = old.value + x
        new = scope.push("new").variable("counter", "n", lambda: 10 * old.value)
        new.value = new.value + old.value
        return carry, new.value

    lifted = liftcore.scan(fn, variable_carry="counter")
    given = {"counter": {"old": jnp.float32(1), "unread": jnp.float32(7)}}
    (_, values), mutated = liftcore.apply(lifted, mutable=True)(given, None, jnp.ones(3))
    assert values.tolist() == [22.0, 25.0, 29.0]
    assert mutated["counter"] == {"old": 4.0, "unread": 7.0, "new": {"n": 29.0}}
    assert mutated["counter"]["unread"] is given["counter"]["unread"]


def test_a_carried_variable_must_keep_its_type() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        state = scope.variable("state", "s", lambda: jnp.zeros(2, jnp.int32))
        state.value = state.value + 0.5
        return carry, None

    with pytest.raises(CarryTypeError, match=r"state.*s.*int32\[2\] in, float32\[2\] out"):
        liftcore.init(liftcore.scan(fn, variable_carry="state"))(KEY, None, jnp.arange(3.0))


def test_a_carried_variable_of_python_numbers_is_promoted() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        state = scope.variable("state", "s")
        state.value = state.value + x
        return carry, None

    lifted = liftcore.scan(fn, variable_carry="state")
    _, mutated = liftcore.apply(lifted, mutable=["state"])({"state": {"s": 1}}, None, jnp.arange(3.0))
    assert mutated == {"state": {"s": 4.0}}
    assert mutated["state"]["s"].dtype == jnp.float32


def test_a_python_number_that_the_body_makes_is_promoted_where_it_is_carried() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        state = scope.child(lambda scope: scope.variable("state", "s", lambda: 1), "below")()
        state.value = state.value + x
        return carry, state.value

    xs = jnp.arange(3.0, dtype=jnp.bfloat16)
    (_, ys), variables = liftcore.init(liftcore.scan(fn, variable_carry="state"))(KEY, None, xs)
    assert variables == {"state": {"below": {"s": 4.0}}}
    assert ys.dtype == variables["state"]["below"]["s"].dtype == jnp.bfloat16


@pytest.mark.parametrize("reverse", [False, True])
def test_a_carried_initial_value_reads_a_stacked_one_of_the_iteration_that_runs_first(reverse: bool) -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        stacked = scope.variable("log", "x", lambda: 10 * x)
        state = scope.variable("state", "s", lambda: stacked.value + 1)
        return carry, state.value

    loop = liftcore.scan(fn, variable_axes={"log": 0}, variable_carry="state", reverse=reverse)
    (_, ys), variables = liftcore.init(loop)(KEY, None, jnp.arange(1.0, 4.0))
    assert variables["state"]["s"] == (31.0 if reverse else 11.0)
    assert ys.tolist() == [variables["state"]["s"]] * 3


def test_groups_are_shared_then_carried_then_stacked() -> None:
    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        for collection in ("a", "b", "c"):
            if collection != "a":
                scope.put_variable(collection, "v", scope.get_variable(collection, "v") + 1)
        return carry, scope.get_variable("a", "v")

    lifted = liftcore.scan(fn, variable_broadcast="a", variable_carry=["a", "b"], variable_axes={...: 0})
    given = {name: {"v": jnp.float32(0)} for name in "ab"} | {"c": {"v": jnp.zeros(3)}}
    _, mutated = liftcore.apply(lifted, mutable=["b", "c"])(given, None, jnp.arange(3.0))
    assert mutated["b"]["v"] == 3.0
    assert mutated["c"]["v"].tolist() == [1.0, 1.0, 1.0]


# -- init anywhere, once -----------------------------------------------------------------------------------------------


def nest(depth: int, runs: list[int], length: int = 2) -> Callable[..., Any]:
    """Scans in scans around a body with stacked parameters, shared constants and a carried counter."""

    def body(scope: Scope, x: Any, _: Any) -> Any:
        runs.append(1)
        w = scope.param("w", jax.random.normal, (3, 3))
        shift = scope.variable("consts", "shift", lambda: jnp.arange(3.0)).value
        n = count(scope)
        return jnp.tanh(x @ w + shift) * (1 + 0.1 * n), n

    for _ in range(depth):
        body = liftcore.scan(
            body,
            length=length,
            in_axes=broadcast,
            variable_axes={"params": 0},
            variable_broadcast="consts",
            variable_carry="counter",
            split_rngs={"params": True},
        )
    return body


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_nest_initialises_applies_and_differentiates_in_one_run_each(depth: int) -> None:
    runs: list[int] = []
    lifted = nest(depth, runs)
    (_, counts), variables = jax.jit(lambda key: liftcore.init(lifted)(key, jnp.ones(3), None))(KEY)
    assert len(runs) == 1, "init"
    assert variables["params"]["w"].shape == (2,) * depth + (3, 3)
    assert len(np.unique(variables["params"]["w"])) == 9 * 2**depth
    assert variables["consts"]["shift"].tolist() == [0.0, 1.0, 2.0]
    assert counts.ravel().tolist() == list(range(1, 2**depth + 1))
    assert variables["counter"]["n"] == 2**depth
    runs.clear()
    (_, counts), mutated = liftcore.apply(lifted, mutable=["counter"])(variables, jnp.ones(3), None)
    assert len(runs) == 1, "apply"
    assert counts.ravel().tolist() == list(range(2**depth + 1, 2 * 2**depth + 1))
    assert mutated["counter"]["n"] == 2 * 2**depth
    runs.clear()

    def loss(params: Any) -> Any:
        (y, _), mutated = liftcore.apply(lifted, mutable=["counter"])(
            {**variables, "params": params}, jnp.ones(3), None
        )
        return y.sum(), mutated

    grads, mutated = jax.grad(loss, has_aux=True)(variables["params"])
    assert len(runs) == 1, "grad"
    assert mutated["counter"]["n"] == 2 * 2**depth
    assert grads["w"].shape == variables["params"]["w"].shape
    assert bool(jnp.isfinite(grads["w"]).all())
    assert bool((grads["w"] != 0).any())


def test_a_nest_draws_the_keys_of_split_splits() -> None:
    variables = liftcore.init(nest(2, []))(KEY, jnp.ones(3), None)[1]
    for outer, key in enumerate(jax.random.split(KEY, 2)):
        for inner, root in enumerate(jax.random.split(key, 2)):
            expected = jax.random.normal(liftcore.bind({}, root).make_rng(), (3, 3))
            np.testing.assert_allclose(variables["params"]["w"][outer, inner], expected, rtol=1e-6)


def test_what_is_made_from_the_inner_carry_and_carried_outside_begins_once() -> None:
    def body(scope: Scope, x: Any, _: Any) -> Any:
        return x + scope.variable("state", "s", lambda: 2 * x).value, None

    inner = liftcore.scan(body, length=2, variable_axes={"state": 0})
    outer = liftcore.scan(inner, length=2, in_axes=broadcast, variable_carry="state")
    (y, _), variables = liftcore.init(outer)(KEY, jnp.float32(1), None)
    assert variables["state"]["s"].tolist() == [2.0, 6.0]
    assert y == 17.0


def test_effects_of_an_initializer_run_once_for_what_is_shared_and_once_a_slice_for_what_is_stacked() -> None:
    made: list[str] = []

    def noted(name: str) -> Any:
        def call(x: Any) -> Any:
            made.append(name)
            return x

        return io_callback(call, jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(1), ordered=False)

    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        shared = scope.variable("consts", "c", lambda: noted("shared")).value
        carried = scope.variable("counter", "n", lambda: noted("carried"))
        carried.value = carried.value + 1
        stacked = scope.variable("state", "s", lambda: noted("stacked")).value
        return carry + shared + carried.value + stacked, None

    lifted = liftcore.scan(
        fn, length=3, variable_broadcast="consts", variable_carry="counter", variable_axes={"state": 0}
    )
    result, variables = liftcore.init(lifted)(KEY, jnp.float32(0), None)
    jax.block_until_ready((result, variables))
    jax.effects_barrier()
    assert Counter(made) == {"shared": 1, "carried": 1, "stacked": 3}
    made.clear()
    jax.block_until_ready(liftcore.apply(lifted, mutable=True)(variables, jnp.float32(0), None))
    jax.effects_barrier()
    assert made == []


def test_other_effects_run_in_every_iteration() -> None:
    seen: list[float] = []

    def fn(scope: Scope, carry: Any, x: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), x, ordered=True)
        scope.param("w", jax.random.normal, ())
        return carry, None

    liftcore.init(liftcore.scan(fn, **STACKED))(KEY, None, jnp.arange(3.0))
    jax.effects_barrier()
    assert seen == [0.0, 1.0, 2.0]


def test_length_zero() -> None:
    lifted = liftcore.scan(layer, length=0, **STACKED)
    (y, sums), variables = liftcore.init(lifted)(KEY, jnp.ones(3), None)
    assert y.tolist() == [1.0, 1.0, 1.0]
    assert sums.shape == (0,)
    assert variables["params"]["w"].shape == (0, 3, 3)
    again, _ = liftcore.apply(lifted, mutable=True)(variables, jnp.ones(3), None)
    assert again[0].tolist() == [1.0, 1.0, 1.0]


def test_length_zero_makes_carried_variables_but_not_from_slices() -> None:
    def from_carry(scope: Scope, carry: Any, x: Any) -> Any:
        state = scope.variable("state", "s", lambda: carry)
        state.value = state.value + 1
        return carry, None

    def from_slice(scope: Scope, carry: Any, x: Any) -> Any:
        scope.variable("state", "s", lambda: x)
        return carry, None

    xs = jnp.zeros((0,))
    _, variables = liftcore.init(liftcore.scan(from_carry, variable_carry="state"))(KEY, jnp.float32(4), xs)
    assert variables == {"state": {"s": 4.0}}
    with pytest.raises(AxisSizeError, match="from the slices of iteration 0, but there are no iterations"):
        liftcore.init(liftcore.scan(from_slice, variable_carry="state"))(KEY, jnp.float32(4), xs)


# -- keys --------------------------------------------------------------------------------------------------------------


def draw(scope: Scope, carry: Any, *names: Any) -> Any:
    return carry, {name: jax.random.key_data(scope.make_rng(name)) for name in ("params", "dropout")}


def test_split_sequences_draw_differently_and_others_do_not() -> None:
    lifted = liftcore.scan(draw, length=3, split_rngs={"dropout": True, "params": False})
    _, keys = liftcore.apply(lambda scope: lifted(scope.push("a"), None))({}, rngs=RNGS)
    own = liftcore.bind({}, RNGS).push("a")
    np.testing.assert_array_equal(keys["params"], np.tile(jax.random.key_data(own.make_rng()), (3, 1)))
    for index, root in enumerate(jax.random.split(RNGS["dropout"], 3)):
        alone = liftcore.bind({}, {"dropout": root}).push("a").make_rng("dropout")
        np.testing.assert_array_equal(keys["dropout"][index], jax.random.key_data(alone))


def test_a_loop_advances_counts_once() -> None:
    def model(scope: Scope) -> Any:
        liftcore.scan(draw, length=3, split_rngs=True)(scope, None)
        return scope.make_rng("dropout")

    bound = liftcore.bind({}, RNGS)
    bound.make_rng("dropout")
    assert liftcore.apply(model)({}, rngs=RNGS) == bound.make_rng("dropout")


def test_what_is_not_lifted_is_an_error() -> None:
    with pytest.raises(UnliftedStreamError, match=r'make_rng\("dropout"\) at /scan\(draw\)'):
        liftcore.apply(liftcore.scan(draw, length=3, split_rngs={"params": True}))({}, None, rngs=RNGS)
    with pytest.raises(UnliftedCollectionError) as caught:
        liftcore.init(liftcore.scan(lambda scope, x, _: (x, count(scope)), length=3))(KEY, None, None)
    assert caught.value.where.startswith('"counter/n" at /scan(')
    for option in ('variable_axes={"counter": 0}', 'variable_broadcast="counter"', 'variable_carry="counter"'):
        assert option in caught.value.fix


# -- the program -------------------------------------------------------------------------------------------------------


def equations(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for value in eqn.params.values():
            if hasattr(value, "jaxpr"):
                yield from equations(value.jaxpr)


@pytest.mark.parametrize("mutable", [False, ["state"]])
def test_the_program_is_that_of_jax(mutable: Any) -> None:
    def plain(variables: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, variables["params"]["w"])

    variables = {"params": {"w": jnp.ones((5, 3, 3))}}
    lifted = liftcore.apply(liftcore.scan(layer, **STACKED), mutable=mutable)
    ours = Counter(equations(jax.make_jaxpr(lambda v, x: lifted(v, x, None))(variables, jnp.ones(3))))
    assert ours == Counter(equations(jax.make_jaxpr(plain)(variables, jnp.ones(3))))


def test_init_computes_each_parameter_once() -> None:
    lifted = liftcore.scan(layer, length=4, **STACKED)
    jaxpr = jax.make_jaxpr(lambda key: liftcore.init(lifted)(key, jnp.ones(3), None))(KEY)
    names = Counter(equations(jaxpr.jaxpr))
    assert names["random_bits"] == 1
    assert names["name"] == 0


def called_back(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    """An initializer that `jax.vmap` has no rule for."""
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(shape, dtype), jax.random.normal(key, shape, dtype))


@pytest.mark.parametrize(
    ("root", "init_fn", "loops"),
    [
        (KEY, jax.nn.initializers.orthogonal(), 1),
        (jax.random.PRNGKey(0), jax.random.normal, 1),
        (jax.random.key(0, impl="rbg"), jax.random.normal, 2),
        (KEY, called_back, 2),
    ],
    ids=["threefry", "raw", "rbg", "callback"],
)
def test_stacked_values_are_made_at_once_where_that_gives_those_made_one_by_one(
    root: jax.Array, init_fn: Callable[..., Any], loops: int
) -> None:
    def scaled(scope: Scope, x: Any, _: Any) -> tuple[Any, None]:
        return x @ scope.param("w", init_fn, (2, 2)), None

    init = liftcore.init(liftcore.scan(scaled, length=3, **STACKED))
    w = init(root, jnp.ones(2), None)[1]["params"]["w"]
    alone = [init_fn(liftcore.bind({}, split).make_rng(), (2, 2)) for split in jax.random.split(root, 3)]
    np.testing.assert_array_equal(w, jnp.stack(alone))
    jaxpr = jax.make_jaxpr(lambda root: init(root, jnp.ones(2), None))(root)
    assert Counter(equations(jaxpr.jaxpr))["scan"] == loops


@pytest.mark.parametrize("axis", [None, liftcore.In(None), liftcore.Out(None), liftcore.InOut(0, None)])
def test_stacked_variables_without_an_axis_are_refused(axis: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"expected an axis for each filter, given None.*variable_broadcast"):
        liftcore.scan(lambda scope, carry, x: (carry, x), variable_axes={"params": axis})


@pytest.mark.parametrize("mutable", [False, True])
def test_an_output_without_an_axis_is_given_once_whether_anything_is_written_or_not(mutable: bool) -> None:
    def body(scope: Scope, carry: Any, x: Any) -> Any:
        return carry + x, (jnp.arange(3.0), x)

    looped = liftcore.scan(body, out_axes=(None, 0))
    found = liftcore.apply(looped, mutable=mutable)({}, 1.0, jnp.ones(4))
    carry, (constant, stacked) = found[0] if mutable else found
    assert (float(carry), constant.tolist(), stacked.shape) == (5.0, [0.0, 1.0, 2.0], (4,))


def test_a_shared_value_is_told_to_be_carried_where_it_depends_on_the_carry_and_to_be_stacked_where_not() -> None:
    def fails_with(init_fn: Callable[..., Any], **options: Any) -> LoopInvarianceError:
        def body(scope: Any, carry: Any, x: Any) -> Any:
            other = scope.variable("other", "n", lambda: carry.sum())
            return carry, scope.variable("state", "n", lambda: init_fn(scope, carry, x, other.value)).value

        loop = liftcore.scan(body, variable_broadcast="state", variable_carry="other", **options)
        with pytest.raises(LoopInvarianceError, match=r"\['state/n'\] is shared by all iterations") as caught:
            liftcore.init(loop)(jax.random.key(0), jnp.ones(2), jnp.ones(3))
        return caught.value

    for init_fn in (lambda s, carry, x, n: carry, lambda s, carry, x, n: n, lambda s, carry, x, n: x + carry.sum()):
        error = fails_with(init_fn)
        assert "depends on the carry, or on a carried variable" in error.what
        assert error.fix == 'Carry it: `variable_carry="state"`.'
    for init_fn in (lambda s, carry, x, n: x, lambda s, carry, x, n: jax.random.normal(s.make_rng())):
        error = fails_with(init_fn, split_rngs=True)
        assert "depends on a slice or on a key that is split" in error.what
        assert error.fix.startswith('Stack it, `variable_axes={"state": 0}`')


def test_what_is_mapped_comes_after_the_carry() -> None:
    loop = liftcore.scan(lambda scope, carry, x: (carry, x))
    with pytest.raises(AxisSizeError, match=r"`length=…`\. The first argument is the carry; mapped arguments follow"):
        liftcore.apply(loop)({}, jnp.ones(3))


@pytest.mark.parametrize("carried", [False, True])
def test_a_carry_with_a_type_of_its_own_is_not_promoted(carried: bool) -> None:
    def body(scope: Scope, carry: Any, x: Any) -> Any:
        total = scope.variable("state", "total", lambda: jnp.int32(0) if carried else jnp.float32(0))
        total.value = total.value + x
        return carry if carried else carry * 1.5, None

    loop = liftcore.scan(body, variable_carry="state")
    with pytest.raises(CarryTypeError, match="int32"):
        liftcore.init(loop)(KEY, jnp.int32(1), jnp.ones(3))
    state = {"total": jnp.int32(0) if carried else jnp.float32(0)}
    with pytest.raises(CarryTypeError, match="int32"):
        liftcore.apply(loop, mutable=True)({"state": state}, jnp.int32(1), jnp.ones(3))
