"""`fold_rngs`: keys that depend on what lies below a scope, and are drawn nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, PathContains
from liftcore.lift.fold_rngs import fold_rngs
from liftcore.lift.with_rngs import with_rngs
from tests.lift.quick import assert_same, key, uniform

RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def draw(scope: Scope, name: str = "dropout") -> Any:
    """The key itself: two that are equal were drawn twice."""
    return jax.random.key_data(scope.make_rng(name))


def block(scope: Scope) -> Any:
    return [draw(scope), scope.child(draw, "a")(), draw(scope), scope.child(draw, "b")("params"), draw(scope, "noise")]


def apply(fn: Callable[..., Any], rngs: Any = None) -> Any:
    return liftcore.apply(fn)({}, rngs=RNGS if rngs is None else rngs)


def distinct(keys: Any) -> bool:
    flat = jnp.concatenate([leaf.reshape(-1, 2) for leaf in jax.tree.leaves(keys)])
    return len({tuple(row.tolist()) for row in flat}) == len(flat)


# -- the keys ----------------------------------------------------------------------------------------------------------


def test_no_key_is_drawn_twice() -> None:
    def model(scope: Scope) -> Any:
        folded = fold_rngs(block)
        keys = [block(scope.push("x")), folded(scope.push("y")), fold_rngs(folded)(scope.push("z"))]
        below = scope.push("w")
        keys += [folded(below.rewound()), block(below.rewound()), folded(below.rewound()), block(below.rewound())]
        return [
            *keys,
            folded(scope),
            fold_rngs(lambda scope: block(scope.push("u")))(scope),
            block(scope.push("fold_rngs")),
        ]

    assert distinct(apply(model))
    assert distinct(apply(model, RNGS["params"]))
    assert distinct(apply(model, {**RNGS, "noise": jax.random.key(2)}))


def test_the_counts_outside_go_on() -> None:
    def model(scope: Scope) -> Any:
        before = draw(scope)
        fold_rngs(block)(scope)
        return before, draw(scope), scope.child(draw, "c")("params")

    assert_same(apply(model), apply(lambda scope: (draw(scope), draw(scope), scope.child(draw, "c")("params"))))


def test_the_draws_inside_depend_on_the_root_and_what_is_below() -> None:
    """Seen by giving one root to blocks that lie at different depths, with other draws before."""

    def root(scope: Scope) -> Any:
        before = [draw(scope.push("before"))]
        return before, fold_rngs(block)(scope)

    def deep(scope: Scope) -> Any:
        below = scope.push("p").push("q")
        draw(below), draw(below)
        return with_rngs(fold_rngs(block), RNGS)(below)

    assert_same(apply(root)[1], apply(deep))


def test_blocks_in_two_places_differ_and_are_the_same_again() -> None:
    def model(scope: Scope) -> Any:
        return [fold_rngs(block)(scope.push(name)) for name in "ab"]

    keys = apply(model)
    assert distinct(keys)
    assert_same(keys, apply(model))


@pytest.mark.parametrize("raw", [False, True])
def test_parameters_are_made_and_found(raw: bool) -> None:
    def layer(scope: Scope) -> Any:
        return scope.param("w", uniform)

    def model(scope: Scope) -> Any:
        return fold_rngs(layer)(scope.push("a")), fold_rngs(layer)(scope.push("b")), scope.child(layer, "c")()

    values, variables = liftcore.init(model)(jax.random.PRNGKey(0) if raw else key(0))
    assert len({float(value[0]) for value in values}) == 3
    assert_same(liftcore.apply(model)(variables), values)
    assert sorted(variables["params"]) == ["a", "b", "c"]


def test_several_scopes_and_the_same_one_twice() -> None:
    def many(scopes: Any) -> Any:
        return [draw(scope) for scope in scopes]

    def model(scope: Scope) -> Any:
        a, b = scope.push("a"), scope.push("b")
        return fold_rngs(many)([a, b, a, b.push("c"), b])

    assert distinct(apply(model))


# -- filters -----------------------------------------------------------------------------------------------------------


def test_only_what_is_lifted_is_there() -> None:
    def body(scope: Scope) -> Any:
        return scope.get_variable("state", "s"), draw(scope)

    variables = {"state": {"s": 1}, "params": {"w": 2}}
    lifted = fold_rngs(body, variables="state", rngs="dropout")
    assert liftcore.apply(lifted)(variables, rngs=RNGS)[0] == 1
    with pytest.raises(UnliftedCollectionError, match=r"state/s.*\"state\" to `variables`"):
        liftcore.apply(fold_rngs(body, variables="params"))(variables, rngs=RNGS)
    for name in ("params", "noise"):
        with pytest.raises(UnliftedStreamError, match=rf'make_rng\("{name}"\).*"{name}" to `rngs`'):
            apply(fold_rngs(lambda scope, name=name: draw(scope, name), rngs="dropout"))


def test_a_sequence_that_was_never_given_can_be_lifted_alone() -> None:
    def model(scope: Scope) -> Any:
        folded = fold_rngs(lambda scope: [draw(scope, "noise"), draw(scope, "noise")], rngs="noise")
        return folded(scope), folded(scope), draw(scope, "noise"), draw(scope, "params")

    assert distinct(apply(model))


def test_what_elements_split_stays_split() -> None:
    elements = liftcore.vmap(
        fold_rngs(lambda scope: {name: draw(scope, name) for name in ("params", "dropout", "noise")}),
        axis_size=2,
        split_rngs={"params": False, "dropout": True, "noise": True},
    )
    keys = apply(elements)
    assert distinct([keys["dropout"], keys["noise"], keys["params"][:1]])
    assert_same(keys["params"][0], keys["params"][1])


# -- state -------------------------------------------------------------------------------------------------------------


def stateful(scope: Scope, x: Any) -> Any:
    w = scope.param("w", lambda key: 2 * jnp.ones(3))
    n = scope.variable("state", "n", lambda: jnp.zeros(()))
    n.value += 1
    scope.sow("intermediates", "x", x)
    return jnp.sin(x * w) * n.value


def test_state_is_that_of_the_bare_function() -> None:
    x = jnp.arange(3.0)
    fns = fold_rngs(stateful), stateful
    ours, theirs = (liftcore.init(lambda scope, x, fn=fn: scope.child(fn, "a")(x))(RNGS, x) for fn in fns)
    assert_same(ours, theirs)
    variables = liftcore.init(stateful)(RNGS, x)[1]

    def loss(variables: Any, fn: Callable[..., Any]) -> Any:
        y, mutated = liftcore.apply(fn, mutable=["state"])(variables, x, rngs=RNGS)
        return y.sum(), mutated

    ours, theirs = (jax.value_and_grad(loss, has_aux=True)(variables, fn) for fn in fns)
    assert_same(ours, theirs)


def test_nothing_has_changed_if_the_body_raises() -> None:
    def fails(scope: Scope) -> Any:
        block(scope)
        raise ZeroDivisionError

    root, fresh = (liftcore.bind({}, RNGS, True) for _ in range(2))
    with pytest.raises(ZeroDivisionError):
        fold_rngs(fails)(root)
    assert_same(fold_rngs(block)(root), fold_rngs(block)(fresh))
    assert_same(draw(root), draw(fresh))


# -- nested ------------------------------------------------------------------------------------------------------------

TRANSPARENT = [lambda fn: fn, liftcore.remat, liftcore.jit]


@pytest.mark.parametrize("outer", TRANSPARENT)
@pytest.mark.parametrize("inner", TRANSPARENT)
def test_transparent_lifts_move_no_draw(outer: Any, inner: Any) -> None:
    runs: list[int] = []

    def counted(scope: Scope) -> Any:
        runs.append(1)
        return block(scope)

    def model(scope: Scope, outer: Any, inner: Any) -> Any:
        folded = outer(fold_rngs(inner(counted)))
        results = [folded(scope.push("before"))]
        for name in "ab":  # a compiled block serves at two places, and after other draws
            below = scope.push(name)
            draw(below)
            results += [folded(below.rewound()), block(below.push("c")), folded(below.rewound())]
        return results, block(scope.push("c"))

    plain = apply(lambda scope: model(scope, lambda fn: fn, lambda fn: fn))
    assert distinct(plain)
    runs.clear()
    assert_same(apply(lambda scope: model(scope, outer, inner)), plain)
    if liftcore.jit in (outer, inner):
        assert len(runs) <= 2, "equal calls share a trace"


def test_the_body_runs_once() -> None:
    runs: list[int] = []

    def counted(scope: Scope, x: Any) -> Any:
        runs.append(1)
        return stateful(scope, x)

    deep: Any = counted
    for _ in range(4):
        deep = fold_rngs(deep)
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


def test_in_a_loop_each_iteration_has_its_own() -> None:
    def step(scope: Scope, carry: Any) -> Any:
        return carry, [fold_rngs(block)(scope), fold_rngs(block)(scope.rewound())]

    split = {"params": True, "dropout": True}
    loop = liftcore.scan(step, length=3, split_rngs=split)
    assert distinct(apply(lambda scope: loop(scope, ())[1]))
    elements = liftcore.vmap(fold_rngs(block), axis_size=2, split_rngs=split)
    assert distinct(apply(fold_rngs(elements)))


def test_a_loop_carries_and_shares_what_is_created_inside() -> None:
    runs: list[int] = []

    def step(scope: Scope, x: Any, _: Any) -> tuple[Any, Any]:
        runs.append(1)
        return stateful(scope, x) * scope.param("v", uniform, (3,)), None

    options = {"variable_carry": "state", "variable_broadcast": "params", "split_rngs": {"params": False}}
    loop = liftcore.scan(fold_rngs(step), length=3, **options)
    (y, _), variables = liftcore.init(loop)(RNGS, jnp.ones(3), None)
    assert len(runs) == 1
    assert variables["state"]["n"] == 3
    plain = liftcore.scan(step, length=3, **options)
    variables["state"]["n"] = jnp.zeros(())
    assert_same(liftcore.apply(plain, mutable=["state"])(variables, jnp.ones(3), None)[0][0], y)


def test_no_tracer_is_left_behind() -> None:
    with jax.checking_leaks():
        keys = jax.jit(lambda: apply(fold_rngs(block)))()
    assert_same(keys, apply(fold_rngs(block)))


def test_filters_go_down_to_single_variables() -> None:
    lora = All("params", PathContains("lora"))
    variables = {"params": {"lora": 2.0, "w": 3.0}}
    read = fold_rngs(lambda scope, name: scope.get_variable("params", name), variables=lora)
    assert liftcore.apply(read)(variables, "lora") == 2.0
    with pytest.raises(UnliftedCollectionError, match='"params/w" at /fold_rngs'):
        liftcore.apply(read)(variables, "w")
