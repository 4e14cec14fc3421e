"""`eval_shape`: the types of what a function returns, from scopes that stay as they were."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, PathContains
from liftcore.lift.eval_shape import eval_shape
from tests.lift.quick import assert_same, key, uniform

RNGS = {"params": key(0), "dropout": key(1)}
X = jnp.ones((2, 3))


def layer(scope: Scope, x: Any, train: bool = False) -> Any:
    """Makes, writes, draws, names and sows."""
    w = scope.param("w", uniform, (3, 4))
    n = scope.variable("state", "n", lambda: jnp.zeros((), int))
    n.value += 1
    scope.sow("intermediates", "x", x)
    y = scope.child(lambda scope, x: x + scope.param("b", uniform, (4,)), prefix="below_")(x @ w)
    return (y * uniform(scope.make_rng("dropout"), y.shape), n.value) if train else y


# -- types -------------------------------------------------------------------------------------------------------------


def test_it_gives_types() -> None:
    for fn in (liftcore.init(eval_shape(layer)), liftcore.init(lambda *args: eval_shape(layer)(*args))):
        (y, n), _ = fn(RNGS, X, True)
        assert isinstance(y, jax.ShapeDtypeStruct)
        assert (y.shape, y.dtype, n.shape, n.dtype) == ((2, 4), jnp.float32, (), jnp.int32)


def test_arguments_may_be_types_and_flags() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return eval_shape(layer)(scope, x, train=True)[0].shape, eval_shape(layer)(scope, {"x": x}["x"]).shape

    assert liftcore.init(model)(RNGS, jax.ShapeDtypeStruct((5, 3), jnp.float32))[0] == ((5, 4), (5, 4))
    y = liftcore.init(eval_shape(lambda scope, x: {"weak": 2.0 * x, "none": None}))(RNGS, 3)[0]
    assert (y["weak"].weak_type, y["none"]) == (True, None)


def test_the_variables_may_be_types() -> None:
    variables = jax.eval_shape(lambda: liftcore.init(layer)(RNGS, X)[1])
    assert liftcore.apply(eval_shape(lambda scope: scope.get_variable("params", "w") * 2))(variables).shape == (3, 4)


def test_nothing_is_computed() -> None:
    def model(scope: Scope, x: Any) -> Any:
        eval_shape(layer)(scope, x, True)
        return x

    jaxpr = jax.make_jaxpr(lambda x: liftcore.init(model)(RNGS, x)[0])(X)
    assert jaxpr.eqns == []


def test_the_body_runs_once() -> None:
    runs: list[int] = []

    def counted(scope: Scope, x: Any) -> Any:
        runs.append(1)
        return layer(scope, x)

    def loss(x: Any, fn: Any) -> Any:
        return liftcore.apply(lambda scope, x: (fn(scope, x), x.sum())[1], mutable=["state"])(variables, x)[0]

    _, variables = liftcore.init(layer)(RNGS, X)
    for lifted in (eval_shape(counted), eval_shape(eval_shape(counted))):
        runs.clear()
        liftcore.init(lifted)(RNGS, X)
        assert len(runs) == 1
        liftcore.apply(lifted, mutable=True)(variables, X)
        assert len(runs) == 2
        jax.grad(loss)(X, lifted)
        assert len(runs) == 3


# -- the scopes --------------------------------------------------------------------------------------------------------


def test_the_scope_is_as_it_was() -> None:
    def model(scope: Scope, x: Any, look: bool) -> Any:
        if look:
            eval_shape(layer)(scope, x, True)
        return layer(scope, x, True)

    assert_same(liftcore.init(model)(RNGS, X, True), liftcore.init(model)(RNGS, X, False))
    _, variables = liftcore.init(layer)(RNGS, X)
    ours, theirs = (liftcore.apply(model, mutable=True)(variables, X, look, rngs=RNGS) for look in (True, False))
    assert_same(ours, theirs)


def test_the_scope_is_as_it_was_inside_other_lifts() -> None:
    def step(scope: Scope, x: Any, look: bool) -> Any:
        if look:
            eval_shape(layer)(scope, x, True)
        y, n = layer(scope, x, True)
        return y[:, :3], n

    options = {"variable_carry": "state", "variable_axes": {"params": 0}, "split_rngs": True, "length": 3}
    for lift in (liftcore.jit, liftcore.remat, lambda fn: fn):
        ours, theirs = (
            liftcore.init(liftcore.scan(lift(lambda scope, x, look=look: step(scope, x, look)), **options))(RNGS, X)
            for look in (True, False)
        )
        assert_same(ours, theirs)


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat, lambda fn: fn, lambda fn: liftcore.vmap(
    fn, in_axes=None, axis_size=5, variable_axes={True: 0}, split_rngs=True)])  # fmt: skip
def test_other_lifts_inside(lift: Any) -> None:
    lifted = eval_shape(lift(lambda scope, x: layer(scope, x, True)))
    root = liftcore.bind({}, RNGS, True)
    y, n = lifted(root, X)
    assert (y.shape[-2:], n.dtype, root.variables()) == ((2, 4), jnp.int32, {})


def test_sown_values_stay_inside() -> None:
    y, kept = liftcore.apply(eval_shape(layer), mutable=["intermediates", "params", "state"])({}, X, rngs=RNGS)
    assert (y.shape, kept) == ((2, 4), {})


def test_several_scopes_that_may_be_the_same() -> None:
    def two(scopes: Any, x: Any) -> Any:
        first = layer(scopes[0], x)
        return first + scopes[1].get_variable("params", "w").sum(), scopes[2].param("w", uniform, (7,))

    def model(scope: Scope, x: Any) -> Any:
        a = scope.push("a")
        return eval_shape(two)((a, a, a.push("b")), x)

    (y, w), variables = liftcore.init(model)(RNGS, X)
    assert (y.shape, w.shape, variables) == ((2, 4), (7,), {})


# -- misuse and filters ------------------------------------------------------------------------------------------------


def test_only_what_is_lifted_is_there() -> None:
    def read(scope: Scope) -> Any:
        return scope.get_variable("params", "lora"), scope.get_variable("params", "w")

    lora = All("params", PathContains("lora"))
    variables = {"params": {"lora": X, "w": X}}
    with pytest.raises(UnliftedCollectionError, match=r"\"params/w\" at /eval_shape\(read\).*to `variables`"):
        liftcore.apply(eval_shape(read, variables=lora))(variables)
    assert liftcore.apply(eval_shape(read, variables=(lora, "params")))(variables)[1].shape == (2, 3)
    with pytest.raises(UnliftedStreamError, match='"dropout" to `rngs`'):
        liftcore.apply(eval_shape(lambda scope: scope.make_rng("dropout"), rngs="params"))({}, rngs=RNGS)


def test_errors_of_the_body_are_those_of_the_body() -> None:
    with pytest.raises(LiftError, match=r"param \"w\" at /a/eval_shape\(layer\)") as caught:
        liftcore.apply(lambda scope: eval_shape(layer)(scope.push("a"), X))({"params": {"a": {"w": jnp.ones(2)}}})
    assert "shape" in str(caught.value)


def test_no_tracer_is_left_behind() -> None:
    with jax.checking_leaks():
        jax.jit(lambda x: liftcore.init(lambda scope, x: (eval_shape(layer)(scope, x), x)[1])(RNGS, x))(X)
