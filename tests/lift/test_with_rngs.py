"""`with_rngs`: explicit keys by name, inside and round other lifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import InvalidRngError
from liftcore.lift.with_rngs import with_rngs
from tests.lift.quick import assert_same, key, uniform

KEY, OTHER, MINE = key(0), key(1), key(2)
RNGS = {"params": KEY, "dropout": OTHER}


def draw(scope: Scope, name: str = "dropout") -> Any:
    return uniform(scope.make_rng(name))


def block(scope: Scope) -> Any:
    """Draws of two streams, here and below."""
    return draw(scope), scope.child(draw, "a")(), draw(scope), scope.child(draw, "b")("params")


def apply(fn: Callable[..., Any], rngs: Any = None, mutable: Any = False) -> Any:
    return liftcore.apply(fn, mutable=mutable)({}, rngs=RNGS if rngs is None else rngs)


def at(path: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a scope, called deeper in a model."""

    def model(scope: Scope) -> Any:
        for name in filter(None, path.split("/")):
            scope = scope.push(name)
        return fn(scope)

    return model


# -- the keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "x", "x/y"])
@pytest.mark.parametrize("mine", [MINE, jax.random.key(7), jax.random.PRNGKey(7)], ids=["cheap", "typed", "raw"])
def test_the_named_sequence_begins_anew_at_the_scope(path: str, mine: Any) -> None:
    ours = apply(at(path, with_rngs(block, {"dropout": mine})))
    assert_same(ours[:3], apply(block, {"params": KEY, "dropout": mine})[:3])
    assert_same(ours[3], apply(at(path, block))[3]), "another stream goes on as it was"


def test_the_same_key_gives_the_same_draws() -> None:
    def twice(scope: Scope) -> Any:
        draw(scope)
        lifted = with_rngs(block, {"dropout": MINE})
        first = lifted(scope.push("b"))
        draw(scope)
        return first, lifted(scope.push("c"))

    first, second = apply(twice)
    assert_same(first[:3], second[:3])
    assert not jnp.array_equal(first[3], second[3])


def test_the_counts_outside_do_not_move() -> None:
    def model(scope: Scope) -> Any:
        draws = [draw(scope)]
        with_rngs(block, {"dropout": MINE})(scope)
        return [*draws, draw(scope), draw(scope, "params")]

    ours = apply(model)
    assert_same(ours[:2], apply(lambda scope: [draw(scope), draw(scope)]))
    assert_same(ours[2], apply(lambda scope: draw(scope, "params")))


def test_params_may_be_named_too() -> None:
    def layer(scope: Scope) -> Any:
        return scope.param("w", uniform)

    def model(scope: Scope) -> Any:
        lifted = with_rngs(layer, MINE)
        return scope.child(lifted, "a")(), scope.child(lifted, "b")(), scope.child(layer, "c")()

    (a, b, c), variables = liftcore.init(model)(RNGS)
    assert_same(a, liftcore.init(layer)(MINE)[0])
    assert_same(a, b)
    assert_same(c, liftcore.init(lambda scope: scope.child(layer, "c")())(RNGS)[0])
    assert sorted(variables["params"]) == ["a", "b", "c"]
    assert_same(liftcore.apply(model)(variables), (a, b, c))


def test_several_scopes_draw_keys_of_their_own() -> None:
    def many(scopes: Any) -> Any:
        return [draw(scope) for scope in scopes]

    def model(scope: Scope, *names: str) -> Any:
        scopes = {name: scope.push(name) for name in sorted(set(names))}
        return with_rngs(many, {"dropout": MINE})([scopes[name] for name in names])

    a, b = apply(lambda scope: model(scope, "a", "b"))
    assert_same(a, apply(draw, {"dropout": MINE}))
    assert not jnp.array_equal(a, b)
    assert_same([a, b], apply(lambda scope: model(scope, "c", "d"))), "their names do not matter, as for one"
    a, same = apply(lambda scope: model(scope, "a", "a"))
    assert_same([a, same], apply(lambda scope: [draw(scope), draw(scope)], {"dropout": MINE}))


# -- streams that were never given -----------------------------------------------------------------------------------


def test_a_sequence_may_be_given_here_for_the_first_time() -> None:
    lifted = with_rngs(lambda scope: (scope.has_rng("noise"), draw(scope, "noise")), {"noise": MINE})
    for rngs in (RNGS, {}):
        there, value = apply(lifted, rngs)
        assert there
        assert_same(value, apply(draw, {"dropout": MINE}))


