"""Lifted `custom_vjp`: pullbacks of one's own, by the result and for variables and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
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
from tests.lift.ruled import ruled_backward as ruled
from tests.machine import make_mesh

# -- the rule ----------------------------------------------------------------------------------------------------------


def marked(scope: Scope, x: Any, y: Any) -> Any:
    return scaled(scope, x, y), (x, scope.get_variable("params", "w"), {"shape": jnp.shape(y)})


def marks(residuals: Any, cotangent: Any) -> Any:
    x, w, _ = residuals
    return {"params": {"w": 100 * x * cotangent["a"]}}, 10 * w * cotangent["a"], 5 * cotangent["b"]


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("around", [lambda fn: fn, jax.jit])
def test_derivatives_are_what_the_rule_says(around: Callable[..., Any], mutable: bool) -> None:
    lifted = ruled(scaled, marked, marks)

    @around
    def loss(params: Any, x: Any, y: Any) -> Any:
        return total(result(lifted, mutable, x, y, given={"params": params}))

    value, grads = jax.value_and_grad(loss, (0, 1, 2))({"w": jnp.float32(3)}, 2.0, 7.0)
    assert (value, grads) == (13.0, ({"w": 200.0}, 30.0, 5.0))


@pytest.mark.parametrize("cotangents", [(None, None, None), ({}, 0.0, None), ({"params": {}}, None, 0.0)])
def test_none_stands_for_zero_and_so_does_what_is_left_out(cotangents: Any) -> None:
    lifted = ruled(scaled, marked, lambda residuals, cotangent: cotangents)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return total(result(lifted, False, x, y, given={"params": params}))

    assert jax.grad(loss, (0, 1, 2))({"w": jnp.float32(3)}, 2.0, 7.0) == ({"w": 0.0}, 0.0, 0.0)


def test_the_rule_may_give_a_list() -> None:
    lifted = ruled(scaled, marked, lambda residuals, cotangent: list(marks(residuals, cotangent)))
    grad = jax.grad(lambda x: total(result(lifted, False, x, 7.0, given={"params": {"w": jnp.float32(3)}})))(2.0)
    assert grad == 30.0


def test_arguments_may_be_any_pytree_with_integers_and_keys() -> None:
    def fn(scope: Scope, tree: Any, n: Any, key: Any, nothing: Any) -> Any:
        assert nothing is None
        return tree["a"] * n + jax.random.uniform(key) * tree["b"][0]

    lifted = ruled(
        fn,
        lambda scope, *args: (fn(scope, *args), ()),
        lambda _, cotangent: (None, {"a": 7 * cotangent, "b": (None,)}, None, None, None),
    )
    tree = {"a": jnp.float32(2), "b": (jnp.float32(3),)}
    grads = jax.grad(lambda tree: liftcore.apply(lifted)({}, tree, 4, KEY, None))(tree)
    assert grads == {"a": 7.0, "b": (0.0,)}
    grads = jax.grad(lambda tree: liftcore.apply(lifted)({}, tree, 4, jax.random.PRNGKey(0), None))(tree)
    assert grads == {"a": 7.0, "b": (0.0,)}


@pytest.mark.parametrize(("numbers", "names"), CHOSEN)
@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_some_arguments_only_python_sees(numbers: Any, names: Any, run: str) -> None:
    def power(scope: Scope, mode: str, x: Any, n: int) -> Any:
        return scope.param("w", lambda key: jnp.float32(3)) * x**n if mode == "power" else x

    def forward(scope: Scope, mode: str, x: Any, n: int) -> Any:
        return power(scope, mode, x, n), x

    def backward(mode: str, n: int, x: Any, cotangent: Any) -> Any:
        assert (mode, n) == ("power", 2)
        return {"params": {"w": 100 * cotangent}}, n * x * cotangent

    lifted = ruled(power, forward, backward, nondiff_argnums=numbers, nondiff_argnames=names)

    def loss(params: Any, x: Any) -> Any:
        if run == "init":
            return liftcore.init(lifted)(KEY, "power", x, 2)[0]
        return result(lifted, run != "apply", "power", x, 2, given={"params": params})

    assert jax.grad(loss, 1)({"w": jnp.float32(3)}, 5.0) == 10.0
    if run != "init":
        assert jax.grad(loss)({"w": jnp.float32(3)}, 5.0) == {"w": 100.0}


def test_a_name_that_no_argument_has_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match=r"layer, nondiff_argnames=\('y',\)") as caught:
        liftcore.custom_vjp(layer, nondiff_argnames=("y",))
    assert caught.value.what == "it has no argument \"y\" that may be passed by position (available: ['x'])."


def test_keyword_arguments_and_defaults_are_those_of_the_function() -> None:
    def fn(scope: Scope, x: Any, n: int = 3, y: Any = 1.0) -> Any:
        return x * n * y

    lifted = ruled(
        fn,
        lambda scope, x, n, y: (fn(scope, x, n, y), x),
        lambda n, x, cotangent: (None, 10.0 * n * cotangent, None),
        nondiff_argnums=(2,),
    )
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
    lifted = ruled(
        lambda scope, x, n=3.0: x * n,
        lambda scope, x, n: (x * n, n),
        lambda n, cotangent: (None, n * cotangent, None),
    )
    assert jax.grad(lambda x: liftcore.apply(lifted)({}, x))(2.0) == 3.0


def test_arguments_that_have_no_position_are_an_error() -> None:
    def fn(scope: Scope, x: Any, *, n: Any = 2) -> Any:
        return x * n

    lifted = ruled(fn, lambda scope, x: (2 * x, ()), lambda _, cotangent: (None, cotangent))
    with pytest.raises((TypeError, LiftArgumentError), match=r"n"):
        liftcore.apply(lifted)({}, 3.0, n=5)


# -- with respect to which variables -----------------------------------------------------------------------------------


def test_single_variables_have_cotangents_and_others_none() -> None:
    lifted = ruled(layer, wrt=LORA)

    def loss(variables: Any, x: Any) -> Any:
        return jnp.sum(result(lifted, False, x, given=variables))

    grads, x = jax.grad(loss, (0, 1))(VARIABLES, X)
    bare, bare_x = jax.grad(lambda v, x: jnp.sum(result(layer, False, x, given=v)), (0, 1))(VARIABLES, X)
    assert_same((grads["params"]["lora"], x), (bare["params"]["lora"], bare_x))
    assert not grads["params"]["w"].any()
    assert not grads["state"]["n"]


def test_no_gradient_flows_through_what_is_written_or_sown() -> None:
    lifted = ruled(layer)

    def loss(variables: Any, x: Any) -> Any:
        return total(liftcore.apply(lifted, mutable=MUTABLE)(variables, x, rngs=RNGS)[1])

    for leaf in jax.tree.leaves(jax.grad(loss, (0, 1))(VARIABLES, X)):
        assert not leaf.any()


def test_integer_variables_go_without() -> None:
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

    def grad(lift: Callable[..., Any]) -> Any:
        given = {"params": {"w": jnp.float32(3), "c": {"w": jnp.float32(2)}}}
        return jax.grad(lambda v, x: result(model, mutable, x, lift, given=v), (0, 1))(given, 5.0)

    assert_same(grad(ruled), grad(lambda fn: fn))


def test_a_pytree_of_scopes_has_a_pytree_of_cotangents() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        return scopes["a"].param("w", None, ()) * x + scopes["b"][0].param("w", None, ())

    def backward(_: Any, cotangent: Any) -> Any:
        return {"a": {"params": {"w": 5 * cotangent}}, "b": (None,)}, cotangent

    lifted = ruled(fn, lambda scopes, x: (fn(scopes, x), ()), backward)

    def model(scope: Scope, x: Any) -> Any:
        return lifted({"a": scope.push("a"), "b": (scope.push("b"),)}, x)

    given = {"params": {"a": {"w": jnp.float32(2)}, "b": {"w": jnp.float32(3)}}}
    assert jax.grad(lambda v: result(model, False, 1.0, given=v))(given) == {
        "params": {"a": {"w": 5.0}, "b": {"w": 0.0}}
    }


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differentiated", [False, True])
def test_state_and_draws_are_the_same_where_the_rule_runs(differentiated: bool) -> None:
    def run(variables: Any, x: Any) -> Any:
        y, mutated = liftcore.apply(ruled(layer), mutable=MUTABLE)(variables, x, rngs=RNGS)
        return jnp.sum(y), (y, mutated)

    expected = liftcore.apply(layer, mutable=MUTABLE)(VARIABLES, X, rngs=RNGS)
    if differentiated:
        found, _ = jax.vjp(lambda x: run(VARIABLES, x), X, has_aux=False)
        assert_same(found[1], expected)
        assert_same(jax.grad(run, 1, has_aux=True)(VARIABLES, X)[1], expected)
    else:
        assert_same(run(VARIABLES, X)[1], expected)


def test_the_rule_finds_the_variables_that_the_function_creates() -> None:
    def forward(scope: Scope, x: Any) -> Any:
        assert scope.get_variable("params", "w") is not None
        assert not scope.has_variable("params", "w")  # as in the function, so what asks draws the same keys
        found = liftcore.vjp(scaled)(scope, x, x)
        assert scope.has_variable("params", "w")
        return found

    def fn(scope: Scope, x: Any) -> Any:
        return scaled(scope, x, x)

    lifted = ruled(fn, forward, lambda pullback, cotangent: pullback(cotangent)[:2])
    grad = jax.grad(lambda x: total(liftcore.init(lifted)(KEY, x)[0]))(2.0)
    assert grad == 3.0
    assert liftcore.init(lifted)(KEY, 2.0)[1] == {"params": {"w": 3.0}}


def test_values_sown_by_the_function_or_by_the_rule_only_are_zeros_elsewhere() -> None:
    def sowing(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def sow(scope: Scope, x: Any) -> Any:
            scope.sow("intermediates", name, x)
            return fn(scope, x)

        return sow

    lifted = ruled(
        sowing("function", lambda s, x: 2 * x), sowing("rule", lambda s, x: (2 * x, ())), lambda _, c: (None, c)
    )
    apply = liftcore.apply(lifted, mutable=["intermediates"])
    assert_same(apply({}, X)[1]["intermediates"], {"function": (X,), "rule": (0 * X,)})
    sown = jax.vjp(lambda x: apply({}, x), X)[0][1]
    assert_same(sown["intermediates"], {"function": (0 * X,), "rule": (X,)})


def test_only_lifted_variables_and_sequences_are_there() -> None:
    def reading(scope: Scope, x: Any) -> Any:
        return x * scope.get_variable("state", "n")

    result(ruled(reading, variables="state"), False, 2.0)
    with pytest.raises(UnliftedCollectionError) as caught:
        result(ruled(reading, variables=Not("state")), False, 2.0)
    assert caught.value.where == '"state/n" at /custom_vjp(reading)'
    assert caught.value.fix == 'Add "state" to `variables`.'

    def noisy(scope: Scope, x: Any) -> Any:
        return x * jax.random.uniform(scope.make_rng("dropout"))

    result(ruled(noisy, rngs="dropout"), False, 1.0)
    with pytest.raises(UnliftedStreamError, match=r'custom_vjp\(noisy\) does not .*Add "dropout" to `rngs`'):
        result(ruled(noisy, rngs="params"), False, 1.0)


def test_what_the_function_holds_on_to_cannot_be_differentiated_as_in_jax() -> None:
    def loss(held: Any, x: Any) -> Any:
        fn = lambda scope, x: x * held  # noqa: E731
        return liftcore.apply(ruled(fn))({}, x)

    assert jax.grad(loss, 1)(3.0, 2.0) == 3.0
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.grad(loss, (0, 1))(3.0, 2.0)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_there_must_be_a_rule() -> None:
    error = fails(liftcore.custom_vjp(layer), X)
    assert (error.where, error.what) == ("custom_vjp(layer) at /m", "it has no rule yet.")
    assert error.fix == "Define one first: `fn.defvjp(fwd, bwd)`."


@pytest.mark.parametrize("numbers", [(0,), (1, 0), (-2,), (-1, -2)])
def test_the_scope_cannot_be_among_the_arguments_that_only_python_sees(numbers: Any) -> None:
    error = fails(ruled(layer, nondiff_argnums=numbers), X)
    assert error.where == f"custom_vjp(layer) at /m, nondiff_argnums={numbers}"
    assert "number 0 is the scope" in error.what
    assert error.fix == "Count from 1; choose its variables with `wrt`."


def test_the_forward_rule_returns_a_pair() -> None:
    def forward(scope: Scope, x: Any) -> Any:
        return 2 * x

    error = fails(ruled(lambda scope, x: 2 * x, forward), X)
    assert error.where == "forward, the rule of custom_vjp(<lambda>) at /m"
    assert "expected the pair `result, residuals`, given" in error.what
    assert error.fix == "Write `return result, residuals`."


@pytest.mark.parametrize("cotangents", [lambda c: c, lambda c: (c,), lambda c: (None, c, c), lambda c: {"x": c}])
def test_the_backward_rule_returns_one_cotangent_each(cotangents: Callable[..., Any]) -> None:
    def backward(_: Any, cotangent: Any) -> Any:
        return cotangents(cotangent)

    error = fails(ruled(lambda s, x: 2 * x, lambda s, x: (2 * x, ()), backward), X, grad=True)
    assert error.where == "backward, the rule of custom_vjp(<lambda>) at /m"
    assert "expected a cotangent for the scope (or module) and one for each of 1 arguments" in error.what


def test_a_cotangent_of_something_else_is_an_error() -> None:
    for wrong, name in (({"params": {"typo": 1.0}}, "params/typo"), ({"state": {"n": 1.0}}, "state/n")):
        lifted = ruled(scaled, marked, lambda residuals, cotangent, wrong=wrong: (wrong, None, None))
        error = fails(lifted, 2.0, 3.0, given={"params": {"w": jnp.float32(3)}, "state": {"n": 1.0}}, grad=True)
        assert error.where == "custom_vjp(scaled) at /m"
        assert f'"{name}"' in error.what
        assert "(available: ['params/w'])" in error.what


def test_jax_says_what_is_wrong_with_the_type_of_a_cotangent() -> None:
    lifted = ruled(scaled, marked, lambda residuals, cotangent: ({"params": {"w": X}}, None, None))
    with pytest.raises(ValueError, match=r"bwd rule"):
        jax.grad(lambda x: total(result(lifted, False, x, x, given={"params": {"w": jnp.float32(3)}})))(2.0)


def test_the_rule_creates_nothing_of_its_own() -> None:
    def forward(scope: Scope, x: Any) -> Any:
        scope.push("inner").param("new", jax.random.normal, ())
        return x, ()

    error = fails(ruled(lambda scope, x: x, forward), X)
    assert error.where == "forward, the rule of custom_vjp(<lambda>) at /m"
    assert "params/inner/new" in error.what
    assert "Create variables in the function" in error.fix


def test_the_rule_writes_what_the_function_writes() -> None:
    def write(scope: Scope, x: Any) -> Any:
        scope.put_variable("state", "n", x)
        return x

    def forward(scope: Scope, x: Any) -> Any:
        return x, ()

    given = {"state": {"n": jnp.zeros(3)}}
    for lifted in (ruled(write, forward), ruled(lambda scope, x: x, lambda scope, x: (write(scope, x), ()))):
        error = fails(lifted, X, given=given)
        assert "the rule of custom_vjp(" in error.where
        assert "state/n" in error.what
    wider = ruled(write, lambda scope, x: (write(scope, jnp.stack([x, x]))[0], ()))
    error = fails(wider, X, given=given)
    assert "the rule of custom_vjp(write) at /m" in str(error)
    assert "state/n" in str(error)
    assert "float32[2,3]" in str(error)


# -- derivatives of it, and lifts around -------------------------------------------------------------------------------


def test_second_derivatives_flow_through_no_other_variable() -> None:
    lifted = ruled(layer)

    def loss(variables: Any, x: Any) -> Any:
        return jnp.sum(result(lifted, False, x, given=variables))

    mixed = jax.jacrev(jax.grad(loss, 1))(VARIABLES, X)
    assert mixed["params"]["w"].any()
    assert not mixed["state"]["n"].any()


def test_second_derivatives_are_those_of_the_rule() -> None:
    def ours(params: Any, x: Any) -> Any:
        return total(result(ruled(layer), ["state"], x, given={**VARIABLES, "params": params}))

    def theirs(params: Any, x: Any) -> Any:
        return total(result(layer, ["state"], x, given={**VARIABLES, "params": params}))

    each = [jax.jacrev(jax.grad(fn, (0, 1)), (0, 1))(PARAMS, X) for fn in (ours, theirs)]
    assert_same(*each)


def test_it_has_no_forward_derivative_as_in_jax() -> None:
    with pytest.raises(TypeError, match=r"forward-mode .* custom_vjp"):
        jax.jvp(lambda x: result(ruled(layer), False, x), (X,), (X,))


def test_inside_a_shard_map_with_variables_of_each_device() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x)
        return x * scope.param("w", None, ())

    mesh = make_mesh((2,), "devices")
    spec = PartitionSpec("devices")
    args = jnp.array([2.0, 5.0]), jnp.arange(1.0, 5.0)
    for backward in (None, lambda pullback, cotangent: (None, pullback(cotangent)[1])):
        lifted = ruled(fn, backward=backward)

        def local(w: Any, x: Any, lifted: Any = lifted) -> Any:
            def loss(w: Any, x: Any) -> Any:
                return jnp.sum(result(lifted, ["intermediates"], x, given={"params": {"w": w[0]}}))

            return jax.grad(loss, (0, 1))(w, x)

        w, x = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec)))(*args)
        assert x.tolist() == [2.0, 2.0, 5.0, 5.0]
        assert w.tolist() == ([3.0, 7.0] if backward is None else [0.0, 0.0])


# -- how often functions run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("between", [lambda fn: fn, liftcore.remat])
def test_function_and_rule_run_once_each(between: Callable[..., Any], depth: int) -> None:
    body, rules = Counted(counts), Counted(counts)
    model: Callable[..., Any] = body
    for _ in range(depth):

        def forward(scope: Scope, x: Any) -> Any:
            return rules(scope, x), ()

        model = ruled(between(model), forward, lambda _, cotangent: (None, cotangent))
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
