"""Lifted `while_loop`: a condition and a body that may make variables, and what goes from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

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
from tests.lift.own import one_equation
from tests.lift.quick import assert_same

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
BOTH = pytest.mark.parametrize("mutable", [False, True])


def words(key: Any) -> Any:
    return jax.random.key_data(key)


def result(fn: Callable[..., Any], mutable: Any, variables: Any, *args: Any, rngs: Any = RNGS) -> Any:
    found = liftcore.apply(fn, mutable=mutable)(variables, *args, rngs=rngs)
    return found[0] if mutable else found


def below(limit: float) -> Callable[..., Any]:
    return lambda scope, x: jnp.max(x) < limit


def double(scope: Scope, x: Any) -> Any:
    return 2 * x


def counting(scope: Scope, x: Any) -> Any:
    scope.variable("state", "n", lambda: jnp.int32(0)).value += 1
    return 2 * x


def twice(body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A loop of two iterations that carries `x`."""
    loop = liftcore.while_loop(lambda _, now: now[0] < 2, lambda s, now: (now[0] + 1, body(s, now[1])), **options)
    return lambda scope, x: loop(scope, (jnp.int32(0), x))[1]


# -- the loop ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("value", "fn"),
    [
        (jnp.float32(0.5), lambda x: x * 2),
        (0, lambda x: x + 1),  # a weak int stays one
        (0, lambda x: x + jnp.float32(1)),  # a weak int becomes a float
        (0.0, lambda x: x + jnp.bfloat16(1)),
        ((0, 1.0), lambda x: (x[1], x[0] + 1)),  # each becomes what the other was
        ({"a": jnp.ones(2), "b": (jnp.int8(0), None)}, lambda x: {"a": x["a"] * 2, "b": (x["b"][0] + 1, None)}),
        (jnp.int32(9), lambda x: x - 1),  # no iteration
    ],
)
def test_the_loop_is_that_of_jax(value: Any, fn: Callable[..., Any], mutable: bool) -> None:
    def small(x: Any) -> Any:
        return jax.tree.leaves(x)[0].max() < 5

    lifted = liftcore.while_loop(lambda _, x: small(x), lambda _, x: fn(x))
    ours, theirs = result(lifted, mutable, {}, value), jax.lax.while_loop(small, fn, value)
    assert_same(ours, theirs)
    assert [jax.typeof(leaf) for leaf in jax.tree.leaves(ours)] == [
        jax.typeof(leaf) for leaf in jax.tree.leaves(theirs)
    ]


@BOTH
def test_forward_derivatives_are_those_of_jax(mutable: bool) -> None:
    def ours(w: Any, x: Any) -> Any:
        model = liftcore.while_loop(below(5), lambda scope, x: jnp.exp(x * scope.get_variable("params", "w")))
        return result(model, mutable, {"params": {"w": w}}, x)

    def theirs(w: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x < 5, lambda x: jnp.exp(x * w), x)

    for order in (jax.jacfwd, lambda fn, **options: jax.jacfwd(jax.jacfwd(fn, **options), **options)):
        each = [order(fn, argnums=(0, 1))(jnp.float32(1.1), jnp.float32(0.5)) for fn in (ours, theirs)]
        assert_same(*each)


@BOTH
def test_a_mapped_loop_ends_for_each_element(mutable: bool) -> None:
    model = liftcore.vmap(liftcore.while_loop(below(5), double), in_axes=0)
    assert result(model, mutable, {}, jnp.array([1.0, 3.0, 7.0])).tolist() == [8.0, 6.0, 7.0]


def test_effects_of_an_initial_value_happen_once() -> None:
    seen: list[int] = []

    def create() -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return io_callback(lambda: seen.append(1) or np.float32(0), shape, ordered=False)  # type: ignore[func-returns-value]

    def body(scope: Scope, x: Any) -> Any:
        return x + 1 + scope.variable("consts", "c", create).value

    y, _ = liftcore.init(liftcore.while_loop(below(3), body))(KEY, 0.0)
    jax.effects_barrier()
    assert (y, seen) == (3.0, [1])


# -- what it creates ---------------------------------------------------------------------------------------------------


