"""Models on eight simulated devices give what one device gives: values, statistics and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import liftcore
from liftcore import Scope
from liftcore.lift.pmap import pmap
from liftcore.lift.shard_map import shard_map
from liftcore.nn import dense
from tests.lift.quick import assert_same, uniform
from tests.machine import make_mesh

KEY = jax.random.key(0)
X = jnp.linspace(-1, 1, 96).reshape(16, 6)


# -- data parallel -----------------------------------------------------------------------------------------------------


def normalized(axis: str | None) -> Callable[..., Any]:
    """A model that normalizes over the batch, of which `axis` holds parts."""

    def mean(x: Any) -> Any:
        return x if axis is None else jax.lax.pmean(x, axis)

    def model(scope: Scope, x: Any) -> Any:
        x = scope.child(dense, "first")(x, 4)
        average = mean(x.mean(0))
        running = scope.variable("stats", "mean", lambda: jnp.zeros(4))
        if scope.is_mutable_collection("stats"):
            running.value = 0.9 * running.value + 0.1 * average
        return scope.child(dense, "second")(jnp.tanh(x - average), 2)

    return model


def trained(model: Callable[..., Any], variables: Any, x: Any) -> Any:
    """The loss, the statistics and the gradients of one step."""

    def loss(params: Any, x: Any) -> Any:
        y, mutated = liftcore.apply(model, mutable=["stats"])({**variables, "params": params}, x)
        return (y**2).mean(), mutated

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(variables["params"], x)


def test_data_parallel_shard_map_equals_one_device() -> None:
    lifted = shard_map(
        normalized("data"),
        mesh=make_mesh((8,), "data"),
        in_specs=P("data"),
        out_specs=P("data"),
        variable_specs={...: P()},
        split_rngs=False,
    )
    ours, theirs = liftcore.init(lifted)(KEY, X), liftcore.init(normalized(None))(KEY, X)
    assert_same(ours, theirs)
    assert_same(trained(lifted, ours[1], X), trained(normalized(None), theirs[1], X))


@pytest.mark.devices(8)
def test_data_parallel_pmap_equals_one_device() -> None:
    mapped = pmap(normalized("data"), "data", variable_axes={...: None}, split_rngs=False)

    def lifted(scope: Scope, x: Any) -> Any:
        return mapped(scope, x.reshape(8, 2, 6)).reshape(16, 2)

    ours, theirs = jax.jit(liftcore.init(lifted))(KEY, X), liftcore.init(normalized(None))(KEY, X)
    assert_same(ours, theirs)
    assert_same(trained(lifted, ours[1], X), trained(normalized(None), theirs[1], X))


# -- model parallel ----------------------------------------------------------------------------------------------------


def test_tensor_parallel_shard_map_equals_one_device() -> None:
    def parts(scope: Scope, x: Any) -> Any:
        hidden = scope.child(dense, "first")(x, 1)  # one of eight columns
        summed = jax.lax.psum(hidden @ scope.push("second").param("kernel", uniform, (1, 2)), "model")
        return jnp.tanh(summed)

    def whole(scope: Scope, x: Any) -> Any:
        return jnp.tanh(scope.child(dense, "first")(x, 8) @ scope.push("second").param("kernel", uniform, (8, 2)))

    filters = liftcore.filters
    kernel = filters.All(filters.PathContains("first"), filters.PathContains("kernel"))
    specs = {kernel: P(None, "model"), "params": P("model")}
    lifted = shard_map(
        parts, mesh=make_mesh((8,), "model"), in_specs=P(), out_specs=P(), variable_specs=specs, split_rngs=True
    )
    _, variables = liftcore.init(lifted)(KEY, X)
    shapes = jax.tree.map(jnp.shape, variables["params"])
    assert shapes == {"first": {"kernel": (6, 8), "bias": (8,)}, "second": {"kernel": (8, 2)}}
    assert_same(trained(lifted, variables, X), trained(whole, variables, X))


def test_the_variables_lie_where_their_specs_say() -> None:
    on = make_mesh((2, 4), "data", "model")
    lifted = shard_map(
        lambda scope, x: jax.lax.psum(x @ scope.param("w", uniform, (x.shape[-1], 3)), "model"),
        mesh=on,
        in_specs=P("data", "model"),
        out_specs=P("data"),
        variable_specs={"params": P("model")},
        split_rngs={"params": "model"},
    )
    y, variables = jax.jit(liftcore.init(lifted))(KEY, jnp.ones((4, 8)))
    assert variables["params"]["w"].sharding.is_equivalent_to(NamedSharding(on, P("model")), 2)
    assert y.sharding.is_equivalent_to(NamedSharding(on, P("data")), 2)


def test_layers_in_a_scan_over_shards_equal_one_device() -> None:
    def layer(scope: Scope, x: Any) -> Any:
        return jnp.tanh(x + scope.child(dense, "dense")(x, 6))

    def stack(body: Callable[..., Any]) -> Callable[..., Any]:
        loop = liftcore.scan(
            lambda scope, x, _: (liftcore.remat(body)(scope, x), None),
            length=3,
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        return lambda scope, x: loop(scope, x, None)[0]

    lifted = shard_map(
        layer,
        mesh=make_mesh((8,), "data"),
        in_specs=P("data"),
        out_specs=P("data"),
        variable_specs={"params": P()},
        split_rngs=False,
    )
    ours, theirs = liftcore.init(stack(lifted))(KEY, X), liftcore.init(stack(layer))(KEY, X)
    assert_same(ours, theirs)
    assert_same(trained(stack(lifted), ours[1], X), trained(stack(layer), theirs[1], X))


# -- vmap with `spmd_axis_name` ----------------------------------------------------------------------------------------


def constrained(on: Mesh | None) -> Callable[..., Any]:
    def fn(scope: Scope, x: Any) -> Any:
        w = scope.param("w", uniform, (6, 4))
        count = scope.variable("stats", "n", lambda: jnp.zeros(()))
        if scope.is_mutable_collection("stats"):
            count.value += 1
        y = x @ w
        return y if on is None else jax.lax.with_sharding_constraint(y, NamedSharding(on, P("model")))

    return fn


@pytest.mark.parametrize("shared", [False, True])
def test_vmap_with_spmd_axis_name_equals_one_device(shared: bool) -> None:
    on = make_mesh((2, 4), "data", "model")
    axes = {"variable_axes": {"params": None if shared else 0, "stats": 0}, "split_rngs": not shared}
    lifted = liftcore.vmap(constrained(on), spmd_axis_name="data", **axes)
    plain = liftcore.vmap(constrained(None), **axes)
    ours, theirs = jax.jit(liftcore.init(lifted))(KEY, X), liftcore.init(plain)(KEY, X)
    assert_same(ours, theirs)
    assert_same(trained(lifted, ours[1], X), trained(plain, theirs[1], X))
    for mutable in (False, ["stats"]):
        apply = liftcore.apply(lifted, mutable=mutable)
        result = jax.jit(apply)(ours[1], X)
        y = result[0] if mutable else result
        assert y.sharding.is_equivalent_to(NamedSharding(on, P("data", "model")), 2)


def test_vmap_with_spmd_axis_name_over_a_shard_map_equals_one_device() -> None:
    def parts(scope: Scope, x: Any) -> Any:
        return jax.lax.psum(x @ scope.param("w", uniform, (x.shape[-1], 2)), "model")

    def whole(scope: Scope, x: Any) -> Any:
        return x @ scope.param("w", uniform, (6, 2))

    sharded = shard_map(
        parts,
        mesh=make_mesh((4, 2), "data", "model"),
        in_specs=P("model"),
        out_specs=P(),
        variable_specs={"params": P("model")},
        split_rngs="model",
    )
    axes = {"variable_axes": {"params": 0}, "split_rngs": True}
    lifted = liftcore.vmap(sharded, spmd_axis_name="data", **axes)
    variables = jax.jit(liftcore.init(liftcore.vmap(sharded, **axes)))(KEY, X)[1]
    assert variables["params"]["w"].shape == (16, 6, 2)
    if jax.__version_info__ >= (0, 9):  # before, JAX refuses keys in a `shard_map` under `spmd_axis_name`
        assert_same(jax.jit(liftcore.init(lifted))(KEY, X)[1], variables)
    assert_same(trained(lifted, variables, X), trained(liftcore.vmap(whole, **axes), variables, X))
