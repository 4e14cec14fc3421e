"""Lifted `grad` and `value_and_grad`: with respect to scopes, to single variables and to arguments."""

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
from liftcore.errors import (
    JaxTransformError,
    LiftArgumentError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, Not, PathContains
from tests.lift.derivatives import BOTH, KEY, LORA, VARIABLES, X, assert_state_stays, counts, noisy, result
from tests.lift.nests import Counted
from tests.lift.own import one_equation
from tests.lift.quick import assert_same


def loss(scope: Scope, x: Any, y: Any = 1.0, *, factor: Any = 2.0) -> Any:
    """Reads, and writes what it may."""
    layer = scope.push("layer")
    w, lora = layer.param("w", jax.random.normal, (3,)), layer.param("lora", jax.random.normal, (3,))
    scale = scope.param("scale", jax.random.normal, ())
    n = scope.variable("state", "n", lambda: jnp.float32(1.5))
    result = jnp.sum(jnp.sin(w * x) + lora**2 * scale * y) * factor * n.value
    if scope.is_mutable_collection("state"):
        n.value = n.value * scale
    return result


def by_hand(params: Any, x: Any, y: Any = 1.0, *, factor: Any = 2.0) -> Any:
    layer = params["layer"]
    return jnp.sum(jnp.sin(layer["w"] * x) + layer["lora"] ** 2 * params["scale"] * y) * factor * 1.5


# -- with respect to what ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("argnums", [0, 1, 2, (0,), (0, 1), (2, 0), [1, 0], (1, 2), -1, (-1, 0), -2, -3, (-3, 1)])
@pytest.mark.parametrize("kind", ["grad", "value_and_grad"])
def test_numbers_count_from_the_scope(kind: str, argnums: Any, mutable: Any) -> None:
    def plain(variables: Any, x: Any, y: Any, factor: Any) -> Any:
        return by_hand(variables["params"], x, y, factor=factor)

    ours = result(getattr(liftcore, kind)(loss, argnums), mutable, X, 0.7, factor=3.0)
    params = {"params": VARIABLES["params"]}
    theirs = getattr(jax, kind)(plain, tuple(argnums) if isinstance(argnums, list) else argnums)
    assert_same(ours, theirs(params, X, 0.7, factor=3.0))


def test_numbers_may_be_of_numpy() -> None:
    assert_same(result(liftcore.grad(loss, np.int64(1)), False, X), result(liftcore.grad(loss, 1), False, X))
    assert_same(result(liftcore.grad(loss, np.int64(0)), False, X), result(liftcore.grad(loss), False, X))


@BOTH
def test_single_variables_are_differentiated_down_to_one(mutable: Any) -> None:
    layer = VARIABLES["params"]["layer"]

    def plain(lora: Any) -> Any:
        return by_hand({**VARIABLES["params"], "layer": {**layer, "lora": lora}}, X)

    ours = result(liftcore.grad(loss, wrt=LORA), mutable, X)
    assert_same(ours, {"params": {"layer": {"lora": jax.grad(plain)(layer["lora"])}}})
    rest = result(liftcore.grad(loss, wrt=All("params", Not(LORA))), mutable, X)
    full = result(liftcore.grad(loss), mutable, X)
    assert_same(liftcore.filters.merge(ours, rest), full)


@BOTH
def test_other_collections_and_several(mutable: Any) -> None:
    ours = result(liftcore.grad(loss, wrt=("params", "state")), mutable, X)
    assert_same({"params": ours["params"]}, result(liftcore.grad(loss), mutable, X))
    np.testing.assert_allclose(ours["state"]["n"], by_hand(VARIABLES["params"], X) / 1.5, rtol=1e-6)


def test_what_is_written_counts_from_the_value_it_had() -> None:
    def twice(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n")
        n.value = n.value * x
        n.value = n.value * n.value
        return n.value

    given = {"state": {"n": jnp.float32(3)}}
    model = liftcore.value_and_grad(twice, (0, 1), wrt="state")
    (y, (variables, x)), mutated = liftcore.apply(model, mutable=["state"])(given, 2.0)
    assert (y, variables, x, mutated) == (36.0, {"state": {"n": 24.0}}, 36.0, {"state": {"n": 36.0}})


def test_integers_are_an_error_unless_allowed() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.push("m").variable("state", "n", lambda: jnp.int32(3)).value * x

    given = {"state": {"m": {"n": jnp.int32(3)}}}
    for run in (lambda fn: liftcore.apply(fn)(given, 2.0), lambda fn: liftcore.init(fn)(KEY, 2.0)):
        with pytest.raises(LiftArgumentError) as caught:
            run(liftcore.grad(fn, wrt="state"))
        assert caught.value.where == '"state/m/n" in grad(fn) at /'
        assert caught.value.what == "`wrt` selects it, but int32 has no gradient."
        assert caught.value.fix == "Leave it out of `wrt`, or pass `allow_int=True`."
    expected = jax.grad(lambda n, x: n * x, (0, 1), allow_int=True)(jnp.int32(3), 2.0)
    (variables, x) = liftcore.apply(liftcore.grad(fn, (0, 1), allow_int=True, wrt="state"))(given, 2.0)
    assert variables["state"]["m"]["n"].dtype == expected[0].dtype == jax.dtypes.float0
    assert x == expected[1]
    (variables, x), _ = liftcore.init(liftcore.grad(fn, (0, 1), allow_int=True, wrt="state"))(KEY, 2.0)
    assert (variables["state"]["m"]["n"].dtype, x) == (jax.dtypes.float0, 3.0)


def test_keys_beside_numbers_may_be_left_out() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        key = scope.variable("state", "key", lambda: jax.random.key(3))
        n = scope.variable("state", "n", lambda: jnp.float32(2)).value
        key.value = jax.random.split(key.value)[0]
        return n * x + jax.random.uniform(key.value)

    numbers = All("state", Not(PathContains("key")))
    gradient, variables = liftcore.init(liftcore.grad(fn, wrt=numbers))(KEY, 5.0)
    assert gradient == {"state": {"n": 5.0}}
    assert_same(variables["state"]["key"], jax.random.split(jax.random.key(3))[0])
    with pytest.raises(LiftArgumentError, match=r'"state/key" in grad\(fn\) at /: .*key<fry> has no gradient'):
        liftcore.init(liftcore.grad(fn, wrt="state"))(KEY, 5.0)


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("argnums", [0, (1, 0), -2])
def test_nothing_to_differentiate_with_respect_to_is_an_error(argnums: Any, mutable: bool) -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.grad(lambda scope, x: x * scope.get_variable("state", "n"), argnums)(scope.push("m"), x)

    with pytest.raises(LiftArgumentError) as caught:
        result(model, mutable, 2.0, given={"state": {"m": {"n": 3.0}}})
    assert caught.value.where == "grad(<lambda>) at /m"
    assert "`wrt` takes no variable below it (collections there: ['state'])" in caught.value.what
    assert caught.value.fix == 'Choose others, such as `wrt="params"`, or count arguments from 1.'


def test_without_variables_arguments_are_differentiated() -> None:
    assert liftcore.apply(liftcore.grad(lambda scope, x: x**2, 1))({}, 3.0) == 6.0


def test_a_number_that_is_out_of_range_is_an_error() -> None:
    for argnums in (2, (0, 5), -4):
        with pytest.raises((ValueError, TypeError), match=r"argnums|arguments"):
            result(liftcore.grad(lambda scope, x: x * scope.param("scale", None, ()), argnums), False, 1.0)


@BOTH
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_complex_functions(argnums: Any, mutable: Any) -> None:
    def fn(scope: Scope, z: Any) -> Any:
        return scope.param("w", lambda key: jnp.complex64(1 + 2j)) * z**2

    given, z = {"params": {"w": jnp.complex64(1 + 2j)}}, jnp.complex64(2 - 1j)
    expected = jax.grad(lambda v, z: v["params"]["w"] * z**2, argnums, holomorphic=True)(given, z)
    assert_same(result(liftcore.grad(fn, argnums, holomorphic=True), mutable, z, given=given), expected)
    assert_same(liftcore.init(liftcore.grad(fn, argnums, holomorphic=True))(KEY, z)[0], expected)
    with pytest.raises(TypeError, match=r"holomorphic"):
        result(liftcore.grad(fn, argnums), mutable, z, given=given)


# -- what comes with it ------------------------------------------------------------------------------------------------


@BOTH
def test_something_else_may_be_returned(mutable: Any) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return loss(scope, x), {"x": x, "w": scope.get_variable("params", "scale"), "none": None}

    extra = {"x": X, "w": jnp.float32(2), "none": None}
    assert_same(result(liftcore.grad(fn, has_aux=True), mutable, X), (result(liftcore.grad(loss), mutable, X), extra))
    value, gradient = result(liftcore.value_and_grad(loss), mutable, X)
    assert_same(result(liftcore.value_and_grad(fn, has_aux=True), mutable, X), ((value, extra), gradient))


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_something_else_need_be_no_array(run: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("w", lambda key: jnp.float32(3)) * x, ("text", len, x)

    model = liftcore.grad(fn, has_aux=True)
    given = {"params": {"w": jnp.float32(3)}}
    found = liftcore.init(model)(KEY, 2.0)[0] if run == "init" else result(model, run != "apply", 2.0, given=given)
    assert found == ({"params": {"w": 2.0}}, ("text", len, 2.0))


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
@pytest.mark.parametrize("kind", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_arguments_that_are_not_differentiated_stay_as_they_are(kind: str, run: str) -> None:
    def fn(scope: Scope, mode: str, x: Any, size: int, flag: bool, *, name: str) -> Any:
        assert (mode, size, flag, name) == ("sum", 3, True, "n")
        return scope.param("w", lambda key: jnp.float32(3)) * jnp.sum(jnp.ones(size) * x)

    given, args = {"params": {"w": jnp.float32(3)}}, ("sum", 2.0, 3, True)
    for argnums in (0, 2, (0, 2)):
        model = getattr(liftcore, kind)(fn, argnums)
        if run == "init":
            ours = liftcore.init(model)(KEY, *args, name="n")[0]
        else:
            ours = result(model, run != "apply", *args, given=given, name="n")

        def plain(variables: Any, x: Any) -> Any:
            return variables["params"]["w"] * 3 * x

        numbers = {0: 0, 2: 1, (0, 2): (0, 1)}[argnums]
        assert_same(ours, getattr(jax, kind)(plain, numbers)(given, 2.0))


@pytest.mark.parametrize("mutable", [False, True])
def test_a_function_must_return_a_number(mutable: bool) -> None:
    with pytest.raises(TypeError, match=r"scalar-output"):
        result(liftcore.grad(lambda scope, x: scope.param("scale", None, ()) * x), mutable, X)


def test_the_state_is_that_without_the_derivative() -> None:
    def summed(scope: Scope, x: Any) -> Any:
        return jnp.sum(noisy(scope, x, start=0.0))

    assert_state_stays(lambda fn: lambda scope, x: liftcore.value_and_grad(fn)(scope, x)[0], summed)


def test_a_gradient_through_what_is_written_flows_as_in_jax() -> None:
    def model(scope: Scope, x: Any) -> Any:
        gradient = liftcore.grad(loss)(scope, x)
        return scope.get_variable("state", "n") * gradient["params"]["scale"]

    def plain(params: Any) -> Any:
        def inner(params: Any) -> Any:
            return by_hand(params, X), 1.5 * params["scale"]

        gradient, n = jax.grad(inner, has_aux=True)(params)
        return n * gradient["scale"]

    ours = jax.grad(lambda p: result(model, ["state"], X, given={**VARIABLES, "params": p}))(VARIABLES["params"])
    assert_same(ours, jax.grad(plain)(VARIABLES["params"]))


# -- init --------------------------------------------------------------------------------------------------------------


def test_init_differentiates_what_apply_will() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        w = scope.param("w", lambda key: jax.random.normal(key, (3,)) + x)
        n = scope.variable("state", "n", lambda: 2 * x)
        n.value = n.value * w
        return jnp.sum(jnp.sin(w * x) + n.value)

    model = liftcore.value_and_grad(fn, (0, 1))
    found, variables = liftcore.init(model)(KEY, X)
    given = {"params": variables["params"], "state": {"n": 2 * X}}
    applied, mutated = liftcore.apply(model, mutable=["state"])(given, X)
    assert_same(found, applied)
    assert_same(mutated["state"], variables["state"])


def test_only_the_variables_that_it_creates_below_the_given_scope_are_differentiated() -> None:
    def model(scope: Scope, x: Any) -> Any:
        outside = scope.param("outside", jax.random.normal, ())
        return liftcore.grad(lambda scope, x: outside * scope.param("w", jax.random.normal, ()) * x)(scope.push("m"), x)

    gradient, variables = liftcore.init(model)(KEY, 2.0)
    assert_same(gradient, {"params": {"w": 2 * variables["params"]["outside"]}})


@pytest.mark.parametrize(
    "lift",
    [
        liftcore.remat,
        liftcore.jit,
        lambda fn: lambda scope, x: liftcore.cond(fn, lambda scope, x: 0.0)(scope, True, x),
        lambda fn: lambda scope, x: liftcore.switch([lambda scope, x: 0.0, fn])(scope, 1, x),
        lambda fn: lambda s, x: liftcore.vmap(fn, variable_axes={True: None}, split_rngs=False)(s, x[None])[0],
        lambda fn: lambda scope, x: liftcore.vjp(fn)(scope, x)[0],
        lambda fn: lambda scope, x: liftcore.value_and_grad(fn)(scope, x)[0],
    ],
)
def test_gradients_reach_what_a_lift_inside_created(lift: Callable[..., Any]) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return jnp.sum(jnp.sin(scope.param("w", jax.random.normal, (3,)) * x))

    bare, lifted = (liftcore.init(liftcore.grad(one))(KEY, X) for one in (fn, lift(fn)))
    assert_same(lifted, bare)
    hessians = [liftcore.init(liftcore.hessian(one))(KEY, X)[0] for one in (fn, lift(fn))]
    assert_same(*hessians)


def test_what_one_equation_of_ones_own_created_is_given_to_the_derivative() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return (x * scope.param("w", lambda key: jnp.float32(3))) ** 2

    own, plain = (lambda scope, x, f=f: liftcore.grad(f)(scope.push("m"), x) for f in (one_equation(fn), fn))
    assert liftcore.init(own)(KEY, 2.0) == liftcore.init(plain)(KEY, 2.0)
    assert liftcore.apply(liftcore.grad(one_equation(fn)))({"params": {"w": 3.0}}, 2.0) == {"params": {"w": 24.0}}


# -- scopes and what is lifted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutable", [False, True])
def test_a_pytree_of_scopes_has_a_pytree_of_gradients(mutable: bool) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        return scopes["a"].param("w", None, ()) * x + scopes["b"][0].param("w", None, ()) ** 2

    def model(scope: Scope, x: Any) -> Any:
        return liftcore.grad(fn, (0, 1))({"a": scope.push("a"), "b": (scope.push("b"),)}, x)

    given = {"params": {"a": {"w": jnp.float32(2)}, "b": {"w": jnp.float32(3)}, "c": {"w": jnp.float32(4)}}}
    (gradient, x) = result(model, mutable, 5.0, given=given)
    assert (gradient, x) == ({"a": {"params": {"w": 5.0}}, "b": ({"params": {"w": 6.0}},)}, 2.0)


@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_overlapping_scopes_each_see_the_whole_gradient_below_them(run: str) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        parent, child, again = scopes
        values = [one.rewound().param("w", lambda key: jnp.float32(3)) for one in (parent, child, again)]
        return values[0] * values[1] * values[2] * x

    def model(scope: Scope, x: Any) -> Any:
        child = scope.push("c")
        return liftcore.grad(fn)((scope, child, child), x)

    given = {"params": {"w": jnp.float32(3), "c": {"w": jnp.float32(3)}}}
    found = liftcore.init(model)(KEY, 2.0)[0] if run == "init" else result(model, run != "apply", 2.0, given=given)
    below = {"params": {"w": 36.0}}
    assert found == ({"params": {"w": 18.0, "c": {"w": 36.0}}}, below, below)


def test_only_lifted_variables_and_sequences_are_there() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("scale", None, ()) * x * scope.get_variable("state", "n")

    lifted = liftcore.grad(fn, variables="state")
    assert result(lifted, False, 2.0)["params"]["scale"] == 3.0
    with pytest.raises(UnliftedCollectionError) as caught:
        result(lambda scope: liftcore.grad(fn, variables=False)(scope, 2.0), False)
    assert caught.value.where == '"state/n" at /grad(fn)'
    assert caught.value.fix == 'Add "state" to `variables`.'
    with pytest.raises(UnliftedCollectionError, match=r'"params/scale" at /grad\(fn\)'):
        result(liftcore.grad(fn, wrt="state", variables=False), False, 2.0)

    def noisy(scope: Scope, x: Any) -> Any:
        return scope.param("scale", None, ()) * jax.random.uniform(scope.make_rng("dropout"))

    result(liftcore.grad(noisy, rngs="dropout"), False, 1.0)
    with pytest.raises(UnliftedStreamError, match=r'grad\(noisy\) does not pass it in .*Add "dropout" to `rngs`'):
        result(liftcore.grad(noisy, rngs="params"), False, 1.0)


def test_a_raw_gradient_names_the_lifted_one() -> None:
    for raw, name in ((jax.grad, "grad"), (jax.value_and_grad, "value_and_grad")):

        def model(scope: Scope, x: Any, raw: Any = raw) -> Any:
            return raw(lambda x: x * scope.param("w", jax.random.normal, ()))(x)

        with pytest.raises(JaxTransformError, match=rf"jax\.{name} .*`liftcore\.{name}`"):
            liftcore.init(model)(KEY, 2.0)


# -- higher derivatives, and lifts around ------------------------------------------------------------------------------


@BOTH
def test_gradients_of_gradients(mutable: Any) -> None:
    def inner(scope: Scope, x: Any) -> Any:
        return jnp.sum(jax.tree.leaves(liftcore.grad(loss)(scope, x))[0] ** 2)

    def plain(params: Any, x: Any) -> Any:
        return jnp.sum(jax.tree.leaves(jax.grad(by_hand)(params, x))[0] ** 2)

    ours = result(liftcore.grad(inner, (0, 1)), mutable, X)
    theirs = jax.grad(plain, (0, 1))(VARIABLES["params"], X)
    assert_same(ours, ({"params": theirs[0]}, theirs[1]))


@BOTH
def test_a_model_with_a_gradient_inside_can_be_differentiated(mutable: Any) -> None:
    def energy(scope: Scope, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ scope.param("w", jax.random.normal, (3, 3))) ** 2)

    def force(params: Any, x: Any) -> Any:
        result = liftcore.apply(liftcore.grad(energy, 1), mutable=mutable)({"params": params}, x)
        return result[0] if mutable else result

    check_grads(force, ({"w": jax.random.normal(KEY, (3, 3))}, X), order=2, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kind", ["scan", "vmap", "remat", "jit", "cond"])
def test_inside_other_lifts_it_equals_jax(kind: str) -> None:
    def energy(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "x", x)
        return jnp.sum(jnp.sin(scope.param("w", jax.random.normal, (3,)) * x))

    def force(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(0))
        n.value += 1
        return n.value * liftcore.grad(energy, 1)(scope, x)

    def plain(w: Any, x: Any, n: Any) -> Any:
        return n * jax.grad(lambda x: jnp.sum(jnp.sin(w * x)))(x)

    def looped(scope: Scope, x: Any) -> Any:
        step = liftcore.scan(
            lambda scope, x, _: (force(scope, x), None),
            length=3,
            variable_axes={"params": 0},
            variable_carry="state",
            split_rngs={"params": True},
        )
        return step(scope, x, None)[0]

    def elements(scope: Scope, x: Any) -> Any:
        return liftcore.vmap(force, variable_axes={"params": None, "state": None}, split_rngs={"params": False})(
            scope, jnp.stack([x, 2 * x])
        )

    model = {
        "scan": looped,
        "vmap": elements,
        "remat": liftcore.remat(force),
        "jit": liftcore.jit(force),
        "cond": lambda scope, x: liftcore.cond(force, lambda scope, x: x)(scope, True, x),
    }[kind]
    y, variables = liftcore.init(model)(KEY, X)
    w = variables["params"]["w"]
    if kind == "scan":
        expected = X
        for i in range(3):
            expected = plain(w[i], expected, i + 1)
    else:
        expected = jnp.stack([plain(w, X, 1), plain(w, 2 * X, 1)]) if kind == "vmap" else plain(w, X, 1)
    assert_same(y, expected)
    assert variables["state"]["n"] == (3 if kind == "scan" else 1)
    assert jax.tree.leaves(variables["intermediates"])[0].shape == {"scan": (3, 3), "vmap": (2, 3)}.get(kind, (3,))


def test_a_scan_carries_and_writes_what_the_function_created() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return n.value * x

    def step(scope: Scope, x: Any, _: Any) -> Any:
        gradient = liftcore.grad(fn, 1)(scope, x)
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x + 1, (gradient, seen)

    (_, (gradients, ns)), variables = liftcore.init(liftcore.scan(step, length=3, variable_carry="state"))(
        KEY, jnp.float32(1), None
    )
    assert ns.tolist() == [11, 23, 47]
    assert gradients.tolist() == ns.tolist(), "the initial value is no function of x to the derivative"
    assert variables["state"]["n"] == 94


# -- how often the function runs ---------------------------------------------------------------------------------------


def differentiated(kind: str) -> Callable[[Any], Any]:
    if kind == "value_and_grad":
        return lambda fn: lambda scope, x: liftcore.value_and_grad(fn, 1)(scope, x)[0]
    return lambda fn: lambda scope, x: jnp.sum(getattr(liftcore, kind)(fn, 1)(scope, x))


@pytest.mark.parametrize(
    ("kind", "depth"),
    [("grad", 1), ("grad", 2), ("grad", 4), ("value_and_grad", 4), ("jacfwd", 4), ("jacrev", 3), ("hessian", 2)],
)
def test_the_function_runs_once_at_every_depth(kind: str, depth: int) -> None:
    body = Counted(lambda scope, x: jnp.sum(counts(scope, x)))
    model: Callable[..., Any] = body
    for level in range(depth):
        model = differentiated(kind)(liftcore.remat(model) if level == 2 else model)
    x = jnp.float32(1)
    _, variables = jax.eval_shape(liftcore.init(model), KEY, x)
    assert body.since() == 1
    for mutable in ([], ["state"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, x)
        assert body.since() == 1
    jax.eval_shape(jax.grad(liftcore.apply(model, mutable=["state"]), has_aux=True), variables, x)
    assert body.since() == 1


@pytest.mark.parametrize("kind", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_the_function_runs_once_when_it_is_computed(kind: str) -> None:
    body = Counted(lambda scope, x: jnp.sum(counts(scope, x)))
    model = differentiated(kind)(body)
    variables = liftcore.init(model)(KEY, jnp.float32(1))[1]
    assert body.since() == 1
    for mutable in (False, ["state"]):
        result(model, mutable, jnp.float32(1), given=variables)
        assert body.since() == 1
        jax.grad(lambda x, mutable=mutable: result(model, mutable, x, given=variables))(1.0)
        assert body.since() == 1


@pytest.mark.parametrize("lift", [liftcore.grad, liftcore.value_and_grad, liftcore.jacfwd, liftcore.jacrev])
@pytest.mark.parametrize("given", [jnp.float32(1), (1.0, 2.0, 3.0)], ids=["one", "three"])
def test_a_function_without_aux_is_an_error(lift: Any, given: Any) -> None:
    def loss(scope: Scope, x: Any) -> Any:
        return jax.tree.map(lambda one: one * scope.get_variable("params", "w") * x, given)

    said = r"\(loss\) at /: expected .* a pair, as `has_aux` demands, given (3 values|a float32)"
    with pytest.raises(LiftArgumentError, match=said):
        liftcore.apply(lift(loss, has_aux=True))({"params": {"w": 2.0}}, 3.0)