def test_condition_and_body_create_shared_and_carried_variables() -> None:
    def small(scope: Scope, x: Any) -> Any:
        limit = scope.variable("consts", "limit", lambda: jnp.float32(10)).value
        step = scope.variable("state", "step", lambda: x / 2).value
        return x + step < limit

    def grow(scope: Scope, x: Any) -> Any:
        step = scope.variable("state", "step", lambda: jnp.float32(1000))
        scope.variable("consts", "limit", lambda: jnp.float32(1000))
        step.value = step.value * scope.param("w", lambda key: jnp.float32(2))
        history = scope.push("inner").variable("state", "last", lambda: 100 * x)
        history.value = history.value + x
        return x + step.value

    model = liftcore.while_loop(small, grow, variable_carry="state", split_rngs={"params": False})
    y, variables = liftcore.init(model)(KEY, jnp.float32(1))
    x, step, last = 1.0, 0.5, 100.0
    while x + step < 10:
        step *= 2
        last += x
        x += step
    assert y == x
    expected = {"consts": {"limit": 10.0}, "params": {"w": 2.0}, "state": {"step": step, "inner": {"last": last}}}
    assert variables == expected
    y, mutated = liftcore.apply(model, mutable=["state"])(variables, jnp.float32(-20))
    x = -20.0
    while x + step < 10:
        step *= 2
        last += x
        x += step
    assert (y, mutated["state"]) == (x, {"step": step, "inner": {"last": last}})


def test_without_iterations_variables_begin_as_iteration_0_would_make_them() -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.param("w", jax.random.normal, (2,))
        scope.variable("state", "n", lambda: 3 * x).value += 1
        scope.variable("state", "noise", lambda: jax.random.uniform(scope.make_rng("dropout"))).value += 1
        return x + 1

    model = liftcore.while_loop(below(0), body, variable_carry="state", split_rngs={"params": False, "dropout": True})
    y, variables = liftcore.init(model)(RNGS, jnp.float32(7))
    key = jax.random.fold_in(jax.random.fold_in(RNGS["dropout"], 0), word((1,)))
    assert (y, variables["state"]["n"]) == (7.0, 21.0)
    assert_same(variables["state"]["noise"], jax.random.uniform(key))
    assert_same(variables["params"], liftcore.init(body)(RNGS, 1.0)[1]["params"], exact=True)


def test_what_is_shared_may_begin_as_what_is_carried_begins() -> None:
    def body(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.float32(3))
        first = scope.variable("consts", "first", lambda: 2 * n.value)
        n.value += 1
        return x + first.value

    y, variables = liftcore.init(liftcore.while_loop(below(11), body, variable_carry="state"))(KEY, 0.0)
    assert (y, variables) == (12.0, {"state": {"n": 5.0}, "consts": {"first": 6.0}})


def test_what_is_created_twice_begins_as_the_condition_makes_it() -> None:
    def small(scope: Scope, x: Any) -> Any:
        return scope.variable("state", "n", lambda: jnp.int32(5)).value < 8

    def body(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.int32(0))
        n.value += 1
        return x + n.value

    y, variables = liftcore.init(liftcore.while_loop(small, body, variable_carry="state"))(KEY, 0)
    assert (y, variables) == (6 + 7 + 8, {"state": {"n": 8}})


def test_a_carried_variable_that_is_only_read_is_not_copied_out() -> None:
    n = jnp.arange(3)
    model = liftcore.while_loop(
        below(5), lambda scope, x: x + scope.get_variable("state", "n").sum(), variable_carry="state"
    )
    _, mutated = liftcore.apply(model, mutable=True)({"state": {"n": n}}, 0)
    assert mutated["state"]["n"] is n


@pytest.mark.parametrize(
    "start",
    [
        (1.0, [2.0], None),
        {"k": 1.0, "v": {"deep": 2.0}},
        {0: 1.0, 1: 2.0},  # keys that are no strings
        {},
        None,
    ],
)
def test_values_may_be_any_pytree(start: Any) -> None:
    def body(scope: Scope, x: Any) -> Any:
        cache = scope.variable("state", "cache", lambda: jax.tree.map(jnp.float32, start))
        cache.value = jax.tree.map(lambda leaf: leaf + x, cache.value)
        return 2 * x

    model = liftcore.while_loop(below(5), body, variable_carry="state")
    _, variables = liftcore.init(model)(KEY, jnp.float32(1))
    expected = jax.tree.map(lambda leaf: jnp.float32(leaf + 1 + 2 + 4), start)
    assert_same(variables.get("state", {}).get("cache", {}), expected)


