"""A variable that all iterations share may be written with a constant, also inside other lifts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LoopInvarianceError
from tests.lift.quick import assert_same, compiled
from tests.lift.ruled import ruled_backward, ruled_forward

Fn = Callable[..., Any]


def p(scope: Scope) -> Any:
    return scope.variable("state", "p", lambda: jnp.zeros(3))


def put(scope: Scope, x: Any) -> Any:
    p(scope).value = 2 * scope.get_variable("consts", "c")
    return x * 2


def add(scope: Scope, x: Any) -> Any:
    p(scope).value += scope.get_variable("consts", "c")
    return x * 2


def vary(scope: Scope, x: Any) -> Any:
    p(scope).value = p(scope.rewound()).value * 0 + x
    return x * 2


def after_put(fn: Fn) -> Fn:
    def body(scope: Scope, x: Any) -> Any:
        return fn(scope.rewound(), put(scope, x))

    return body


def packed(raw: Fn) -> Fn:
    """A lift of a user, which applies a transformation of JAX itself."""

    def lift(fn: Fn) -> Fn:
        def transform(scope_fn: Fn, repack_fn: Fn, variable_groups: Any, rng_groups: Any, x: Any) -> Any:
            def run(variable_groups: Any, x: Any) -> Any:
                scope = scope_fn(variable_groups, rng_groups)
                return fn(scope, x), repack_fn(scope)

            return raw(run)(variable_groups, x)

        return liftcore.pack(transform, [True], [True, liftcore.Captured(all=True)], [True])

    return lift


def transformed(raw: Fn) -> Fn:
    """The same with a body that is already pure, which is not split either."""

    def transform(body: Fn, variable_groups: Any, rng_groups: Any, x: Any) -> Any:
        return raw(lambda variable_groups, x: body(variable_groups, rng_groups, x))(variable_groups, x)

    return liftcore.transformation(transform, [True], [True, liftcore.Captured(all=True)], [True])


def first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


RULED: dict[str, Fn] = {
    "custom_jvp": ruled_forward,
    "custom_vjp": ruled_backward,
    "remat of jit of a rule": lambda fn: liftcore.remat(liftcore.jit(ruled_backward(fn))),
}
INNER: dict[str, Fn] = {
    "nothing": lambda fn: fn,
    "jit": liftcore.jit,
    "remat": liftcore.remat,
    "jit of remat": lambda fn: liftcore.jit(liftcore.remat(fn)),
    "cond": lambda fn: lambda scope, x: liftcore.cond(fn, fn)(scope, scope.get_variable("consts", "flag"), x),
    "switch": lambda fn: lambda scope, x: liftcore.switch([fn, fn])(scope, 1, x),
    "vjp": lambda fn: lambda scope, x: liftcore.vjp(fn)(scope, x)[0],
    "jvp": lambda fn: lambda scope, x: liftcore.jvp(fn)(scope, (x,), (x,))[0],
    "named_call": liftcore.named_call,
    "map_variables": lambda fn: liftcore.map_variables(fn, "state", init=True, mutable=True),
    "vmap": lambda fn: (
        lambda scope, x: liftcore.vmap(fn, variable_axes={"state": None, "consts": None})(scope, x[None])[0]
    ),
    "pack": packed(jax.jit),
}
RAW: dict[str, Fn] = {
    "jit": jax.jit,
    "jit of jit": lambda run: jax.jit(jax.jit(run)),
    "checkpoint": jax.checkpoint,
    "vmap": lambda run: lambda groups, x: first(jax.vmap(run, in_axes=(None, 0))(groups, x[None])),
    "vjp": lambda run: lambda groups, x: jax.vjp(lambda x: run(groups, x), x)[0],
    "cond": lambda run: lambda groups, x: jax.lax.cond(groups[0][0]["consts"]["flag"], run, run, groups, x),
    "scan": lambda run: lambda groups, x: first(jax.lax.scan(lambda c, x: (c, run(groups, x)), 0, x[None])[1]),
}
SHARED: Any = ("state", "consts")
OUTER: dict[str, Fn] = {
    "scan": lambda fn: (
        lambda scope, xs: liftcore.scan(lambda scope, _, x: (None, fn(scope, x)), variable_broadcast=SHARED)(
            scope, None, xs
        )[1]
    ),
    "the carry of scan": lambda fn: (
        lambda scope, xs: liftcore.scan(lambda scope, x, _: (fn(scope, x), None), length=2, variable_broadcast=SHARED)(
            scope, xs[0], None
        )[0]
    ),
    "fori_loop": lambda fn: (
        lambda scope, xs: liftcore.fori_loop(lambda scope, i, x: fn(scope, x), variable_broadcast=SHARED)(
            scope, 0, 2, xs[0]
        )
    ),
    "vmap": lambda fn: liftcore.vmap(fn, variable_axes=dict.fromkeys(SHARED)),
    "map": lambda fn: liftcore.map(fn, variable_axes=dict.fromkeys(SHARED)),
}
XS = jnp.array([1.0, 2.0])
C = jnp.array([1.0, 2.0, 3.0])


def outcome(body: Fn, c: Any, state: Any = None) -> Any:
    given = {"consts": {"c": c, "flag": jnp.bool_(True)}, "state": {"p": jnp.ones(3)} if state is None else state}
    return liftcore.apply(body, mutable=["state"])(given, XS)


@pytest.mark.parametrize("outer", OUTER.values(), ids=OUTER)
@pytest.mark.parametrize("state", [{}, None], ids=["created", "exists"])
def test_a_constant_may_be_written_inside_other_lifts(outer: Fn, state: Any) -> None:
    after = {name: outer(after_put(inner(add))) for name, inner in (INNER | RULED).items()}
    alone = {name: outer(inner(put)) for name, inner in (INNER | RULED).items()}
    found, both = compiled(
        lambda c: [{name: outcome(fn, c, state) for name, fn in all_.items()} for all_ in (after, alone)], C
    )
    for given, expected in ((found, 3 * C), (both, 2 * C)):
        for name, (result, variables) in given.items():
            assert_same({name: variables["state"]["p"]}, {name: expected})
            assert_same({name: result}, {name: given["nothing"][0]})


@pytest.mark.parametrize("inner", [*INNER, *RULED])
def test_what_differs_between_iterations_is_refused_there_too(inner: str) -> None:
    for fn, what in ((add, "reads it and then writes it"), (vary, "")):
        if (inner, fn) != ("pack", add):
            with pytest.raises(
                LoopInvarianceError, match=rf"'state/p'.* is shared by all (iterations|elements).*{what}"
            ):
                outcome(OUTER["scan"]((INNER | RULED)[inner](fn)), C)


def swap(scope: Scope, x: Any) -> Any:
    q = scope.variable("state", "q", lambda: jnp.ones(3))
    p(scope).value, q.value = q.value, p(scope.rewound()).value
    return x * 2


def put_after_reading(scope: Scope, x: Any) -> Any:
    x = x * 2 + p(scope).value.sum()
    return put(scope.rewound(), x)


def read_after_putting(scope: Scope, x: Any) -> Any:
    return x + (put(scope, x) * p(scope.rewound()).value).sum()


@pytest.mark.parametrize("lift", [packed, transformed])
@pytest.mark.parametrize("state", [{}, {"p": jnp.zeros(3), "q": jnp.ones(3)}], ids=["created", "exists"])
def test_what_a_raw_transformation_writes_is_accepted_exactly_if_it_is_constant(lift: Fn, state: Any) -> None:
    loops = (OUTER["scan"], OUTER["fori_loop"], lambda fn: OUTER["scan"](liftcore.remat(fn)))
    for raw in RAW.values():
        for fn, outer in zip((add, swap, put_after_reading), loops, strict=True):
            with pytest.raises(LoopInvarianceError, match="reads it and then writes it"):
                jax.eval_shape(functools.partial(outcome, outer(lift(raw)(fn)), C, state))
    for fn in (put, read_after_putting):
        inner = {name: lift(raw) for name, raw in RAW.items()} | {"nothing": lambda fn: fn}
        found = compiled(
            lambda fn=fn, of=inner: {name: outcome(OUTER["scan"](f(fn)), C, state) for name, f in of.items()}
        )
        assert_same(found, dict.fromkeys(found, found["nothing"]))


def test_a_loop_without_end_shares_what_a_raw_transformation_creates() -> None:
    def body(scope: Scope, state: Any) -> Any:
        return state[0] + 1, state[1] + p(scope).value.sum()

    def run(inner: Fn) -> Any:
        loop = liftcore.while_loop(lambda scope, state: state[0] < 2, inner(body), variable_broadcast="state")
        return liftcore.init(loop)(jax.random.key(0), (0, 1.0))

    for raw in (jax.jit, jax.checkpoint):
        assert_same(run(packed(raw)), run(lambda fn: fn))


def test_the_gradient_of_what_a_rule_writes_stays_zero_and_others_flow() -> None:
    def gradient(inner: Fn) -> Any:
        body = OUTER["scan"](after_put(inner(add)))
        return jax.grad(lambda c: jnp.sum(outcome(body, c)[1]["state"]["p"] ** 2))(C)

    names = ("nothing", "jit", "remat", "cond")
    found = compiled(lambda: {name: gradient((INNER | RULED)[name]) for name in (*names, "custom_vjp")})
    assert_same({name: found[name] for name in names}, dict.fromkeys(names, 18 * C))
    assert_same(found["custom_vjp"], jnp.zeros(3))


def test_two_results_of_one_equation_are_told_apart() -> None:
    def two(scope: Scope, x: Any) -> Any:
        p(scope).value = 2 * scope.get_variable("consts", "c")
        scope.put_variable("state", "q", x + jnp.zeros(3))
        return x

    with pytest.raises(LoopInvarianceError, match=r"\['state/q'\] is shared"):
        outcome(OUTER["scan"](liftcore.jit(two)), C, {"p": jnp.ones(3), "q": jnp.ones(3)})


def with_vmap(fn: Fn) -> Fn:
    lifted = liftcore.custom_vmap(fn)
    lifted.def_vmap(lambda size, in_batched, scope, x: (fn(scope, x), (True, False)))
    return lifted


@pytest.mark.parametrize("state", [{}, None], ids=["created", "exists"])
def test_a_constant_result_of_a_rule_may_be_written(state: Any) -> None:
    def two(scope: Scope, x: Any) -> Any:
        return x * 2, 2 * scope.get_variable("consts", "c")

    def write(inner: Fn) -> Fn:
        def body(scope: Scope, x: Any) -> Any:
            y, p(scope).value = inner(two)(scope, x)
            return y

        return OUTER["scan"](body)

    inner = {"nothing": INNER["nothing"], "custom_vmap": with_vmap} | RULED
    found = compiled(lambda c: {name: outcome(write(fn), c, state) for name, fn in inner.items()}, C)
    assert_same(found, dict.fromkeys(inner, found["nothing"]))
    assert_same(found["nothing"][1]["state"]["p"], 2 * C)
