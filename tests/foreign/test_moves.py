"""A code base of flax that moves layer by layer: after each step, all numbers are those of flax, bit for bit."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import linen_like as nn
import nnx_like
from liftcore import unbox
from liftcore.checkpoints import load_orbax
from liftcore.foreign import from_linen, from_nnx
from liftcore.training import TrainState
from linen_like.convert import from_flax
from tests.foreign.comparing import KEY, assert_same

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

pytestmark = pytest.mark.rest

IMAGES = jax.random.normal(jax.random.key(1), (4, 4, 4, 1))
LABELS = jnp.arange(4) % 3
RNGS = {"params": KEY, "dropout": jax.random.key(2)}
DROPOUT = {"dropout": jax.random.key(3)}

# --- the old model, and the new one -----------------------------------------------------------------------------------


def layers_of(linen: Any) -> Any:
    """The layers of a small vision transformer, by one of the two libraries."""

    class Mlp(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            init = linen.with_partitioning(linen.initializers.xavier_uniform(), ("embed", "mlp"))
            x = linen.gelu(linen.Dense(16, kernel_init=init)(x))
            return linen.Dense(8)(linen.Dropout(0.1, deterministic=not train)(x))

    class Block(linen.Module):
        mlp: Any = Mlp

        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            y = linen.LayerNorm()(x)
            x = x + linen.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=not train)(y, y)
            self.sow("intermediates", "norm", jnp.linalg.norm(x))
            return x + self.mlp(name="Mlp_0")(x, train), None

    class Stem(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = linen.Conv(8, (2, 2), strides=2, padding="VALID")(x)
            return linen.BatchNorm(use_running_average=not train, momentum=0.9)(x).reshape(len(x), -1, 8)

    class Whole(linen.Module):
        stem: Any = Stem
        block: Any = Block

        @linen.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            x = self.stem(name="stem")(x, train)
            x = linen.Dropout(0.1, deterministic=not train)(x)
            options = {"check_constancy_invariants": False} if linen.__name__ == "flax.linen" else {}
            blocks = linen.scan(
                linen.remat(self.block, prevent_cse=False, static_argnums=(2,)),
                variable_axes={"params": 0, "intermediates": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=linen.broadcast,
                length=2,
                metadata_params={linen.PARTITION_NAME: "layers"},
                **options,
            )
            return linen.Dense(3, name="head")(blocks(name="blocks")(x, train)[0].mean(axis=1))

    return {"Mlp": Mlp, "Block": Block, "Stem": Stem, "Whole": Whole}


OLD, NEW = layers_of(linen), layers_of(nn)


def bridge(name: str) -> Any:
    """A layer that calls the old layer of that name, in its own scope, so that all names stay."""

    class Old(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            return from_linen(OLD[name]())(self.scope, x, train)

    return Old


STEPS = {
    "the outer module": lambda: NEW["Whole"](stem=bridge("Stem"), block=bridge("Block")),
    "the stem": lambda: NEW["Whole"](block=bridge("Block")),
    "the block": lambda: NEW["Whole"](block=functools.partial(NEW["Block"], mlp=bridge("Mlp"))),
    "all": lambda: NEW["Whole"](),
}


def plain(tree: Any) -> Any:
    return linen.unbox(unbox(tree))


def trained(model: Any, variables: Any) -> Any:
    """The loss, the changes and the gradients of one step."""

    def loss(params: Any) -> Any:
        mutable = ["batch_stats", "intermediates"]
        out, changed = model.apply({**variables, "params": params}, IMAGES, True, rngs=DROPOUT, mutable=mutable)
        return optax.softmax_cross_entropy_with_integer_labels(out, LABELS).mean(), changed

    return plain(jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"]))


@functools.cache
def of_flax() -> Any:
    variables = OLD["Whole"]().init(RNGS, IMAGES)
    return variables, trained(OLD["Whole"](), variables)


@pytest.mark.parametrize("step", STEPS)
def test_each_step_gives_the_numbers_of_flax(step: str) -> None:
    variables, expected = of_flax()
    model = STEPS[step]()
    made = model.init(RNGS, IMAGES)
    # The same keys; flax computes the values in its loop, and we do before it.
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), plain(made), plain(variables))
    assert_same(trained(model, from_flax(model, variables, IMAGES)), expected)
    spec = nn.get_partition_spec(made)["params"]["blocks"]["Mlp_0"]["Dense_0"]["kernel"]
    assert spec == jax.sharding.PartitionSpec("layers", "embed", "mlp")


# --- its training state -----------------------------------------------------------------------------------------------


def net_of(linen: Any) -> Any:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x.reshape(len(x), -1)))
            return linen.Dense(3)(linen.Dropout(0.5, deterministic=not train)(x))

    return Net()


def loss_of(logits: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()


def test_a_run_continues_from_the_training_state_of_flax(tmp_path: Any) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    flax_state = pytest.importorskip("flax.training.train_state")

    class Old(flax_state.TrainState):
        batch_stats: Any
        dropout: Any

    def old_step(state: Any) -> Any:
        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            rngs = {"dropout": jax.random.fold_in(state.dropout, state.step)}
            logits, changed = state.apply_fn(variables, IMAGES, True, rngs=rngs, mutable=["batch_stats"])
            return loss_of(logits), changed

        (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), value

    def new_step(state: Any) -> Any:
        def loss(state: Any) -> Any:
            logits, state = state.apply(IMAGES, train=True)
            return loss_of(logits), state

        return state.minimize(loss)

    def moved(saved: Any) -> Any:
        saved = dict(saved)
        return {"rngs": {"dropout": saved.pop("dropout")}, **saved}

    old, new, tx, key = net_of(linen), net_of(nn), optax.adamw(3e-3), jax.random.PRNGKey(7)
    step = jax.jit(old_step)
    state = step(Old.create(apply_fn=old.apply, tx=tx, dropout=key, **old.init(KEY, IMAGES)))[0]
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "old", state)
    expected = []
    for _ in range(3):
        state, value = step(state)
        expected.append(float(value))

    variables = new.init(jax.random.key(5), IMAGES)
    only = load_orbax(tmp_path / "old", variables, filter=["params", "batch_stats"])
    target = TrainState.create(apply_fn=new.apply, variables=variables, tx=tx, rngs={"dropout": key})
    ours = load_orbax(tmp_path / "old", target, transform=moved)
    assert_same(only, ours.variables)
    losses, step = [], jax.jit(new_step)
    for _ in range(3):
        ours, value = step(ours)
        losses.append(float(value))
    assert losses == expected
    assert ours.step == 4


# --- objects ----------------------------------------------------------------------------------------------------------


def encoder_of(nnx: Any) -> Any:
    class Encoder(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.rnn = nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs))
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.1, decode=False, rngs=rngs)
            self.calls = nnx.Variable(jnp.array(0))

        def features(self, x: Any) -> Any:
            self.calls[...] += 1
            return self.attention(self.norm(self.rnn(x))).mean(axis=1)

    return Encoder


class Both(nn.Module):
    """A model with an encoder of flax, or with the same one of `nnx_like`; the mode is set where it is made."""

    old: bool

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        encoder = encoder_of(nnx if self.old else nnx_like)

        def make(rngs: Any) -> Any:
            made = encoder(rngs)
            made.train() if train else made.eval()
            return made

        here = self.scope.push("text")
        adopt = nnx_like.bridge.adopt
        seen = from_nnx(make, method="features")(here, x) if self.old else adopt(here, make).features(x)
        return nn.Dense(3)(seen)


@pytest.mark.parametrize("train", [False, True])
def test_an_object_of_flax_and_ours_give_the_same_numbers_in_both_modes(train: bool) -> None:
    x = jax.random.normal(KEY, (4, 5, 8))
    old, new = (jax.jit(Both(old).init)(RNGS, x) for old in (True, False))
    assert_same(old["params"], new["params"])
    rngs = {"carry": jax.random.key(4), **(DROPOUT if train else {})}
    mutable = ["batch_stats", "Variable"] if train else ["Variable"]

    def run(model: Any) -> Any:
        def loss(params: Any) -> Any:
            out, changed = model.apply({**old, "params": params}, x, train, rngs=rngs, mutable=mutable)
            return loss_of(out), changed

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(old["params"])

    found = run(Both(True))
    assert_same(found, run(Both(False)))
    assert found[0][1]["Variable"]["text"]["calls"] == 1
    assert ("batch_stats" in found[0][1]) == train


# --- what flax.linen cannot write -------------------------------------------------------------------------------------


def test_layers_share_a_part_that_a_loop_in_each_of_them_creates() -> None:
    from liftcore.filters import All, Not, PathContains

    adapter, x = All("params", PathContains("adapter")), jax.random.normal(KEY, (2, 8))

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            def refine(mdl: Any, i: Any, h: Any) -> Any:
                def shared(key: Any, *args: Any) -> Any:
                    return nn.initializers.lecun_normal()(mdl.make_rng("shared"), *args)

                rounds = mdl.variable("state", "rounds", lambda: jnp.int32(0))
                rounds.value += 1
                step = mdl.param("step", nn.initializers.normal(0.1), ())
                return h + step * nn.tanh(nn.Dense(8, kernel_init=shared, name="adapter")(h))

            split = {("params", "shared"): False}
            return nn.fori_loop(0, 3, refine, self, x, carry_variables="state", split_rngs=split), None

    stack = nn.scan(
        nn.remat(Layer),
        length=4,
        variable_broadcast=adapter,
        variable_axes={All("params", Not(adapter)): 0},
        variable_carry="state",
        split_rngs={"params": True, "shared": False},
    )()
    variables = stack.init(KEY, x, None)
    params = variables["params"]
    assert params["step"].shape == (4,)
    assert params["adapter"]["kernel"].shape == (8, 8)
    (y, _), changed = stack.apply(variables, x, None, mutable=["state"])
    assert changed["state"]["rounds"] - variables["state"]["rounds"] == 12
    for step in params["step"]:
        for _ in range(3):
            x = x + step * jnp.tanh(nn.Dense(8).apply({"params": params["adapter"]}, x))
    np.testing.assert_allclose(y, x, atol=1e-5)