@pytest.mark.parametrize("rngs", [{}, {"dropout": OTHER}, RNGS])
def test_what_was_never_given_draws_from_the_params_of_here(rngs: Any) -> None:
    lifted = with_rngs(lambda scope: (draw(scope, "noise"), draw(scope, "params")), {"params": MINE})
    assert_same(apply(lifted, rngs), apply(lambda scope: (draw(scope, "params"), draw(scope, "params")), MINE))


@pytest.mark.parametrize("lift", [lambda fn: liftcore.vmap(fn, axis_size=2, split_rngs={"params": True}),
                                  lambda fn: liftcore.remat(fn, rngs="params")])  # fmt: skip
@pytest.mark.parametrize("between", [lambda fn: fn, liftcore.remat])
def test_a_lift_inside_must_take_it_like_any_other(lift: Any, between: Any) -> None:
    nested = between(lift(lambda scope: draw(scope, "noise")))
    with pytest.raises(InvalidRngError, match="noise"):
        apply(with_rngs(nested, {"noise": MINE}))


def test_without_it_the_sequence_is_still_missing() -> None:
    with pytest.raises(InvalidRngError, match="noise"):
        apply(with_rngs(lambda scope: draw(scope, "noise"), {"dropout": MINE}), {"dropout": OTHER})


def test_what_a_element_splits_goes_on_being_split() -> None:
    """A stream without a key of its own keeps the rule that a `vmap` outside has for its name."""
    elements = liftcore.vmap(
        with_rngs(lambda scope: (draw(scope, "noise"), draw(scope)), {"dropout": MINE}),
        axis_size=2,
        split_rngs={"params": False, "dropout": True, "noise": True},
    )
    noise, dropout = apply(elements)
    assert not jnp.array_equal(noise[0], noise[1])
    assert_same(dropout[0], dropout[1])


def test_no_key_is_drawn_twice_where_params_begin_anew_under_a_split() -> None:
    def body(scope: Scope) -> Any:
        return draw(scope, "noise"), with_rngs(lambda scope: draw(scope, "noise"), MINE)(scope), draw(scope, "noise")

    elements = liftcore.vmap(body, axis_size=2, split_rngs={"params": False, "noise": True})
    before, inside, after = apply(elements, KEY)
    assert len({float(value[0]) for value in [*before, *inside[:1], *after]}) == 5


# -- misuse ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"dropout": 3}, {"dropout": jnp.zeros(3)}, {"dropout": jax.random.split(KEY)}])
def test_what_is_no_key_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(InvalidRngError, match=r"rngs\[\"dropout\"\]: expected one PRNG key"):
        with_rngs(block, wrong)


# -- state -------------------------------------------------------------------------------------------------------------


def stateful(scope: Scope, x: Any) -> Any:
    w = scope.param("w", uniform, (3,))
    n = scope.variable("state", "n", lambda: jnp.zeros(()))
    n.value += 1
    scope.sow("intermediates", "x", x)
    return jnp.sin(x * w) + n.value * draw(scope)


def test_state_is_that_of_the_bare_function() -> None:
    lifted, x = with_rngs(stateful, {"dropout": OTHER}), jnp.arange(3.0)
    for fn in (lifted, lambda scope, x: scope.child(lifted, "a")(x)):
        plain = stateful if fn is lifted else lambda scope, x: scope.child(stateful, "a")(x)
        _, variables = liftcore.init(fn)(RNGS, x)
        assert_same(variables, liftcore.init(plain)(RNGS, x)[1])
    loss = [
        jax.value_and_grad(lambda v, fn=fn: liftcore.apply(fn, mutable=["state"])(v, x, rngs=RNGS)[0].sum())
        for fn in (lifted, stateful)
    ]
    variables = liftcore.init(stateful)(RNGS, x)[1]
    assert_same(*(one(variables) for one in loss))


def test_nothing_has_changed_if_the_body_raises() -> None:
    def fails(scope: Scope) -> Any:
        block(scope)
        scope.param("w", uniform)
        raise ZeroDivisionError

    root = liftcore.bind({}, RNGS, True)
    with pytest.raises(ZeroDivisionError):
        with_rngs(fails, {"dropout": MINE})(root)
    assert root.variables() == {}
    assert_same(block(root), apply(block))


# -- nested ------------------------------------------------------------------------------------------------------------

TRANSPARENT = [lambda fn: fn, liftcore.remat, liftcore.jit]


