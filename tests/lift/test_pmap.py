"""Lifted `pmap`: a `vmap` with each element on a device of its own. The tests have eight simulated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import AxisSizeError, LiftArgumentError, LoopInvarianceError, UnliftedCollectionError
from liftcore.filters import All, PathContains
from liftcore.lift.pmap import pmap
from liftcore.lift.vmap import vmap
from tests.lift.nests import NESTS, Counted, block, everything
from tests.lift.quick import assert_same, compiled, key, uniform
from tests.machine import devices

pytestmark = pytest.mark.devices(8)

KEY = jax.random.key(0)


def keys(first: int = 0) -> dict[str, Any]:
    return {"params": key(first), "dropout": key(first + 1)}


def layer(scope: Scope, x: Any) -> Any:
    """Uses a variable of each kind, and a collective."""
    w = scope.param("w", uniform, (3, 2))
    mean = scope.variable("shared", "mean", lambda: jnp.zeros(3))
    last = scope.variable("state", "last", lambda: 2 * x)
    if scope.is_mutable_collection("state"):
        mean.value += jax.lax.pmean(x, "i")
        last.value = 0.5 * last.value + x
    scope.sow("intermediates", "x", x)
    return (x - mean.value) @ w + last.value[:2] + uniform(scope.make_rng("dropout"), (2,))


AXES: dict[str, Any] = {"variable_axes": {"params": 1, "shared": None, "state": -1}, "split_rngs": True}


# -- the values of vmap ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lift", [pmap, vmap])
def test_arguments_stay_weakly_typed(lift: Callable[..., Any]) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.param("w", lambda key: jnp.bfloat16(1.5))

    weak = jax.lax.broadcast(2.0, (2,))  # as a Python number is, it takes the dtype of what it is computed with
    lifted = lift(fn, variable_axes={"params": 0}, split_rngs={"params": True})
    y, variables = liftcore.init(lifted)(keys(), weak)
    assert y.dtype == liftcore.apply(lifted)(variables, weak).dtype == jnp.bfloat16


@pytest.mark.parametrize("size", [1, 3, 8])
def test_it_equals_vmap(size: int) -> None:
    xs = jnp.arange(3.0 * size).reshape(size, 3) / 10

    def run(lift: Callable[..., Any]) -> Any:
        lifted = lift(layer, "i", **AXES) if lift is pmap else lift(layer, axis_name="i", **AXES)

        def model(first: Any, later: Any, xs: Any) -> Any:
            y, variables = liftcore.init(lifted)(first, xs)
            held = {name: found for name, found in variables.items() if name != "intermediates"}
            apply = liftcore.apply(lifted, mutable=["state", "shared", "intermediates"])

            def loss(params: Any, xs: Any) -> Any:
                result = apply({**held, "params": params}, xs, rngs=later)
                return sum((leaf**2).sum() for leaf in jax.tree.leaves(result)), result

            grads, result = jax.grad(loss, argnums=(0, 1), has_aux=True)(held["params"], xs)
            return y, variables, result, grads, liftcore.apply(lifted)(held, xs, rngs=later)

        return compiled(model, keys(), keys(10), xs)

    assert_same(run(pmap), run(vmap))


def test_it_runs_on_the_devices_given() -> None:
    def fn(scope: Scope, x: Any, y: Any, *, z: Any) -> Any:
        return x + y.sum() + z, y

    on = devices(5)[2:]
    lifted = liftcore.apply(pmap(fn, in_axes=(0, None), out_axes=(0, None), devices=on, axis_size=3))
    sums, whole = lifted({}, jnp.arange(3.0), jnp.ones(2), z=jnp.arange(3.0))
    assert sums.tolist() == [2.0, 4.0, 6.0]
    assert whole.tolist() == [1.0, 1.0]
    assert {shard.device for shard in sums.addressable_shards} == set(on)


@pytest.mark.parametrize(("in_axes", "out_axes"), [(0, 0), (-1, -1), ((1,), 1), ([-2], 1)])
def test_axes_are_those_of_vmap(in_axes: Any, out_axes: Any) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return jnp.stack([x, 2 * x])

    x = jnp.arange(4.0).reshape(2, 2)
    ours = liftcore.apply(pmap(fn, in_axes=in_axes, out_axes=out_axes))({}, x)
    np.testing.assert_array_equal(ours, liftcore.apply(vmap(fn, in_axes, out_axes))({}, x))


def test_python_values_pass_through_where_there_is_no_axis() -> None:
    def fn(scope: Scope, x: Any, mode: str, *, flag: bool) -> Any:
        return x * {"a": 2, "b": 3}[mode] if flag else x

    lifted = liftcore.apply(pmap(fn, in_axes=(0, None)))
    assert lifted({}, jnp.arange(2.0), "b", flag=True).tolist() == [0.0, 3.0]


def test_nothing_need_be_mapped() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x + jax.lax.axis_index("i")

    lifted = pmap(fn, "i", in_axes=None, axis_size=3)
    assert liftcore.apply(lifted)({}, 2).tolist() == [2, 3, 4]


def test_arrays_may_lie_on_devices_already() -> None:
    def fn(scope: Scope, x: Any, scale: Any) -> Any:
        w = scope.param("w", uniform, ())
        count = scope.variable("state", "n", lambda: jnp.zeros(()))
        count.value += 1
        return liftcore.jit(lambda scope, x: jnp.tanh(x * w * scale) + count.value)(scope, x)

    lifted = pmap(fn, in_axes=(0, None), variable_axes={"params": None, "state": 0}, split_rngs=False)
    x, scale = jax.pmap(lambda x: (x, 2.0), out_axes=(0, None))(jnp.arange(2.0))
    _, variables = liftcore.init(lifted)(keys(), x, scale)

    def loss(variables: Any) -> Any:
        return liftcore.apply(lifted, mutable=["state"])(variables, x, scale)[0].sum()

    def by_hand(variables: Any) -> Any:
        return jnp.tanh(x * variables["params"]["w"] * scale).sum() + 2 * variables["state"]["n"].sum()

    assert_same(jax.grad(loss)(variables)["params"], jax.grad(by_hand)(variables)["params"])


@pytest.mark.parametrize("mutable", [False, ["intermediates"]])
def test_donated_arguments_are_given_up(mutable: Any) -> None:
    def fn(scope: Scope, kept: Any, gone: Any) -> Any:
        return gone + kept * scope.get_variable("params", "w")

    apply = liftcore.apply(pmap(fn, variable_axes={"params": None}, donate_argnums=2), mutable=mutable)
    kept = jax.pmap(lambda x: x)(jnp.arange(4.0))
    gone = jax.pmap(lambda x: x + 1)(kept)
    w = jnp.float32(2)
    result = apply({"params": {"w": w}}, kept, gone)
    assert (result[0] if mutable else result).tolist() == [1.0, 4.0, 7.0, 10.0]
    assert [x.is_deleted() for x in (gone, kept, w)] == [True, False, False]


# -- one run, any nest -------------------------------------------------------------------------------------------------


def over(body: Any, lift: Callable[..., Any] = pmap) -> Any:
    """A body over two devices, from one `x`."""
    lifted = lift(body, variable_axes={"params": 0, "count": 0}, split_rngs=True)
    return lambda scope, x: lifted(scope, jnp.stack([x, 2 * x])).sum(0)


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("inside", [False, True])
def test_it_nests_in_others_and_others_in_it(name: str, inside: bool) -> None:
    def model(lift: Callable[..., Any], body: Any = block) -> Any:
        return over(NESTS[name](body), lift) if inside else NESTS[name](over(body, lift))

    def run(lift: Callable[..., Any]) -> Any:
        return compiled(lambda *args: everything(model(lift), *args), keys(), keys(10), jnp.array([0.1, 0.2]))

    assert_same(run(pmap), run(vmap))
    body = Counted(block)
    jax.eval_shape(liftcore.init(model(pmap, body)), keys(), jnp.ones(2))
    assert body.since() == 1


def test_the_body_runs_once_and_not_again_under_a_compiled_step() -> None:
    body = Counted(layer)
    lifted = pmap(body, "i", **AXES)
    xs = jnp.ones((2, 3))
    variables = jax.jit(liftcore.init(lifted))(keys(), xs)[1]
    assert body.since() == 1
    variables.pop("intermediates")
    step = jax.jit(liftcore.apply(lifted, mutable=["state", "shared"]))
    for _ in range(2):
        step(variables, xs, rngs=keys())
    assert body.since() == 1
    liftcore.apply(lifted)(variables, xs, rngs=keys())
    assert body.since() == 1


def test_variables_are_no_constants_of_what_is_compiled() -> None:
    lifted = pmap(lambda scope, x: x * scope.get_variable("params", "w"), variable_axes={"params": None})
    big = np.arange(1000.0, dtype=np.float32)
    jaxpr = jax.make_jaxpr(lambda x: liftcore.apply(lifted)({"params": {"w": big}}, x))(jnp.ones(2))
    (eqn,) = [eqn for eqn in jaxpr.eqns if "jaxpr" in eqn.params]
    assert (1000,) in [var.aval.shape for var in eqn.invars]


def test_a_loop_that_carries_what_the_body_made_begins_with_its_first_value() -> None:
    def tick(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: x)
        n.value = 2 * n.value + x
        return n.value

    def run(lift: Callable[..., Any]) -> Any:
        ticks = lift(tick, variable_axes={"state": 0})
        loop = liftcore.scan(lambda scope, xs, _: (xs + 1, ticks(scope, xs)), length=3, variable_carry="state")
        return compiled(liftcore.init(loop), KEY, jnp.arange(3.0), None)

    assert_same(run(pmap), run(vmap))


def test_scopes_given_twice_and_filters_of_single_variables() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        parent, child, again = scopes
        lora = child.push("lora").param("w", uniform, ())
        return x * parent.param("w", uniform, ()) + lora + again.param("b", uniform, ())

    def model(scope: Scope, x: Any) -> Any:
        child = scope.push("child")
        axes = {All("params", PathContains("lora")): 0, "params": None}
        return pmap(fn, variable_axes=axes, split_rngs=False)((scope, child, child), x)

    y, variables = liftcore.init(model)(keys(), jnp.arange(3.0))
    params = variables["params"]
    assert jax.tree.map(jnp.shape, params) == {"child": {"b": (), "lora": {"w": (3,)}}, "w": ()}
    np.testing.assert_allclose(
        y, jnp.arange(3.0) * params["w"] + params["child"]["lora"]["w"] + params["child"]["b"], rtol=1e-6
    )


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_shared_variable_that_differs_is_an_error() -> None:
    def write(scope: Scope, x: Any) -> Any:
        scope.variable("state", "n", lambda: jnp.zeros(())).value = x

    def create(scope: Scope, x: Any) -> Any:
        return scope.param("w", uniform, ())

    with pytest.raises(LoopInvarianceError, match=r"pmap\(write\) at /: \['state/n'\] is shared.*`jax.lax.pmean`"):
        liftcore.init(pmap(write, variable_axes={"state": None}))(KEY, jnp.arange(2.0))
    with pytest.raises(LoopInvarianceError, match=r"pmap\(create\) at /: \['params/w'\] is shared"):
        liftcore.init(pmap(create, variable_axes={"params": None}, split_rngs=True))(KEY, jnp.arange(2.0))


def test_errors_of_the_arguments() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x + scope.get_variable("params", "w")

    with pytest.raises(LiftArgumentError, match=r"donate_argnums=\(0,\) of pmap: .*Count from 1"):
        pmap(fn, donate_argnums=0)
    with pytest.raises(AxisSizeError, match=r"pmap\(fn\) at /: .*axis_size=…"):
        liftcore.apply(pmap(fn, in_axes=None))({"params": {"w": 1.0}}, 1.0)
    with pytest.raises(UnliftedCollectionError, match=r"at /pmap\(fn\).*one value on all devices"):
        liftcore.apply(pmap(fn))({"params": {"w": 1.0}}, jnp.ones(2))


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("option", [None, "devices", "backend"])
def test_more_elements_than_devices_are_an_error(option: str | None, jitted: bool) -> None:
    options = (
        {} if option is None else {"devices": devices(2)} if option == "devices" else {"backend": jax.default_backend()}
    )
    run = liftcore.apply(pmap(lambda scope, x: 2 * x, **options))
    with pytest.raises(AxisSizeError, match=r"at most \d elements, one for each device, given 9"):
        (jax.jit(run) if jitted else run)({}, jnp.ones((9, 2)))
    assert (run({}, jnp.ones((2, 2))) == 2).all()