def test_keys_are_values_too() -> None:
    def body(scope: Scope, i: Any) -> Any:
        key = scope.variable("state", "key", lambda: jax.random.key(3))
        raw = scope.variable("state", "raw", lambda: jax.random.PRNGKey(4))
        key.value, raw.value = jax.random.fold_in(key.value, i), jax.random.fold_in(raw.value, i)
        return i + 1

    _, variables = liftcore.init(liftcore.while_loop(below(2), body, variable_carry="state"))(KEY, 0)
    for name, key in (("key", jax.random.key(3)), ("raw", jax.random.PRNGKey(4))):
        expected = jax.random.fold_in(jax.random.fold_in(key, 0), 1)
        assert_same(variables["state"][name], expected)


@BOTH
def test_a_weak_state_is_promoted_as_a_weak_value_is(mutable: bool) -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.put_variable("state", "n", scope.get_variable("state", "n") + x)
        return x + 1

    model = liftcore.while_loop(below(3), body, variable_carry="state")
    _, mutated = liftcore.apply(model, mutable=["state"])({"state": {"n": 0}}, jnp.float32(0))
    assert_same(mutated["state"]["n"], jnp.float32(3))


# -- which variables ---------------------------------------------------------------------------------------------------


def test_single_variables_may_be_carried_or_left_out() -> None:
    def body(scope: Scope, x: Any) -> Any:
        layer = scope.push("layer")
        lora = layer.variable("params", "lora", lambda: jnp.float32(1))
        lora.value = lora.value * layer.param("w", lambda key: jnp.float32(3))
        return x + lora.value

    lora = All("params", PathContains("lora"))
    model = liftcore.while_loop(below(10), body, variable_carry=lora, split_rngs={"params": False})
    y, variables = liftcore.init(model)(KEY, 0.0)
    assert (y, variables) == (12.0, {"params": {"layer": {"lora": 9.0, "w": 3.0}}})
    assert liftcore.apply(model, mutable=["params"])(variables, -20.0)[1]["params"]["layer"] == {"lora": 81.0, "w": 3.0}
    other = liftcore.while_loop(below(10), body, variable_carry=lora, variable_broadcast=Not("params"))
    with pytest.raises(UnliftedCollectionError) as caught:
        liftcore.apply(lambda scope: other(scope.push("m"), 0.0), mutable=True)({"params": {"m": variables["params"]}})
    assert caught.value.where == '"params/w" at /m/while_loop(body)/layer'
    assert caught.value.fix == 'Add `variable_carry="params"` or `variable_broadcast="params"`.'


@BOTH
def test_several_aliased_and_nested_scopes(mutable: bool) -> None:
    def body(scopes: Any, x: Any) -> Any:
        parent, child, far = scopes
        n = child.rewound().variable("state", "n", lambda: jnp.float32(1))
        n.value = n.value + parent.push("c", reuse=True).get_variable("state", "n")
        far.variable("state", "seen", lambda: jnp.float32(0)).value += n.value
        return x + parent.push("c", reuse=True).get_variable("state", "n")

    def model(scope: Scope, x: Any) -> Any:
        parent = scope.push("p")
        child = parent.push("c")
        loop = liftcore.while_loop(lambda scopes, x: x < 6, body, variable_carry="state")
        return loop((parent, child, scope.push("far")), x), child.get_variable("state", "n")

    (y, n), variables = liftcore.init(model)(KEY, 0.0)
    assert (y, n) == (6.0, 4.0)
    assert variables["state"] == {"p": {"c": {"n": 4.0}}, "far": {"seen": 6.0}}


