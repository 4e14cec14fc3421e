"""What holds of every transformation of functions of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import nnx_like as nnx
from nnx_like.errors import TraceContextError
from tests.nnx.lifts import ALSO, ONCE

ALL = pytest.mark.parametrize("lift", [*ONCE.values(), *ALSO.values()], ids=[*ONCE, *ALSO])
LIFTS = pytest.mark.parametrize("lift", ONCE.values(), ids=ONCE)


class Model(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.float32(2))
        self.same = self.w
        self.calls = nnx.BatchStat(jnp.float32(0))
        self.layers = nnx.List([nnx.Dict(b=nnx.Param(jnp.float32(i))) for i in range(2)])
        self.unread = nnx.Param(jnp.ones(3))
        self.scale = 3


class Counted:
    """A body that counts how often its Python runs."""

    def __init__(self, wrong: bool = False) -> None:
        self.runs, self.wrong = 0, wrong

    def __call__(self, model: Any, x: Any) -> Any:
        self.runs += 1
        model.calls += x
        model.layers[0].b.value = model.layers[0].b + model.same * x
        if self.wrong:
            raise RuntimeError("wrong")
        return model.w * x * model.scale + model.layers[0].b


def function(body: Counted) -> Callable[[Any, Any], Any]:
    """A function, since some transformations ask for its name."""
    return lambda model, x: body(model, x)


def state(model: Any) -> dict[Any, Any]:
    return {path: leaf.get_value() for path, leaf in nnx.state(model).flat_state()}


X = jnp.float32(5)


def check(lift: Callable[[Any], Any]) -> int:
    expected, model, body = Model(), Model(), Counted()
    y = Counted()(expected, X)
    result = lift(function(body))(model, X)
    assert jnp.allclose(result, y)
    assert nnx.graphdef(model) == nnx.graphdef(expected)
    assert all(
        jnp.allclose(one, other) for one, other in zip(state(model).values(), state(expected).values(), strict=True)
    )
    return body.runs


@ALL
def test_it_gives_what_the_call_gives_and_the_body_runs_once(lift: Any) -> None:
    # A rule is the Python of the function once more: both must do the same to the objects.
    assert check(lift) == (2 if lift in (ONCE["custom_vjp"], ALSO["custom_jvp"]) else 1)


@LIFTS
@pytest.mark.parametrize("outer", ["scan", "jit", "vmap"])
def test_it_nests_and_the_body_runs_once(lift: Any, outer: str) -> None:
    assert check(lambda body: ONCE[outer](lift(body))) == (2 if lift is ONCE["custom_vjp"] else 1)


@pytest.mark.parametrize("outer", ["value_and_grad", "cond", "remat", "custom_vjp"])
def test_three_deep_the_body_runs_once(outer: str) -> None:
    assert check(lambda body: ONCE[outer](ONCE["scan"](ONCE["remat"](body)))) == (2 if outer == "custom_vjp" else 1)


@pytest.mark.parametrize("lift", [lift for name, lift in (ONCE | ALSO).items() if name != "split_rngs"])  # no trace
def test_nothing_changes_where_the_body_raises(lift: Any) -> None:
    model = Model()
    before, attributes = state(model), dict(vars(model))

    def body(model: Any, x: Any) -> Any:
        model.added = nnx.Param(x)
        model.w, model.calls = model.calls, model.w
        return Counted(wrong=True)(model, x)

    with pytest.raises(RuntimeError, match="wrong"):
        lift(body)(model, X)
    after = state(model)
    assert after.keys() == before.keys()
    assert all(after[path] is before[path] for path in before)
    assert {name: id(value) for name, value in vars(model).items()} == {
        name: id(one) for name, one in attributes.items()
    }


@LIFTS
def test_what_is_only_read_stays_the_very_same_array(lift: Any) -> None:
    model = Model()
    unread, w = model.unread.get_value(), model.w.get_value()
    lift(function(Counted()))(model, X)
    assert model.unread.get_value() is unread
    assert model.w.get_value() is w


@pytest.mark.parametrize("lift", [lift for name, lift in ONCE.items() if name != "named_call"])  # which is no trace
def test_an_object_that_was_not_passed_cannot_be_changed(lift: Any) -> None:
    captured = Model()

    def body(model: Any, x: Any) -> Any:
        captured.calls += x
        return x

    with pytest.raises(TraceContextError, match="Pass the"):
        lift(body)(Model(), X)
    assert captured.calls.get_value() == 0


@LIFTS
def test_a_change_between_calls_is_seen(lift: Any) -> None:
    def results(fn: Any) -> Any:
        model = Model()
        found = [fn(model, X)]
        model.scale = 4
        found.append(fn(model, X))
        model.w.value = jnp.float32(7)
        found.append(fn(model, X))
        model.same = nnx.Param(jnp.float32(1))
        found.append(fn(model, X))
        model.scale = 4.0
        return jnp.stack([*found, fn(model, X)])

    assert jnp.allclose(results(lift(function(Counted()))), results(Counted()))


@pytest.mark.parametrize("fn", [nnx.eval_shape, lambda body, model, x: nnx.make_jaxpr(body)(model, x)])
def test_what_computes_nothing_runs_the_body_once_and_changes_nothing(fn: Any) -> None:
    model, body = Model(), Counted()
    before = state(model)
    fn(function(body), model, X)
    assert body.runs == 1
    assert all(state(model)[path] is value for path, value in before.items())


def test_constructors_calls_and_gradients_run_once_at_any_depth() -> None:
    runs = []

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            runs.append("make")
            self.linear = nnx.Linear(2, 2, rngs=rngs)
            self.calls = nnx.BatchStat(jnp.zeros(()))

    def call(block: Any, x: Any) -> Any:
        runs.append("call")
        block.calls += 1
        return block.linear(x).sum()

    make: Any = Block
    forward: Any = call
    gradients: Any = nnx.grad(call)
    for depth in range(1, 5):
        make, forward, gradients = nnx.vmap(make), nnx.vmap(forward), nnx.vmap(gradients)
        made = make(nnx.Rngs(0).split((2,) * depth))
        assert runs == ["make"] * depth
        assert made.linear.kernel.shape == (2,) * depth + (2, 2)

    y, inner = forward(made, X * jnp.ones((2,) * 5)), gradients(made, X * jnp.ones((2,) * 5))
    outer = nnx.grad(lambda block, x: forward(block, x).sum())(made, X * jnp.ones((2,) * 5))
    assert runs[4:] == ["call"] * 3
    assert (y.shape, outer.linear.kernel.shape) == ((2,) * 4, (2,) * 6)
    assert jnp.array_equal(inner.linear.kernel, outer.linear.kernel)
    assert (made.calls[...] == 3).all()
