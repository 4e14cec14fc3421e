"""`remat_scan`: nested scans, less memory, the values of the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope
from liftcore.errors import LiftArgumentError, UnliftedStreamError
from liftcore.filters import All, PathContains
from liftcore.lift.remat_scan import remat_scan
from tests.lift import plain
from tests.lift.nests import NESTS, Counted, block, everything
from tests.lift.quick import assert_same, compiled, key, uniform

KEY = jax.random.key(0)
X = jnp.array([0.1, 0.2])
LENGTHS = [(3,), (2, 3), (2, 1, 2)]


def keys(first: int = 0) -> dict[str, Any]:
    return {"params": key(first), "dropout": key(first + 1)}


def layer(scope: Scope, x: Any) -> Any:
    return jnp.tanh(x @ scope.param("w", uniform, (2, 2)))


# -- values ------------------------------------------------------------------------------------------------------------


def loops(body: Callable[..., Any], lengths: tuple[int, ...], axes: Any, split: Any) -> Callable[..., Any]:
    """The same in plain Python."""
    for length in reversed(lengths):
        body = one_loop(body, plain.Rule(axes, split, length))
    return body


def one_loop(body: Callable[..., Any], rule: plain.Rule) -> Callable[..., Any]:
    def loop(scope: Any, x: Any) -> Any:
        carry = [x]

        def step(inner: Any, index: int) -> Any:
            carry.append(body(inner, carry[-1]))

        rule.run(scope, step)
        return carry[-1]

    return loop


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("params", [0, 1, None])
def test_it_equals_the_loop(lengths: tuple[int, ...], params: int | None) -> None:
    split = {"params": params is not None, "dropout": True}
    lifted = remat_scan(
        block,
        lengths,
        variable_axes={} if params is None else {"params": params},
        variable_broadcast="params" if params is None else False,
        variable_carry="count",
        split_rngs=split,
    )
    unlifted = loops(block, lengths, {"params": params, "count": plain.CARRY}, split)
    ours = compiled(lambda *args: everything(lifted, *args), keys(), keys(10), X)
    assert_same(ours[:2], plain.init(unlifted)(keys(), X))

    variables = {name: found for name, found in ours[1].items() if name != "intermediates"}
    mutable = ("count", "intermediates")

    def loss(params: Any, x: Any) -> Any:
        result = plain.apply(unlifted, mutable=mutable)({**variables, "params": params}, x, rngs=keys(10))
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(result)), result

    grads, result = jax.grad(loss, argnums=(0, 1), has_aux=True)(variables["params"], X)
    assert_same(ours[2:], (result, grads))


def test_by_default_all_is_stacked_and_split() -> None:
    y, variables = liftcore.init(remat_scan(layer, (2, 3)))(KEY, X)
    w = variables["params"]["w"]
    assert w.shape == (2, 3, 2, 2)
    assert len(np.unique(w)) == 24
    x = X
    for row in w.reshape(6, 2, 2):
        x = jnp.tanh(x @ row)
    np.testing.assert_allclose(y, x, rtol=1e-5)


@pytest.mark.parametrize("lengths", [(2, 3), (2, 2, 2)])
def test_it_equals_flax(lengths: tuple[int, ...]) -> None:
    core = pytest.importorskip("flax.core")
    lift = pytest.importorskip("flax.core.lift")

    def theirs(scope: Any, x: Any) -> Any:
        return lift.remat_scan(layer, lengths, variable_axes={"params": 0}, split_rngs={"params": True})(scope, x)

    ours = remat_scan(layer, lengths)
    variables = liftcore.init(ours)(KEY, X)[1]
    shapes = jax.tree.map(jnp.shape, jax.tree.map(lambda x: x, core.init(theirs)(KEY, X)[1]))
    assert jax.tree.map(jnp.shape, variables) == core.unfreeze(shapes)

    def grads(fn: Callable[..., Any]) -> Any:
        return jax.value_and_grad(lambda v: fn(v, X).sum())(variables)

    assert_same(grads(liftcore.apply(ours)), grads(lambda v, x: core.apply(theirs)(v, x)))


# -- memory ------------------------------------------------------------------------------------------------------------


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from equations(getattr(value, "jaxpr", value))


def backward(policy: Any = None) -> list[str]:
    """What a gradient computes in loops."""
    lifted = remat_scan(lambda scope, x: jnp.sin(x * scope.param("w", uniform, ())), (2, 3), policy)
    variables = {"params": {"w": jnp.ones((2, 3))}}
    jaxpr = jax.make_jaxpr(jax.grad(lambda v: liftcore.apply(lifted)(v, 1.0)))(variables)
    return [eqn.primitive.name for eqn in equations(jaxpr)]


def test_all_loops_but_the_innermost_are_computed_again() -> None:
    def rematerialised(lengths: tuple[int, ...]) -> list[str]:
        lifted = remat_scan(lambda scope, x: jnp.sin(x), lengths)
        jaxpr = jax.make_jaxpr(lambda x: liftcore.apply(lifted)({}, x))(1.0)
        return [eqn.primitive.name for eqn in equations(jaxpr) if "prevent_cse" in eqn.params]

    assert [len(rematerialised(lengths)) for lengths in ((3,), (2, 3), (2, 1, 3))] == [0, 1, 2]
    assert backward().count("sin") == 2
    assert backward(jax.checkpoint_policies.everything_saveable).count("sin") == 1


# -- one run, any nest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(2,), (2, 2), (2, 1, 2, 2)])
def test_the_body_runs_once_at_any_depth(lengths: tuple[int, ...]) -> None:
    body = Counted(layer)
    lifted = remat_scan(body, lengths)
    variables = liftcore.init(lifted)(KEY, X)[1]
    assert body.since() == 1
    liftcore.apply(lifted)(variables, X)
    assert body.since() == 1
    jax.grad(lambda v: liftcore.apply(lifted, mutable=["a"])(v, X)[0].sum())(variables)
    assert body.since() == 1


def deep(body: Callable[..., Any]) -> Callable[..., Any]:
    return remat_scan(body, (2, 2), variable_carry="count")


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("inside", [False, True])
def test_it_nests_in_others_and_others_in_it(name: str, inside: bool) -> None:
    def twice(body: Callable[..., Any]) -> Callable[..., Any]:
        def scanned(body: Callable[..., Any]) -> Callable[..., Any]:
            lifted = liftcore.scan(
                lambda scope, x, _: (body(scope, x), None),
                length=2,
                variable_axes={"params": 0, "intermediates": 0},
                variable_carry="count",
                split_rngs=True,
            )
            return lambda scope, x: lifted(scope, x, None)[0]

        return scanned(scanned(body))

    def model(lift: Callable[..., Any], body: Any = block) -> Any:
        return lift(NESTS[name](body)) if inside else NESTS[name](lift(body))

    def run(lift: Callable[..., Any]) -> Any:
        return compiled(lambda *args: everything(model(lift), *args), keys(), keys(10), X)

    assert_same(run(deep), run(twice))
    body = Counted(block)
    jax.eval_shape(liftcore.init(model(deep, body)), keys(), X)
    assert body.since() == 1


def test_a_carried_variable_begins_with_its_first_value() -> None:
    def tick(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", lambda: 10 * x)
        n.value = n.value + 1
        return x + n.value

    y, variables = liftcore.init(remat_scan(tick, (2, 3), variable_carry="state"))(KEY, jnp.ones(()))
    n, x = 10.0, 1.0
    for _ in range(6):
        n += 1
        x += n
    assert (float(y), float(variables["state"]["n"])) == (x, n)


def test_the_first_filter_that_matches_says_the_kind() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return x * scope.param("base", uniform, ()) + scope.push("lora").param("w", uniform, ())

    lora = All("params", PathContains("lora"))
    lifted = remat_scan(
        fn, (2, 3), variable_axes={lora: 0}, variable_broadcast=All("params", PathContains("base")), split_rngs=False
    )
    _, variables = liftcore.init(lifted)(KEY, X)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"base": (), "lora": {"w": (2, 3)}}


def test_scopes_may_be_given_twice_or_below_another() -> None:
    def fn(scopes: Any, x: Any) -> Any:
        parent, child, again = scopes
        return x * parent.param("w", uniform, ()) + child.param("b", uniform, ()) + again.get_variable("params", "b")

    def model(scope: Scope, x: Any) -> Any:
        child = scope.push("child")
        return remat_scan(fn, (2, 2))((scope, child, child), x)

    y, variables = liftcore.init(model)(KEY, jnp.ones(()))
    x = 1.0
    for w, b in zip(variables["params"]["w"].ravel(), variables["params"]["child"]["b"].ravel(), strict=True):
        x = x * w + 2 * b
    np.testing.assert_allclose(y, x, rtol=1e-5)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(), (2, 2.5), 3.0, "ab"])
def test_lengths_must_be_ints(lengths: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"lengths of remat_scan: expected the length of each loop"):
        remat_scan(layer, lengths)


def test_paths_of_errors_show_the_loops() -> None:
    def draw(scope: Scope, x: Any) -> Any:
        return x + jax.random.normal(scope.make_rng("dropout"))

    lifted = remat_scan(draw, (2, 2), split_rngs={"params": True})
    with pytest.raises(UnliftedStreamError, match=r"at /scan\(draw\)/remat\(draw\)/scan\(draw\)") as caught:
        liftcore.apply(lifted)({}, X, rngs=keys())
    assert 'split_rngs={"dropout": True}' in caught.value.fix
