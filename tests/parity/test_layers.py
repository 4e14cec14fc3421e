"""Layers as modules against `flax.linen`: their fields and defaults, and models made of them, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import jax
import numpy as np
import pytest

import linen_like
from linen_like import Module, activation, compact, initializers, pooling
from linen_like.activation import PReLU
from linen_like.combinators import Sequential
from linen_like.convolution import Conv
from linen_like.embedding import Embed
from linen_like.linear import Dense
from linen_like.normalization import BatchNorm, LayerNorm
from linen_like.stochastic import Dropout
from tests.layers.bits import assert_same_bits, quick
from tests.layers.row import IMAGE, Row, everything, modular
from tests.layers.table import TABLE

linen = pytest.importorskip("flax.linen")


@pytest.mark.parametrize("name", TABLE)
def test_layer_is_that_of_linen(name: str) -> None:
    row = TABLE[name]
    ours, theirs = (modular(row.module(library), row) for library in (linen_like, linen))
    assert_same_bits(*quick(lambda *args: (everything(ours, *args), everything(theirs, *args)))(*row.args))


OURS = types.SimpleNamespace(
    Module=Module,
    compact=compact,
    relu=activation.relu,
    max_pool=pooling.max_pool,
    **{layer.__name__: layer for layer in (BatchNorm, Conv, Dense, Dropout, Embed, LayerNorm, PReLU, Sequential)},
)


@pytest.mark.parametrize("name", ["Dense", "Conv", "Embed", "BatchNorm", "LayerNorm", "Dropout", "PReLU", "Sequential"])
def test_fields_and_defaults_are_those_of_linen(name: str) -> None:
    def described(layer: Any) -> list[tuple[str, Any]]:
        own = ("parent", "name", "out_sharding")
        fields = [field for field in dataclasses.fields(layer) if field.init and field.name not in own]
        return [(field.name, "callable" if callable(field.default) else field.default) for field in fields]

    ours, theirs = described(getattr(OURS, name)), described(getattr(linen, name))
    assert [field for field, _ in ours] == [field for field, _ in theirs]
    for (field, mine), (_, other) in zip(ours, theirs, strict=True):
        assert mine == other or (mine is other is dataclasses.MISSING), field


def small_model(nn: Any) -> Any:
    """A model with every layer of this kind, made with one library or the other."""

    class Block(nn.Module):
        train: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.Conv(4, (3, 3), use_bias=False, padding="CIRCULAR")(x)
            y = nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(y)
            return x + nn.Dropout(0.5, deterministic=not self.train)(nn.relu(y))

    class Model(nn.Module):
        train: bool

        def setup(self) -> None:
            self.blocks = [Block(self.train), Block(self.train)]
            self.words = nn.Embed(6, 4)
            self.head = nn.Sequential([nn.LayerNorm(), nn.Dense(4), nn.relu, functools.partial(self.words.attend)])

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = nn.max_pool(block(x), (2, 2), (1, 1))
            return self.head(x)

    return Model


@pytest.mark.parametrize("train", [True, False])
def test_model_of_all_layers_is_that_of_linen(train: bool) -> None:
    row = Row("Model", {}, IMAGE)
    ours, theirs = (modular(small_model(nn)(train), row) for nn in (OURS, linen))
    assert_same_bits(*quick(lambda x: (everything(ours, x), everything(theirs, x)))(row.inputs))


def test_activations_are_those_of_linen() -> None:
    named = {name for name in dir(linen.activation) if name.islower() and not name.startswith("_")}
    theirs = {name: getattr(linen.activation, name) for name in named - {"compact", "jnp"}}
    assert {name: getattr(activation, name, None) for name in theirs} == theirs
    assert set(activation.__all__) == {*theirs, "PReLU"}


def test_initializers_are_those_of_linen() -> None:
    theirs = {name for name in dir(linen.initializers) if not name.startswith("_")}
    assert set(initializers.__all__) == theirs
    for name in theirs - {"Initializer", "zeros_init", "ones_init"}:
        assert getattr(initializers, name) is getattr(linen.initializers, name)
    key, shape = jax.random.key(0), (3, 2)
    for name in ("zeros_init", "ones_init"):
        ours, other = (getattr(side, name)()(key, shape) for side in (initializers, linen.initializers))
        np.testing.assert_array_equal(ours, other)
