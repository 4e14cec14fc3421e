"""Lifted `vjp`: the pullback of a function of scopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import liftcore
from liftcore import Scope
from liftcore.errors import JaxTransformError, LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, Not
from tests.lift.derivatives import (
    BOTH,
    KEY,
    LORA,
    PARAMS,
    VARIABLES,
    X,
    assert_state_stays,
    counts,
    layer,
    result,
)
from tests.lift.nests import Counted
from tests.lift.own import one_equation
from tests.lift.quick import assert_same


def by_hand(params: Any, x: Any, y: Any = 1.0) -> Any:
    inner = params["layer"]
    return {"a": jnp.sin(inner["w"] * x) * 1.5, "b": (jnp.sum(inner["lora"] ** 2) * params["scale"] * y,)}


def ones(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), tree)


def pulled_back(fn: Callable[..., Any] = layer, **options: Any) -> Callable[..., Any]:
    """The result and all cotangents."""

    def model(scope: Any, *primals: Any) -> Any:
        y, pullback, *aux = liftcore.vjp(fn, **options)(scope, *primals)
        return y, pullback(ones(y)), *aux

    return model


# -- the pullback ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("primals", [(X,), (X, 0.7)])
def test_cotangents_are_those_of_jax(primals: Any, mutable: Any) -> None:
    y, pullback = jax.vjp(by_hand, PARAMS, *primals)
    params, *others = pullback(ones(y))
    assert_same(result(pulled_back(), mutable, *primals), (y, ({"params": params}, *others)))


@BOTH
def test_the_pullback_is_pure_and_may_be_called_again_and_later(mutable: Any) -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.vjp(layer)(scope, x)

    y, pullback = result(model, mutable, X)
    first, again = pullback(ones(y)), jax.jit(lambda y: pullback(ones(y)))(y)
    assert_same(first, again)
    doubled = pullback(jax.tree.map(lambda leaf: 2 * leaf, ones(y)))
    assert_same(doubled, jax.tree.map(lambda leaf: 2 * leaf, first))
    jacobian = jax.vmap(pullback)({"a": jnp.eye(3), "b": (jnp.zeros(3),)})[1]
    assert_same(jacobian, jnp.diag(jnp.cos(PARAMS["layer"]["w"] * X) * PARAMS["layer"]["w"] * 1.5))


@BOTH
def test_the_pullback_is_a_pytree(mutable: Any) -> None:
    def model(scope: Scope, x: Any) -> Any:
        y, pullback = liftcore.vjp(layer)(scope, x)
        leaves, treedef = jax.tree.flatten(pullback)
        return y, jax.tree.unflatten(treedef, leaves)(ones(y))

    assert_same(result(model, mutable, X), result(pulled_back(), mutable, X))

    @jax.jit
    def compiled(x: Any) -> Any:
        return result(lambda scope, x: liftcore.vjp(layer)(scope, x), mutable, x)

    y, pullback = compiled(X)
    assert_same((y, pullback(ones(y))), result(pulled_back(), mutable, X))


@BOTH
def test_single_variables_have_cotangents(mutable: Any) -> None:
    full = result(pulled_back(), mutable, X)[1][0]
    lora = result(pulled_back(wrt=LORA), mutable, X)[1][0]
    rest = result(pulled_back(wrt=All("params", Not(LORA))), mutable, X)[1][0]
    assert jax.tree.map(jnp.shape, lora) == {"params": {"layer": {"lora": (3,)}}}
    assert_same(liftcore.filters.merge(lora, rest), full)
    state = result(pulled_back(wrt="state"), mutable, X)[1][0]
    np.testing.assert_allclose(state["state"]["n"], 0.5 * jnp.sum(jnp.sin(PARAMS["layer"]["w"] * X)), rtol=1e-6)


@BOTH
def test_without_variables_the_first_cotangent_is_empty(mutable: Any) -> None:
    assert_same(result(pulled_back(wrt="cache"), mutable, X)[1], ({}, result(pulled_back(), mutable, X)[1][1]))


@BOTH
def test_without_primals_variables_alone_have_cotangents(mutable: Any) -> None:
    def fn(scope: Scope) -> Any:
        return scope.get_variable("params", "scale") ** 2

    y, (variables,) = result(pulled_back(fn), mutable)
    assert (y, variables["params"]["scale"]) == (4.0, 2.0)


@BOTH
def test_something_else_may_be_returned(mutable: Any) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return layer(scope, x), {"x": x, "none": None}

    assert_same(
        result(pulled_back(fn, has_aux=True), mutable, X), (*result(pulled_back(), mutable, X), {"x": X, "none": None})
    )


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_something_else_need_be_no_array(run: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("w", lambda key: jnp.float32(3)) * x, ("text", len)

    def model(scope: Scope, x: Any) -> Any:
        y, pullback, aux = liftcore.vjp(fn, has_aux=True)(scope, x)
        return y, pullback(jnp.ones_like(y)), aux

    given = {"params": {"w": jnp.float32(3)}}
    x = jnp.float32(2)
    found = liftcore.init(model)(KEY, x)[0] if run == "init" else result(model, run != "apply", x, given=given)
    assert found == (6.0, ({"params": {"w": 2.0}}, 3.0), ("text", len))


@BOTH
def test_integers_have_no_cotangents(mutable: Any) -> None:
    def fn(scope: Scope, n: Any, x: Any) -> Any:
        return scope.get_variable("state", "i") * n * x

    given = {"state": {"i": jnp.int32(3)}}
    y, (variables, n, x) = result(pulled_back(fn, wrt="state"), mutable, jnp.int32(2), 5.0, given=given)
    assert (y, x) == (30.0, 3.0)
    assert variables["state"]["i"].dtype == n.dtype == jax.dtypes.float0


@BOTH
def test_a_cotangent_must_be_of_the_type_of_the_result(mutable: Any) -> None:
    y, pullback = result(lambda scope, x: liftcore.vjp(layer)(scope, x), mutable, X)
    for wrong in (y["a"], {**y, "a": jnp.ones(2)}, {**y, "a": jnp.ones(3, int)}):
        with pytest.raises((ValueError, TypeError)):
            pullback(wrong)


# -- state -------------------------------------------------------------------------------------------------------------


def test_the_state_is_that_without_the_derivative() -> None:
    assert_state_stays(lambda fn: lambda scope, x: liftcore.vjp(fn)(scope, x)[0])


def test_init_pulls_back_to_what_apply_will() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        w = scope.param("w", lambda key: jax.random.normal(key, (3,)) + x)
        n = scope.variable("state", "n", lambda: 2 * x)
        n.value = n.value * w
        return jnp.sin(w * x) + n.value

    found, variables = liftcore.init(pulled_back(fn))(KEY, X)
    given = {"params": variables["params"], "state": {"n": 2 * X}}
    applied, mutated = liftcore.apply(pulled_back(fn), mutable=["state"])(given, X)
    assert_same(found, applied)
    assert_same(mutated["state"], variables["state"])


@pytest.mark.parametrize("mutable", [False, True])
def test_a_pytree_of_scopes_has_a_pytree_of_cotangents(mutable: bool) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        return scopes["a"].param("w", None, ()) * x + scopes["b"][0].param("w", None, ()) ** 2

    def model(scope: Scope, x: Any) -> Any:
        return pulled_back(fn)({"a": scope.push("a"), "b": (scope.push("b"),)}, x)

    given = {"params": {name: {"w": jnp.float32(number)} for number, name in enumerate("abc", 2)}}
    y, cotangents = result(model, mutable, 5.0, given=given)
    assert (y, cotangents) == (19.0, ({"a": {"params": {"w": 2.5}}, "b": ({"params": {"w": 3.0}},)}, 1.0))


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_overlapping_scopes_each_see_the_whole_below_them(run: str) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        values = [one.rewound().param("w", lambda key: jnp.float32(3)) for one in scopes]
        return values[0] * values[1] * values[2] * x

    def model(scope: Scope, x: Any) -> Any:
        child = scope.push("c")
        return pulled_back(fn)((scope, child, child), x)[1][0]

    given = {"params": {"w": jnp.float32(3), "c": {"w": jnp.float32(3)}}}
    found = liftcore.init(model)(KEY, 2.0)[0] if run == "init" else result(model, run != "apply", 2.0, given=given)
    below = {"params": {"w": 18.0}}
    assert found == ({"params": {"w": 9.0, "c": {"w": 18.0}}}, below, below)


def test_only_lifted_variables_and_sequences_are_there() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("scale", None, ()) * x * scope.get_variable("state", "n")

    assert result(pulled_back(fn, variables="state"), False, 2.0)[0] == 6.0
    with pytest.raises(UnliftedCollectionError) as caught:
        result(lambda scope: liftcore.vjp(fn, variables=False)(scope, 2.0), False)
    assert caught.value.where == '"state/n" at /vjp(fn)'
    assert caught.value.fix == 'Add "state" to `variables`.'

    def noisy(scope: Scope, x: Any) -> Any:
        return x * jax.random.uniform(scope.make_rng("dropout"))

    result(pulled_back(noisy, rngs="dropout"), False, 1.0)
    with pytest.raises(UnliftedStreamError, match=r'vjp\(noisy\) does not pass it in .*Add "dropout" to `rngs`'):
        result(pulled_back(noisy, rngs="params"), False, 1.0)


def test_a_collection_that_is_not_lifted_cannot_be_written() -> None:
    def write(scope: Scope, x: Any) -> Any:
        scope.put_variable("cache", "c", x)
        return x

    with pytest.raises(UnliftedCollectionError, match=r'"cache/c" at /vjp\(write\): .*Add "cache" to `variables`'):
        liftcore.apply(pulled_back(write, variables="state"), mutable=True)({}, 1.0)


def test_a_raw_vjp_names_the_lifted_one() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return jax.vjp(lambda x: x * scope.param("w", jax.random.normal, ()), x)[0]

    with pytest.raises(JaxTransformError, match=r"jax\.vjp .*`liftcore\.vjp`"):
        liftcore.init(model)(KEY, 2.0)


def test_what_one_equation_of_ones_own_created_is_given_to_the_derivative() -> None:
    assert_same(*(liftcore.init(model)(KEY, X) for model in (pulled_back(one_equation(layer)), pulled_back())))
    assert_same(result(pulled_back(one_equation(layer)), False, X), result(pulled_back(), False, X))


# -- derivatives of it, and lifts around -------------------------------------------------------------------------------


@BOTH
def test_a_model_with_a_pullback_inside_can_be_differentiated(mutable: Any) -> None:
    def model(params: Any, x: Any) -> Any:
        y, cotangents = result(pulled_back(), mutable, x, given={**VARIABLES, "params": params})
        return jnp.sum(y["a"]), cotangents

    check_grads(model, (PARAMS, X), order=2, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kind", ["scan", "vmap", "remat", "jit", "cond", "while"])
def test_inside_other_lifts_it_equals_jax(kind: str) -> None:
    def wave(scope: Scope, x: Any) -> Any:
        if kind != "while":
            scope.sow("intermediates", "x", x)
        return jnp.sin(scope.param("w", jax.random.normal, (3,)) * x)

    def step(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(0))
        n.value += 1
        y, pullback = liftcore.vjp(wave)(scope, x)
        return n.value * pullback(y)[1]

    def plain(w: Any, x: Any, n: Any) -> Any:
        y, pullback = jax.vjp(lambda x: jnp.sin(w * x), x)
        return n * pullback(y)[0]

    def looped(scope: Scope, x: Any) -> Any:
        loop = liftcore.scan(
            lambda scope, x, _: (step(scope, x), None),
            length=2,
            variable_axes={"params": 0},
            variable_carry="state",
            split_rngs={"params": True},
        )
        return loop(scope, x, None)[0]

    def elements(scope: Scope, x: Any) -> Any:
        mapped = liftcore.vmap(step, variable_axes={"params": 0, "state": None}, split_rngs={"params": True})
        return mapped(scope, jnp.stack([x, 2 * x]))

    def repeated(scope: Scope, x: Any) -> Any:
        body = lambda scope, now: (now[0] + 1, step(scope, now[1]))  # noqa: E731
        loop = liftcore.while_loop(
            lambda _, now: now[0] < 2, body, variable_carry="state", split_rngs={"params": False}
        )
        return loop(scope, (0, x))[1]

    models: dict[str, Callable[..., Any]] = {
        "scan": looped,
        "vmap": elements,
        "remat": liftcore.remat(step),
        "jit": liftcore.jit(step),
        "cond": lambda scope, x: liftcore.cond(step, lambda scope, x: x)(scope, True, x),
        "while": repeated,
    }
    y, variables = liftcore.init(models[kind])(KEY, X)
    w = variables["params"]["w"]
    expected = {
        "scan": lambda: plain(w[1], plain(w[0], X, 1), 2),
        "vmap": lambda: jnp.stack([plain(w[0], X, 1), plain(w[1], 2 * X, 1)]),
        "while": lambda: plain(w, plain(w, X, 1), 2),
    }.get(kind, lambda: plain(w, X, 1))
    assert_same(y, expected())
    assert variables["state"]["n"] == (2 if kind in ("scan", "while") else 1)


def test_a_scan_carries_and_writes_what_the_function_created() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return n.value * x

    def step(scope: Scope, x: Any, _: Any) -> Any:
        y, pullback = liftcore.vjp(fn)(scope, x)
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x + 1, (y, pullback(jnp.float32(1))[1], seen)

    loop = liftcore.scan(step, length=3, variable_carry="state")
    (_, (ys, slopes, ns)), variables = liftcore.init(loop)(KEY, jnp.float32(1), None)
    assert ns.tolist() == slopes.tolist() == [11, 23, 47]
    assert ys.tolist() == [11, 46, 141]
    assert variables["state"]["n"] == 94


def test_a_branch_may_return_the_pullback_as_its_result_does() -> None:
    def model(scope: Scope, x: Any) -> Any:
        branch = pulled_back()
        return liftcore.switch([branch, lambda scope, x: branch(scope, 2 * x)])(scope, 1, x)

    assert_same(result(model, False, X), result(pulled_back(), False, 2 * X))


# -- how often the function runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat, liftcore.jit])
def test_the_function_runs_once_at_every_depth(lift: Callable[..., Any], depth: int) -> None:
    body = Counted(counts)
    model: Callable[..., Any] = body
    for _ in range(depth):
        inner = lift(model)
        model = lambda scope, x, inner=inner: (lambda y, pull: y + pull(y)[1])(*liftcore.vjp(inner)(scope, x))  # noqa: E731
    x = jnp.float32(1)
    _, variables = jax.eval_shape(liftcore.init(model), KEY, x)
    assert body.since() == 1
    for mutable in ([], ["state"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, x)
        assert body.since() == 1
    jax.eval_shape(jax.grad(liftcore.apply(model, mutable=["state"]), has_aux=True), variables, x)
    assert body.since() == (0 if lift is liftcore.jit else 1)


@BOTH
def test_the_function_runs_once_when_it_is_computed(mutable: Any) -> None:
    body = Counted(counts)
    y, pullback = result(lambda scope, x: liftcore.vjp(body)(scope, x), mutable, jnp.float32(1), given={
        "params": {"w": jnp.float32(2)}, "state": {"n": jnp.float32(0)}})  # fmt: skip
    pullback(y)
    pullback(y)
    assert body.since() == 1


@pytest.mark.parametrize("lift", [liftcore.vjp, liftcore.linearize], ids=lambda lift: lift.__name__)
def test_a_primal_that_is_passed_by_name_is_an_error(lift: Callable[..., Any]) -> None:
    lifted = lift(lambda scope, x: x)
    with pytest.raises(LiftArgumentError, match=r"\['x'\] were passed by name. Pass them by position"):
        lifted(liftcore.bind({}), x=jnp.ones(2))
