"""Lifted `fori_loop`: bounds that are known and bounds that are not, and what goes from one iteration to the next."""

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
    CarryTypeError,
    JaxTransformError,
    LiftArgumentError,
    LoopInvarianceError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, Not, PathContains
from liftcore.rng import word
from tests.lift.quick import assert_same

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
BOTH = pytest.mark.parametrize("mutable", [False, True])
KNOWN = pytest.mark.parametrize("known", [True, False])


def words(key: Any) -> Any:
    return jax.random.key_data(key)


def run(fn: Callable[..., Any], known: bool, lower: Any, upper: Any, *args: Any) -> Any:
    """`fn(lower, upper, *args)`, with bounds that are tracers if they are not to be known."""
    return fn(lower, upper, *args) if known else jax.jit(fn)(lower, upper, *args)


def init(body: Callable[..., Any], known: bool, lower: Any, upper: Any, x: Any, **options: Any) -> Any:
    loop = liftcore.fori_loop(body, **options)
    return run(lambda lower, upper, x: liftcore.init(loop)(RNGS, lower, upper, x), known, lower, upper, x)


def counting(scope: Scope, i: Any, x: Any) -> Any:
    scope.variable("state", "n", lambda: jnp.float32(0)).value += i
    return x + 1


# -- the loop ----------------------------------------------------------------------------------------------------------


@BOTH
@KNOWN
@pytest.mark.parametrize(
    ("lower", "upper"), [(0, 3), (-2, 2), (1, 1), (3, 1), (np.int32(1), 3), (jnp.int8(0), jnp.int8(3))]
)
@pytest.mark.parametrize(
    ("value", "fn"),
    [
        (jnp.float32(1), lambda i, x: x * 2 + i),
        (0, lambda i, x: x + i),
        (0, lambda i, x: x + jnp.float32(1)),
        ({"a": jnp.ones(2), "b": (0.0, None)}, lambda i, x: {"a": x["a"] * i, "b": (x["b"][0] + 1, None)}),
    ],
)
def test_the_loop_is_that_of_jax(
    value: Any, fn: Callable[..., Any], lower: Any, upper: Any, known: bool, mutable: bool
) -> None:
    loop = liftcore.fori_loop(lambda _, i, x: fn(i, x))

    def ours(lower: Any, upper: Any) -> Any:
        result = liftcore.apply(loop, mutable=mutable)({}, lower, upper, value)
        return result[0] if mutable else result

    def theirs(lower: Any, upper: Any) -> Any:
        return jax.lax.fori_loop(lower, upper, fn, value)

    assert_same(run(ours, known, lower, upper), run(theirs, known, lower, upper))


@BOTH
@KNOWN
@pytest.mark.parametrize("value", [jnp.int8(0), jnp.bfloat16(0), 0])
def test_the_index_is_weakly_typed_where_that_of_jax_is(value: Any, known: bool, mutable: bool) -> None:
    loop = liftcore.fori_loop(lambda _, i, x: x + i)

    def ours(upper: Any) -> Any:
        result = liftcore.apply(loop, mutable=mutable)({}, 0, upper, value)
        return result[0] if mutable else result

    def theirs(upper: Any) -> Any:
        return jax.lax.fori_loop(0, upper, lambda i, x: x + i, value)

    each = [fn(3) if known else jax.jit(fn)(3) for fn in (ours, theirs)]
    assert_same(*each)
    assert jax.typeof(each[0]) == jax.typeof(each[1])


@BOTH
@pytest.mark.parametrize("unroll", [None, 1, 2, 5, True, False])
def test_unroll_reaches_jax(unroll: Any, mutable: bool) -> None:
    loop = liftcore.fori_loop(lambda _, i, x: x * 2 + i, unroll=unroll)

    def ours(x: Any) -> Any:
        return liftcore.apply(loop, mutable=mutable)({}, 0, 4, x)

    def theirs(x: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda i, x: x * 2 + i, x, unroll=unroll)

    def unrolled(fn: Callable[..., Any]) -> list[Any]:
        return [eqn.params.get("unroll") for eqn in jax.make_jaxpr(fn)(1.0).eqns if eqn.primitive.name == "scan"]

    assert unrolled(ours) == unrolled(theirs)
    assert jax.tree.leaves(ours(1.0))[0] == theirs(1.0)


