"""A child of a scope is called plainly and inside lifts, any number of times: always with the same variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import liftcore
import linen_like as nn
from liftcore.errors import JaxTransformError, LiftArgumentError, NameInUseError

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
X = jnp.arange(1.0, 4.0)


def net(scope: Any, x: Any) -> Any:
    """Has parameters in a child of its own, counts its calls, and draws."""
    calls = scope.variable("state", "calls", lambda: jnp.zeros(()))
    calls.value += 1
    noise = jax.random.normal(scope.make_rng("noise"), x.shape)
    return scope.child(scaled, "inner")(x) + 0.1 * noise


def scaled(scope: Any, x: Any) -> Any:
    return x * scope.param("w", jax.random.normal, (3,))


EVERY: dict[str, Any] = {"split_rngs": {"params": False, "noise": False}}


def once_mapped(fn: Any) -> Any:
    lifted = liftcore.vmap(fn, variable_axes={"params": None, "state": None}, **EVERY)
    return lambda scopes, x: lifted(scopes, x[None])[0]


def once_scanned(fn: Any) -> Any:
    lifted = liftcore.scan(
        lambda scopes, carry, x: (carry, fn(scopes, x)), variable_broadcast="params", variable_carry="state", **EVERY
    )
    return lambda scopes, x: lifted(scopes, 0, x[None])[1][0]


def looped(fn: Any) -> Any:
    lifted = liftcore.fori_loop(lambda scopes, i, x: fn(scopes, x), variable_carry="state", **EVERY)
    return lambda scopes, x: lifted(scopes, 0, 1, x)


LIFTS: dict[str, Callable[[Any], Any]] = {
    "none": lambda fn: fn,
    "jit": liftcore.jit,
    "remat": liftcore.remat,
    "named_call": liftcore.named_call,
    "vmap": once_mapped,
    "scan": once_scanned,
    "fori_loop": looped,
    "cond": lambda fn: lambda scopes, x: liftcore.cond(fn, fn)(scopes, x[0] > 0, x),
    "grad": lambda fn: (
        lambda scopes, x: liftcore.value_and_grad(
            lambda scopes, x: (lambda y: (y.sum(), y))(fn(scopes, x)), wrt="params", has_aux=True
        )(scopes, x)[0][1]
    ),
    "swap_collection": lambda fn: liftcore.swap_collection(fn, "cache", "other"),
    "shard_map": lambda fn: liftcore.shard_map(
        fn, mesh=jax.make_mesh((1,), ("d",)), in_specs=P(), out_specs=P(), variable_specs={...: P()}, split_rngs=False
    ),
    "jit of remat": lambda fn: liftcore.jit(liftcore.remat(fn)),
    "jit in jit, both from outside": lambda fn: liftcore.jit(lambda scopes, x: liftcore.jit(fn)(scopes, x)),
}


def by_closure(lift: Any) -> Any:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return child(x) + lift(lambda scope, x: child(x))(scope, x) + child(x)

    return model


def inside_only(lift: Any) -> Any:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return sum(lift(lambda scope, x: child(x))(scope, x) for _ in range(3))

    return model


def twice_inside(lift: Any) -> Any:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return lift(lambda scope, x: child(x) + child(x))(scope, x) + child(x)

    return model


def as_the_lifted_value(lift: Any) -> Any:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return child(x) + lift(lambda child, x: child(x))(child, x) + child(x)

    return model


def beside_a_scope(lift: Any) -> Any:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return child(x) + lift(lambda both, x: both["child"](x))({"child": child, "scope": scope}, x) + child(x)

    return model


def by_closure_over_what_is_lifted(lift: Any) -> Any:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return child(x) + lift(lambda _, x: child(x))(child, x) + child(x)

    return model


WAYS = [by_closure, inside_only, twice_inside, as_the_lifted_value, beside_a_scope, by_closure_over_what_is_lifted]


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_child_is_the_same_plainly_and_in_a_lift(way: Callable[[Any], Any], lift: str) -> None:
    def plain(scope: Any, x: Any) -> Any:
        child = scope.child(net, "net")
        return child(x) + child(x) + child(x)

    y, variables = liftcore.init(way(LIFTS[lift]))(KEYS, X)
    like, expected = liftcore.init(plain)(KEYS, X)
    if lift in ("none", "jit", "remat", "named_call", "vmap", "jit of remat"):  # a loop or branch has its own counts
        assert jnp.allclose(y, like)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, expected)
    assert jnp.allclose(variables["params"]["net"]["inner"]["w"], expected["params"]["net"]["inner"]["w"])
    _, after = liftcore.apply(way(LIFTS[lift]), mutable="state")(expected, X, rngs={"noise": KEYS["noise"]})
    assert after["state"]["net"]["calls"] == 6


def test_a_pushed_scope_and_a_child_beside_it() -> None:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(scaled, "net")
        return child(x) + liftcore.jit(scaled)(scope.push("other"), x) + child(x)

    _, variables = liftcore.init(model)(KEYS, X)
    assert sorted(variables["params"]) == ["net", "other"]


def test_keyword_arguments_of_a_child_may_be_arrays() -> None:
    def model(scope: Any, x: Any) -> Any:
        child = scope.child(lambda scope, x, by: scaled(scope, x) * by, "net", by=jnp.float32(2))
        return child(x) - liftcore.jit(lambda child, x: child(x))(child, x)

    y, _ = liftcore.init(model)(KEYS, X)
    assert y.tolist() == [0, 0, 0]


class Net(nn.Module):
    """A Linen-style module with a child of its scope."""

    lift: str

    @nn.compact
    def __call__(self, x: Any) -> Any:
        child = self.scope.child(scaled, "net")
        lifts: dict[str, Any] = {"jit": nn.jit, "remat": nn.remat}
        return child(x) + lifts[self.lift](lambda module, x: child(x))(self, x) + child(x)


@pytest.mark.parametrize("lift", ["jit", "remat"])
def test_a_child_of_the_scope_of_a_module(lift: str) -> None:
    y, variables = Net(lift).init_with_output(KEYS, X)
    assert jnp.allclose(y, 3 * X * variables["params"]["net"]["w"])


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat])
def test_a_bound_module_is_lifted_as_a_value(lift: Any) -> None:
    def model(scope: Any, x: Any) -> Any:
        module = nn.Dense(3, parent=scope.push("net"))
        return module(x) + lift(lambda module, x: module(x))(module, x) + module(x)

    y, variables = liftcore.init(model)(KEYS, X)
    assert jnp.allclose(y, 3 * nn.Dense(3).apply({"params": variables["params"]["net"]}, X))


def test_variables_are_lifted_as_values() -> None:
    def model(scope: Any) -> Any:
        calls = scope.variable("state", "calls", lambda: jnp.zeros(()))
        liftcore.jit(lambda calls: setattr(calls, "value", calls.value + 1))(calls)
        return calls.value

    assert liftcore.init(model)(KEYS)[0] == 1


DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda fn, held: liftcore.grad(lambda held, x: fn(held, x).sum())(held, X),
    "vjp": lambda fn, held: liftcore.vjp(fn)(held, X)[1](X)[0],
    "hessian": lambda fn, held: liftcore.hessian(lambda held, x: (fn(held, x) ** 2).sum())(held, X),
}


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("kind", ["child", "module"])
def test_derivatives_are_trees_of_variables_whatever_holds_the_scopes(name: str, kind: str) -> None:
    def model(scope: Any) -> Any:
        inner = scope.push("net")
        module: Any = nn.Dense(3, parent=inner)
        held = scope.child(scaled, "other") if kind == "child" else module
        own = scope.push("same") if kind == "child" else inner

        def plain(scope: Any, x: Any) -> Any:
            return scaled(scope, x) if kind == "child" else nn.Dense(3, parent=scope.rewound())(x)

        derive = DERIVATIVES[name]
        one = derive(lambda held, x: held(x), held)
        in_dict = derive(lambda holder, x: holder["a"](x), {"a": held})
        return one, in_dict, derive(plain, own)

    one, in_dict, expected = liftcore.apply(model, mutable=True)({"params": PARAMS})[0]
    assert jax.tree.structure(one) == jax.tree.structure(expected)
    assert all(map(jnp.array_equal, jax.tree.leaves(one), jax.tree.leaves(expected)))
    assert list(in_dict) == ["a"]
    assert all(map(jnp.array_equal, jax.tree.leaves(in_dict), jax.tree.leaves(expected)))


PARAMS = {
    "net": {"kernel": jnp.arange(9.0).reshape(3, 3), "bias": X},
    "other": {"w": X},
    "same": {"w": X},
}


def test_what_children_may_not_do() -> None:
    def outside(scope: Any, x: Any) -> Any:
        child = scope.child(scaled, "net")
        return liftcore.jit(lambda other, x: child(x))(scope.push("other"), x)

    def taken(scope: Any, x: Any) -> Any:
        scope.child(scaled, "net")(x)
        return liftcore.jit(lambda scope, x: scope.child(net, "net")(x))(scope, x)

    def raw(scope: Any, x: Any) -> Any:
        child = scope.child(scaled, "net")
        return jax.jit(lambda x: child(x))(x)

    def returned(scope: Any, x: Any) -> Any:
        child = scope.child(scaled, "net")
        return liftcore.jit(lambda child, x: child)(child, x)

    cases = {outside: JaxTransformError, taken: NameInUseError, raw: JaxTransformError, returned: LiftArgumentError}
    for case, error in cases.items():
        with pytest.raises(error, match="net"):
            liftcore.init(case)(KEYS, X)


@pytest.mark.parametrize("lift", ["swap_collection", "shard_map"])
def test_a_wrong_call_of_a_function_of_a_child_is_explained(lift: str) -> None:
    child = liftcore.bind({"params": {"w": X}}).child(scaled)
    with pytest.raises(TypeError, match="positional argument") as caught:
        LIFTS[lift](lambda child: child(X))(child, X)
    assert "Call it with what it takes" in "".join(caught.value.__notes__)


def test_explain_takes_a_child() -> None:
    child = liftcore.bind({"params": {"net": {"w": X}}}).child(scaled, "net")
    told = liftcore.explain(lambda child, x: liftcore.jit(lambda child, x: child(x))(child, x))(child, X)
    assert "params/net/w  float32[3]  ...: passed through  read" in str(told)
