"""Lifted `jvp` and `linearize`: derivatives along arguments and along variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jax.test_util import check_grads

import liftcore
from liftcore import Scope
from liftcore.errors import JaxTransformError, LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import merge
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
from tests.machine import make_mesh

KINDS = pytest.mark.parametrize("kind", ["jvp", "linearize"])


def by_hand(params: Any, x: Any, y: Any = 1.0, n: Any = 1.5) -> Any:
    inner = params["layer"]
    return {"a": jnp.sin(inner["w"] * x) * n, "b": (jnp.sum(inner["lora"] ** 2) * params["scale"] * y,)}


def along(kind: str, fn: Callable[..., Any] = layer, **options: Any) -> Callable[..., Any]:
    """`lifted(scope, primals, tangents, variable_tangents)` of both kinds."""
    if kind == "jvp":
        return liftcore.jvp(fn, **options)

    def linear(scope: Any, primals: Any, tangents: Any, variable_tangents: Any = None) -> Any:
        y, move, *aux = liftcore.linearize(fn, **options)(scope, *primals)
        return y, move(variable_tangents, *tangents), *aux

    return linear


# -- along what --------------------------------------------------------------------------------------------------------

DIRECTIONS: list[Any] = [
    None,
    {},
    {"params": {}},
    {"params": {"scale": jnp.float32(3)}},
    {"params": {"layer": {"lora": X}}},
    {"params": {"layer": {"lora": X, "w": 2 * X}, "scale": jnp.float32(3)}},
]


@KINDS
@BOTH
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tangents_that_are_left_out_are_zero(direction: Any, mutable: Any, kind: str) -> None:
    full = merge(jax.tree.map(jnp.zeros_like, {"params": PARAMS}), direction or {})
    expected = jax.jvp(by_hand, (PARAMS, X, 0.7), (full["params"], 2 * X, 0.5))
    assert_same(result(along(kind), mutable, (X, 0.7), (2 * X, 0.5), direction), expected)


@KINDS
@BOTH
def test_single_variables_and_other_collections(kind: str, mutable: Any) -> None:
    def plain(lora: Any, n: Any) -> Any:
        return by_hand({**PARAMS, "layer": {**PARAMS["layer"], "lora": lora}}, X, n=n)

    expected = jax.jvp(plain, (PARAMS["layer"]["lora"], 1.5), (X, 0.25))
    direction = {"params": {"layer": {"lora": X}}, "state": {"n": jnp.float32(0.25)}}
    model = along(kind, lambda scope: layer(scope, X), wrt=(LORA, "state"))
    assert_same(result(model, mutable, (), (), direction), expected)


@KINDS
@BOTH
@pytest.mark.parametrize(
    ("direction", "name", "wrt"),
    [
        ({"state": {"n": jnp.float32(1)}}, "state/n", "params"),
        ({"params": {"typo": jnp.float32(1)}}, "params/typo", "params"),
        ({"params": {"scale": {"deeper": jnp.float32(1)}}}, "params/scale/deeper", "params"),
        ({"params": {"scale": jnp.float32(1)}}, "params/scale", LORA),
    ],
)
def test_a_tangent_of_something_else_is_an_error(direction: Any, name: str, wrt: Any, mutable: Any, kind: str) -> None:
    def model(scope: Scope) -> Any:
        return along(kind, wrt=wrt)(scope.push("m"), (X,), (X,), direction)

    given = {"params": {"m": PARAMS}, "state": {"m": VARIABLES["state"]}}
    with pytest.raises(LiftArgumentError) as caught:
        result(model, mutable, given=given)
    available = ["params/layer/lora"] + (["params/layer/w", "params/scale"] if wrt == "params" else [])
    assert caught.value.where == f"{kind}(layer) at /m"
    assert f'there is a value for "{name}", but this variable is not differentiated' in caught.value.what
    assert f"(available: {available})" in caught.value.what
    assert "`wrt" in caught.value.fix


@KINDS
@BOTH
def test_a_tangent_must_be_of_the_type_of_its_primal(kind: str, mutable: Any) -> None:
    for tangents, direction in (
        ((X.astype(int),), None),
        ((X[:2],), None),
        ((X, X), None),
        ((X,), {"params": {"scale": jnp.ones(2)}}),
        ((X,), {"params": {"scale": jnp.int32(1)}}),
    ):
        with pytest.raises((TypeError, ValueError)):
            result(along(kind), mutable, (X,), tangents, direction)


@KINDS
@BOTH
def test_something_else_may_be_returned(kind: str, mutable: Any) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return layer(scope, x), {"x": x, "none": None}

    expected = result(along(kind), mutable, (X,), (X,))
    assert_same(result(along(kind, fn, has_aux=True), mutable, (X,), (X,)), (*expected, {"x": X, "none": None}))


@KINDS
@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_something_else_need_be_no_array(run: str, kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("w", lambda key: jnp.float32(3)) * x, ("text", len)

    model, args = along(kind, fn, has_aux=True), ((jnp.float32(2),), (jnp.float32(1),))
    given = {"params": {"w": jnp.float32(3)}}
    found = liftcore.init(model)(KEY, *args)[0] if run == "init" else result(model, run != "apply", *args, given=given)
    assert found == (6.0, 3.0, ("text", len))


@KINDS
@BOTH
def test_integers_and_keys_do_not_move(kind: str, mutable: Any) -> None:
    def fn(scope: Scope, n: Any, key: Any, x: Any) -> Any:
        return scope.get_variable("state", "i") * n * x + jax.random.uniform(key)

    still = np.zeros((), jax.dtypes.float0)
    args = (jnp.int32(2), KEY, 5.0), (still, still, 1.0)
    y, slope = result(along(kind, fn, wrt="state"), mutable, *args, given={"state": {"i": jnp.int32(3)}})
    assert_same((y, slope), (30 + jax.random.uniform(KEY), jnp.float32(6)))


@BOTH
def test_the_linear_function_is_pure_and_may_be_called_again_and_later(mutable: Any) -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.linearize(layer)(scope, x)

    _, move = result(model, mutable, X)
    for direction in (None, {"params": {"scale": jnp.float32(3)}}):
        expected = result(along("jvp"), mutable, (X,), (2 * X,), direction)[1]
        assert_same(move(direction, 2 * X), expected)
        assert_same(jax.jit(lambda x, direction=direction: move(direction, x))(2 * X), expected)
    jacobian = jax.vmap(lambda x: move(None, x))(jnp.eye(3))["a"]
    assert_same(jacobian, jax.jacobian(by_hand, 1)(PARAMS, X)["a"].T)
    leaves, treedef = jax.tree.flatten(move)
    assert_same(jax.tree.unflatten(treedef, leaves)(None, X), move(None, X))


def test_the_linear_function_says_what_is_wrong_later_too() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return liftcore.linearize(layer)(scope, x)[1]

    with pytest.raises(LiftArgumentError, match=r'linearize\(layer\) at /: there is a value for "params/typo"'):
        result(model, False, X)({"params": {"typo": 1.0}}, X)


def test_primals_and_tangents_may_be_lists() -> None:
    y, slope = liftcore.apply(liftcore.jvp(lambda scope, x: x**2))({}, [3.0], [1.0])
    assert (y, slope) == (9.0, 6.0)


# -- state -------------------------------------------------------------------------------------------------------------


@KINDS
def test_the_state_is_that_without_the_derivative(kind: str) -> None:
    assert_state_stays(lambda fn: lambda scope, x: along(kind, fn)(scope, (x,), (x,))[0])


@KINDS
def test_init_moves_along_what_apply_will(kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        w = scope.param("w", lambda key: jax.random.normal(key, (3,)) + x)
        n = scope.variable("state", "n", lambda: 2 * x)
        n.value = n.value * w
        return jnp.sin(w * x) + n.value

    model, args = along(kind, fn), ((X,), (2 * X,), {"params": {"w": X}})
    found, variables = liftcore.init(model)(KEY, *args)
    given = {"params": variables["params"], "state": {"n": 2 * X}}
    applied, mutated = liftcore.apply(model, mutable=["state"])(given, *args)
    assert_same(found, applied)
    assert_same(mutated["state"], variables["state"])


@KINDS
@pytest.mark.parametrize("run", ["init", "apply", "apply, mutable"])
def test_a_pytree_of_scopes_takes_a_pytree_of_tangents(run: str, kind: str) -> None:
    def fn(scopes: Any, x: Any) -> Any:
        first, second = scopes["a"], scopes["b"][0]
        return first.param("w", lambda key: jnp.float32(2)) * x + second.param("w", lambda key: jnp.float32(3)) ** 2

    def model(scope: Scope, x: Any, first: Any, second: Any) -> Any:
        scopes = {"a": scope.push("a"), "b": (scope.push("b"),)}
        return along(kind, fn)(scopes, (x,), (1.0,), {"a": first, "b": (second,)})

    given = {"params": {"a": {"w": jnp.float32(2)}, "b": {"w": jnp.float32(3)}}}
    one = {"params": {"w": jnp.float32(1)}}
    for first, second, slope in ((one, one, 13.0), (None, one, 8.0), (one, {}, 7.0)):
        args = 5.0, first, second
        found = (
            liftcore.init(model)(KEY, *args)[0] if run == "init" else result(model, run != "apply", *args, given=given)
        )
        assert found == (19.0, slope)


@KINDS
@pytest.mark.parametrize("mutable", [False, True])
def test_a_gradient_of_overlapping_scopes_is_a_direction(kind: str, mutable: bool) -> None:
    """What one derivative gives another one takes: each variable moves once."""

    def fn(scopes: Any, x: Any) -> Any:
        values = [one.rewound().param("w", None, ()) for one in scopes]
        return values[0] * values[1] * values[2] * x

    def model(scope: Scope, x: Any) -> Any:
        scopes = (scope, scope.push("c"), scope.push("c", reuse=True))
        gradient = liftcore.grad(fn)(scopes, x)
        return along(kind, fn)(scopes, (x,), (0.0,), gradient)[1]

    given = {"params": {"w": jnp.float32(3), "c": {"w": jnp.float32(2)}}}
    a, c, x = 3.0, 2.0, 5.0
    assert result(model, mutable, x, given=given) == (c * c * x) ** 2 + (2 * a * c * x) ** 2


def test_only_lifted_variables_and_sequences_are_there() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.param("scale", None, ()) * x * scope.get_variable("state", "n")

    for kind in ("jvp", "linearize"):
        assert result(along(kind, fn, variables="state"), False, (2.0,), (1.0,)) == (6.0, 3.0)
        with pytest.raises(UnliftedCollectionError) as caught:
            result(along(kind, fn, variables=False), False, (2.0,), (1.0,))
        assert caught.value.where == f'"state/n" at /{kind}(fn)'
        assert caught.value.fix == 'Add "state" to `variables`.'

        def noisy(scope: Scope, x: Any) -> Any:
            return x * jax.random.uniform(scope.make_rng("dropout"))

        result(along(kind, noisy, rngs="dropout"), False, (1.0,), (1.0,))
        with pytest.raises(UnliftedStreamError, match=rf'{kind}\(noisy\) does not .*Add "dropout" to `rngs`'):
            result(along(kind, noisy, rngs="params"), False, (1.0,), (1.0,))


def test_raw_ones_name_the_lifted_ones() -> None:
    def pushed(scope: Scope, x: Any) -> Any:
        return jax.jvp(lambda x: x * scope.param("w", jax.random.normal, ()), (x,), (x,))

    def linear(scope: Scope, x: Any) -> Any:
        return jax.linearize(lambda x: x * scope.param("w", jax.random.normal, ()), x)[0]

    for model, name in ((pushed, "jvp"), (linear, "linearize")):
        with pytest.raises(JaxTransformError, match=rf"jax\.{name} .*`liftcore\.{name}`"):
            liftcore.init(model)(KEY, 2.0)


@KINDS
def test_what_one_equation_of_ones_own_created_is_given_to_the_derivative(kind: str) -> None:
    assert_same(*(liftcore.init(along(kind, fn))(KEY, (X,), (X,)) for fn in (one_equation(layer), layer)))
    assert_same(*(result(along(kind, fn), False, (X,), (X,)) for fn in (one_equation(layer), layer)))


@KINDS
def test_inside_a_shard_map_with_variables_of_each_device(kind: str) -> None:
    def local(w: Any, x: Any) -> Any:
        model = along(kind, lambda scope, x: x * scope.param("w", None, ()))
        return liftcore.apply(model)({"params": {"w": w[0]}}, (x,), (2 * x,))[1]

    mesh = make_mesh((2,), "devices")
    spec = PartitionSpec("devices")
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    assert run(jnp.array([2.0, 5.0]), jnp.arange(1.0, 5.0)).tolist() == [4.0, 8.0, 30.0, 40.0]


# -- derivatives of it, and lifts around -------------------------------------------------------------------------------


@KINDS
@BOTH
def test_a_model_with_a_derivative_inside_can_be_differentiated(kind: str, mutable: Any) -> None:
    def model(params: Any, x: Any) -> Any:
        given = {**VARIABLES, "params": params}
        return result(along(kind), mutable, (x,), (X,), {"params": {"layer": {"w": X}}}, given=given)

    check_grads(model, (PARAMS, X), order=2, atol=0.05, rtol=0.05)


@KINDS
@pytest.mark.parametrize("around", ["scan", "vmap", "remat", "jit", "cond", "while"])
def test_inside_other_lifts_it_equals_jax(around: str, kind: str) -> None:
    def wave(scope: Scope, x: Any) -> Any:
        if around != "while":
            scope.sow("intermediates", "x", x)
        return jnp.sin(scope.param("w", jax.random.normal, (3,)) * x)

    def step(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(0))
        n.value += 1
        return n.value * along(kind, wave)(scope, (x,), (x + 1,), {"params": {"w": 2 * x}})[1]

    def plain(w: Any, x: Any, n: Any) -> Any:
        return n * jax.jvp(lambda w, x: jnp.sin(w * x), (w, x), (2 * x, x + 1))[1]

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
    y, variables = liftcore.init(models[around])(KEY, X)
    w = variables["params"]["w"]
    expected = {
        "scan": lambda: plain(w[1], plain(w[0], X, 1), 2),
        "vmap": lambda: jnp.stack([plain(w[0], X, 1), plain(w[1], 2 * X, 1)]),
        "while": lambda: plain(w, plain(w, X, 1), 2),
    }.get(around, lambda: plain(w, X, 1))
    assert_same(y, expected())
    assert variables["state"]["n"] == (2 if around in ("scan", "while") else 1)


@KINDS
def test_a_scan_carries_and_writes_what_the_function_created(kind: str) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return n.value * x

    def step(scope: Scope, x: Any, _: Any) -> Any:
        y, slope = along(kind, fn)(scope, (x,), (jnp.float32(1),))
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x + 1, (y, slope, seen)

    loop = liftcore.scan(step, length=3, variable_carry="state")
    (_, (ys, slopes, ns)), variables = liftcore.init(loop)(KEY, jnp.float32(1), None)
    assert ns.tolist() == slopes.tolist() == [11, 23, 47]
    assert ys.tolist() == [11, 46, 141]
    assert variables["state"]["n"] == 94


# -- how often the function runs ---------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat])
def test_the_function_runs_once_at_every_depth(lift: Callable[..., Any], depth: int, kind: str) -> None:
    body = Counted(counts)
    model: Callable[..., Any] = body
    for _ in range(depth):
        inner = along(kind, lift(model))
        model = lambda scope, x, inner=inner: sum(inner(scope, (x,), (x,)))  # noqa: E731
    x = jnp.float32(1)
    _, variables = jax.eval_shape(liftcore.init(model), KEY, x)
    assert body.since() == 1
    for mutable in ([], ["state"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, x)
        assert body.since() == 1
    jax.eval_shape(jax.grad(liftcore.apply(model, mutable=["state"]), has_aux=True), variables, x)
    assert body.since() == 1


@KINDS
@BOTH
def test_the_function_runs_once_when_it_is_computed(kind: str, mutable: Any) -> None:
    body = Counted(counts)
    given = {"params": {"w": jnp.float32(2)}, "state": {"n": jnp.float32(0)}}
    result(along(kind, body), mutable, (jnp.float32(1),), (jnp.float32(1),), given=given)
    assert body.since() == 1


def test_of_tangents_that_are_given_for_one_variable_through_several_scopes_the_first_counts() -> None:
    def product(scopes: Any, x: Any) -> Any:
        return x * scopes["a"].get_variable("params", "w")

    def model(scope: Scope, x: Any) -> Any:
        tangents = {name: {"params": {"w": jnp.float32(tangent)}} for name, tangent in (("a", 2), ("b", 100))}
        return liftcore.jvp(product)({"a": scope, "b": scope}, (x,), (jnp.zeros(()),), tangents)

    for mutable in (False, True):
        found = liftcore.apply(model, mutable=mutable)({"params": {"w": jnp.float32(5)}}, jnp.float32(3))
        assert (found[0] if mutable else found) == (15, 6)
