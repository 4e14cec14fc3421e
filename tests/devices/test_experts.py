"""A mixture of experts, sharded over eight devices: top-2 routing with room, a sown loss, a scan of rematerialized
blocks. Losses and parameters are those of one device, and the scan does what a loop over its blocks does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import linen_like as nn
from liftcore.training import TrainState
from tests.machine import devices

EXPERTS, SIZE, DEPTH, ROWS, LENGTH = 8, 16, 3, 16, 4
RULES = [("batch", "data"), ("expert", "expert"), ("embed", None), ("mlp", None), ("layers", None)]
X = np.random.default_rng(0).normal(size=(ROWS, LENGTH, 8)).astype(np.float32)
Y = (X.sum((1, 2)) > 0).astype(np.int32)
TX = optax.adam(0.01)


def named(*names: str) -> Any:
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Expert(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.gelu(nn.Dense(32, kernel_init=named("embed", "mlp"), name="up")(x))
        return nn.Dense(SIZE, kernel_init=named("mlp", "embed"), name="down")(x)


class Mixture(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        tokens = x.reshape(-1, SIZE)
        gates = nn.softmax(nn.Dense(EXPERTS, use_bias=False, name="router")(tokens))
        weights, chosen = jax.lax.top_k(gates, 2)
        picks = nn.one_hot(chosen, EXPERTS)  # (tokens, 2, experts)
        self.sow("losses", "balance", EXPERTS * jnp.sum(picks.mean((0, 1)) * gates.mean(0)))
        firsts_first = picks.swapaxes(0, 1).reshape(-1, EXPERTS)
        places = ((jnp.cumsum(firsts_first, 0) - 1) * firsts_first).sum(-1).astype(int).reshape(2, -1).T
        room = 3 * len(tokens) // EXPERTS  # of four for each expert: some tokens find none
        slots = picks[..., None] * nn.one_hot(places, room)[:, :, None]  # (tokens, 2, experts, room)
        inputs = nn.with_logical_constraint(jnp.einsum("tkes,td->esd", slots, tokens), ("expert", None, None))
        axes: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        outputs = nn.vmap(Expert, metadata_params={nn.PARTITION_NAME: "expert"}, **axes)(name="experts")(inputs)
        return jnp.einsum("tk,tkes,esd->td", weights, slots, outputs).reshape(x.shape)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        x = x + Mixture(name="mixture")(nn.LayerNorm()(x))
        return nn.with_logical_constraint(x, ("batch", None, None)), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        axes: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        metadata = {nn.PARTITION_NAME: "layers"}
        blocks = nn.scan(nn.remat(Block), length=DEPTH, metadata_params=metadata, **axes)
        return nn.Dense(2, name="head")(blocks(name="blocks")(nn.Dense(SIZE, name="stem")(x), None)[0].mean(1))


MODEL = Model()


def create(key: Any, x: Any) -> Any:
    return TrainState.create(apply_fn=MODEL.apply, variables={"params": MODEL.init(key, x)["params"]}, tx=TX)


def loss_fn(state: Any, x: Any, y: Any) -> Any:
    (logits, sown), state = state.apply(x, mutable=["losses"])
    (balance,) = jax.tree.leaves(sown)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return losses.mean() + 0.1 * balance.sum(), (state, balance)


def train(on: list[Any]) -> tuple[Any, Any, Any]:
    mesh = Mesh(np.array(on).reshape(-1, min(4, len(on))), ("data", "expert"), axis_types=(AxisType.Auto,) * 2)
    state = nn.init_sharded(create, mesh, RULES)(jax.random.key(0), X)
    placed = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = jax.jit(lambda state, x, y: state.minimize(loss_fn, x, y, has_aux=True), out_shardings=(placed, None))
    batch, logs = jax.device_put((X, Y), NamedSharding(mesh, PartitionSpec("data"))), []
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        for _ in range(5):
            state, (loss, balance) = step(state, *batch)
            logs.append([loss, *balance])
    return state, np.array(logs), mesh


@pytest.mark.rest
def test_eight_devices_train_experts_as_one_device_does() -> None:
    (eight, logs, mesh), (one, expected, _) = train(devices(8)), train(devices(8)[:1])
    np.testing.assert_allclose(logs, expected, rtol=1e-5)
    assert expected[-1, 0] < expected[0, 0]
    up = eight.params["blocks"]["mixture"]["experts"]["up"]["kernel"]
    assert up.names == ("layers", "expert", "embed", "mlp")
    assert up.value.addressable_shards[0].data.shape == (DEPTH, EXPERTS // mesh.shape["expert"], SIZE, 32)
    for found, wanted in zip(jax.tree.leaves(eight.params), jax.tree.leaves(one.params), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3)  # adam divides by small gradients


@pytest.mark.rest
def test_a_scan_of_blocks_with_experts_is_a_loop_over_its_slices() -> None:
    params = nn.unbox(MODEL.init(jax.random.key(0), X)["params"])

    def looped(params: Any) -> Any:
        x, balance = nn.Dense(SIZE).apply({"params": params["stem"]}, X), jnp.zeros(())
        for number in range(DEPTH):
            part = jax.tree.map(lambda leaf, number=number: leaf[number], params["blocks"])
            (x, _), sown = Block().apply({"params": part}, x, None, mutable=["losses"])
            balance += sown["losses"]["mixture"]["balance"][0]
        logits = nn.Dense(2).apply({"params": params["head"]}, x.mean(1))
        return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean() + 0.1 * balance

    state = TrainState.create(apply_fn=MODEL.apply, params=params, tx=TX)
    found = jax.jit(jax.value_and_grad(lambda params: loss_fn(state.replace(params=params), X, Y)[0]))(params)
    wanted = jax.jit(jax.value_and_grad(looped))(params)
    assert jax.tree.all(
        jax.tree.map(lambda one, two: bool(jnp.allclose(one, two, rtol=1e-3, atol=1e-5)), found, wanted)
    )