# -- keys --------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_each_iteration_draws_from_a_root_of_its_own_if_it_is_split(split: bool, raw: bool, mutable: bool) -> None:
    rngs = {name: (jax.random.PRNGKey if raw else jax.random.key)(seed) for seed, name in enumerate(RNGS)}

    def body(scope: Scope, now: Any) -> Any:
        index, found = now
        draws = [scope.make_rng("dropout"), scope.make_rng("dropout"), scope.push("a").make_rng("dropout")]
        return index + 1, found.at[index].set(jnp.stack([words(key) for key in draws]))

    def model(scope: Scope) -> Any:
        first = words(scope.make_rng("dropout"))
        loop = liftcore.while_loop(lambda _, now: now[0] < 3, body, split_rngs={"dropout": split})
        found = loop(scope, (0, jnp.zeros((3, 3, 2), jnp.uint32)))[1]
        return first, found, words(scope.make_rng("dropout")), words(scope.push("a", reuse=True).make_rng("dropout"))

    root = rngs["dropout"]
    roots = [jax.random.fold_in(root, 2 * index) if split else root for index in range(3)]

    def drawn(root: Any, *path: Any) -> Any:
        return words(jax.random.fold_in(root, word(path)))

    expected = (
        drawn(root, 1),
        jnp.stack([jnp.stack([drawn(one, 2), drawn(one, 3), drawn(one, "a", 1)]) for one in roots]),
        drawn(root, 4),
        drawn(root, "a", 2),
    )
    assert_same(result(model, mutable, {}, rngs=rngs), expected)


@BOTH
@pytest.mark.parametrize("split", [False, True])
def test_the_condition_draws_other_keys_than_the_body(split: bool, mutable: bool) -> None:
    root = RNGS["dropout"]

    def random_below(key: Any, x: Any) -> Any:
        return 4 * jax.random.uniform(key) > x

    def condition(scope: Scope, x: Any) -> Any:
        return random_below(scope.make_rng("dropout"), x)

    def body(scope: Scope, x: Any) -> Any:
        return x + jax.random.uniform(scope.make_rng("dropout"))

    def model(scope: Scope, x: Any) -> Any:
        return liftcore.while_loop(condition, body, split_rngs=split)(scope, x), words(scope.make_rng("dropout"))

    index, x = 0, jnp.float32(0)
    while True:
        roots = [jax.random.fold_in(root, 2 * index), jax.random.fold_in(root, 2 * index + 1)]
        if not split:
            roots = [root, jax.random.fold_in(root, 1)]
        keys = [jax.random.fold_in(one, word((1,))) for one in roots]
        if not random_below(keys[1], x):
            break
        x += jax.random.uniform(keys[0])
        index += 1
    assert index > 0
    expected = x, words(jax.random.fold_in(root, word((2,))))
    assert_same(result(model, mutable, {}, jnp.float32(0)), expected)


def test_draws_go_on_after_condition_or_body_whichever_drew_more() -> None:
    def drawing(times: int, value: Any) -> Callable[..., Any]:
        def draw(scope: Scope, x: Any) -> Any:
            for _ in range(times):
                scope.make_rng("dropout")
            return value(x)

        return draw

    for times in ((3, 1), (1, 3), (0, 3)):

        def model(scope: Scope, times: Any = times) -> Any:
            small, more = drawing(times[0], lambda x: x < 2), drawing(times[1], lambda x: x + 1)
            liftcore.while_loop(small, more, split_rngs=True)(scope, 0)
            return words(scope.make_rng("dropout"))

        expected = words(jax.random.fold_in(RNGS["dropout"], word((4,))))
        for mutable in (False, True):
            assert_same(result(model, mutable, {}), expected)


@BOTH
def test_sequences_are_not_lifted_unless_named(mutable: bool) -> None:
    def body(scope: Scope, x: Any) -> Any:
        return x + jax.random.uniform(scope.make_rng("dropout"))

    with pytest.raises(UnliftedStreamError) as caught:
        result(lambda scope: liftcore.while_loop(below(2), body)(scope.push("m"), 0.0), mutable, {})
    assert caught.value.where == 'make_rng("dropout") at /m/while_loop(body)'
    assert caught.value.fix == (
        'Add `split_rngs={"dropout": True}`, or False for the same keys in all iterations, as a shared variable needs.'
    )


