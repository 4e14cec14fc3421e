"""Lifted `jit` over several devices: where arguments, results and variables lie, and that numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError
from liftcore.filters import All, Not, PathContains
from tests.lift.quick import assert_same as same
from tests.machine import make_mesh

pytestmark = pytest.mark.devices(8)
KEY = jax.random.key(0)
X = jnp.arange(48.0).reshape(8, 6)


def over(*axes: str | None) -> NamedSharding:
    return NamedSharding(make_mesh((4, 2), "data", "model"), P(*axes))


def layer(scope: Scope, x: Any, by: Any = 1.0) -> Any:
    w = scope.param("w", jax.random.normal, (6, 4))
    lora = scope.param("lora", jax.random.normal, (6, 4))
    mean = scope.variable("state", "mean", jnp.zeros, (6,))
    if scope.is_mutable_collection("state"):
        mean.value = mean.value + x.mean(0)
    scope.sow("intermediates", "x", x)
    return {"y": by * x @ (w + lora) + mean.value.sum(), "sum": x.sum()}


def lies(value: jax.Array, sharding: NamedSharding) -> bool:
    return value.sharding.is_equivalent_to(sharding, value.ndim)


# -- where things lie --------------------------------------------------------------------------------------------------


def test_arguments_and_results_lie_where_they_are_told_to() -> None:
    seen: list[Any] = []

    def fn(scope: Scope, x: Any, y: Any) -> Any:
        jax.debug.inspect_array_sharding(x, callback=seen.append)
        return x + y, x.sum()

    lifted = liftcore.jit(fn, in_shardings=(over("data"), None), out_shardings=(over("model"), over()))
    total, summed = liftcore.apply(lifted)({}, X, X)
    assert seen[0].is_equivalent_to(over("data"), 2)
    assert lies(total, over("model"))
    assert lies(summed, over())
    np.testing.assert_array_equal(total, X + X)


def test_one_sharding_is_for_all_arguments() -> None:
    lifted = liftcore.apply(liftcore.jit(lambda scope, x, y: x * y, in_shardings=over("data")))
    np.testing.assert_array_equal(lifted({}, X, X), X * X)
    with pytest.raises(ValueError, match="does not match the sharding on the respective arg"):
        lifted({}, jax.device_put(X, over("model")), X)


def test_created_variables_lie_where_they_are_told_to() -> None:
    shardings = {All("params", PathContains("lora")): over("model"), "params": over(None, "model"), "state": over()}
    lifted = liftcore.jit(layer, variable_shardings=shardings)
    y, variables = liftcore.init(lifted)(KEY, X)
    same((y, variables), liftcore.init(layer)(KEY, X))
    assert lies(variables["params"]["w"], over(None, "model"))
    assert lies(variables["params"]["lora"], over("model"))
    assert lies(variables["state"]["mean"], over())


def test_variables_that_go_in_and_come_out_lie_where_they_are_told_to() -> None:
    _, variables = liftcore.init(layer)(KEY, X)
    seen: list[Any] = []

    def inspected(scope: Scope, x: Any) -> Any:
        jax.debug.inspect_array_sharding(scope.get_variable("params", "w"), callback=seen.append)
        return layer(scope, x)

    lifted = liftcore.jit(inspected, variable_shardings={"params": over("model"), "state": over("model")})
    y, mutated = liftcore.apply(lifted, mutable=["state"])(variables, X)
    same((y, mutated), liftcore.apply(layer, mutable=["state"])(variables, X))
    assert seen[0].is_equivalent_to(over("model"), 2)
    assert lies(mutated["state"]["mean"], over("model"))


def test_variables_that_are_not_told_of_stay_where_they_lie() -> None:
    _, variables = liftcore.init(layer)(KEY, X)
    variables["params"]["w"] = jax.device_put(variables["params"]["w"], over(None, "model"))
    seen: list[Any] = []

    def inspected(scope: Scope, x: Any) -> Any:
        jax.debug.inspect_array_sharding(scope.get_variable("params", "w"), callback=seen.append)
        return layer(scope, x)

    lifted = liftcore.jit(inspected, variable_shardings={"state": over()}, in_shardings=over("data"))
    y = liftcore.apply(lifted)(variables, X)
    assert seen[0].is_equivalent_to(over(None, "model"), 2)
    same(y, liftcore.apply(layer)(variables, X))


def test_filters_go_by_the_path_of_each_call() -> None:
    def model(scope: Scope, x: Any) -> Any:
        rules = {PathContains("first"): over("model"), All("params", Not(PathContains("first"))): over()}
        lifted = liftcore.jit(layer, variable_shardings=rules)
        return [lifted(scope.push(name), x)["sum"] for name in ("first", "second")]

    _, variables = liftcore.init(model)(KEY, X)
    assert lies(variables["params"]["first"]["w"], over("model"))
    assert lies(variables["params"]["second"]["w"], over())


# -- equal numbers -----------------------------------------------------------------------------------------------------


def sharded(fn: Callable[..., Any]) -> Callable[..., Any]:
    out = {"y": over("data"), "sum": None}
    rules = {"params": over(None, "model"), "state": over("model")}
    return liftcore.jit(fn, in_shardings=over("data"), out_shardings=out, variable_shardings=rules)


def bare(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


@pytest.mark.parametrize("mutable", [False, ["state"], ["intermediates"], True])
def test_values_and_gradients_are_those_of_one_device(mutable: Any) -> None:
    _, variables = liftcore.init(layer)(KEY, X)
    variables.pop("intermediates")

    def loss(params: Any, lift: Callable[..., Any], x: Any) -> Any:
        found = liftcore.apply(lift(layer), mutable=mutable)({**variables, "params": params}, x)
        y, mutated = found if mutable else (found, {})
        return (y["y"] ** 2).mean(), (y, mutated)

    for wrap in (bare, lambda fn: jax.jit(fn, static_argnums=1)):
        grad = wrap(jax.value_and_grad(loss, has_aux=True))
        same(*(grad(variables["params"], lift, X) for lift in (sharded, bare)))


def looped(lift: Callable[..., Any]) -> Callable[..., Any]:
    def body(scope: Scope, carry: Any, _: Any) -> Any:
        return carry, lift(layer)(scope.push("block"), carry)

    split = {"params": False}
    return liftcore.scan(
        liftcore.remat(body), length=2, variable_broadcast="params", variable_carry="state", split_rngs=split
    )


def mapped(lift: Callable[..., Any]) -> Callable[..., Any]:
    over = liftcore.vmap(lift(layer), None, axis_size=2, variable_axes={True: 0}, split_rngs={"params": True})
    return lambda scope, x, _: over(scope, x)


@pytest.mark.parametrize("outer", [looped, mapped])
def test_in_other_lifts(outer: Callable[..., Any]) -> None:
    results = [liftcore.init(outer(lift))(KEY, X, None) for lift in (sharded, bare)]
    same(*results)
    variables = {name: results[1][1][name] for name in ("params", "state")}
    for wrap in (bare, jax.jit):
        apply = (wrap(liftcore.apply(outer(lift), mutable=["state"])) for lift in (sharded, bare))
        same(*(run(variables, X, None) for run in apply))


def test_specs_go_by_the_mesh_that_is_set() -> None:
    lifted = liftcore.jit(
        layer,
        in_shardings=(P("data"),),
        out_shardings={"y": P("data"), "sum": P()},
        variable_shardings={"params": P(None, "model")},
    )
    with jax.set_mesh(over().mesh):
        y, variables = liftcore.init(lifted)(KEY, X)
    same((y, variables), liftcore.init(layer)(KEY, X))
    assert lies(y["y"], over("data"))
    assert lies(variables["params"]["w"], over(None, "model"))


# -- caching and arguments ---------------------------------------------------------------------------------------------

RUNS: list[Any] = []


def counted(scope: Scope, x: Any, times: int = 1) -> Any:
    RUNS.append(x.shape)
    return times * x @ scope.param("w", jax.random.normal, (6, 4))


def test_equal_shardings_share_a_trace_and_others_do_not() -> None:
    RUNS.clear()
    for axis in ("data", "data", "model"):
        lifted = liftcore.jit(counted, in_shardings=over(axis), variable_shardings={"params": over("model")})
        liftcore.init(lifted)(KEY, X)
    assert len(RUNS) == 2


def test_static_arguments_are_not_counted_and_donated_ones_are_gone() -> None:
    x = jax.device_put(X, over("data"))
    lifted = liftcore.jit(counted, static_argnums=2, donate_argnums=1, in_shardings=(over("data"),))
    y, variables = liftcore.init(lifted)(KEY, x, 3)
    same(y, liftcore.init(counted)(KEY, X, 3)[0])
    liftcore.apply(lifted)(variables, jax.device_put(X, over("data")), times=3)


def test_misuse_says_so() -> None:
    apply = liftcore.apply
    with pytest.raises(
        LiftArgumentError, match=r"jit\(<lambda>\) at /, in_shardings: it is not a prefix of the value's"
    ):
        apply(liftcore.jit(lambda scope, x: x, in_shardings=(over(), over())))({}, X)
    with pytest.raises(LiftArgumentError, match=r"in_shardings: it applies to positional arguments, but \['x'\]"):
        apply(liftcore.jit(lambda scope, x: x, in_shardings=over()))({}, x=X)
    with pytest.raises(LiftArgumentError, match=r"jit\(<lambda>\) at /, out_shardings: it is not a prefix"):
        apply(liftcore.jit(lambda scope, x: x, out_shardings={"y": over()}))({}, X)
    with pytest.raises(LiftArgumentError, match=r"variable_shardings of jit: expected a mapping"):
        liftcore.jit(layer, variable_shardings=over())  # type: ignore[arg-type]
