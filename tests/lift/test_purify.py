"""`purify`: a function of scopes as a pure function and its variables, both plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import (
    ApplyScopeInvalidVariablesTypeError,
    InvalidRngError,
    LazyInitError,
    LiftArgumentError,
    LiftError,
    ModifyScopeVariableError,
    ScopeParamShapeError,
)
from liftcore.filters import All, PathContains
from liftcore.lift.purify import purify
from tests.lift.quick import assert_same, key, uniform

KEY, OTHER = key(0), key(1)
RNGS = {"params": KEY, "dropout": OTHER}
X = jnp.linspace(0.0, 1.0, 3)


def field(scope: Scope, x: Any, t: Any = 1.0) -> Any:
    return t * jnp.tanh(x @ scope.param("w", uniform, (3, 3)) + scope.child(bias, "b")())


def bias(scope: Scope) -> Any:
    return scope.param("b", uniform, (3,))


def draw(scope: Scope) -> Any:
    return uniform(scope.make_rng("dropout"))


def noisy(scope: Scope, x: Any) -> Any:
    n = scope.variable("state", "n", lambda: jnp.zeros(()))
    n.value += 1
    scope.sow("intermediates", "x", x)
    return (
        field(scope, x)
        + uniform(scope.make_rng("dropout"))
        + scope.child(lambda s: uniform(s.make_rng("dropout")), "c")()
    )


# -- the pure function -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "a", "a/b"])
def test_it_does_what_apply_does(path: str) -> None:
    stored = liftcore.init(noisy)(RNGS, X)[1]
    stored.pop("intermediates")

    def model(scope: Scope) -> Any:
        for name in filter(None, path.split("/")):
            scope = scope.push(name)
        return purify(noisy, scope)

    whole = stored
    for name in reversed(list(filter(None, path.split("/")))):
        whole = {collection: {name: below} for collection, below in whole.items()}
    pure_fn, variables = liftcore.apply(model)(whole)
    assert_same(variables, stored)
    for mutable in (["state"], True):
        ours = pure_fn(variables, X, rngs=RNGS, mutable=mutable)
        assert_same(ours, liftcore.apply(noisy, mutable=mutable)(stored, X, rngs=RNGS))
    with pytest.raises(ModifyScopeVariableError, match=rf'"state/n" at /{path}'):
        pure_fn(variables, X, rngs=RNGS)
    assert pure_fn.__name__ == "noisy"


def test_the_gradient_is_that_of_the_function() -> None:
    stored = liftcore.init(field)(KEY, X)[1]
    pure_fn, variables = purify(field, liftcore.bind(stored))
    ours = jax.grad(lambda variables, x: pure_fn(variables, x, t=2.0).sum(), argnums=(0, 1))(variables, X)
    theirs = jax.grad(lambda variables, x: liftcore.apply(field)(variables, x, 2.0).sum(), argnums=(0, 1))(stored, X)
    assert_same(ours, theirs)


def test_it_outlives_the_scope_and_serves_under_raw_transformations() -> None:
    pure_fn, variables = liftcore.init(lambda scope: purify(field, scope.push("field"), X))(KEY)[0]
    assert_same(jax.jit(pure_fn)(variables, X), liftcore.apply(field)(variables, X))
    xs = jnp.stack([X, 2 * X])
    assert_same(jax.vmap(pure_fn, (None, 0))(variables, xs), jax.vmap(lambda x: pure_fn(variables, x))(xs))
    y = jax.lax.fori_loop(0, 3, lambda i, x: pure_fn(variables, x, 0.1 * i), X)
    expected = X
    for i in range(3):
        expected = pure_fn(variables, expected, 0.1 * i)
    assert_same(y, expected)


def test_names_that_are_taken_stay_taken() -> None:
    def fn(scope: Scope) -> Any:
        return scope.child(bias)()

    def model(scope: Scope, pure: bool) -> Any:
        scope.child(bias)()
        if not pure:
            return fn(scope)
        pure_fn, variables = purify(fn, scope)
        return pure_fn(variables)

    variables = {"params": {"bias_0": {"b": X}, "bias_1": {"b": 2 * X}}}
    assert_same(liftcore.apply(model)(variables, True), liftcore.apply(model)(variables, False))


# -- examples ----------------------------------------------------------------------------------------------------------


def flow(scope: Scope, x: Any, pure: bool = True) -> Any:
    if not pure:
        for i in range(3):
            x = x + field(scope.push("field", reuse=True), x, 0.1 * i)
        return x
    pure_fn, variables = purify(field, scope.push("field"), x, t=0.0)
    return jax.lax.fori_loop(0, 3, lambda i, x: x + pure_fn(variables, x, 0.1 * i), x)


def test_an_example_makes_the_variables() -> None:
    y, variables = liftcore.init(flow)(KEY, X)
    expected, plain = liftcore.init(flow)(KEY, X, False)
    assert_same((y, variables), (expected, plain))
    assert_same(liftcore.apply(flow)(variables, X), y)
    ours, theirs = (
        jax.grad(lambda variables, pure=pure: liftcore.apply(flow)(variables, X, pure).sum())(variables)
        for pure in (True, False)
    )
    assert_same(ours, theirs)


def test_it_makes_them_and_does_nothing_else() -> None:
    def model(scope: Scope) -> Any:
        below = scope.push("a")
        purify(noisy, below, X)
        return below.rewound().push("c").path, below.name_reserved("b"), below.variables()

    (_, taken, variables), _ = liftcore.init(model)(RNGS)
    assert not taken
    assert sorted(variables) == ["params", "state"]
    assert variables["state"] == {"n": 0.0}


def test_no_key_is_drawn_twice() -> None:
    def model(scope: Scope) -> Any:
        purify(lambda scope, x: x + bias(scope), scope, X)
        return scope.get_variable("params", "b"), uniform(scope.make_rng("params"))

    made, drawn = liftcore.init(model)(KEY)[0]
    assert not jnp.array_equal(made, drawn)


def test_without_an_example_nothing_runs() -> None:
    runs: list[int] = []

    def counted(scope: Scope, x: Any) -> Any:
        runs.append(1)
        return field(scope, x)

    def model(scope: Scope, *example: Any) -> Any:
        pure_fn, variables = purify(counted, scope.push("a"), *example)
        return pure_fn(variables, *example) if example else variables

    assert liftcore.init(model)(KEY) == ({}, {})
    assert runs == []
    _, variables = liftcore.init(model)(KEY, X)
    assert len(runs) == 2, "once to make the variables, once since it is called"
    liftcore.apply(model)(variables, X)
    assert len(runs) == 3, "nothing can be made"


def test_an_example_may_be_a_type() -> None:
    example = jax.ShapeDtypeStruct((3,), jnp.float32)
    (_, variables), _ = liftcore.init(lambda scope: purify(field, scope, example, t=X[0]))(KEY)
    assert_same(variables, liftcore.init(field)(KEY, X)[1])

    def depends(scope: Scope, x: Any) -> Any:
        return scope.param("w", lambda key: x)

    with pytest.raises(LazyInitError, match=r'"params/w" in purify\(depends\) at /a: .*Pass an array'):
        liftcore.init(lambda scope: purify(depends, scope.push("a"), example))(KEY)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_draws_need_keys_of_the_caller() -> None:
    variables = liftcore.init(noisy)(RNGS, X)[1]

    def model(scope: Scope) -> Any:
        pure_fn, variables = purify(noisy, scope.push("a"))
        return pure_fn(variables, X, mutable=True)

    with pytest.raises(InvalidRngError, match=r'make_rng\("dropout"\) at /a: no RNG stream.*Pass one: `rngs='):
        liftcore.apply(model)({name: {"a": below} for name, below in variables.items()}, rngs=RNGS)


def test_keys_that_are_given_make_the_same_draws() -> None:
    def draw(scope: Scope) -> Any:
        return uniform(scope.make_rng("dropout")), scope.child(lambda s: uniform(s.make_rng("noise")), "c")()

    def model(scope: Scope, jitted: bool) -> Any:
        fn = liftcore.jit(draw) if jitted else draw
        deep = scope.push("a").push("b")
        pure_fns = [purify(fn, one)[0] for one in (deep, scope.push("d"), scope)]
        return [pure_fn({}, rngs=RNGS) for pure_fn in pure_fns]

    expected = liftcore.apply(draw)({}, rngs=RNGS)
    for jitted in (False, True):
        assert_same(liftcore.apply(model)({}, jitted), [expected] * 3)


# -- several scopes ----------------------------------------------------------------------------------------------------


def test_several_scopes_have_their_variables_in_one_dict() -> None:
    def two(scopes: Any, x: Any) -> Any:
        return scopes["a"].param("w", uniform, (3,)) * scopes["b"].param("v", uniform, (3,)) * x

    def model(scope: Scope, pure: bool) -> Any:
        scope = scope.push("m")
        scopes = {"a": scope.push("a"), "b": scope.push("b").push("c")}
        if not pure:
            return two(scopes, X)
        pure_fn, variables = purify(two, scopes, X)
        assert jax.tree.map(jnp.shape, variables) == {"params": {"a": {"w": (3,)}, "b": {"c": {"v": (3,)}}}}
        return pure_fn(variables, X)

    ours, theirs = (liftcore.init(model)(KEY, pure) for pure in (True, False))
    assert_same(ours, theirs)
    assert_same(liftcore.apply(model)(theirs[1], True), theirs[0])


def test_aliased_scopes_and_a_parent_with_its_child() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        one, same, below = scopes
        one.put_variable("state", "s", x)
        return same.get_variable("state", "s") * below.param("b", uniform, (3,))

    def model(scope: Scope) -> Any:
        a = scope.push("a")
        pure_fn, variables = purify(fn, (a, a, a.push("b")), X)
        return pure_fn(variables, 2 * X, mutable=["state"]), variables

    ((y, mutated), variables), _ = liftcore.init(model)(KEY)
    assert_same((y, mutated), (2 * X * variables["params"]["b"]["b"], {"state": {"s": 2 * X}}))


def test_scopes_of_different_trees_are_refused() -> None:
    scopes = [liftcore.bind({"params": {}}).push(name) for name in "ab"]
    with pytest.raises(LiftArgumentError, match=r"purify\(field\) at /a: the scopes belong to different trees"):
        purify(field, scopes)


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_errors_name_the_absolute_path() -> None:
    stored = {"params": {"a": {"w": jnp.ones((2, 2))}}}
    pure_fn, variables = liftcore.apply(lambda scope: purify(field, scope.push("a")))(stored)
    with pytest.raises(ScopeParamShapeError, match=r'param "w" at /a: '):
        pure_fn(variables, X)
    with pytest.raises(LiftError, match=r'"params/w" at /a: '):
        pure_fn({"params": {}}, X)
    with pytest.raises(ApplyScopeInvalidVariablesTypeError):
        pure_fn(3, X)
    with pytest.raises(LiftError, match=r'rngs\["dropout"\]: expected one PRNG key'):
        pure_fn(variables, X, rngs={"dropout": 3})


def test_mutable_takes_every_filter() -> None:
    def fn(scope: Scope) -> None:
        scope.put_variable("state", "n", 1)

    pure_fn, _ = liftcore.apply(lambda scope: purify(fn, scope.push("a")))({})
    only = All("state", PathContains("a"), PathContains("n"))
    assert pure_fn({}, mutable=only) == (None, {"state": {"n": 1}})
    with pytest.raises(ModifyScopeVariableError):
        pure_fn({}, mutable=All("state", PathContains("m")))


# -- nested ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat, lambda fn: fn])
def test_inside_transparent_lifts(lift: Callable[..., Any]) -> None:
    ours, theirs = (
        liftcore.init(lambda scope, x, fn=fn: scope.child(fn, "a")(x))(KEY, X)
        for fn in (lift(flow), lambda scope, x: flow(scope, x, False))
    )
    assert_same(ours, theirs)
    fn = liftcore.apply(lambda scope, x: scope.child(lift(flow), "a")(x))
    grads = jax.grad(lambda variables: fn(variables, X).sum())(ours[1])
    plain = liftcore.apply(lambda scope, x: scope.child(flow, "a")(x, False))
    assert_same(grads, jax.grad(lambda variables: plain(variables, X).sum())(ours[1]))


@pytest.mark.parametrize(
    "options",
    [
        {"variable_axes": {"params": 1}, "split_rngs": True},
        {"variable_broadcast": "params", "split_rngs": False},
        {"variable_carry": "params", "split_rngs": True},
    ],
)
def test_inside_a_loop_that_makes_the_variables(options: dict[str, Any]) -> None:
    runs: list[int] = []

    def step(scope: Scope, x: Any, _: Any, pure: bool = True) -> Any:
        runs.append(1)
        x = flow(scope, x, pure)
        if "variable_carry" in options:
            below = scope.push("field", reuse=True)
            below.put_variable("params", "w", 2 * below.get_variable("params", "w"))
        return x, None

    ours = liftcore.init(liftcore.scan(step, length=3, **options))(KEY, X, None)
    assert len(runs) == 1
    theirs = liftcore.init(liftcore.scan(lambda *args: step(*args, pure=False), length=3, **options))(KEY, X, None)
    assert_same(ours, theirs)


def test_inside_elements_and_lifts_inside_it() -> None:
    elements = liftcore.vmap(flow, variable_axes={"params": 0}, split_rngs=True)
    plain = liftcore.vmap(lambda scope, x: flow(scope, x, False), variable_axes={"params": 0}, split_rngs=True)
    xs = jnp.stack([X, 2 * X])
    ours, theirs = (liftcore.init(fn)(KEY, xs) for fn in (elements, plain))
    assert_same(ours, theirs)

    def model(scope: Scope, xs: Any) -> Any:
        pure_fn, variables = purify(elements, scope, xs)
        return pure_fn(variables, xs)

    assert_same(liftcore.init(model)(KEY, xs), theirs)


def test_no_tracer_is_left_behind() -> None:
    with jax.checking_leaks():
        y, variables = jax.jit(liftcore.init(flow))(KEY, X)
    np.testing.assert_allclose(y, liftcore.apply(flow)(variables, X), rtol=1e-5)