@BOTH
def test_only_a_loop_with_known_bounds_can_be_unrolled(mutable: bool) -> None:
    loop = liftcore.fori_loop(lambda _, i, x: x + i, unroll=2)
    with pytest.raises(ValueError, match=r"unroll"):
        jax.jit(lambda n: liftcore.apply(loop, mutable=mutable)({}, 0, n, 0))(3)


@BOTH
def test_many_iterations_need_no_memory(mutable: bool) -> None:
    loop = liftcore.fori_loop(lambda _, i, x: x + i)
    jaxpr = jax.make_jaxpr(lambda x: liftcore.apply(loop, mutable=mutable)({}, 0, 1_000_000, x))(0.0)
    assert "1000000]" not in str(jaxpr)


@KNOWN
def test_bounds_must_be_integers_of_one_type(known: bool) -> None:
    loop = liftcore.fori_loop(lambda _, i, x: x)
    for bounds in ((jnp.uint32(0), jnp.int8(3)), (0.5 + 0j, 3), (True, 3)):
        with pytest.raises(TypeError):
            run(lambda *bounds: jax.lax.fori_loop(*bounds, lambda i, x: x, 0), known, *bounds)
        with pytest.raises(
            LiftArgumentError, match=r"fori_loop\(<lambda>\) at /: the bounds must be integers of one type"
        ):
            run(lambda *bounds: liftcore.apply(loop)({}, *bounds, 0), known, *bounds)


@BOTH
def test_gradients_flow_through_known_bounds(mutable: bool) -> None:
    def loss(params: Any, x: Any) -> Any:
        loop = liftcore.fori_loop(lambda scope, i, x: jnp.sin(x * scope.get_variable("params", "w") + i))
        result = liftcore.apply(loop, mutable=mutable)({"params": params}, 0, 3, x)
        return result[0] if mutable else result

    check_grads(loss, ({"w": jnp.float32(0.7)}, jnp.float32(0.3)), order=2, atol=0.05, rtol=0.05)


@BOTH
def test_only_forward_derivatives_flow_through_unknown_bounds(mutable: bool) -> None:
    def model(w: Any, upper: Any) -> Any:
        loop = liftcore.fori_loop(lambda scope, i, x: jnp.sin(x * scope.get_variable("params", "w") + i))
        result = liftcore.apply(loop, mutable=mutable)({"params": {"w": w}}, 0, upper, 0.3)
        return result[0] if mutable else result

    w = jnp.float32(0.7)
    each = [jax.jit(jax.jacfwd(model))(w, 3), jax.jacfwd(lambda w: model(w, 3))(w)]
    np.testing.assert_allclose(*each, rtol=1e-5)
    with pytest.raises(ValueError, match=r"Reverse-mode differentiation"):
        jax.jit(jax.grad(model))(w, 3)


# -- what it creates ---------------------------------------------------------------------------------------------------


