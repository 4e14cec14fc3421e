"""What a lift leaves outside, asked for further in: the error names that lift, and the line that makes it take more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import (
    InvalidRngError,
    LiftError,
    ModifyScopeVariableError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from tests.lift.only import KINDS, only
from tests.lift.quick import key, uniform

X = jnp.array([0.1, 0.2, 0.3])
ALL = ["params", "cache"]
KEYS = ["params", "dropout"]


def _acts() -> dict[str, tuple[Callable[[Scope], Any], type[LiftError]]]:
    """By what is done in the body: what does it, and the error where a lift leaves out what it needs."""

    def draw(scope: Scope) -> Any:
        return uniform(scope.make_rng("dropout")).sum()

    def read(scope: Scope) -> Any:
        return scope.variable("cache", "c", lambda: 0.0).value.sum()

    def write(scope: Scope) -> Any:
        scope.put_variable("cache", "c", 0.0)
        return 0.0

    def create(scope: Scope) -> Any:
        return scope.variable("cache", "new", lambda: 0.0).value

    reads = {act.__name__: (act, UnliftedCollectionError) for act in (read, write, create)}
    return {"draw": (draw, UnliftedStreamError), **reads}


ACTS = _acts()


def nested(names: tuple[str, ...], lacks: tuple[str, ...], act: str) -> LiftError:
    """The error of lifts in each other, the first of them outermost; `lacks` are those that leave out what is asked."""

    def body(scope: Scope, x: Any) -> Any:
        return x + ACTS[act][0](scope.push("inner"))

    lifted = body
    for name in reversed(names):
        some = name in lacks
        lifted = only(name, lifted, ["params"] if some else ALL, ["params"] if some else KEYS)
    rngs = {"params": key(0), "dropout": key(1)}
    root = liftcore.bind({"cache": {"a": {"inner": {"c": jnp.ones((2, 2, 2))}}}}, rngs, mutable=True)
    with pytest.raises(ACTS[act][1]) as caught:
        lifted(root.push("a"), X)
    return caught.value


def shown(name: str) -> str:
    return "scan(" if name == "remat_scan" else f"{name}("


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("act", ACTS)
def test_the_outer_of_two_lifts_is_named_where_it_lacks_what_the_inner_takes(outer: str, act: str) -> None:
    alone = nested((outer,), (outer,), act)
    for inner in KINDS:
        if inner == outer:
            continue  # the same name twice: see the test of places
        error = nested((outer, inner), (outer,), act)
        assert error.fix == alone.fix, inner
        assert f"{shown(outer)}" in error.what, inner
        assert " at /a" in error.what, "the place of the lift tells it from others like it"
        assert f" at /a/{shown(outer)}" in error.where
        assert f"/{shown(inner)}" in error.where


@pytest.mark.parametrize("inner", KINDS)
def test_of_two_lifts_that_both_lack_something_the_outer_is_named(inner: str) -> None:
    for act in ACTS:
        outer = "remat" if inner == "scan" else "scan"
        both = nested((outer, inner), (outer, inner), act)
        assert both.fix == nested((outer,), (outer,), act).fix
        assert f" {shown(outer)}" in both.what, "what does not reach the inner one is no matter of its rules"


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("act", ACTS)
def test_the_inner_of_two_lifts_is_named_where_it_alone_lacks_something(inner: str, act: str) -> None:
    alone = nested((inner,), (inner,), act)
    for outer in ("scan", "remat", "vmap"):
        if outer != inner:
            error = nested((outer, inner), (inner,), act)
            assert error.fix == alone.fix, outer
            assert shown(inner) in error.what


@pytest.mark.parametrize("middle", KINDS)
@pytest.mark.parametrize("act", ACTS)
def test_of_three_lifts_the_one_in_the_middle_is_named(middle: str, act: str) -> None:
    alone = nested((middle,), (middle,), act)
    for outer, inner in (("scan", "remat"), ("jit", "vmap"), ("vjp", "while_loop")):
        if middle not in (outer, inner):
            error = nested((outer, middle, inner), (middle,), act)
            assert error.fix == alone.fix
            assert f"{shown(middle)}" in error.what
            assert f" at /a/{shown(outer)}" in error.what


def test_of_two_equal_lifts_the_place_tells_which() -> None:
    error = nested(("remat", "remat"), ("remat",), "draw")
    assert "remat(body) at /a does not" in error.what.replace("remat(remat(body))", "remat(body)")


def test_a_sequence_that_only_a_lift_gave_and_an_inner_one_leaves_out_is_not_called_ungiven() -> None:
    inner = only("remat", lambda scope, x: uniform(scope.make_rng("noise")), [], [])
    model = liftcore.with_rngs(inner, {"noise": key(3)})
    with pytest.raises(UnliftedStreamError, match=r'make_rng\("noise"\).*remat\(.*does not pass it in'):
        liftcore.apply(model)({}, X)
    with pytest.raises(InvalidRngError, match='no RNG stream "noise" was given') as caught:
        liftcore.apply(inner)({}, X)
    assert not isinstance(caught.value, UnliftedStreamError)


def test_what_apply_may_not_change_is_told_of_apply_where_all_lifts_take_it() -> None:
    model = only("scan", only("remat", lambda scope, x: scope.put_variable("cache", "c", x), ALL, []), ALL, [])
    with pytest.raises(ModifyScopeVariableError, match=r'apply\(..., mutable=\["cache"\]\)'):
        liftcore.apply(model)({"cache": {"c": jnp.ones((2, 3))}}, X)


def test_what_a_transformation_made_immutable_is_told_of_it_and_not_of_apply() -> None:
    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, x: Any) -> Any:
        scope = scope_fn(variables, rngs, mutable="params")
        scope.put_variable("cache", "c", x)
        return x, repack_fn(scope)

    model = liftcore.remat(liftcore.pack(transform, [True], [True], [True], name="mine"))
    with pytest.raises(ModifyScopeVariableError, match=r'the scopes of mine.*scope_fn\(.*mutable="cache"') as caught:
        liftcore.apply(model, mutable=True)({}, X)
    assert "apply(" not in str(caught.value)
