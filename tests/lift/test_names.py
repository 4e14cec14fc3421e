"""Names on the two sides of a lift: those of scopes are taken for its body, a variable may be declared in it again."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore.errors import NameInUseError
from tests.lift.quick import key
from tests.lift.table import SHOWN, TABLE

X = jnp.array([0.1, 0.2, 0.3])
LIFTED = [name for name in TABLE if SHOWN[name]]
LIFTS = pytest.mark.parametrize("name", LIFTED)
SWAPPED = "swap_collection"
"""The row under which the body sees the collection `fixed` by another name."""


def run(name: str, body: Any, before: Any) -> Any:
    """A model that does something with its scope, and then runs the body on it inside a lift."""

    def model(scope: Any, x: Any) -> Any:
        before(scope)
        return TABLE[name].lifted(body)(scope, x)

    return liftcore.init(model)({"params": key(0), "dropout": key(1)}, X)


def fixed(scope: Any) -> Any:
    return scope.variable("fixed", "c", lambda: jnp.array(2.0))


@pytest.mark.parametrize("name", [name for name in LIFTED if name != SWAPPED])
def test_a_variable_is_declared_again_inside_a_lift(name: str) -> None:
    given = {"fixed": {"c": jnp.array(2.0)}}

    def model(scope: Any, x: Any, again: bool) -> Any:
        fixed(scope)
        body = TABLE[name].lifted(lambda scope, x: x * (fixed(scope).value if again else 2.0))
        return body(scope, x), scope.get_variable("fixed", "c")

    (y, value), variables = liftcore.init(model)({"params": key(0)}, X, True)
    applied = liftcore.apply(model)(given, X, True, rngs={"params": key(0)})
    plain, _ = liftcore.apply(model)(given, X, False, rngs={"params": key(0)})
    for found in (y, applied[0]):
        np.testing.assert_allclose(found, plain, rtol=1e-6)
    assert value == applied[1] == 2.0
    assert list(variables) == ["fixed"]


@LIFTS
def test_a_variable_is_declared_once_inside_a_lift(name: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        return x * fixed(scope).value * fixed(scope).value

    for before in (lambda scope: None, fixed):
        with pytest.raises(NameInUseError, match=r'"c" at /.*: a variable of "fixed" asks for the name'):
            run(name, body, before)


@LIFTS
def test_names_that_were_taken_before_a_lift_are_taken_inside(name: str) -> None:
    """Or two layers of a model would share their parameters without anybody having asked for it."""

    def pushed(scope: Any, x: Any) -> Any:
        scope.push("c")
        return x

    with pytest.raises(NameInUseError, match=r'"c" at /.*: a scope .* asks for the name, but a scope .* has it'):
        run(name, pushed, lambda scope: scope.push("c"))
    with pytest.raises(NameInUseError, match=r'"c" at /.*: a scope .* asks for the name, but a variable of "fixed"'):
        run(name, pushed, fixed)
    with pytest.raises(NameInUseError, match=r'"c" at /.*: a variable .* asks for the name, but a scope'):
        run(name, lambda scope, x: x * fixed(scope).value, lambda scope: scope.push("c"))


@LIFTS
def test_automatic_names_go_on_inside_and_after_a_lift(name: str) -> None:
    seen: list[Any] = []

    def body(scope: Any, x: Any) -> Any:
        seen.append((scope.push(prefix="layer_").name, scope.number("layer_")))
        return x

    def model(scope: Any, x: Any) -> Any:
        scope.push(prefix="layer_"), scope.number("layer_")
        y = TABLE[name].lifted(body)(scope, x)
        seen.append((scope.push(prefix="layer_").name, scope.number("layer_")))
        return y

    liftcore.init(model)({"params": key(0), "dropout": key(1)}, X)
    assert set(seen) == {("layer_1", 1), ("layer_2", 2)}


def test_a_variable_is_declared_again_at_each_depth_and_by_each_of_several_lifts() -> None:
    def count(scope: Any) -> Any:
        found = scope.variable("state", "n", lambda: 0)
        found.value += 1
        return found

    def deepest(scope: Any, x: Any) -> Any:
        return x + count(scope).value

    def deep(scope: Any, x: Any) -> Any:
        count(scope)
        return liftcore.cond(deepest, deepest)(scope, x > 0, x)

    def model(scope: Any, x: Any) -> Any:
        n = count(scope)
        for _ in range(2):
            x = liftcore.jit(deep)(scope, x)
        return x, n.value

    (y, n), variables = liftcore.init(model)(key(0), 0)
    assert (int(y), int(n), int(variables["state"]["n"])) == (8, 5, 5)


def test_what_a_lift_declared_is_not_declared_again_behind_it() -> None:
    def body(scope: Any) -> Any:
        return scope.param("w", lambda key: 1.0)

    def model(scope: Any) -> Any:
        return liftcore.remat(body)(scope) + scope.param("w", lambda key: 1.0)

    with pytest.raises(NameInUseError, match='"w" at /'):
        liftcore.init(model)(key(0))


@pytest.mark.parametrize("give_back", [lambda scope: scope.free("c", "fixed"), lambda scope: scope.free_all()])
def test_a_name_that_was_given_back_is_declared_once(give_back: Any) -> None:
    def body(scope: Any, x: Any) -> Any:
        give_back(scope)
        return x * fixed(scope).value * fixed(scope).value

    with pytest.raises(NameInUseError, match='"c" at /'):
        run("remat", body, fixed)


def test_two_views_of_a_place_inside_a_lift_declare_a_variable_once() -> None:
    def body(scope: Any, x: Any) -> Any:
        return fixed(scope).value + fixed(scope.beside()).value

    with pytest.raises(NameInUseError, match='"c" at /'):
        run("remat", body, fixed)


def test_a_purified_function_declares_variables_of_its_scope_again() -> None:
    def model(scope: Any) -> Any:
        fixed(scope)
        pure, variables = liftcore.purify(lambda scope: fixed(scope).value, scope)
        return pure(variables)

    assert liftcore.init(model)(key(0))[0] == 2.0
