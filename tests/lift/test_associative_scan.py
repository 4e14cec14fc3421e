"""Lifted `associative_scan`: an operator that reads variables, and does nothing else to its scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope, nn
from liftcore.errors import LiftArgumentError, ModifyScopeVariableError, UnliftedCollectionError
from liftcore.filters import All, PathContains
from liftcore.lift.associative_scan import associative_scan
from tests.lift.nests import NESTS, Counted
from tests.lift.quick import assert_same, uniform

KEY = jax.random.key(0)
GAIN = {"params": {"gain": jnp.array([0.5, 2.0])}}
ELEMS = jnp.arange(1.0, 11.0).reshape(5, 2)


def product(scope: Scope, a: Any, b: Any) -> Any:
    return a * scope.get_variable("params", "gain") * b


def by_hand(variables: Any, elems: Any, **options: Any) -> Any:
    return jax.lax.associative_scan(lambda a, b: a * variables["params"]["gain"] * b, elems, **options)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, (5, 2)), ({"reverse": True}, (5, 2)), ({"axis": 1}, (3, 5, 2)), ({"reverse": True, "axis": 1}, (3, 4, 2))],
)
@pytest.mark.parametrize("mutable", [False, True])
def test_it_equals_jax_with_gradients(options: dict[str, Any], shape: tuple[int, ...], mutable: bool) -> None:
    elems = jnp.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape)
    lifted = liftcore.apply(associative_scan(product, **options), mutable=mutable)

    def ours(variables: Any, elems: Any) -> Any:
        return lifted(variables, elems)[0] if mutable else lifted(variables, elems)

    def theirs(variables: Any, elems: Any) -> Any:
        return by_hand(variables, elems, **options)

    assert_same(ours(GAIN, elems), theirs(GAIN, elems))

    def grads(fn: Callable[..., Any]) -> Any:
        return jax.grad(lambda *args: fn(*args).sum(), argnums=(0, 1))(GAIN, elems)

    assert_same(grads(ours), grads(theirs))


def test_it_equals_the_loop() -> None:
    total, expected = ELEMS[0], [ELEMS[0]]
    for elem in ELEMS[1:]:
        total = total * GAIN["params"]["gain"] * elem
        expected.append(total)
    np.testing.assert_allclose(liftcore.apply(associative_scan(product))(GAIN, ELEMS), jnp.stack(expected), rtol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_few_elements(size: int) -> None:
    ours = liftcore.apply(associative_scan(product), mutable=True)(GAIN, ELEMS[:size])[0]
    np.testing.assert_array_equal(ours, by_hand(GAIN, ELEMS[:size]))


def test_elements_may_be_any_pytree() -> None:
    def compose(scope: Scope, f: Any, g: Any) -> Any:
        mix = scope.get_variable("params", "mix")
        return {"a": f["a"] * mix * g["a"], "n": f["n"] + g["n"]}

    elems = {"a": jnp.ones(4), "n": jnp.ones(4, int)}
    ours = liftcore.apply(associative_scan(compose))({"params": {"mix": 2.0}}, elems)
    assert ours["a"].tolist() == [1.0, 2.0, 4.0, 8.0]
    assert ours["n"].tolist() == [1, 2, 3, 4]


def test_the_operator_runs_as_often_as_jax_calls_it() -> None:
    ours, theirs = Counted(product), Counted(lambda a, b: a * b)
    for size in (2, 5, 16):
        liftcore.apply(associative_scan(ours))(GAIN, jnp.ones((size, 2)))
        jax.lax.associative_scan(theirs, jnp.ones((size, 2)))
        assert ours.since() == theirs.since()


# -- in a model --------------------------------------------------------------------------------------------------------


def model(scope: Scope, x: Any) -> Any:
    """Creates the variable before, reads it in the operator."""
    scope.param("gain", uniform, x.shape)
    return associative_scan(product)(scope, jnp.stack([x, 2 * x, 3 * x])).sum(0)


def plainly(scope: Scope, x: Any) -> Any:
    gain = scope.param("gain", uniform, x.shape)
    return by_hand({"params": {"gain": gain}}, jnp.stack([x, 2 * x, 3 * x])).sum(0)


@pytest.mark.parametrize("name", NESTS)
def test_it_nests_in_others(name: str) -> None:
    def run(body: Callable[..., Any]) -> Any:
        x = jnp.array([0.1, 0.2])
        lifted = NESTS[name](body)
        variables = liftcore.init(lifted)(KEY, x)[1]
        return variables, jax.grad(lambda v: liftcore.apply(lifted)(v, x).sum())(variables)

    assert_same(run(model), run(plainly))


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat])
def test_others_nest_in_it(lift: Callable[..., Any]) -> None:
    ours = liftcore.apply(associative_scan(lift(product)))(GAIN, ELEMS)
    np.testing.assert_allclose(ours, by_hand(GAIN, ELEMS), rtol=1e-6)


def test_layers_may_be_used_and_scopes_pushed_in_it() -> None:
    def mixed(scope: Scope, a: Any, b: Any) -> Any:
        return a @ scope.push("mix").get_variable("params", "w") @ b

    variables = {"params": {"mix": {"w": jnp.array([[0.0, 1.0], [1.0, 0.0]])}}}
    elems = jnp.stack([jnp.eye(2) * number for number in (1.0, 2.0, 3.0)])
    ours = liftcore.apply(associative_scan(mixed))(variables, elems)
    assert ours[2].tolist() == [[6.0, 0.0], [0.0, 6.0]]
    dense = {"params": {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}}
    summed = associative_scan(lambda scope, a, b: nn.dense(scope, a + b, 2))
    np.testing.assert_allclose(liftcore.apply(summed)(dense, ELEMS), jnp.cumsum(ELEMS, 0), rtol=1e-6)


def test_scopes_may_be_given_twice_or_below_another() -> None:
    def fn(scopes: Any, a: Any, b: Any) -> Any:
        parent, child, again = scopes
        gain = child.get_variable("params", "gain") * again.get_variable("params", "gain")
        return a * gain * b * parent.get_variable("params", "scale")

    def nested(scope: Scope, elems: Any) -> Any:
        child = scope.push("child")
        return associative_scan(fn)((scope, child, child), elems)

    variables = {"params": {"scale": 0.5, "child": {"gain": 2.0}}}
    assert liftcore.apply(nested)(variables, jnp.ones(3)).tolist() == [1.0, 2.0, 4.0]


def test_a_filter_says_which_variables_are_lifted() -> None:
    variables = {"params": {"gain": jnp.ones(2), "lora": {"w": jnp.ones(2)}}}
    lora = All("params", PathContains("lora"))

    def read(scope: Scope, a: Any, b: Any) -> Any:
        return a * b * scope.push("lora").get_variable("params", "w")

    assert liftcore.apply(associative_scan(read, variables=lora))(variables, ELEMS).shape == (5, 2)
    with pytest.raises(UnliftedCollectionError, match=r"exists outside associative_scan\(product\).*to `variables`"):
        liftcore.apply(associative_scan(product, variables=lora))(variables, ELEMS)


# -- errors ------------------------------------------------------------------------------------------------------------


def creates(scope: Scope, a: Any, b: Any) -> Any:
    return a * b * scope.push("dense").param("w", uniform, (2,))


def writes(scope: Scope, a: Any, b: Any) -> Any:
    scope.put_variable("state", "n", a.sum())
    return a * b


def sows(scope: Scope, a: Any, b: Any) -> Any:
    scope.sow("intermediates", "a", a)
    return a * b


def draws(scope: Scope, a: Any, b: Any) -> Any:
    return a * b * jax.random.normal(scope.make_rng("dropout"))


@pytest.mark.parametrize(
    ("operator", "what", "fix"),
    [
        (creates, r"creates \['params/dense/w'\]", "Create it before"),
        (writes, r"writes \['state/n'\]", "Write it after"),
        (sows, r"sows \['intermediates/a'\]", "Sow it after"),
        (draws, r"draws from \['dropout'\]", "Draw before"),
    ],
)
def test_an_operator_that_does_more_than_read_is_an_error(operator: Any, what: str, fix: str) -> None:
    lifted = associative_scan(operator)
    root = liftcore.bind({"state": {"n": 0.0}}, {"params": KEY, "dropout": KEY}, mutable=True)
    with pytest.raises(LiftArgumentError, match=what) as caught:
        lifted(root.push("a"), ELEMS)
    assert caught.value.where == f"associative_scan({operator.__name__}) at /a"
    assert fix in caught.value.fix
    assert root.variables() == {"state": {"n": 0.0}}


def test_what_is_immutable_stays_so_and_what_nobody_asked_for_is_not_sown() -> None:
    with pytest.raises(ModifyScopeVariableError, match=r"\"state/n\" at /associative_scan\(writes\)"):
        liftcore.apply(associative_scan(writes))({"state": {"n": 0.0}}, ELEMS)
    np.testing.assert_allclose(liftcore.apply(associative_scan(sows))({}, ELEMS), jnp.cumprod(ELEMS, 0), rtol=1e-5)