@BOTH
def test_sequences_that_were_never_given_follow_their_own_rule(mutable: bool) -> None:
    def body(scope: Scope, now: Any) -> Any:
        index, found = now
        return index + 1, found.at[index].set(words(scope.make_rng("noise")))

    def model(scope: Scope) -> Any:
        loop = liftcore.while_loop(lambda _, now: now[0] < 2, body, split_rngs={"params": False, "noise": True})
        return loop(scope, (0, jnp.zeros((2, 2), jnp.uint32)))[1]

    expected = [words(jax.random.fold_in(jax.random.fold_in(KEY, 2 * index), word((1,)))) for index in range(2)]
    assert_same(result(model, mutable, {}, rngs=KEY), jnp.stack(expected))


# -- errors ------------------------------------------------------------------------------------------------------------


def fails(kind: type[Exception], condition: Any, body: Any, x: Any = 0.0, run: Any = None, **options: Any) -> Any:
    def model(scope: Scope) -> Any:
        return liftcore.while_loop(condition, body, **options)(scope.push("m"), x)

    run = run or (lambda model: liftcore.init(model)(RNGS))
    with pytest.raises(kind) as caught:
        run(model)
    return caught.value


def test_what_all_iterations_share_cannot_be_written() -> None:
    error = fails(LoopInvarianceError, below(5), counting, 1.0)
    assert error.where == "['state/n'] in while_loop(counting) at /m"
    assert error.what == "it is shared by all iterations (variable_broadcast), but written."
    assert error.fix == 'Carry it: `variable_carry="state"`.'


@pytest.mark.parametrize("options", [{}, {"variable_carry": "state"}])
def test_the_condition_writes_nothing(options: dict[str, Any]) -> None:
    def condition(scope: Scope, x: Any) -> Any:
        return counting(scope, x) < 5

    error = fails(LoopInvarianceError, condition, double, **options)
    assert error.where == "['state/n'] in while_loop(double) at /m"
    assert (error.what, error.fix) == ("the condition writes it.", "Write it in the body.")


@pytest.mark.parametrize("place", ["condition", "body"])
@pytest.mark.parametrize("source", ["carry", "carried", "key"])
def test_what_all_iterations_share_depends_on_none(source: str, place: str) -> None:
    def make(scope: Scope, x: Any) -> Any:
        n = scope.get_variable("state", "n")
        makers = {"carry": lambda: x, "carried": lambda: n, "key": lambda: jax.random.normal(scope.make_rng())}
        return x + scope.variable("consts", "c", makers[source]).value

    def count(scope: Scope, x: Any) -> Any:
        scope.put_variable("state", "n", scope.get_variable("state", "n") + 1)
        return x + 1

    def body(scope: Scope, x: Any) -> Any:
        return count(scope, make(scope, x))

    functions = (lambda scope, x: make(scope, x) < 5, count) if place == "condition" else (below(5), body)

    def run(model: Any) -> Any:
        return liftcore.apply(model, mutable=True)({"state": {"m": {"n": jnp.float32(0)}}}, rngs=RNGS)

    error = fails(LoopInvarianceError, *functions, run=run, variable_carry="state", split_rngs=True)
    assert error.where == f"while_loop({functions[1].__name__}) at /m"
    assert "['consts/c'] is shared by all iterations" in error.what
    assert '`variable_carry="consts"`' in error.fix
    assert source != "key" or error.what.endswith("but its initial value depends on a key that is split.")


@pytest.mark.parametrize("place", ["condition", "body", "a lift in the body", "a loop in the body"])
def test_nothing_can_be_sown(place: str) -> None:
    def sow(scope: Scope, x: Any) -> Any:
        scope.push("inner").sow("intermediates", "y", x)
        return x + 1

    bodies = {
        "condition": double,
        "body": sow,
        "a lift in the body": liftcore.remat(sow),
        "a loop in the body": lambda scope, x: liftcore.fori_loop(lambda s, _, x: sow(s, x))(scope, 0, 2, x),
    }
    condition = (lambda scope, x: sow(scope, x) < 5) if place == "condition" else below(5)
    error = fails(LiftArgumentError, condition, bodies[place])
    assert error.where.startswith('"intermediates/inner/y" in while_loop(')
    assert error.where.endswith(") at /m")
    assert "number of iterations is unknown" in error.what
    assert "Use `scan`" in error.fix
    quiet = fails(LiftArgumentError, condition, bodies[place], variable_carry="intermediates")
    assert quiet.where == error.where


