"""`lifter_of`: other functions under a lift that was made for one."""

from __future__ import annotations

import functools
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.arange(6.0).reshape(2, 3)
MAPPED: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}

Fn = Callable[..., Any]


def scaled(scope: Scope, x: Any, *rest: Any) -> Any:
    return x * scope.param("scale", jax.random.normal, ())


def shifted(scope: Scope, x: Any, *rest: Any) -> Any:
    y = x + scope.param("shift", jax.random.normal, ()) * jax.random.uniform(scope.make_rng("params"))
    scope.sow("intermediates", "mean", y.mean())
    return (y, y.sum()) if rest else y


LIFTERS: dict[str, tuple[Callable[[Fn], Fn], tuple[Any, ...]]] = {
    "vmap": (lambda fn: liftcore.vmap(fn, 1, 1, **MAPPED), ()),
    "map": (lambda fn: liftcore.map(fn, **MAPPED), ()),
    "scan": (lambda fn: liftcore.scan(fn, 3, **MAPPED), (None,)),
    "remat": (lambda fn: liftcore.remat(fn, static_argnums=()), ()),
    "jit": (liftcore.jit, ()),
    "fold_rngs": (liftcore.fold_rngs, ()),
    "checkify": (lambda fn: liftcore.checkify(fn), ()),
    "jit, static": (lambda fn: liftcore.jit(fn, static_argnums=2), (None,)),
    "remat, static": (lambda fn: liftcore.remat(fn, static_argnums=2), (None,)),
}


@pytest.mark.parametrize("name", LIFTERS)
def test_another_function_is_lifted_in_the_same_way(name: str) -> None:
    lift, args = LIFTERS[name]

    def first(scope: Scope, x: Any, *rest: Any) -> Any:
        raise AssertionError("only the other one is called")

    lift_any = liftcore.lifter_of(lift(first), first)
    assert lift_any is not None
    for other in (shifted, functools.partial(shifted)):
        again, anew = lift_any(other), lift(other)
        results = [liftcore.init(lifted, mutable=True)(KEY, X, *args) for lifted in (again, anew)]
        jax.tree.map(np.testing.assert_array_equal, *results)
        assert set(results[0][1]) == {"params", "intermediates"}
        traces = [
            jax.make_jaxpr(liftcore.apply(lifted))({"params": results[0][1]["params"]}, X, *args, rngs={"params": KEY})
            for lifted in (again, anew)
        ]
        assert re.sub("0x[0-9a-f]+", "", str(traces[0])) == re.sub("0x[0-9a-f]+", "", str(traces[1]))
    assert lift_any(scaled).__name__ == lift(scaled).__name__ == "scaled"


def test_a_scope_below_is_called_after_the_function() -> None:
    lift_any = liftcore.lifter_of(liftcore.remat(shifted), shifted)
    assert lift_any is not None
    variables = [
        liftcore.init(lambda scope, x, fn=fn: scope.child(fn)(x))(KEY, X)[1] for fn in (lift_any(scaled), scaled)
    ]
    jax.tree.map(np.testing.assert_array_equal, *variables)


def test_an_error_names_the_function_that_is_called() -> None:
    lift_any = liftcore.lifter_of(liftcore.vmap(scaled, **MAPPED), scaled)
    assert lift_any is not None

    def wrong(scope: Scope, x: Any) -> Any:
        return scope.param("w", lambda key, shape: jnp.zeros(shape))

    with pytest.raises(TypeError, match=r"vmap\(wrong\): .*takes `\(key, shape\)`"):
        liftcore.init(lift_any(wrong))(KEY, X)
    with pytest.raises(liftcore.errors.ScopeParamNotFoundError, match=r"vmap\(shifted\)"):
        liftcore.apply(lift_any(shifted))({"params": {"scale": jnp.ones(2)}}, X)


def test_options_that_depend_on_the_function_are_asked_of_each() -> None:
    def flagged(scope: Scope, x: Any, flag: bool) -> Any:
        return x if flag else -x

    def other(scope: Scope, flag: bool, x: Any) -> Any:
        return x if flag else -x

    def plain(scope: Scope, x: Any) -> Any:
        return x

    lift_any = liftcore.lifter_of(liftcore.remat(flagged, static_argnames="flag"), flagged)
    assert lift_any is not None
    assert liftcore.apply(lift_any(flagged))({}, 1.0, False) == -1
    assert liftcore.apply(lift_any(other))({}, False, 1.0) == -1
    with pytest.raises(LiftArgumentError, match="flag"):
        liftcore.apply(lift_any(plain))({}, 1.0)


def test_functions_that_hold_arrays_are_compiled_once_each() -> None:
    runs = []

    def holding(array: jax.Array) -> Fn:
        def add(scope: Scope, x: Any) -> Any:
            runs.append(array)
            return x + array

        return add

    first = holding(jnp.ones(3))
    lift_any = liftcore.lifter_of(liftcore.jit(first), first)
    assert lift_any is not None
    for lifted, y in ((lift_any(holding(2 * X)), 3 * X), (lift_any(holding(X)), 2 * X)):
        for _ in range(3):
            np.testing.assert_array_equal(liftcore.apply(lifted)({}, X), y)
    assert len(runs) == 2


def _wrapped(fn: Fn) -> Fn:
    lifted = liftcore.vmap(fn, **MAPPED)

    @functools.wraps(lifted)
    def doubled(*args: Any) -> Any:
        return 2 * lifted(*args)

    return doubled


@pytest.mark.parametrize(
    "lift",
    [
        liftcore.named_call,
        functools.partial(liftcore.remat_scan, lengths=(2, 3), **MAPPED),
        lambda fn: liftcore.vmap(liftcore.remat(fn), **MAPPED),
        lambda fn: liftcore.jit(liftcore.vmap(fn, **MAPPED)),
        _wrapped,
        lambda fn: fn,
    ],
)
def test_there_is_none_where_the_lift_alone_is_not_all_that_was_done(lift: Callable[[Fn], Fn]) -> None:
    assert liftcore.lifter_of(lift(scaled), scaled) is None


def test_it_is_told_of_the_function_that_was_lifted() -> None:
    assert liftcore.lifter_of(liftcore.remat(scaled), shifted) is None


def test_attributes_of_the_function_are_left_alone() -> None:
    def named(scope: Scope, x: Any) -> Any:
        return x

    named.lifter = "mine"  # type: ignore[attr-defined]
    named.__lifter__ = "mine"  # type: ignore[attr-defined]
    for lift in (liftcore.vmap, liftcore.checkify, liftcore.named_call):
        lifted = lift(named)
        assert lifted.lifter == "mine"  # type: ignore[attr-defined]
        assert (liftcore.lifter_of(lifted, named) is None) == (lift is liftcore.named_call)


def test_a_pickle_leaves_out_what_made_the_function() -> None:
    attributes = vars(liftcore.remat(scaled))
    again = pickle.loads(pickle.dumps({name: value for name, value in attributes.items() if name != "__wrapped__"}))
    assert again.keys() == attributes.keys() - {"__wrapped__"}


def test_nothing_is_kept_alive() -> None:
    def found() -> weakref.ref[Any]:
        def fn(scope: Scope, x: Any) -> Any:
            return lifted(scope, x) if x is None else x

        lifted = liftcore.vmap(fn)
        return weakref.ref(fn)

    fn = found()
    gc.collect()
    assert fn() is None
