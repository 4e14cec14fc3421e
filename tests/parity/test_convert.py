"""Checkpoints of `flax.linen` models, read here and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
import nnx_like
from liftcore.checkpoints import each_holding, load_file, load_orbax
from liftcore.training import TrainState
from linen_like.convert import from_flax, to_flax
from tests.layers.bits import assert_same_bits

linen = pytest.importorskip("flax.linen")
serialization = pytest.importorskip("flax.serialization")
core = pytest.importorskip("flax.core")
flax_nnx = pytest.importorskip("flax.nnx")
flax_train_state = pytest.importorskip("flax.training.train_state")
optax = pytest.importorskip("optax")

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
SHARED = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}


def mixed(nn: Any) -> Any:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.remat(nn.Dense)(3)(nn.tanh(x))
            x = nn.jit(nn.Dense)(3)(x)
            x = nn.Dense(3)(x)
            x = nn.remat(nn.Dense)(3)(x)
            return nn.BatchNorm(use_running_average=False)(x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            x = nn.remat(Block)()(x)
            x = nn.vmap(nn.remat(nn.Dense), **SHARED)(3)(x)
            x = nn.remat(nn.jit(nn.Dense))(3)(x)
            x = nn.remat(nn.Dense)(3, name="named")(x)
            return Block()(Block()(x))

    return Model()


def with_setup(nn: Any) -> Any:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.remat(nn.Dense)(3)(nn.Dense(3)(x))

    class Model(nn.Module):
        def setup(self) -> None:
            self.layers = [nn.remat(Inner)(), Inner()]

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    return Model()


def scanned(nn: Any) -> Any:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.jit(nn.Dense)(3)(nn.remat(nn.Dense)(3)(x)), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            Loop = nn.scan(nn.remat(Block), length=2, variable_axes={"params": 0}, split_rngs={"params": True})
            return Loop()(x, None)[0]

    return Model()


@pytest.mark.parametrize("build", [mixed, with_setup, scanned])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_what_flax_made_is_read_here_and_given_back(build: Any, as_bytes: bool) -> None:
    theirs, ours = build(linen), build(linen_like)
    variables = theirs.init(jax.random.key(0), X)
    given = serialization.to_bytes(variables) if as_bytes else variables
    found = from_flax(ours, given, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, ours.init(jax.random.key(0), X))
    y = ours.apply(found, X, mutable=["batch_stats"])[0]
    np.testing.assert_allclose(y, theirs.apply(variables, X, mutable=["batch_stats"])[0], rtol=1e-5, atol=1e-6)
    assert_same_bits(to_flax(ours, found, X), dict(variables))


def boxed(nn: Any, box: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            init = getattr(nn, box)(nn.initializers.lecun_normal(), ("embed", "mlp"))
            x = nn.remat(nn.Dense)(3, kernel_init=init)(nn.LayerNorm()(x))
            return nn.BatchNorm(use_running_average=True)(x)

    return Model()


FORMS: dict[str, Any] = {
    "tree": lambda variables: variables,
    "frozen": core.freeze,
    "without boxes": linen.unbox,
    "state dict": serialization.to_state_dict,
    "bytes": serialization.to_bytes,
    "bytes without boxes": lambda variables: serialization.to_bytes(linen.unbox(variables)),
    "msgpack": lambda variables: memoryview(serialization.msgpack_serialize(serialization.to_state_dict(variables))),
    "nnx": lambda variables: {
        name: jax.tree.map(flax_nnx.Param, linen.unbox(below)) for name, below in variables.items()
    },
}


@pytest.mark.parametrize("box", ["with_partitioning", "with_logical_partitioning"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_variables_of_flax_is_read_with_our_boxes(box: Any, form: str) -> None:
    theirs, ours = boxed(linen, box), boxed(linen_like, box)
    variables = theirs.init(jax.random.key(0), X)
    found = from_flax(ours, FORMS[form](variables), X)
    assert jax.tree.structure(found) == jax.tree.structure(ours.init(jax.random.key(0), X))
    assert_same_bits(to_flax(ours, linen_like.unbox(found), X), linen.unbox(variables))
    np.testing.assert_allclose(ours.apply(found, X), theirs.apply(variables, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("store", ["bytes", "standard", "pytree", "manager"])
def test_a_training_state_of_flax_goes_on_here(tmp_path: Path, store: str) -> None:
    theirs, ours = boxed(linen, "with_partitioning"), boxed(linen_like, "with_partitioning")
    variables, tx = theirs.init(jax.random.key(0), X), optax.adam(0.1)
    old = flax_train_state.TrainState.create(apply_fn=theirs.apply, params=variables["params"], tx=tx)
    old = old.apply_gradients(grads=jax.tree.map(jnp.cos, old.params))
    params = ours.init(jax.random.key(1), X)["params"]
    new = TrainState.create(apply_fn=ours.apply, params=params, tx=tx)
    rename = each_holding("CheckpointDense_0", lambda params: from_flax(ours, {"params": params}, X)["params"])
    path = tmp_path / "saved"
    if store == "bytes":
        path.write_bytes(serialization.to_bytes(old))
        found = load_file(path, new, checksums=False, transform=rename)
    else:
        ocp = pytest.importorskip("orbax.checkpoint")
        if store == "manager":
            with ocp.CheckpointManager(path) as manager:
                manager.save(1, args=ocp.args.StandardSave(old))
            path /= "1"
        else:
            with {"standard": ocp.StandardCheckpointer, "pytree": ocp.PyTreeCheckpointer}[store]() as checkpointer:
                checkpointer.save(path, old)
        found = load_orbax(path, new, transform=rename)
    old, found = (state.apply_gradients(grads=jax.tree.map(jnp.cos, state.params)) for state in (old, found))
    assert int(found.step) == 2
    assert_same_bits(to_flax(ours, {"params": linen_like.unbox(found.params)}, X)["params"], linen.unbox(old.params))
    moment = linen_like.unbox(found.opt_state[0].nu)
    assert_same_bits(to_flax(ours, {"params": moment}, X)["params"], linen.unbox(old.opt_state[0].nu))


@pytest.mark.parametrize("form", ["state", "pure dict"])
@pytest.mark.parametrize("checkpointer", ["StandardCheckpointer", "PyTreeCheckpointer"])
def test_a_model_of_nnx_goes_on_here(tmp_path: Path, form: str, checkpointer: str) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")

    def build(nnx: Any, seed: int) -> Any:
        parts = nnx.Linear(3, 4, rngs=nnx.Rngs(seed)), nnx.BatchNorm(4, rngs=nnx.Rngs(seed))
        return nnx.Sequential(*parts, nnx.Dropout(0.5, rngs=nnx.Rngs(seed)))

    theirs, ours = build(flax_nnx, 0), build(nnx_like, 1)
    theirs(X)
    state = flax_nnx.state(theirs)
    with getattr(ocp, checkpointer)() as saving:
        saving.save(tmp_path / "model", state if form == "state" else flax_nnx.to_pure_dict(state))
    nnx_like.update(ours, load_orbax(tmp_path / "model", nnx_like.state(ours)))
    np.testing.assert_array_equal(ours(X), theirs(X))
