"""Every JAX transformation that could leak state out of a live scope is detected, and its lifted form named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore.errors import JaxTransformError

X = jnp.arange(3.0)
Fn = Callable[[Any], Any]


def _custom_vjp(f: Fn, x: Any) -> Any:
    ruled = jax.custom_vjp(f)
    ruled.defvjp(lambda x: (f(x), ()), lambda _, g: (g,))
    return ruled(x)


def _custom_jvp(f: Fn, x: Any) -> Any:
    ruled = jax.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return ruled(x)


def _custom_vmap(f: Fn, x: Any) -> Any:
    ruled = custom_vmap(f)
    ruled.def_vmap(lambda size, batched, x: (f(x), batched[0]))
    return ruled(x)


def _shard_map(f: Fn, x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)


RAW: dict[str, Callable[[Fn, Any], Any]] = {
    "jax.vmap": lambda f, x: jax.vmap(f)(x),
    "jax.pmap": lambda f, x: jax.pmap(f)(x[None]),
    "jax.shard_map": _shard_map,
    "jax.custom_batching.custom_vmap": _custom_vmap,
    "jax.jit": lambda f, x: jax.jit(f)(x),
    "jax.checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "jax.eval_shape": lambda f, x: jax.eval_shape(f, x),
    "jax.make_jaxpr": lambda f, x: jax.make_jaxpr(f)(x),
    "jax.grad": lambda f, x: jax.grad(lambda x: f(x).sum())(x),
    "jax.value_and_grad": lambda f, x: jax.value_and_grad(lambda x: f(x).sum())(x),
    "jax.vjp": lambda f, x: jax.vjp(f, x),
    "jax.jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "jax.linearize": lambda f, x: jax.linearize(f, x),
    "jax.jacfwd": lambda f, x: jax.jacfwd(f)(x),
    "jax.jacrev": lambda f, x: jax.jacrev(f)(x),
    "jax.hessian": lambda f, x: jax.hessian(lambda x: f(x).sum())(x),
    "jax.custom_vjp": _custom_vjp,
    "jax.custom_jvp": _custom_jvp,
    "jax.closure_convert": lambda f, x: jax.closure_convert(f, x),
    "jax.lax.scan": lambda f, x: jax.lax.scan(lambda c, x: (c, f(x)), 0, x),
    "jax.lax.while_loop": lambda f, x: jax.lax.while_loop(lambda x: x[0] < 2, lambda x: f(x) + 1, x),
    "jax.lax.fori_loop": lambda f, x: jax.lax.fori_loop(0, 2, lambda i, x: f(x), x),
    "jax.lax.cond": lambda f, x: jax.lax.cond(True, f, f, x),
    "jax.lax.switch": lambda f, x: jax.lax.switch(1, [f, f, f], x),
    "jax.lax.map": lambda f, x: jax.lax.map(f, x),
    "jax.lax.associative_scan": lambda f, x: jax.lax.associative_scan(lambda a, b: f(a) + b, jnp.arange(8.0)),
    "jax.experimental.checkify.checkify": lambda f, x: checkify.checkify(f)(x),
}
"""How each transformation is put round a function that uses a scope from outside."""

EAGER = {"jax.lax.associative_scan"}
"""Transformations that trace nothing by themselves: there is no boundary that a value could leak across."""

TRACED = {"jax.custom_vjp", "jax.custom_jvp"}
"""Those that trace something only under another transformation."""

UNLIFTED = {"jax.make_jaxpr", "jax.closure_convert"}
"""Those without a lifted form of their own name; `purify` gives a pure function for them."""

SEEN_AS = {"jax.hessian": "jax.jacfwd", **({"jax.pmap": "jax.shard_map"} if jax.__version_info__ < (0, 9) else {})}
"""What the stack tells: a Hessian is a Jacobian of a Jacobian, and `pmap` was a `shard_map` once."""

ACTS: dict[str, Callable[[Any, Any], Any]] = {
    "draw": lambda scope, x: x + jax.random.uniform(scope.make_rng("dropout")),
    "create": lambda scope, x: x * scope.variable("state", "new", lambda: x).value,
    "write": lambda scope, x: scope.put_variable("state", "old", x) or x,
    "sow": lambda scope, x: scope.sow("intermediates", "x", x) * x,
    "name": lambda scope, x: (scope.push("inner"), x)[1],
}


@pytest.mark.parametrize("name", sorted(set(RAW) - EAGER))
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("way", ["init", "apply"])
def test_a_raw_transformation_round_a_live_scope_is_an_error(name: str, act: str, way: str) -> None:
    def model(scope: Any, x: Any) -> Any:
        return RAW[name](lambda x: ACTS[act](scope, x), x)

    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}

    def run() -> Any:
        if way == "init":
            return liftcore.init(model)(rngs, X)
        return liftcore.apply(model, mutable=True)({"state": {"old": X}}, X, rngs=rngs)

    with pytest.raises(JaxTransformError) as caught:
        jax.eval_shape(run) if name in TRACED else run()
    seen = SEEN_AS.get(name, name)
    assert f"{seen} was applied to a function that uses a live scope" in caught.value.what
    short = seen.rpartition(".")[2]
    lifted = "purify" if name in UNLIFTED else short
    assert f"`liftcore.{lifted}`" in caught.value.fix
    assert hasattr(liftcore, lifted)


def test_an_operator_that_jax_merely_calls_is_no_leak() -> None:
    def model(scope: Any, x: Any) -> Any:
        return jax.lax.associative_scan(lambda a, b: a + b * scope.get_variable("consts", "c"), x)

    assert liftcore.apply(model)({"consts": {"c": 2.0}}, X).shape == (3,)


@pytest.mark.parametrize("lift", [liftcore.remat, liftcore.jit])
def test_scopes_may_be_read_in_a_lift_under_a_raw_transformation(lift: Any) -> None:
    def read(scopes: Any, x: Any) -> Any:
        outer, inner = scopes
        return outer.get_variable("consts", "c") * x + inner.get_variable("consts", "d")

    def model(scope: Any, x: Any) -> Any:
        scopes = [scope, scope.push("a").push("b")]
        return jax.vmap(lambda x: lift(read)(scopes, x))(x)

    variables = {"consts": {"c": 2.0, "a": {"b": {"d": 3.0}}}}
    np.testing.assert_array_equal(liftcore.apply(model)(variables, X), 2 * X + 3)
    with pytest.raises(JaxTransformError, match=r"naming|writing"):
        liftcore.apply(lambda scope, x: jax.vmap(lambda x: lift(lambda scope, x: scope.push("a"))(scope, x))(x))({}, X)


def _nested(scope: Any, x: Any) -> Any:
    """Reads a parameter of a scope below, and passes one that has none; sows what nobody asked for."""
    inner = scope.push("a")
    inner.push(prefix="empty_")
    if not inner.is_initializing():
        inner.sow("intermediates", "x", x)
    return x * inner.push("b").param("w", lambda key: jnp.array(3.0))


VARIABLES = {"params": {"a": {"b": {"w": jnp.array(3.0)}}}}


@pytest.mark.parametrize("name", sorted(set(RAW) - UNLIFTED))
def test_scopes_whose_variables_exist_may_be_named_under_a_raw_transformation(name: str) -> None:
    def model(scope: Any, x: Any) -> Any:
        return RAW[name](lambda x: _nested(scope.rewound(), x), x)

    pure = jax.eval_shape(lambda x: RAW[name](lambda x: 3 * x, x), X)
    found = jax.eval_shape(lambda: liftcore.apply(model)(VARIABLES, X))
    assert jax.tree.leaves(found)[0] == jax.tree.leaves(pure)[0]


@pytest.mark.parametrize("lift", [lambda body: body, liftcore.remat, liftcore.jit])
def test_what_only_reads_gives_the_same_under_a_raw_transformation(lift: Any) -> None:
    def model(scope: Any, x: Any) -> Any:
        return jax.vmap(lambda x: lift(_nested)(scope.rewound(), x))(x)

    np.testing.assert_array_equal(liftcore.apply(model)(VARIABLES, X), 3 * X)


@pytest.mark.parametrize("mutable", [False, "state", True])
def test_what_was_named_before_may_be_named_under_a_raw_transformation(mutable: Any) -> None:
    def model(scope: Any, x: Any) -> Any:
        named = scope.child(_nested, "model")
        return named(x), jax.vmap(named)(x)

    (y, again), variables = liftcore.init(model)(jax.random.key(0), X)
    np.testing.assert_array_equal(again, y)
    if mutable is not True:
        applied = liftcore.apply(model, mutable=mutable)(variables, X)
        np.testing.assert_array_equal(*(applied if mutable is False else applied[0]))


def test_a_scope_outside_of_a_running_lift_cannot_be_named_in_though_its_variables_exist() -> None:
    def model(scope: Any, x: Any) -> Any:
        return liftcore.remat(lambda inner, x: _nested(scope, x))(scope, x)

    with pytest.raises(JaxTransformError, match='naming "a" at /: it belongs outside remat'):
        liftcore.apply(model)(VARIABLES, X)