def test_nothing_is_sown_that_was_not_asked_for() -> None:
    def body(scope: Scope, x: Any) -> Any:
        assert not scope.sow("intermediates", "y", x)
        return counting(scope, x)

    model = liftcore.while_loop(below(5), body, variable_carry="state")
    assert liftcore.apply(model, mutable=["state"])({"state": {"n": 0}}, 1.0) == (8.0, {"state": {"n": 3}})
    assert liftcore.apply(liftcore.while_loop(below(5), lambda s, x: s.sow("a", "b", x) or 2 * x))({}, 1.0) == 8.0


@BOTH
def test_a_value_that_changes_its_type_is_an_error(mutable: bool) -> None:
    def run(model: Any) -> Any:
        return liftcore.apply(model, mutable=mutable)({})

    error = fails(CarryTypeError, lambda _, x: x[0] < 3, lambda _, x: (x[0] + 1, jnp.stack([x[1]] * 2)), (0, 1.0), run)
    assert error.where == "while_loop(<lambda>) at /m"
    assert "carry[1]: float32[] in, float32[2] out" in error.what
    error = fails(CarryTypeError, below(3), lambda _, x: (x, x), 1.0, run)
    assert "structure" in error.what


def test_a_carried_variable_that_changes_its_type_is_an_error() -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.push("a").variable("state", "n", lambda: jnp.float32(0)).value = jnp.zeros(3)
        return x + 1

    error = fails(CarryTypeError, below(3), body, variable_carry="state")
    assert error.where == "while_loop(body) at /m"
    assert "carried variable" in error.what
    assert "float32[] in, float32[3] out" in error.what


def test_a_carried_variable_created_in_one_equation_of_ones_own_is_an_error() -> None:
    error = fails(LiftArgumentError, below(5), one_equation(counting), 1.0, variable_carry="state")
    assert error.where.startswith('"state/n" in while_loop(')
    assert "in a custom lift" in error.what


def test_a_raw_while_loop_names_the_lifted_one() -> None:
    def model(scope: Scope, x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x < 3, lambda x: counting(scope, x), x)

    with pytest.raises(JaxTransformError, match=r"jax\.lax\.while_loop .*`liftcore\.while_loop`"):
        liftcore.init(model)(KEY, 1.0)


def test_if_the_body_raises_the_scopes_are_as_before() -> None:
    class Broken(Exception):
        pass

    def body(scope: Scope, x: Any) -> Any:
        counting(scope, x)
        scope.make_rng("dropout")
        raise Broken

    root = liftcore.bind({"state": {"n": jnp.int32(1)}}, RNGS, mutable=True)
    with pytest.raises(Broken):
        liftcore.while_loop(below(5), body, variable_carry="state", split_rngs=True)(root, 1.0)
    assert root.variables() == {"state": {"n": 1}}
    assert_same(root.make_rng("dropout"), liftcore.bind({}, RNGS).make_rng("dropout"))


# -- how often bodies run ----------------------------------------------------------------------------------------------


class Counted:
    """A body that counts its runs."""

    __name__ = "counted"

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, scope: Scope, x: Any) -> Any:
        self.runs += 1
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        if scope.is_mutable_collection("state"):
            n.value += 1
        return jnp.tanh(x * scope.param("w", jax.random.normal, ())) + 0.1 * n.value

    def since(self) -> int:
        runs, self.runs = self.runs, 0
        return runs


CARRIED = {"variable_carry": "state", "split_rngs": {"params": False}}


def looped(body: Callable[..., Any]) -> Callable[..., Any]:
    def loop(scope: Scope, x: Any) -> Any:
        step = liftcore.scan(lambda s, x, _: (body(s, x), None), length=2, variable_broadcast="params", **CARRIED)
        return step(scope, x, None)[0]

    return loop


def mapped(body: Callable[..., Any]) -> Callable[..., Any]:
    elements = liftcore.vmap(body, variable_axes={"params": None, "state": 0}, split_rngs={"params": False})
    return lambda scope, x: elements(scope, jnp.stack([x, x])).sum()


