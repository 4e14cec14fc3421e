"""Checkpoints of `flax.linen` models, read here and given back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from linen_like.convert import from_flax, to_flax
from tests.layers.bits import assert_same_bits

linen = pytest.importorskip("flax.linen")
serialization = pytest.importorskip("flax.serialization")

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
