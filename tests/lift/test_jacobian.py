"""Lifted `jacfwd`, `jacrev` and `hessian`: the derivatives of each number of a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import JaxTransformError, LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from tests.lift.derivatives import BOTH, KEY, LORA, PARAMS, VARIABLES, X, assert_state_stays, layer, noisy, result
from tests.lift.own import one_equation
from tests.lift.quick import assert_same

KINDS = pytest.mark.parametrize("kind", ["jacfwd", "jacrev", "hessian"])


def by_hand(variables: Any, x: Any, y: Any = 1.0) -> Any:
    params, inner = variables["params"], variables["params"]["layer"]
    return {"a": jnp.sin(inner["w"] * x) * 1.5, "b": (jnp.sum(inner["lora"] ** 2) * params["scale"] * y,)}


def lifted(kind: str, *args: Any, **options: Any) -> Callable[..., Any]:
    return getattr(liftcore, kind)(*args, **options)  # type: ignore[no-any-return]


# -- with respect to what ----------------------------------------------------------------------------------------------


@KINDS
@BOTH
@pytest.mark.parametrize("argnums", [0, (0,), (2, 0), -1, (-3, 1)])
def test_pytrees_in_pytrees_as_in_jax(argnums: Any, mutable: Any, kind: str) -> None:
    theirs = getattr(jax, kind)(by_hand, argnums)({"params": PARAMS}, X, 0.7)
    assert_same(result(lifted(kind, layer, argnums), mutable, X, 0.7), theirs)


@KINDS
@BOTH
def test_single_variables_and_other_collections(kind: str, mutable: Any) -> None:
    def plain(variables: Any) -> Any:
        inner, n = {**PARAMS["layer"], **variables["params"]["layer"]}, variables["state"]["n"]
        found = by_hand({"params": {**PARAMS, "layer": inner}}, X)
        return {**found, "a": found["a"] / 1.5 * n}

    chosen = {"params": {"layer": {"lora": PARAMS["layer"]["lora"]}}, "state": {"n": jnp.float32(1.5)}}
    assert_same(result(lifted(kind, layer, wrt=(LORA, "state")), mutable, X), getattr(jax, kind)(plain)(chosen))


@KINDS
@BOTH
def test_complex_functions(kind: str, mutable: Any) -> None:
    def fn(scope: Scope, z: Any) -> Any:
        return scope.param("w", lambda key: jnp.complex64(1 + 2j)) * z**2

    given, z = {"params": {"w": jnp.complex64(1 + 2j)}}, jnp.complex64(2 - 1j)
    theirs = getattr(jax, kind)(lambda v, z: v["params"]["w"] * z**2, (0, 1), holomorphic=True)(given, z)
    assert_same(result(lifted(kind, fn, (0, 1), holomorphic=True), mutable, z, given=given), theirs)
    assert_same(liftcore.init(lifted(kind, fn, (0, 1), holomorphic=True))(KEY, z)[0], theirs)


@KINDS
def test_integers_are_an_error(kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.push("m").variable("state", "n", lambda: jnp.int32(3)).value * x

    for run in (
        lambda fn: liftcore.apply(fn)({"state": {"m": {"n": jnp.int32(3)}}}, 2.0),
        lambda fn: liftcore.init(fn)(KEY, 2.0),
    ):
        with pytest.raises(LiftArgumentError, match=r'"state/m/n" in \w+\(fn\) at /.*: .* int32 has no gradient'):
            run(lifted(kind, fn, wrt="state"))


def test_integers_may_be_allowed_in_reverse() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.variable("state", "n", lambda: jnp.int32(3)).value * x

    found = result(lifted("jacrev", fn, (0, 1), allow_int=True, wrt="state"), False, X, given={"state": {"n": 3}})
    theirs = jax.jacrev(lambda n, x: n * x, (0, 1), allow_int=True)(3, X)
    assert_same(found, ({"state": {"n": theirs[0]}}, theirs[1]))
    assert_same(liftcore.init(lifted("jacrev", fn, (0, 1), allow_int=True, wrt="state"))(KEY, X)[0], found)


@KINDS
@pytest.mark.parametrize("mutable", [False, True])
def test_nothing_to_differentiate_with_respect_to_is_an_error(mutable: bool, kind: str) -> None:
    def model(scope: Scope, x: Any) -> Any:
        return lifted(kind, lambda scope, x: x * scope.get_variable("state", "n"))(scope.push("m"), x)

    with pytest.raises(LiftArgumentError, match=r"\(<lambda>\) at /m.*`wrt` takes no variable below it .*'state'"):
        result(model, mutable, 2.0, given={"state": {"m": {"n": 3.0}}})
    assert result(lifted(kind, lambda scope, x: x**2, 1), mutable, 3.0, given={}) == (2.0 if kind == "hessian" else 6.0)


@KINDS
@pytest.mark.parametrize("argnums", [3, -4, (0, 7)])
def test_a_number_that_is_out_of_range_is_an_error(argnums: Any, kind: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"argnums=.*there are 2 positional arguments"):
        result(lifted(kind, layer, argnums), False, X)


# -- what comes with it ------------------------------------------------------------------------------------------------


@KINDS
@BOTH
def test_something_else_may_be_returned(kind: str, mutable: Any) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return layer(scope, x), {"x": x, "w": scope.get_variable("params", "scale"), "none": None}

    found = result(lifted(kind, fn, (0, 1), True), mutable, X)
    assert_same(found[0], result(lifted(kind, layer, (0, 1)), mutable, X))
    assert_same(found[1], {"x": X, "w": jnp.float32(2), "none": None})


@KINDS
def test_the_state_is_that_without_the_derivative(kind: str) -> None:
    def twice(scope: Scope, x: Any) -> Any:
        return (noisy(scope, x),) * 2

    assert_state_stays(lambda fn: lifted(kind, fn, has_aux=True), twice, lambda both: both[1])


@KINDS
def test_init_differentiates_what_apply_will(kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        w = scope.param("w", lambda key: jax.random.normal(key, (3,)) + x)
        n = scope.variable("state", "n", lambda: 2 * x)
        n.value = n.value * w
        return jnp.sin(w * x) * n.value

    model = lifted(kind, fn, (0, 1))
    found, variables = liftcore.init(model)(KEY, X)
    given = {"params": variables["params"], "state": {"n": 2 * X}}
    applied, mutated = liftcore.apply(model, mutable=["state"])(given, X)
    assert_same(found, applied)
    assert_same(mutated["state"], variables["state"])


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_a_pytree_of_scopes_has_a_pytree_of_hessians(run: str) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        first, second = scopes["a"].param("w", lambda key: 2.0), scopes["b"][0].param("w", lambda key: 3.0)
        return first**2 * second * x

    def model(scope: Scope, x: Any) -> Any:
        return lifted("hessian", fn, (0, 1))({"a": scope.push("a"), "b": (scope.push("b"),)}, x)

    given = {"params": {"a": {"w": 2.0}, "b": {"w": 3.0}}}
    found = liftcore.init(model)(KEY, 5.0)[0] if run == "init" else result(model, run != "apply", 5.0, given=given)
    scopes, (from_x, zero) = found
    slopes = {"a": {"params": {"w": 12.0}}, "b": ({"params": {"w": 4.0}},)}
    by_a = {"a": {"params": {"w": 30.0}}, "b": ({"params": {"w": 20.0}},)}, 12.0
    by_b = {"a": {"params": {"w": 20.0}}, "b": ({"params": {"w": 0.0}},)}, 4.0
    assert (scopes["a"]["params"]["w"], scopes["b"][0]["params"]["w"]) == (by_a, by_b)
    assert (from_x, zero) == (slopes, 0.0)


@KINDS
@pytest.mark.parametrize("mutable", [False, True])
def test_overlapping_scopes_each_see_the_whole_below_them(mutable: bool, kind: str) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        values = [one.rewound().param("w", None, ()) for one in scopes]
        return values[0] * values[1] * values[2] * x

    def model(scope: Scope, x: Any) -> Any:
        return lifted(kind, fn)((scope, scope.push("c"), scope.push("c", reuse=True)), x)

    given = {"params": {"w": jnp.float32(3), "c": {"w": jnp.float32(2)}}}
    parent, child, again = result(model, mutable, 5.0, given=given)
    if kind == "hessian":
        below = {"params": {"w": 30.0}}
        assert child["params"]["w"] == ({"params": {"w": 20.0, "c": {"w": 30.0}}}, below, below)
    else:
        assert (parent, child) == ({"params": {"w": 20.0, "c": {"w": 60.0}}}, {"params": {"w": 60.0}})
    assert_same(child, again)


@KINDS
def test_only_lifted_variables_and_sequences_are_there(kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("scale", None, ()) * x * scope.get_variable("state", "n")

    result(lifted(kind, fn, variables="state"), False, 2.0)
    with pytest.raises(UnliftedCollectionError) as caught:
        result(lifted(kind, fn, variables=False), False, 2.0)
    assert caught.value.where.startswith('"state/n" at /')
    assert "(fn)" in caught.value.where
    assert caught.value.fix == 'Add "state" to `variables`.'

    def noisy(scope: Scope, x: Any) -> Any:
        return scope.param("scale", None, ()) * jax.random.uniform(scope.make_rng("dropout"))

    result(lifted(kind, noisy, rngs="dropout"), False, 1.0)
    with pytest.raises(UnliftedStreamError, match=r'\(noisy\)(?: at /)? does not pass it in .*Add "dropout" to `rngs`'):
        result(lifted(kind, noisy, rngs="params"), False, 1.0)


@KINDS
def test_raw_ones_name_the_lifted_ones(kind: str) -> None:
    def model(scope: Scope, x: Any) -> Any:
        return getattr(jax, kind)(lambda x: x * scope.param("w", jax.random.normal, ()))(x)

    with pytest.raises(JaxTransformError, match=r"`liftcore\.\w+`") as caught:
        liftcore.init(model)(KEY, 2.0)
    assert kind == "hessian" or f"jax.{kind}" in caught.value.what


@KINDS
def test_what_one_equation_of_ones_own_created_is_given_to_the_derivative(kind: str) -> None:
    assert_same(*(liftcore.init(lifted(kind, fn))(KEY, X) for fn in (one_equation(layer), layer)))
    assert_same(*(result(lifted(kind, fn), False, X) for fn in (one_equation(layer), layer)))


# -- derivatives of it, and lifts around -------------------------------------------------------------------------------


@KINDS
@BOTH
def test_a_model_with_a_jacobian_inside_can_be_differentiated(kind: str, mutable: Any) -> None:
    def ours(params: Any, x: Any) -> Any:
        found = result(lifted(kind, layer, 1), mutable, x, given={**VARIABLES, "params": params})
        return jnp.sum(found["a"] ** 2)

    def theirs(params: Any, x: Any) -> Any:
        return jnp.sum(getattr(jax, kind)(by_hand, 1)({"params": params}, x)["a"] ** 2)

    for transform in (jax.grad, jax.jacfwd):
        assert_same(transform(ours, (0, 1))(PARAMS, X), transform(theirs, (0, 1))(PARAMS, X))


@KINDS
@pytest.mark.parametrize("around", ["scan", "vmap", "remat", "jit", "cond", "while"])
def test_inside_other_lifts_it_equals_jax(around: str, kind: str) -> None:
    def wave(scope: Scope, x: Any) -> Any:
        if around != "while":
            scope.sow("intermediates", "x", x)
        return jnp.sin(scope.param("w", jax.random.normal, (3,)) * x).sum() * x

    def reduced(tensor: Any) -> Any:
        return tensor.reshape(3, -1).sum(1)

    def step(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(0))
        n.value += 1
        return n.value * reduced(lifted(kind, wave, 1)(scope, x))

    def plain(w: Any, x: Any, n: Any) -> Any:
        return n * reduced(getattr(jax, kind)(lambda x: jnp.sin(w * x).sum() * x)(x))

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
        loop = liftcore.while_loop(
            lambda _, now: now[0] < 2,
            lambda scope, now: (now[0] + 1, step(scope, now[1])),
            variable_carry="state",
            split_rngs={"params": False},
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
    y, variables = liftcore.init(models[around])(KEY, X)
    w = variables["params"]["w"]
    expected = {
        "scan": lambda: plain(w[1], plain(w[0], X, 1), 2),
        "vmap": lambda: jnp.stack([plain(w[0], X, 1), plain(w[1], 2 * X, 1)]),
        "while": lambda: plain(w, plain(w, X, 1), 2),
    }.get(around, lambda: plain(w, X, 1))
    np.testing.assert_allclose(y, expected(), rtol=1e-4)
    assert variables["state"]["n"] == (2 if around in ("scan", "while") else 1)
    if around != "while":
        assert jax.tree.leaves(variables["intermediates"])[0].shape == {"scan": (2, 3), "vmap": (2, 3)}.get(
            around, (3,)
        )


@KINDS
def test_a_scan_carries_and_writes_what_the_function_created(kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return n.value * (x if kind != "hessian" else x**2 / 2)

    def step(scope: Scope, x: Any, _: Any) -> Any:
        slope = lifted(kind, fn, 1)(scope, x)
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x + 1, (slope, seen)

    loop = liftcore.scan(step, length=3, variable_carry="state")
    (_, (slopes, ns)), variables = liftcore.init(loop)(KEY, jnp.float32(1), None)
    assert ns.tolist() == slopes.tolist() == [11, 23, 47]
    assert variables["state"]["n"] == 94
