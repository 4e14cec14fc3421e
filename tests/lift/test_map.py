"""Lifted `map`: a `vmap` that takes the elements in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import AxisSizeError, LoopInvarianceError, UnliftedCollectionError, UnliftedStreamError
from liftcore.filters import All, PathContains
from liftcore.lift.map import map as lifted_map
from liftcore.lift.vmap import vmap
from tests.lift import plain
from tests.lift.nests import NESTS, Counted, block, everything
from tests.lift.quick import assert_same, compiled, key, uniform

KEY = jax.random.key(0)
AXES: dict[str, Any] = {"variable_axes": {"params": 1, "shared": None, "state": -1, "count": 0}, "split_rngs": True}


def keys(first: int = 0) -> dict[str, Any]:
    return {"params": key(first), "dropout": key(first + 1)}


def layer(scope: Scope, x: Any) -> Any:
    """Uses a variable of each kind."""
    w = scope.param("w", uniform, (3, 2))
    steps = scope.variable("shared", "steps", lambda: jnp.zeros(()))
    mean = scope.variable("state", "mean", lambda: 2 * x)
    if scope.is_mutable_collection("state"):
        steps.value += 1
        mean.value = 0.5 * mean.value + x
    scope.sow("intermediates", "x", x)
    return x @ w * steps.value + mean.value[:2] + uniform(scope.make_rng("dropout"), (2,))


def calls(lift: Callable[..., Any], **options: Any) -> Any:
    return lift(layer, **AXES, **options)


# -- the values of vmap ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("batch_size", [None, 1, 2, 7])
def test_it_equals_vmap(size: int, batch_size: int | None) -> None:
    xs = jnp.arange(3.0 * size).reshape(size, 3) / 10

    def run(lift: Callable[..., Any], **options: Any) -> Any:
        def model(first: Any, later: Any, xs: Any) -> Any:
            lifted = calls(lift, **options)
            y, variables = liftcore.init(lifted)(first, xs)
            held = {name: found for name, found in variables.items() if name != "intermediates"}
            apply = liftcore.apply(lifted, mutable=["state", "shared", "intermediates"])

            def loss(params: Any, xs: Any) -> Any:
                result = apply({**held, "params": params}, xs, rngs=later)
                return sum((leaf**2).sum() for leaf in jax.tree.leaves(result)), result

            grads, result = jax.grad(loss, argnums=(0, 1), has_aux=True)(held["params"], xs)
            return y, variables, result, grads

        return compiled(model, keys(), keys(10), xs)

    assert_same(run(lifted_map, batch_size=batch_size), run(vmap))


def test_an_element_draws_from_its_part_of_the_split_root() -> None:
    def draw(scope: Scope, x: Any) -> Any:
        return jax.random.key_data(scope.push("a").make_rng())

    found = liftcore.apply(lifted_map(draw, split_rngs=True, batch_size=2))({}, jnp.ones(3), rngs=KEY)
    for index, root in enumerate(jax.random.split(KEY, 3)):
        alone = liftcore.bind({}, root).push("a").make_rng()
        np.testing.assert_array_equal(found[index], jax.random.key_data(alone))


@pytest.mark.parametrize("batch_size", [None, 2])
def test_it_equals_the_loop(batch_size: int | None) -> None:
    rule = plain.Rule({"params": -1, "shared": None, "count": 0}, {"params": True, "dropout": True}, size=3)
    xs = jnp.arange(9.0).reshape(3, 3)

    def body(scope: Any, x: Any) -> Any:
        return block(scope, x) + scope.variable("shared", "shift", lambda: jnp.arange(3.0)).value

    def loop(scope: Any, xs: Any) -> Any:
        return jnp.stack(rule.run(scope, lambda inner, index: body(inner, xs[index])))

    lifted = lifted_map(body, batch_size=batch_size, variable_axes=rule.axes, split_rngs=rule.split)
    ours = liftcore.init(lifted)(keys(), xs)
    assert_same(ours, plain.init(loop)(keys(), xs))
    variables = {name: found for name, found in ours[1].items() if name != "intermediates"}
    again = liftcore.apply(lifted, mutable=["count", "intermediates"])(variables, xs, rngs=keys(10))
    assert_same(again, plain.apply(loop, mutable=("count", "intermediates"))(variables, xs, rngs=keys(10)))


def test_elements_may_be_any_pytree() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return {"sum": x["a"] + x["b"][0], "none": None}

    xs = {"a": jnp.arange(4.0), "b": [jnp.ones(4)]}
    ours = liftcore.apply(lifted_map(fn))({}, xs)
    assert ours["sum"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert ours["none"] is None


def test_the_size_may_come_from_variables_alone() -> None:
    def fn(scope: Scope, x: None) -> Any:
        return 2 * scope.get_variable("params", "w")

    lifted = liftcore.apply(lifted_map(fn, variable_axes={"params": 0}))
    assert lifted({"params": {"w": jnp.arange(3.0)}}, None).tolist() == [0.0, 2.0, 4.0]


# -- one trace, one loop -----------------------------------------------------------------------------------------------


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from equations(getattr(value, "jaxpr", value))


@pytest.mark.parametrize("mutable", [False, ["intermediates"]])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_it_is_the_loop_of_jax(mutable: Any, batch_size: int | None) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return jnp.sin(x * scope.get_variable("params", "w"))

    def by_hand(w: Any, xs: Any) -> Any:
        return jax.lax.map(lambda x: jnp.sin(x * w), xs, batch_size=batch_size)

    lifted = liftcore.apply(lifted_map(fn, variable_axes={"params": None}, batch_size=batch_size), mutable=mutable)
    ours = jax.make_jaxpr(lambda w, xs: lifted({"params": {"w": w}}, xs))(jnp.ones(2), jnp.ones((5, 2)))
    theirs = jax.make_jaxpr(by_hand)(jnp.ones(2), jnp.ones((5, 2)))
    names = [[eqn.primitive.name for eqn in equations(jaxpr)] for jaxpr in (ours, theirs)]
    assert sorted(names[0]) == sorted(names[1])
    assert names[0].count("scan") == 1


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_body_runs_once(batch_size: int | None) -> None:
    body = Counted(layer)
    lifted = lifted_map(body, batch_size=batch_size, **AXES)
    xs = jnp.ones((5, 3))
    variables = liftcore.init(lifted)(keys(), xs)[1]
    assert body.since() == 1
    liftcore.apply(lifted)(variables, xs, rngs=keys())
    assert body.since() == 1
    liftcore.apply(lifted, mutable=True)(variables, xs, rngs=keys())
    assert body.since() == 1
    jax.grad(lambda v: liftcore.apply(lifted)({**variables, **v}, xs, rngs=keys()).sum())(
        {"params": variables["params"]}
    )
    assert body.since() == 1


def over(body: Any, lift: Callable[..., Any] = lifted_map, **options: Any) -> Any:
    """A body over two elements, from one `x`."""
    lifted = lift(body, variable_axes={"params": 0, "count": 0}, split_rngs=True, **options)
    return lambda scope, x: lifted(scope, jnp.stack([x, 2 * x])).sum(0)


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("inside", [False, True])
def test_it_nests_in_others_and_others_in_it(name: str, inside: bool) -> None:
    def model(lift: Callable[..., Any], body: Any = block) -> Any:
        return over(NESTS[name](body), lift) if inside else NESTS[name](over(body, lift))

    def run(lift: Callable[..., Any]) -> Any:
        return compiled(lambda *args: everything(model(lift), *args), keys(), keys(10), jnp.array([0.1, 0.2]))

    assert_same(run(lifted_map), run(vmap))
    body = Counted(block)
    jax.eval_shape(liftcore.init(model(lifted_map, body)), keys(), jnp.ones(2))
    assert body.since() == 1


def test_it_nests_four_deep_with_one_run() -> None:
    body = Counted(block)
    model = over(over(over(over(body), batch_size=2), batch_size=1))
    variables = liftcore.init(model)(keys(), jnp.ones(2))[1]
    assert body.since() == 1
    assert variables["params"]["w"].shape == (2, 2, 2, 2, 2)
    jax.grad(lambda v: liftcore.apply(model)({**variables, **v}, jnp.ones(2), rngs=keys()).sum())(
        {"params": variables["params"]}
    )
    assert body.since() == 1


def test_a_loop_that_carries_what_the_body_made_begins_with_its_first_value() -> None:
    def tick(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: x)
        n.value = 2 * n.value + x
        return n.value

    ticks = lifted_map(tick, variable_axes={"state": 0}, batch_size=2)
    loop = liftcore.scan(lambda scope, xs, _: (xs + 1, ticks(scope, xs)), length=3, variable_carry="state")
    (_, ys), variables = liftcore.init(loop)(KEY, jnp.arange(3.0), None)

    xs, n, expected = jnp.arange(3.0), jnp.arange(3.0), []
    for _ in range(3):
        n = 2 * n + xs
        expected.append(n)
        xs = xs + 1
    np.testing.assert_array_equal(ys, jnp.stack(expected))
    np.testing.assert_array_equal(variables["state"]["n"], n)


def test_a_loop_may_share_what_does_not_depend_on_it() -> None:
    def body(scope: Scope, x: Any) -> Any:
        scope.variable("cache", "first", lambda: x)
        return x * scope.param("w", uniform, ())

    mapped = lifted_map(body, variable_axes={"params": 0, "cache": 0}, split_rngs=True)
    loop = liftcore.scan(
        lambda scope, xs, _: (mapped(scope, xs), None),
        length=3,
        variable_broadcast="params",
        variable_carry="cache",
        split_rngs=False,
    )
    _, variables = liftcore.init(loop)(keys(), jnp.arange(4.0), None)
    assert variables["params"]["w"].shape == (4,)
    assert variables["cache"]["first"].tolist() == [0.0, 1.0, 2.0, 3.0]


# -- variables ---------------------------------------------------------------------------------------------------------


def test_the_first_filter_that_matches_says_the_axis() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x + scope.param("base", uniform, (2,)) + scope.push("lora").param("w", uniform, (2,))

    axes = {All("params", PathContains("lora")): 0, "params": None}
    lifted = lifted_map(fn, batch_size=2, variable_axes=axes, split_rngs=False)
    _, variables = liftcore.init(lifted)(KEY, jnp.zeros((3, 2)))
    assert jax.tree.map(jnp.shape, variables["params"]) == {"base": (2,), "lora": {"w": (3, 2)}}
    grads = jax.grad(lambda v: liftcore.apply(lifted)(v, jnp.zeros((3, 2))).sum())(variables)["params"]
    assert grads["base"].tolist() == [3.0, 3.0]
    assert grads["lora"]["w"].tolist() == [[1.0, 1.0]] * 3


def test_scopes_may_be_given_twice_or_below_another() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        parent, child, again = scopes
        count = again.variable("state", "n", lambda: jnp.zeros(()))
        count.value += 1
        return x * parent.param("w", uniform, ()) + child.get_variable("state", "n")

    def model(scope: Scope, xs: Any) -> Any:
        child = scope.push("child")
        lifted = lifted_map(fn, variable_axes={"params": 0, "state": 0}, split_rngs=True)
        return lifted((scope, child, child), xs)

    y, variables = liftcore.init(model)(KEY, jnp.arange(3.0))
    assert variables["state"]["child"]["n"].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(y, jnp.arange(3.0) * variables["params"]["w"] + 1, rtol=1e-6)


@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.jit, liftcore.remat])
def test_a_shared_variable_may_be_written_alike(lift: Callable[..., Any]) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: jnp.zeros(()))
        n.value += 1
        return x * n.value

    lifted = lifted_map(lift(fn), variable_axes={"state": None}, batch_size=2)
    y, variables = liftcore.init(lifted)(KEY, jnp.arange(3.0))
    assert (y.tolist(), variables["state"]["n"]) == ([0.0, 1.0, 2.0], 1.0)
    y, variables = liftcore.apply(lifted, mutable=True)(variables, jnp.arange(3.0))
    assert (y.tolist(), variables["state"]["n"]) == ([0.0, 2.0, 4.0], 2.0)


def test_a_shared_variable_that_differs_is_an_error() -> None:
    def write(scope: Scope, x: Any) -> Any:
        scope.variable("state", "n", lambda: jnp.zeros(())).value = x

    def create(scope: Scope, x: Any) -> Any:
        return scope.push("dense").param("w", uniform, ())

    with pytest.raises(
        LoopInvarianceError,
        match=r"map\(write\) at /: \['state/n'\] is shared by all elements.*write the same value in all elements\.",
    ):
        liftcore.init(lifted_map(write, variable_axes={"state": None}))(KEY, jnp.arange(3.0))
    with pytest.raises(LoopInvarianceError, match=r"\['params/dense/w'\] is shared.*do not split the stream"):
        liftcore.init(lifted_map(create, variable_axes={"params": None}, split_rngs=True))(KEY, jnp.arange(3.0))


# -- errors ------------------------------------------------------------------------------------------------------------


def test_sizes_that_disagree_and_no_size_at_all() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x

    with pytest.raises(AxisSizeError, match=r"map\(fn\) at /: .*x\['a'\]: 2, x\['b'\]: 3"):
        liftcore.apply(lifted_map(fn))({}, {"a": jnp.ones(2), "b": jnp.ones(3)})
    with pytest.raises(AxisSizeError, match=r"nothing is mapped.*Give `xs` an array"):
        liftcore.apply(lifted_map(fn))({}, None)
    with pytest.raises(AxisSizeError, match=r"x has shape \(\) and no axis 0"):
        liftcore.apply(lifted_map(fn))({}, 1.0)


def test_what_is_not_lifted_says_how_to_lift_it() -> None:
    def read(scope: Scope, x: Any) -> Any:
        return x + scope.get_variable("params", "w")

    def draw(scope: Scope, x: Any) -> Any:
        return scope.make_rng("dropout")

    with pytest.raises(UnliftedCollectionError, match=r"at /map\(read\).*one value for all elements"):
        liftcore.apply(lifted_map(read))({"params": {"w": 1.0}}, jnp.ones(2))
    with pytest.raises(UnliftedStreamError, match=r"at /map\(draw\).*the same keys for all elements"):
        liftcore.apply(lifted_map(draw))({}, jnp.ones(2), rngs=keys())
