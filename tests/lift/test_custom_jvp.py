"""Lifted `custom_jvp`: derivatives of one's own, along variables and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import Not
from tests.lift.derivatives import KEY, LORA, RNGS, X, counts
from tests.lift.nests import Counted
from tests.lift.quick import assert_same
from tests.lift.ruled import CHOSEN, MUTABLE, PARAMS, VARIABLES, fails, layer, result, scaled, total
from tests.lift.ruled import ruled_forward as ruled
from tests.machine import make_mesh

# -- the rule ----------------------------------------------------------------------------------------------------------


def marked(scope: Scope, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    w, dw = scope.get_variable("params", "w"), variable_tangents["params"]["w"]
    return scaled(scope, x, y), {"a": 100 * x * dw + 10 * w * dx, "b": 5 * dy}


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("around", [lambda fn: fn, jax.jit])
def test_derivatives_are_what_the_rule_says(around: Callable[..., Any], mutable: bool) -> None:
    lifted = ruled(scaled, marked)

    @around
    def loss(params: Any, x: Any, y: Any) -> Any:
        return total(result(lifted, mutable, x, y, given={"params": params}))

    args = {"w": jnp.float32(3)}, 2.0, 7.0
    value, grads = jax.value_and_grad(loss, (0, 1, 2))(*args)
    assert (value, grads) == (13.0, ({"w": 200.0}, 30.0, 5.0))
    assert jax.jacfwd(loss, (0, 1, 2))(*args) == grads
    assert jax.jvp(loss, args, ({"w": jnp.float32(1)}, 1.0, 0.0)) == (13.0, 230.0)


def test_the_rule_may_give_a_list() -> None:
    lifted = ruled(lambda scope, x: 2 * x, lambda scope, primals, tangents, _: [2 * primals[0], 7 * tangents[0]])
    assert jax.grad(lambda x: liftcore.apply(lifted)({}, x))(1.0) == 7.0


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_arguments_may_be_any_pytree_with_integers_and_keys(make: Any) -> None:
    def fn(scope: Scope, tree: Any, n: Any, key: Any, nothing: Any) -> Any:
        assert nothing is None
        return tree["a"] * n + jax.random.uniform(key) * tree["b"][0], n

    def rule(scope: Scope, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        assert variable_tangents == {}
        assert (tangents[1].dtype, tangents[2].dtype, tangents[3]) == (jax.dtypes.float0, jax.dtypes.float0, None)
        return fn(scope, *primals), (7 * tangents[0]["a"], tangents[1])

    tree = {"a": jnp.float32(2), "b": (jnp.float32(3),)}
    grads = jax.grad(lambda tree: liftcore.apply(ruled(fn, rule))({}, tree, 4, make(0), None)[0])(tree)
    assert grads == {"a": 7.0, "b": (0.0,)}


@pytest.mark.parametrize(("numbers", "names"), CHOSEN)
@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_some_arguments_only_python_sees(numbers: Any, names: Any, run: str) -> None:
    def power(scope: Scope, mode: str, x: Any, n: int) -> Any:
        return scope.param("w", lambda key: jnp.float32(3)) * x**n if mode == "power" else x

    def rule(scope: Scope, mode: str, n: int, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        assert (mode, n) == ("power", 2)
        (x,), (dx,) = primals, tangents
        return power(scope, mode, x, n), n * x * dx + 100 * variable_tangents["params"]["w"]

    lifted = ruled(power, rule, nondiff_argnums=numbers, nondiff_argnames=names)

    def loss(params: Any, x: Any) -> Any:
        if run == "init":
            return liftcore.init(lifted)(KEY, "power", x, 2)[0]
        return result(lifted, run != "apply", "power", x, 2, given={"params": params})

    assert jax.grad(loss, 1)({"w": jnp.float32(3)}, 5.0) == 10.0
    if run != "init":
        assert jax.grad(loss)({"w": jnp.float32(3)}, 5.0) == {"w": 100.0}


def test_keyword_arguments_and_defaults_are_those_of_the_function() -> None:
    def fn(scope: Scope, x: Any, n: int = 3, y: Any = 1.0) -> Any:
        return x * n * y

    def rule(scope: Scope, n: int, primals: Any, tangents: Any, _: Any) -> Any:
        x, y = primals
        return fn(scope, x, n, y), 10.0 * n * tangents[0]

    lifted = ruled(fn, rule, nondiff_argnums=(2,))
    for args, kwargs, value, slope in (
        ((2.0,), {}, 6.0, 30.0),
        ((2.0,), {"n": 4}, 8.0, 40.0),
        ((2.0, 5), {"y": 2.0}, 20.0, 50.0),
        ((2.0,), {"y": 2.0, "n": 1}, 4.0, 10.0),
    ):
        assert liftcore.apply(lifted)({}, *args, **kwargs) == value
        assert jax.grad(lambda x, *rest, kwargs=kwargs: liftcore.apply(lifted)({}, x, *rest, **kwargs))(*args) == slope
    assert liftcore.apply(lifted)({}, x=2.0) == 6.0


def test_the_rule_gets_the_defaults_too() -> None:
    def rule(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        x, n = primals
        return x * n, n * tangents[0]

    lifted = ruled(lambda scope, x, n=3.0: x * n, rule)
    assert jax.grad(lambda x: liftcore.apply(lifted)({}, x))(2.0) == 3.0


def test_arguments_that_have_no_position_are_an_error() -> None:
    def fn(scope: Scope, x: Any, *, n: Any = 2) -> Any:
        return x * n

    lifted = ruled(fn, lambda scope, primals, tangents, _: (2 * primals[0], 2 * tangents[0]))
    with pytest.raises((TypeError, LiftArgumentError), match=r"n"):
        liftcore.apply(lifted)({}, 3.0, n=5)


# -- along which variables ---------------------------------------------------------------------------------------------


def test_single_variables_have_tangents_and_others_none() -> None:
    lifted = ruled(layer, wrt=LORA)

    def loss(variables: Any, x: Any) -> Any:
        return jnp.sum(result(lifted, False, x, given=variables))

    bare, bare_x = jax.grad(lambda v, x: jnp.sum(result(layer, False, x, given=v)), (0, 1))(VARIABLES, X)
    for transform in (jax.grad, jax.jacfwd):
        grads, x = transform(loss, (0, 1))(VARIABLES, X)
        assert_same((grads["params"]["lora"], x), (bare["params"]["lora"], bare_x))
        assert not grads["params"]["w"].any()
        assert not grads["state"]["n"]


def test_what_is_written_or_sown_has_no_tangent() -> None:
    lifted = ruled(layer)

    def loss(variables: Any, x: Any) -> Any:
        return total(liftcore.apply(lifted, mutable=MUTABLE)(variables, x, rngs=RNGS)[1])

    for transform in (jax.grad, jax.jacfwd):
        for leaf in jax.tree.leaves(transform(loss, (0, 1))(VARIABLES, X)):
            assert not leaf.any()


def test_integer_variables_do_not_move() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.variable("state", "i", lambda: jnp.int32(3)).value

    lifted = ruled(fn, wrt="state")
    grads = jax.grad(lambda v, x: result(lifted, False, x, given=v), (0, 1), allow_int=True)({"state": {"i": 3}}, 2.0)
    assert (grads[0]["state"]["i"].dtype, grads[1]) == (jax.dtypes.float0, 3.0)


@pytest.mark.parametrize("mutable", [False, True])
def test_overlapping_scopes_move_each_variable_once(mutable: bool) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        values = [one.rewound().param("w", None, ()) for one in scopes]
        return values[0] * values[1] * values[2] * x

    def model(scope: Scope, x: Any, lift: Callable[..., Any]) -> Any:
        return lift(fn)((scope, scope.push("c"), scope.push("c", reuse=True)), x)

    def grads(lift: Callable[..., Any]) -> Any:
        given = {"params": {"w": jnp.float32(3), "c": {"w": jnp.float32(2)}}}
        run = lambda v, x: result(model, mutable, x, lift, given=v)  # noqa: E731
        return jax.grad(run, (0, 1))(given, 5.0), jax.jacfwd(run, (0, 1))(given, 5.0)

    assert_same(grads(ruled), grads(lambda fn: fn))


def test_a_pytree_of_scopes_has_a_pytree_of_tangents() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        return scopes["a"].param("w", None, ()) * x + scopes["b"][0].param("w", None, ())

    def rule(scopes: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        assert set(variable_tangents) == {"a", "b"}
        return fn(scopes, *primals), 5 * variable_tangents["a"]["params"]["w"]

    def model(scope: Scope, x: Any) -> Any:
        return ruled(fn, rule)({"a": scope.push("a"), "b": (scope.push("b"),)}, x)

    given = {"params": {"a": {"w": jnp.float32(2)}, "b": {"w": jnp.float32(3)}}}
    assert jax.grad(lambda v: result(model, False, 1.0, given=v))(given) == {
        "params": {"a": {"w": 5.0}, "b": {"w": 0.0}}
    }


# -- state -------------------------------------------------------------------------------------------------------------


def test_state_and_draws_are_the_same_where_the_rule_runs() -> None:
    def run(variables: Any, x: Any) -> Any:
        y, mutated = liftcore.apply(ruled(layer), mutable=MUTABLE)(variables, x, rngs=RNGS)
        return jnp.sum(y), (y, mutated)

    expected = liftcore.apply(layer, mutable=MUTABLE)(VARIABLES, X, rngs=RNGS)
    assert_same(run(VARIABLES, X)[1], expected)
    assert_same(jax.jvp(lambda x: run(VARIABLES, x), (X,), (X,))[0][1], expected)
    assert_same(jax.grad(run, 1, has_aux=True)(VARIABLES, X)[1], expected)


def test_the_rule_finds_the_variables_that_the_function_creates() -> None:
    def rule(scope: Scope, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        w = scope.param("w", None, ())
        return w * primals[0], 7 * w * tangents[0] + 0 * variable_tangents["params"]["w"]

    lifted = ruled(lambda scope, x: x * scope.param("w", lambda key: jnp.float32(3)), rule)
    assert jax.grad(lambda x: liftcore.init(lifted)(KEY, x)[0])(2.0) == 21.0
    assert liftcore.init(lifted)(KEY, 2.0) == (6.0, {"params": {"w": 3.0}})


def test_values_sown_by_the_function_or_by_the_rule_only_are_zeros_elsewhere() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "function", x)
        return 2 * x

    def rule(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        scope.sow("intermediates", "rule", primals[0])
        return 2 * primals[0], 2 * tangents[0]

    apply = liftcore.apply(ruled(fn, rule), mutable=["intermediates"])
    assert_same(apply({}, X)[1]["intermediates"], {"function": (X,), "rule": (0 * X,)})
    sown = jax.jvp(lambda x: apply({}, x), (X,), (X,))[0][1]
    assert_same(sown["intermediates"], {"function": (0 * X,), "rule": (X,)})


def test_only_lifted_variables_and_sequences_are_there() -> None:
    def reading(scope: Scope, x: Any) -> Any:
        return x * scope.get_variable("state", "n")

    result(ruled(reading, variables="state"), False, 2.0)
    with pytest.raises(UnliftedCollectionError) as caught:
        result(ruled(reading, variables=Not("state")), False, 2.0)
    assert caught.value.where == '"state/n" at /custom_jvp(reading)'
    assert caught.value.fix == 'Add "state" to `variables`.'

    def noisy(scope: Scope, x: Any) -> Any:
        return x * jax.random.uniform(scope.make_rng("dropout"))

    result(ruled(noisy, rngs="dropout"), False, 1.0)
    with pytest.raises(UnliftedStreamError, match=r'custom_jvp\(noisy\) does not .*Add "dropout" to `rngs`'):
        result(ruled(noisy, rngs="params"), False, 1.0)


def test_what_the_function_holds_on_to_cannot_be_differentiated_as_in_jax() -> None:
    def loss(held: Any, x: Any) -> Any:
        rule = lambda scope, primals, tangents, _: (primals[0] * held, tangents[0] * held)  # noqa: E731
        return liftcore.apply(ruled(lambda scope, x: x * held, rule))({}, x)

    assert jax.grad(loss, 1)(3.0, 2.0) == 3.0
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.grad(loss, (0, 1))(3.0, 2.0)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_there_must_be_a_rule() -> None:
    error = fails(liftcore.custom_jvp(layer), X)
    assert (error.where, error.what) == ("custom_jvp(layer) at /m", "it has no rule yet.")
    assert error.fix == "Define one first: `fn.defjvp(rule)`."


@pytest.mark.parametrize("numbers", [(0,), (1, 0), (-2,), (-1, -2)])
def test_the_scope_cannot_be_among_the_arguments_that_only_python_sees(numbers: Any) -> None:
    error = fails(ruled(layer, nondiff_argnums=numbers), X)
    assert error.where == f"custom_jvp(layer) at /m, nondiff_argnums={numbers}"
    assert "number 0 is the scope" in error.what
    assert error.fix == "Count from 1; choose its variables with `wrt`."


@pytest.mark.parametrize(
    "given", [lambda x, dx: 2 * x, lambda x, dx: (x,), lambda x, dx: (x, dx, dx), lambda x, dx: None]
)
def test_the_rule_returns_a_pair(given: Callable[..., Any]) -> None:
    def rule(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        return given(primals[0], tangents[0])

    error = fails(ruled(lambda scope, x: 2 * x, rule), X)
    assert error.where == "rule, the rule of custom_jvp(<lambda>) at /m"
    assert "expected the pair" in error.what


def test_jax_says_what_is_wrong_with_the_type_of_a_tangent() -> None:
    for tangent in (lambda dx: dx[:2], lambda dx: (dx, dx), lambda dx: jnp.ones(3, int)):
        rule = lambda scope, primals, tangents, _, tangent=tangent: (2 * primals[0], tangent(tangents[0]))  # noqa: E731
        with pytest.raises(TypeError, match=r"JVP rule"):
            jax.jvp(lambda x, rule=rule: liftcore.apply(ruled(lambda s, x: 2 * x, rule))({}, x), (X,), (X,))


def test_the_rule_creates_nothing_of_its_own() -> None:
    def rule(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        scope.push("inner").param("new", jax.random.normal, ())
        return primals[0], tangents[0]

    error = fails(ruled(lambda scope, x: x, rule), X)
    assert error.where == "rule, the rule of custom_jvp(<lambda>) at /m"
    assert "params/inner/new" in error.what
    assert "Create variables in the function" in error.fix


def test_the_rule_writes_what_the_function_writes() -> None:
    def write(scope: Scope, x: Any) -> Any:
        scope.put_variable("state", "n", x)
        return x

    def rule(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        return primals[0], tangents[0]

    def writing(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        return write(scope, primals[0]), tangents[0]

    def wider(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
        return write(scope, jnp.stack([primals[0]] * 2))[0], tangents[0]

    given = {"state": {"n": jnp.zeros(3)}}
    for lifted in (ruled(write, rule), ruled(lambda scope, x: x, writing), ruled(write, wider)):
        error = fails(lifted, X, given=given)
        assert "the rule of custom_jvp(" in error.where
        assert "state/n" in error.what


# -- derivatives of it, and lifts around -------------------------------------------------------------------------------


def test_second_derivatives_flow_through_no_other_variable() -> None:
    lifted = ruled(layer)

    def loss(variables: Any, x: Any) -> Any:
        return jnp.sum(result(lifted, False, x, given=variables))

    for outer in (jax.jacfwd, jax.jacrev):
        mixed = outer(jax.grad(loss, 1))(VARIABLES, X)
        assert mixed["params"]["w"].any()
        assert not mixed["state"]["n"].any()


@pytest.mark.rest
def test_second_derivatives_are_those_of_the_rule() -> None:
    def ours(params: Any, x: Any) -> Any:
        return total(result(ruled(layer), ["state"], x, given={**VARIABLES, "params": params}))

    def theirs(params: Any, x: Any) -> Any:
        return total(result(layer, ["state"], x, given={**VARIABLES, "params": params}))

    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            each = [outer(inner(fn, (0, 1)), (0, 1))(PARAMS, X) for fn in (ours, theirs)]
            assert_same(*each)


def test_a_while_loop_is_differentiated_by_the_rule() -> None:
    def root(scope: Scope, x: Any) -> Any:
        start = scope.param("start", lambda key: jnp.float32(1))
        loop = liftcore.while_loop(lambda _, y: jnp.abs(y * y - x) > 1e-6 * x, lambda _, y: 0.5 * (y + x / y))
        return loop(scope, start)

    def rule(scope: Scope, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
        y = root(scope, primals[0])
        return y, tangents[0] / (2 * y)

    model = liftcore.apply(ruled(root, rule))
    params = {"params": {"start": jnp.float32(1)}}
    y, (start, slope) = jax.value_and_grad(model, (0, 1))(params, 9.0)
    np.testing.assert_allclose([y, slope], [3, 1 / 6], rtol=1e-5)
    assert start == {"params": {"start": 0.0}}


def test_inside_a_shard_map_with_variables_of_each_device() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x)
        return x * scope.param("w", None, ())

    def local(w: Any, x: Any) -> Any:
        def loss(w: Any, x: Any) -> Any:
            return jnp.sum(result(ruled(fn), ["intermediates"], x, given={"params": {"w": w[0]}}))

        return jax.grad(loss, (0, 1))(w, x)

    mesh = make_mesh((2,), "devices")
    spec = PartitionSpec("devices")
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec)))
    w, x = run(jnp.array([2.0, 5.0]), jnp.arange(1.0, 5.0))
    assert (w.tolist(), x.tolist()) == ([3.0, 7.0], [2.0, 2.0, 5.0, 5.0])


# -- how often functions run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("between", [lambda fn: fn, liftcore.remat])
def test_function_and_rule_run_once_each(between: Callable[..., Any], depth: int) -> None:
    body, rules = Counted(counts), Counted(counts)
    model: Callable[..., Any] = body
    for _ in range(depth):

        def rule(scope: Scope, primals: Any, tangents: Any, _: Any) -> Any:
            return rules(scope, primals[0]), tangents[0]

        model = ruled(between(model), rule)
    x = jnp.float32(1)
    _, variables = jax.eval_shape(liftcore.init(model), KEY, x)
    assert (body.since(), rules.since()) == (1, depth)
    for mutable in ([], ["state"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, x)
        assert (body.since(), rules.since()) == (1, depth)
    jax.eval_shape(jax.grad(liftcore.apply(model, mutable=["state"]), 1, has_aux=True), variables, x)
    assert (body.since(), rules.since()) == (1, depth)
    given = {"params": {"w": jnp.float32(1)}, "state": {"n": jnp.float32(1)}}
    jax.grad(lambda x: result(model, False, x, given=given))(x)
    assert (body.since(), rules.since()) == (1, depth)