LIFTS = {
    "while": lambda body: twice(body, **CARRIED),
    "scan": looped,
    "vmap": mapped,
    "remat": liftcore.remat,
    "jit": liftcore.jit,
    "cond": lambda body: lambda scope, x: liftcore.cond(body, double)(scope, x < 9, x),
}


@pytest.mark.parametrize(
    "names",
    [
        *(("while",) * depth for depth in (1, 2, 3, 4)),
        ("while", "scan"),
        ("scan", "while"),
        ("while", "vmap"),
        ("vmap", "while"),
        ("while", "cond"),
        ("remat", "while", "jit", "cond"),
        ("jit", "while", "remat", "while"),
    ],
)
def test_condition_and_body_run_once(names: tuple[str, ...]) -> None:
    body = Counted()
    model: Callable[..., Any] = body
    for name in names:
        model = LIFTS[name](model)
    x = jnp.float32(1)
    _, variables = jax.eval_shape(liftcore.init(model), KEY, x)
    assert body.since() == 1
    for mutable in ([], ["state"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, x)
        assert body.since() == 1
    jax.eval_shape(jax.jacfwd(liftcore.apply(model, mutable=["state"]), argnums=1, has_aux=True), variables, x)
    assert body.since() == (0 if "jit" in names else 1), "a lifted jit has seen this before"


@BOTH
def test_both_functions_run_once_when_they_are_computed(mutable: bool) -> None:
    condition, body = Counted(), Counted()
    model = liftcore.while_loop(lambda scope, x: condition(scope, x) < 0.5, body, split_rngs={"params": False})
    variables = {"params": {"w": 1.0}, "state": {"n": 1.0}}
    result(model, mutable and ["intermediates"], variables, jnp.float32(0))
    assert (condition.since(), body.since()) == (1, 1)


def test_a_weak_value_is_traced_again() -> None:
    runs: list[int] = []

    def body(scope: Scope, x: Any) -> Any:
        runs.append(1)
        return x + jnp.float32(1)

    y, _ = liftcore.init(liftcore.while_loop(below(3), body))(KEY, 0)
    assert (y, len(runs)) == (3.0, 2)


# -- loops around ------------------------------------------------------------------------------------------------------


def test_a_scan_carries_and_writes_what_the_loop_created() -> None:
    def grow(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value += 1
        return 2 * x

    def step(scope: Scope, x: Any, _: Any) -> Any:
        x = liftcore.while_loop(lambda _, x: x < 8, grow, variable_carry="state")(scope, x)
        seen = scope.get_variable("state", "n")
        scope.put_variable("state", "n", seen * 2)
        return x / 4, seen

    x, n, seen = 3.0, 30.0, []
    for _ in range(3):
        while x < 8:
            n, x = n + 1, 2 * x
        seen.append(n)
        n, x = 2 * n, x / 4
    for around in (lambda fn: fn, liftcore.remat, liftcore.jit):
        loop = around(lambda scope, x: liftcore.scan(step, length=3, variable_carry="state")(scope, x, None))
        (y, ns), variables = liftcore.init(loop)(KEY, jnp.float32(3))
        assert (y, ns.tolist(), variables["state"]["n"]) == (x, seen, n)


@pytest.mark.parametrize("around", [lambda fn: fn, liftcore.jit, liftcore.remat])
def test_a_loop_in_a_loop(around: Callable[..., Any]) -> None:
    def inner(scope: Scope, x: Any) -> Any:
        scope.variable("state", "inner", lambda: 100 * x).value += 1
        return x + 1

    def outer(scope: Scope, x: Any) -> Any:
        loop = around(liftcore.while_loop(lambda _, x: x % 3 != 0, inner, variable_carry="state"))
        x = loop(scope, x + 1)
        scope.variable("state", "outer", lambda: x).value += scope.get_variable("state", "inner")
        return x

    y, variables = liftcore.init(liftcore.while_loop(below(7), outer, variable_carry="state"))(KEY, jnp.float32(1))
    x, inside, outside = 1.0, 200.0, 3.0
    while x < 7:
        x += 1
        while x % 3 != 0:
            inside, x = inside + 1, x + 1
        outside += inside
    assert (y, variables["state"]) == (x, {"inner": inside, "outer": outside})