@pytest.mark.parametrize("outer", TRANSPARENT)
@pytest.mark.parametrize("inner", TRANSPARENT)
def test_transparent_lifts_move_no_draw(outer: Any, inner: Any) -> None:
    def model(scope: Scope, outer: Any, inner: Any) -> Any:
        results = []
        for name in "ab":  # a compiled block serves at two places
            below = scope.push(name)
            draw(below)
            for _ in range(2):
                lifted = outer(with_rngs(inner(block), {"dropout": MINE}))
                results.append(lifted(below.rewound()))
        return results, block(scope.push("c"))

    plain = apply(lambda scope: model(scope, lambda fn: fn, lambda fn: fn))
    assert_same(apply(lambda scope: model(scope, outer, inner)), plain)


def test_a_compiled_block_is_traced_once_at_all_depths() -> None:
    runs: list[int] = []

    def counted(scope: Scope) -> Any:
        runs.append(1)
        return block(scope)

    jitted = liftcore.jit(counted)

    def model(scope: Scope, fn: Any) -> Any:
        deep = scope.push("a").push("b").push("c")
        lifted = with_rngs(fn, {"dropout": MINE})
        return [lifted(deep), lifted(scope.push("d")), lifted(scope.push("e"))]

    ours = apply(lambda scope: model(scope, jitted))
    assert len(runs) == 1
    assert_same(ours, apply(lambda scope: model(scope, block)))


def test_the_body_runs_once() -> None:
    runs: list[int] = []

    def counted(scope: Scope, x: Any) -> Any:
        runs.append(1)
        return stateful(scope, x)

    deep: Any = counted
    for _ in range(4):
        deep = with_rngs(deep, {"dropout": MINE})
    for lifted in (deep, liftcore.remat(deep), liftcore.vmap(deep, variable_axes={True: 0}, split_rngs=True)):
        runs.clear()
        x = jnp.ones((1, 3))
        _, variables = liftcore.init(lifted)(RNGS, x)
        assert len(runs) == 1
        liftcore.apply(lifted, mutable=["state"])(variables, x, rngs=RNGS)
        assert len(runs) == 2

        def loss(variables: Any, x: Any, lifted: Any = lifted) -> Any:
            return liftcore.apply(lifted, mutable=["state"])(variables, x, rngs=RNGS)[0].sum()

        jax.grad(loss)(variables, x)
        assert len(runs) == 3


def test_loops_and_elements_inside_split_it() -> None:
    keys = jax.random.split(MINE, 3)
    expected = [apply(draw, {"dropout": one}) for one in keys]
    elements = with_rngs(liftcore.vmap(draw, axis_size=3, split_rngs={"dropout": True}), {"dropout": MINE})
    assert_same(list(apply(at("x", elements))), expected)
    loop = liftcore.scan(lambda scope, carry: (carry, draw(scope)), length=3, split_rngs={"dropout": True})
    assert_same(list(apply(at("x", with_rngs(lambda scope: loop(scope, ())[1], {"dropout": MINE})))), expected)


def test_each_iteration_may_begin_with_the_same_key_or_with_its_own() -> None:
    def step(scope: Scope, carry: Any, one: Any) -> Any:
        return carry, (with_rngs(draw, {"dropout": MINE})(scope), with_rngs(draw, {"dropout": one})(scope))

    keys = jax.random.split(MINE, 3)
    loop = liftcore.scan(step, split_rngs={"params": True})
    _, (same, own) = liftcore.apply(loop)({}, (), keys, rngs=RNGS)
    np.testing.assert_array_equal(same[0], same[1])
    assert_same(list(own), [apply(draw, {"dropout": one}) for one in keys])


def test_a_loop_carries_what_is_created_inside() -> None:
    def step(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
        return with_rngs(stateful, {"dropout": MINE})(scope, x), None

    runs: list[int] = []

    def plain(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
        runs.append(1)
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        n.value += 1
        return jnp.sin(x * scope.param("w", uniform, (3,))) + n.value * apply(draw, {"dropout": MINE}), None

    options = {"variable_carry": "state", "variable_broadcast": "params", "split_rngs": {"params": False}}
    (ours, variables), (theirs, plain_variables) = (
        liftcore.init(liftcore.scan(fn, length=3, **options))(RNGS, jnp.ones(3), None) for fn in (step, plain)
    )
    variables.pop("intermediates")
    assert_same((ours, variables), (theirs, plain_variables))
    assert variables["state"]["n"] == 3
