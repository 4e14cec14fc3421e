"""Functions that no lift can run: those of JAX's signature, without a scope, and those that return one."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import pytest

import liftcore
from liftcore.errors import LiftArgumentError
from tests.lift.only import KINDS, only
from tests.lift.quick import key

X = jnp.array([0.1, 0.2, 0.3])


def fails(name: str, body: Any) -> LiftArgumentError:
    root = liftcore.bind({}, key(0), mutable=True).push("a")
    with pytest.raises(LiftArgumentError) as caught:
        only(name, body, ["state"], ["params"])(root, X)
    assert f"{name}(" in caught.value.where or name == "remat_scan"
    return caught.value


@pytest.mark.parametrize(
    ("lift", "where"),
    [
        (lambda fn: liftcore.swap_collection(fn, "params", "ema"), "map_variables(of_jax) at /a"),
        (lambda fn: liftcore.remat_scan(fn, (2, 3)), "scan(of_jax) at /a/scan(of_jax)/remat(of_jax)"),
        (
            lambda fn: liftcore.remat(liftcore.swap_collection(fn, "a", "b")),
            "map_variables(of_jax) at /a/remat(of_jax)",
        ),
    ],
)
def test_a_function_that_another_one_calls_for_a_lift_is_told_of_by_its_own_name(lift: Any, where: str) -> None:
    def of_jax(x: Any) -> Any:
        return x

    root = liftcore.bind({}, key(0), mutable=True).push("a")
    with pytest.raises(TypeError) as caught:
        lift(of_jax)(root, X)
    assert caught.value.__notes__[0].startswith(f"{where}: the call is `of_jax(a Scope, a float32[3] array)`, but ")


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("grad",)])
@pytest.mark.parametrize("what", ["Scope", "Variable"])
def test_a_scope_or_variable_that_a_body_returns_is_told_of(name: str, what: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        return {"y": x, "kept": [scope if what == "Scope" else scope.variable("state", "n", lambda: 0.0)]}

    error = fails(name, body)
    assert f"returned a {what}, which ends with the lift." in error.what
    assert error.fix == "Return arrays: results computed with it, or the value of the variable."


def test_a_type_error_of_the_body_itself_stays_what_it_is() -> None:
    def wrong(scope: Any, x: Any) -> Any:
        return functools.partial(lambda a: a)(x, 2)

    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given") as caught:
        liftcore.apply(liftcore.remat(wrong))({}, X)
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "the call is" in note]


def test_a_decorator_may_give_what_the_function_asks_for() -> None:
    def of_two(scope: Any, x: Any, scale: float) -> Any:
        return scale * x

    @functools.wraps(of_two)
    def decorated(*args: Any) -> Any:
        return of_two(*args, 2.0)

    assert (liftcore.apply(liftcore.remat(decorated))({}, X) == 2 * X).all()

    @functools.wraps(of_two)
    def broken(*args: Any) -> Any:
        return of_two(*args)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scale'") as caught:
        liftcore.apply(liftcore.remat(broken))({}, X)
    assert not [note for note in getattr(caught.value, "__notes__", ()) if "the call is" in note]