@KNOWN
@pytest.mark.parametrize("upper", [2, 5])
def test_shared_and_carried_variables(upper: int, known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        w = scope.param("w", lambda key: jnp.float32(2))
        n = scope.variable("state", "n", lambda: 10 * x + i)
        last = scope.push("inner").variable("state", "last", lambda: jnp.int32(-1))
        n.value, last.value = n.value + w, jnp.int32(i)
        return x + n.value

    y, variables = init(body, known, 2, upper, jnp.float32(1), variable_carry="state", split_rngs={"params": False})
    x, n, last = 1.0, 12.0, -1
    for i in range(2, upper):
        n, last = n + 2, i
        x += n
    assert (y, variables) == (x, {"params": {"w": 2.0}, "state": {"n": n, "inner": {"last": last}}})


@KNOWN
def test_without_iterations_variables_begin_as_iteration_0_would_make_them(known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        scope.param("w", jax.random.normal, (2,))
        scope.variable("state", "n", lambda: 3 * x + i).value += 1
        scope.variable("state", "noise", lambda: jax.random.uniform(scope.make_rng("dropout"))).value += 1
        return x + 1

    rules = {"variable_carry": "state", "split_rngs": {"params": False, "dropout": True}}
    y, variables = init(body, known, 4, 4, jnp.float32(7), **rules)
    key = jax.random.fold_in(jax.random.fold_in(RNGS["dropout"], 0), word((1,)))
    assert (y, variables["state"]["n"]) == (7.0, 25.0)
    assert_same(variables["state"]["noise"], jax.random.uniform(key))
    assert_same(variables["params"], liftcore.init(body)(RNGS, 0, 1.0)[1]["params"], exact=True)


@KNOWN
@pytest.mark.parametrize("start", [(1.0, [2.0], None), {"k": 1.0, "v": {"deep": 2.0}}, {0: 1.0, 1: 2.0}, {}, None])
def test_values_may_be_any_pytree(start: Any, known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        cache = scope.variable("state", "cache", lambda: jax.tree.map(jnp.float32, start))
        cache.value = jax.tree.map(lambda leaf: leaf + i, cache.value)
        return x

    _, variables = init(body, known, 1, 4, 0.0, variable_carry="state")
    found = variables.get("state", {}).get("cache", {})
    assert_same(found, jax.tree.map(lambda leaf: jnp.float32(leaf + 6), start))


@KNOWN
def test_keys_are_values_too(known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        key = scope.variable("state", "key", lambda: jax.random.key(3))
        key.value = jax.random.fold_in(key.value, i)
        return x

    _, variables = init(body, known, 0, 2, 0.0, variable_carry="state")
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 0), 1)
    assert_same(words(variables["state"]["key"]), words(expected))


@KNOWN
def test_single_variables_may_be_carried_or_left_out(known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        layer = scope.push("layer")
        lora = layer.variable("params", "lora", lambda: jnp.float32(1))
        lora.value = lora.value * layer.param("w", lambda key: jnp.float32(3))
        return x + lora.value

    lora = All("params", PathContains("lora"))
    y, variables = init(body, known, 0, 2, 0.0, variable_carry=lora, split_rngs={"params": False})
    assert (y, variables) == (12.0, {"params": {"layer": {"lora": 9.0, "w": 3.0}}})
    with pytest.raises(UnliftedCollectionError) as caught:
        init(body, known, 0, 2, 0.0, variable_carry=lora, variable_broadcast=Not("params"), split_rngs=False)
    assert caught.value.where == '"params/w" at /fori_loop(body)/layer'
    assert caught.value.fix == 'Add `variable_carry="params"` or `variable_broadcast="params"`.'


@KNOWN
def test_several_aliased_and_nested_scopes(known: bool) -> None:
    def body(scopes: Any, i: Any, x: Any) -> Any:
        parent, child, far = scopes
        n = child.rewound().variable("state", "n", lambda: jnp.float32(1))
        n.value = n.value + parent.push("c", reuse=True).get_variable("state", "n")
        far.variable("state", "seen", lambda: jnp.float32(0)).value += n.value
        return x + parent.push("c", reuse=True).get_variable("state", "n")

    def model(scope: Scope, lower: Any, upper: Any, x: Any) -> Any:
        parent = scope.push("p")
        child = parent.push("c")
        loop = liftcore.fori_loop(body, variable_carry="state")
        return loop((parent, child, scope.push("far")), lower, upper, x), child.get_variable("state", "n")

    (y, n), variables = run(lambda *args: liftcore.init(model)(KEY, *args), known, 0, 2, 0.0)
    assert (y, n) == (6.0, 4.0)
    assert variables["state"] == {"p": {"c": {"n": 4.0}}, "far": {"seen": 6.0}}


# -- keys and sown values ----------------------------------------------------------------------------------------------


@BOTH
@KNOWN
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_iterations_are_counted_from_0_for_their_keys(split: bool, raw: bool, known: bool, mutable: bool) -> None:
    rngs = {name: (jax.random.PRNGKey if raw else jax.random.key)(seed) for seed, name in enumerate(RNGS)}

    def body(scope: Scope, i: Any, found: Any) -> Any:
        draws = [scope.make_rng("dropout"), scope.push("a").make_rng("dropout")]
        return found.at[i - 5].set(jnp.stack([words(key) for key in draws]))

    def model(scope: Scope, lower: Any, upper: Any) -> Any:
        first = words(scope.make_rng("dropout"))
        loop = liftcore.fori_loop(body, split_rngs={"dropout": split})
        found = loop(scope, lower, upper, jnp.zeros((3, 2, 2), jnp.uint32))
        return first, found, words(scope.make_rng("dropout")), words(scope.push("a", reuse=True).make_rng("dropout"))

    def ours(lower: Any, upper: Any) -> Any:
        result = liftcore.apply(model, mutable=mutable)({}, lower, upper, rngs=rngs)
        return result[0] if mutable else result

    root = rngs["dropout"]
    roots = [jax.random.fold_in(root, 2 * number) if split else root for number in range(3)]

    def drawn(root: Any, *path: Any) -> Any:
        return words(jax.random.fold_in(root, word(path)))

    inside = jnp.stack([jnp.stack([drawn(one, 2), drawn(one, "a", 1)]) for one in roots])
    assert_same(run(ours, known, 5, 8), (drawn(root, 1), inside, drawn(root, 3), drawn(root, "a", 2)))


@BOTH
@KNOWN
def test_sequences_are_not_lifted_unless_named(known: bool, mutable: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        return x + jax.random.uniform(scope.make_rng("dropout"))

    loop = liftcore.fori_loop(body)
    with pytest.raises(UnliftedStreamError) as caught:
        run(lambda *args: liftcore.apply(loop, mutable=mutable)({}, *args, 0.0, rngs=RNGS), known, 0, 3)
    assert caught.value.where == 'make_rng("dropout") at /fori_loop(body)'
    assert caught.value.fix == (
        'Add `split_rngs={"dropout": True}`, or False for the same keys in all iterations, as a shared variable needs.'
    )


@pytest.mark.parametrize("inner", [lambda fn: fn, liftcore.remat, liftcore.jit])
def test_values_are_stacked_if_the_bounds_are_known(inner: Callable[..., Any]) -> None:
    def sow(scope: Scope, i: Any, x: Any) -> Any:
        scope.push("inner").sow("intermediates", "y", {"x": x, "i": i})
        scope.sow("losses", "total", x, lambda: 0.0, lambda old, new: old + jnp.sum(new))
        return x + 1

    apply = liftcore.apply(liftcore.fori_loop(inner(sow)), mutable=["intermediates", "losses"])
    y, found = apply({}, 2, 5, 10.0)
    (stacked,) = found["intermediates"]["inner"]["y"]
    assert (y, stacked["x"].tolist(), stacked["i"].tolist()) == (13.0, [10, 11, 12], [2, 3, 4])
    assert found["losses"] == {"total": 33.0}
    assert liftcore.apply(liftcore.fori_loop(sow))({}, 2, 5, 10.0) == 13.0
    (stacked,) = apply({}, 5, 5, 10.0)[1]["intermediates"]["inner"]["y"]
    assert stacked["x"].shape == (0,)


def test_values_cannot_be_stacked_if_the_bounds_are_not_known() -> None:
    def sow(scope: Scope, i: Any, x: Any) -> Any:
        scope.push("inner").sow("intermediates", "y", x)
        return x

    model = liftcore.apply(lambda scope, n: liftcore.fori_loop(sow)(scope.push("m"), 0, n, 1.0), ["intermediates"])
    with pytest.raises(LiftArgumentError) as caught:
        jax.jit(model)({}, 3)
    assert caught.value.where == '"intermediates/inner/y" in fori_loop(sow) at /m'
    assert "number of iterations is unknown" in caught.value.what


# -- errors ------------------------------------------------------------------------------------------------------------


def fails(kind: type[Exception], body: Any, known: bool, x: Any = 0.0, mutable: Any = True, **options: Any) -> Any:
    loop = liftcore.fori_loop(body, **options)
    model = liftcore.apply(lambda scope, *args: loop(scope.push("m"), *args), mutable=mutable)
    with pytest.raises(kind) as caught:
        run(lambda lower, upper: model({}, lower, upper, x, rngs=RNGS), known, 0, 3)
    return caught.value


@KNOWN
def test_what_all_iterations_share_cannot_be_written(known: bool) -> None:
    error = fails(LoopInvarianceError, counting, known)
    assert "state/n" in str(error)
    assert "fori_loop(counting) at /m" in error.where
    assert "shared by all iterations (variable_broadcast)" in error.what
    assert '`variable_carry="state"`' in error.fix


@KNOWN
@pytest.mark.parametrize("source", ["carry", "index", "key"])
def test_what_all_iterations_share_depends_on_none(source: str, known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        makers = {"carry": lambda: x, "index": lambda: 1.0 * i, "key": lambda: jax.random.normal(scope.make_rng())}
        return x + scope.variable("consts", "c", makers[source]).value

    error = fails(LoopInvarianceError, body, known, split_rngs=True)
    assert error.where == "fori_loop(body) at /m"
    assert "['consts/c'] is shared by all iterations" in error.what
    assert '`variable_carry="consts"`' in error.fix
    assert "variable_axes" not in error.fix


@BOTH
@KNOWN
def test_a_value_that_changes_its_type_is_an_error(known: bool, mutable: bool) -> None:
    error = fails(CarryTypeError, lambda _, i, x: jnp.stack([x, x]), known, 1.0, mutable)
    assert error.where == "fori_loop(<lambda>) at /m"
    assert "float32[] in, float32[2] out" in error.what
    assert "structure" in fails(CarryTypeError, lambda _, i, x: (x, x), known, 1.0, mutable).what


@KNOWN
def test_a_carried_variable_that_changes_its_type_is_an_error(known: bool) -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        scope.variable("state", "n", lambda: jnp.float32(0)).value = jnp.zeros(3)
        return x

    error = fails(CarryTypeError, body, known, variable_carry="state")
    assert "carried variable" in error.what
    assert "float32[] in, float32[3] out" in error.what


def test_a_raw_fori_loop_names_the_lifted_one() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, x: counting(scope, i, x), x)

    with pytest.raises(JaxTransformError, match=r"jax\.lax\.fori_loop .*`liftcore\.fori_loop`"):
        liftcore.init(model)(KEY, 1.0)


# -- how often bodies run ----------------------------------------------------------------------------------------------


class Counted:
    """A body that counts its runs."""

    __name__ = "counted"

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, scope: Scope, i: Any, x: Any) -> Any:
        self.runs += 1
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        if scope.is_mutable_collection("state"):
            n.value += i
        return jnp.tanh(x * scope.param("w", jax.random.normal, ())) + 0.1 * n.value

    def since(self) -> int:
        runs, self.runs = self.runs, 0
        return runs


CARRIED: dict[str, Any] = {"variable_carry": "state", "split_rngs": {"params": False}}


def nested(body: Callable[..., Any], depth: int, known: bool, between: Callable[..., Any]) -> Callable[..., Any]:
    def call(scope: Scope, upper: Any, x: Any) -> Any:
        fn = body
        for _ in range(depth):
            loop = between(liftcore.fori_loop(fn, **CARRIED))
            fn = lambda scope, _, x, loop=loop: loop(scope, 0, 2 if known else upper, x)  # noqa: E731
        return fn(scope, 0, x)

    return call


@KNOWN
@pytest.mark.parametrize("between", [lambda fn: fn, liftcore.remat])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_body_runs_once_at_every_depth(depth: int, between: Callable[..., Any], known: bool) -> None:
    body = Counted()
    model = nested(body, depth, known, between)
    x, upper = jnp.float32(1), jnp.int32(2)
    _, variables = jax.eval_shape(liftcore.init(model), KEY, upper, x)
    assert body.since() == 1
    for mutable in ([], ["state"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, upper, x)
        assert body.since() == 1
    transform = jax.grad if known and between is not liftcore.remat else jax.jacfwd
    jax.eval_shape(transform(liftcore.apply(model, mutable=["state"]), argnums=2, has_aux=True), variables, upper, x)
    assert body.since() == 1


@BOTH
@KNOWN
def test_the_body_runs_once_when_it_is_computed(known: bool, mutable: bool) -> None:
    body = Counted()
    loop = liftcore.fori_loop(body, **CARRIED)
    variables = {"params": {"w": 1.0}, "state": {"n": 1.0}}
    run(lambda *args: liftcore.apply(loop, mutable=mutable and ["x"])(variables, *args), known, 0, 3, jnp.float32(0))
    assert body.since() == 1


# -- loops around ------------------------------------------------------------------------------------------------------


@KNOWN
def test_a_scan_carries_and_writes_what_the_loop_created(known: bool) -> None:
    def grow(scope: Scope, i: Any, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return 2 * x

    def step(scope: Scope, x: Any, upper: Any) -> Any:
        x = liftcore.fori_loop(grow, variable_carry="state")(scope, 0, 2 if known else upper, x)
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x / 8, seen

    x, n, seen = 3.0, 30.0, []
    for _ in range(3):
        seen.append(n + 2)
        n, x = 2 * (n + 2), x / 2
    for around in (lambda fn: fn, liftcore.remat, liftcore.jit):
        loop = around(lambda scope, x: liftcore.scan(step, variable_carry="state")(scope, x, jnp.full(3, 2)))
        (y, ns), variables = liftcore.init(loop)(KEY, jnp.float32(3))
        assert (y, ns.tolist(), variables["state"]["n"]) == (x, seen, n)


def test_it_is_mapped_with_a_bound_for_each_element() -> None:
    def model(scope: Scope, upper: Any, x: Any) -> Any:
        return liftcore.fori_loop(counting, variable_carry="state")(scope, 0, upper, x)

    elements = liftcore.vmap(model, in_axes=(0, None), variable_axes={"state": 0})
    y, variables = liftcore.init(elements)(KEY, jnp.array([0, 2, 4]), jnp.float32(1))
    assert y.tolist() == [1.0, 3.0, 5.0]
    assert variables["state"]["n"].tolist() == [0.0, 1.0, 6.0]


def test_gradients_of_a_loop_that_carries_state_are_those_of_the_plain_loop() -> None:
    def body(scope: Scope, i: Any, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.sin(x))
        n.value = n.value * jnp.cos(x + i)
        return x * scope.param("w", jax.random.normal, ()) + n.value

    def plain(params: Any, n: Any, x: Any) -> Any:
        for i in range(3):
            n = n * jnp.cos(x + i)
            x = x * params["w"] + n
        return x + n

    def ours(params: Any, n: Any, x: Any) -> Any:
        loop = liftcore.fori_loop(body, **CARRIED)
        y, mutated = liftcore.apply(loop, mutable=["state"])({"params": params, "state": {"n": n}}, 0, 3, x)
        return y + mutated["state"]["n"]

    args = {"w": jnp.float32(0.7)}, jnp.float32(0.4), jnp.float32(0.3)
    for transform in (jax.value_and_grad, jax.hessian):
        assert_same(transform(ours, argnums=(0, 1, 2))(*args), transform(plain, argnums=(0, 1, 2))(*args))
