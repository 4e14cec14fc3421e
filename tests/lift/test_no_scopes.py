"""A lift over no scopes, `lifted((), x)`, is the JAX transformation of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

import liftcore
from tests.lift.quick import key
from tests.machine import devices, make_mesh

X = jnp.linspace(0.1, 1.2, 6).reshape(2, 3)


class Row(NamedTuple):
    """A lift and the JAX transformation that it is, both called with an array of two rows.

    Attributes:
        lifted: called with the scopes and the array.
        plain: called with the array.
    """

    lifted: Callable[..., Any]
    plain: Callable[..., Any]


def body(scopes: Any, x: Any) -> Any:
    assert jax.tree.leaves(scopes) == []
    return jnp.sin(x) * 2


def f(x: Any) -> Any:
    return jnp.sin(x) * 2


def total(scopes: Any, x: Any) -> Any:
    return body(scopes, x).sum()


def added(scopes: Any, a: Any, b: Any) -> Any:
    return a + b


def step(scopes: Any, carry: Any, x: Any) -> Any:
    return carry + body(scopes, x), carry * x


def rule_of_jvp(scopes: Any, primals: Any, tangents: Any, variable_tangents: Any) -> Any:
    return body(scopes, *primals), 7 * tangents[0]


def with_jvp(scopes: Any, x: Any) -> Any:
    lifted = liftcore.custom_jvp(body)
    lifted.defjvp(rule_of_jvp)
    return jax.jvp(lambda x: lifted(scopes, x), (x,), (x,))


def with_vjp(scopes: Any, x: Any) -> Any:
    lifted = liftcore.custom_vjp(body)
    lifted.defvjp(lambda scopes, x: (body(scopes, x), x), lambda x, cotangent: (None, 5 * cotangent))
    return jax.grad(lambda x: lifted(scopes, x).sum())(x)


def with_vmap_rule(scopes: Any, x: Any) -> Any:
    lifted = liftcore.custom_vmap(body)
    lifted.def_vmap(lambda size, batched, scopes, x: (3 * x, True))
    return jax.vmap(lambda x: lifted(scopes, x))(x)


def pulled_back(scopes: Any, x: Any) -> Any:
    y, pull = liftcore.vjp(body)(scopes, x)
    return y, pull(x)[1]


def linearized(scopes: Any, x: Any) -> Any:
    y, along = liftcore.linearize(body)(scopes, x)
    return y, along(None, x)


def purified(scopes: Any, x: Any) -> Any:
    pure, variables = liftcore.purify(body, scopes, x)
    return pure(variables, x)


def own_pack(fn: Callable[..., Any]) -> Callable[..., Any]:
    def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        scopes = scope_fn(variables, rngs)
        return fn(scopes, *args), repack_fn(scopes)

    return liftcore.pack(transform, ["params", True], [True, liftcore.Captured()], [True])


def own_transformation(fn: Callable[..., Any]) -> Callable[..., Any]:
    def transform(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        return jax.vmap(lambda *args: body(variables, rngs, *args))(*args)

    return liftcore.transformation(transform, ["params", True], [True], [True])(fn)


def same(lift: Callable[..., Any]) -> Row:
    """That of a lift which computes what its body does."""
    return Row(lambda scopes, x: lift(body)(scopes, x), f)


ROWS = {
    "vmap": Row(lambda s, x: liftcore.vmap(body)(s, x), lambda x: jax.vmap(f)(x)),
    "vmap, groups": Row(
        lambda s, x: liftcore.vmap(body, in_axes=1, variable_axes={"params": None, ...: 0}, split_rngs=True)(s, x),
        lambda x: jax.vmap(f, in_axes=1)(x),
    ),
    "map": same(liftcore.map),
    "pmap": same(lambda fn: liftcore.pmap(fn, devices=devices(2))),
    "shard_map": same(
        lambda fn: liftcore.shard_map(fn, mesh=make_mesh((2,), "shards"), in_specs=P("shards"), out_specs=P("shards"))
    ),
    "scan": Row(
        lambda s, x: liftcore.scan(step)(s, 0.0, x.ravel()), lambda x: jax.lax.scan(plain_step, 0.0, x.ravel())
    ),
    "scan, groups": Row(
        lambda s, x: liftcore.scan(
            step, variable_broadcast="params", variable_carry="state", variable_axes={...: 0}, split_rngs=True
        )(s, 0.0, x.ravel()),
        lambda x: jax.lax.scan(plain_step, 0.0, x.ravel()),
    ),
    "remat_scan": Row(lambda s, x: liftcore.remat_scan(body, (2, 2))(s, x), lambda x: f(f(f(f(x))))),
    "fori_loop": Row(
        lambda s, x: liftcore.fori_loop(lambda s, i, x: body(s, x))(s, 0, 3, x),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, x: f(x), x),
    ),
    "fori_loop, traced": Row(
        lambda s, x: jax.jit(lambda n: liftcore.fori_loop(lambda s, i, x: body(s, x))(s, 0, n, x))(3),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, x: f(x), x),
    ),
    "while_loop": Row(
        lambda s, x: liftcore.while_loop(lambda s, x: x.sum() < 9, lambda s, x: 2 * x, variable_carry="state")(s, x),
        lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: 2 * x, x),
    ),
    "associative_scan": Row(
        lambda s, x: liftcore.associative_scan(added)(s, x), lambda x: jax.lax.associative_scan(jnp.add, x)
    ),
    "cond": Row(lambda s, x: liftcore.cond(body, lambda s, x: -x)(s, x.sum() > 0, x), f),
    "switch": Row(lambda s, x: liftcore.switch([lambda s, x: -x, body])(s, x.size - 5, x), f),
    "value_and_grad": Row(
        lambda s, x: liftcore.value_and_grad(total, argnums=1)(s, x), jax.value_and_grad(lambda x: f(x).sum())
    ),
    "grad": Row(lambda s, x: liftcore.grad(total, argnums=1)(s, x), jax.grad(lambda x: f(x).sum())),
    "vjp": Row(pulled_back, lambda x: (f(x), jax.vjp(f, x)[1](x)[0])),
    "jvp": Row(lambda s, x: liftcore.jvp(body)(s, (x,), (x,)), lambda x: jax.jvp(f, (x,), (x,))),
    "linearize": Row(linearized, lambda x: jax.jvp(f, (x,), (x,))),
    "jacfwd": Row(lambda s, x: liftcore.jacfwd(body, argnums=1)(s, x), jax.jacfwd(f)),
    "jacrev": Row(lambda s, x: liftcore.jacrev(body, argnums=1)(s, x), jax.jacrev(f)),
    "hessian": Row(lambda s, x: liftcore.hessian(total, argnums=1)(s, x), jax.hessian(lambda x: f(x).sum())),
    "custom_jvp": Row(with_jvp, lambda x: (f(x), 7 * x)),
    "custom_vjp": Row(with_vjp, lambda x: jnp.full_like(x, 5)),
    "custom_vmap": Row(with_vmap_rule, lambda x: 3 * x),
    "jit": same(liftcore.jit),
    "remat": same(liftcore.remat),
    "named_call": same(liftcore.named_call),
    "eval_shape": Row(lambda s, x: liftcore.eval_shape(body)(s, x), lambda x: jax.eval_shape(f, x)),
    "purify": Row(purified, f),
    "checkify": Row(lambda s, x: liftcore.checkify(body)(s, x)[1], lambda x: checkify.checkify(f)(x)[1]),
    "map_variables": same(lambda fn: liftcore.map_variables(fn, "params")),
    "map_variables, init": same(lambda fn: liftcore.map_variables(fn, "params", init=True, mutable=True)),
    "swap_collection": same(lambda fn: liftcore.swap_collection(fn, "params", "state")),
    "add_metadata_axis": same(lambda fn: liftcore.add_metadata_axis(fn, variable_axes={"params": 0})),
    "fold_rngs": same(liftcore.fold_rngs),
    "with_rngs": same(lambda fn: liftcore.with_rngs(fn, key(7))),
    "pack": same(own_pack),
    "transformation": Row(lambda s, x: own_transformation(body)(s, x), lambda x: jax.vmap(f)(x)),
}
"""The rows by name."""


def rows(*without: str) -> list[Any]:
    return [name for name in ROWS if name not in without]


def plain_step(carry: Any, x: Any) -> Any:
    return carry + f(x), carry * x


def assert_equal(given: Any, expected: Any) -> None:
    assert jax.tree.structure(given) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if not isinstance(other, jax.ShapeDtypeStruct):
            np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", rows())
def test_it_is_the_transformation_of_jax(name: str) -> None:
    assert_equal(ROWS[name].lifted((), X), ROWS[name].plain(X))


@pytest.mark.parametrize("name", rows("eval_shape"))
def test_it_is_that_under_jit_too(name: str) -> None:
    assert_equal(jax.jit(lambda x: ROWS[name].lifted((), x))(X), ROWS[name].plain(X))


@pytest.mark.parametrize("scopes", [(), [], {}, None, ({}, [None])], ids=repr)
def test_any_pytree_without_scopes_will_do(scopes: Any) -> None:
    seen: list[Any] = []

    def fn(scopes: Any, x: Any) -> Any:
        seen.append(scopes)
        return body(scopes, x)

    assert_equal(liftcore.vmap(fn)(scopes, X), jax.vmap(f)(X))
    assert all(one == scopes for one in seen)
    assert seen


def test_lifts_over_no_scopes_nest() -> None:
    nested = liftcore.scan(lambda s, c, x: (liftcore.vmap(liftcore.jit(body))(s, c), liftcore.remat(body)(s, x)))
    given = nested((), X[0], X)
    assert_equal(given, jax.lax.scan(lambda c, x: (jax.vmap(f)(c), f(x)), X[0], X))


def test_a_lift_over_no_scopes_may_stand_in_one_over_a_scope() -> None:
    def model(scope: liftcore.Scope, x: Any) -> Any:
        w = scope.param("w", lambda key: jnp.float32(2))
        return liftcore.vmap(body)((), w * x)

    step = liftcore.scan(lambda s, c, x: (c, model(s, x)), variable_broadcast="params", split_rngs=False)
    (_, y), _ = liftcore.init(step)(jax.random.key(0), 0.0, X)
    assert_equal(y, f(2 * X))


def test_a_jit_over_no_scopes_is_traced_once() -> None:
    traces: list[Any] = []

    def fn(scopes: Any, x: Any) -> Any:
        traces.append(x.shape)
        return f(x)

    compiled = liftcore.jit(fn)
    for x in (X, X + 1, X[0], X[1]):
        assert_equal(compiled((), x), f(x))
    assert traces == [(2, 3), (3,)]


def test_an_error_says_where_it_is() -> None:
    with pytest.raises(liftcore.errors.AxisSizeError, match=r"vmap\(added\) at /"):
        liftcore.vmap(added)((), X, X[:, :1].T)
