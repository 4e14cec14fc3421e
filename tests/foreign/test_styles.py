"""A model of each library in each of our styles; and nothing is imported before it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore import foreign
from tests.foreign.comparing import KEY, X, assert_same, deep

ROW = X[0, 0]


def library(name: str) -> Any:
    pytest.importorskip(name)
    return importlib.import_module(name)


def of_linen() -> Any:
    return foreign.from_linen(library("flax.linen").Dense(8))


def of_nnx() -> Any:
    theirs = library("flax.nnx")
    return foreign.from_nnx(lambda rngs: theirs.Linear(8, 8, rngs=rngs))


def of_haiku() -> Any:
    hk = library("haiku")
    return foreign.from_haiku(hk.transform(lambda x: hk.Linear(8)(x)))


def of_equinox() -> Any:
    linear = library("equinox.nn").Linear
    return foreign.from_equinox(lambda key: linear(8, 8, key=key))


LIBRARIES = pytest.mark.parametrize("make", [of_linen, of_nnx, of_haiku, of_equinox])


@LIBRARIES
def test_a_submodule_of_a_linen_style_module(make: Callable[[], Any]) -> None:
    fn = make()

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return fn(self.scope.push("body"), nn.Dense(8)(x)), None

    layers = nn.scan(nn.remat(Body), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()
    variables = layers.init(KEY, ROW, None)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(variables["params"]["body"]))
    assert layers.apply(variables, ROW, None)[0].shape == ROW.shape
    assert "│ body" in Body().tabulate(KEY, ROW, None)


@LIBRARIES
def test_a_pytree_a_module_with_kinds_and_an_object(make: Callable[[], Any]) -> None:
    fn = make()
    y, variables = liftcore.init(fn)(KEY, ROW)
    pytree = eqx.Applied.init(fn, KEY, ROW)
    assert_same(pytree(ROW), y)
    gradient = eqx.filter_grad(lambda model: model(ROW).sum())(pytree)
    assert jax.tree.structure(gradient.variables) == jax.tree.structure(variables)
    layer = pax.Layer(fn, KEY, ROW)
    assert_same(layer(ROW), y)
    module = nnx.bridge.ToNNX(fn, variables=variables)
    assert_same(module(ROW), y)
    assert jax.tree.leaves(nnx.grad(lambda module: module(ROW).sum())(module))


@LIBRARIES
def test_each_array_is_a_variable_for_our_lifts(make: Callable[[], Any]) -> None:
    fn = make()
    several = liftcore.vmap(fn, in_axes=None, axis_size=4, variable_axes={"params": 0}, split_rngs={"params": True})
    y, variables = liftcore.init(liftcore.jit(several))(KEY, ROW)
    assert y.shape == (4, 8)
    assert_same(liftcore.apply(several)(variables, ROW), y)
    stacked = liftcore.init(deep(fn))(KEY, ROW)[1]
    assert jax.tree.map(lambda leaf: leaf.shape[1:], stacked) == jax.tree.map(lambda leaf: leaf.shape[1:], variables)


def test_a_library_is_imported_when_its_function_is_called() -> None:
    code = (
        "import sys, liftcore; liftcore.foreign.from_linen, liftcore.foreign.from_nnx, liftcore.foreign.from_haiku; "
        "liftcore.foreign.from_equinox; assert not {'flax', 'haiku', 'equinox'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
