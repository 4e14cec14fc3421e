"""`with_lora`: low-rank updates for the kernels of a model of another library, or of any function of a scope."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore import errors, foreign
from liftcore.filters import Not, PathContains
from liftcore.foreign import with_lora
from liftcore.nn import merge_lora
from tests.foreign.comparing import KEY, X, assert_same, layer, shapes
from tests.foreign.test_styles import LIBRARIES, of_equinox, of_haiku

linen = pytest.importorskip("flax.linen")

ROW = X[0, 0]


def block_of(linen: Any) -> Any:
    """A block with attention, an embedding and a convolution, by one of the two libraries."""

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = x + linen.MultiHeadDotProductAttention(2)(linen.LayerNorm()(x))
            return linen.Dense(3)(linen.Conv(6, (3,))(x) + linen.Embed(5, 6)(jnp.arange(5)))

    return Block()


BLOCK = foreign.from_linen(block_of(linen))
TUNED = with_lora(BLOCK, 2, alpha=4.0)
BASE = liftcore.lazy_init(BLOCK)(KEY, X)


def learned(variables: Any) -> Any:
    """Variables with updates that are not zero."""
    return variables | {"lora": jax.tree.map(lambda leaf: leaf + 0.1, variables["lora"])}


def test_updates_are_those_of_lora_of_our_modules() -> None:
    y, variables = liftcore.init(TUNED)(KEY, X)
    ours = nn.LoRA(block_of(nn), 2, alpha=4.0)
    assert_same((y, variables), ours.init_with_output(KEY, X))
    assert_same(variables["params"], BASE["params"])
    assert_same(y, liftcore.apply(BLOCK)(BASE, X))
    trained = learned(variables)
    np.testing.assert_allclose(liftcore.apply(TUNED)(trained, X), ours.apply(trained, X), atol=1e-5)
    merged = jax.jit(liftcore.apply(BLOCK))(merge_lora(trained, alpha=4.0), X)
    assert_same(jax.jit(liftcore.apply(TUNED))(trained, X), merged)


def test_updates_are_added_to_a_checkpoint_and_trained_alone() -> None:
    tuned = with_lora(BLOCK, 1, targets=PathContains("Dense_0"))
    _, made = liftcore.apply(tuned, mutable="lora")(BASE, X, rngs=KEY)
    assert shapes(made) == {"lora": {"Dense_0": {"a": (6, 1), "b": (1, 3)}}}
    grads = jax.grad(lambda updates: liftcore.apply(tuned)(BASE | updates, X).sum())(made)
    assert grads["lora"]["Dense_0"]["b"].any()
    with pytest.raises(errors.ScopeCollectionNotFound, match=r'"lora/a" at /Dense_0: .*mutable=\["lora"\]'):
        liftcore.apply(tuned)(BASE, X)
    with pytest.raises(errors.ScopeParamShapeError, match=r"shape \(6, 2\), given \(6, 1\)"):
        liftcore.apply(with_lora(BLOCK, 2, targets=PathContains("Dense_0")))(BASE | made, X)


@LIBRARIES
def test_scanned_layers_have_updates_of_their_own(make: Any) -> None:
    fn = make()

    def layers(fn: Any) -> Any:
        body = liftcore.remat(lambda scope, x, _: (fn(scope, x), None))
        return liftcore.scan(body, length=3, variable_axes={("params", "lora"): 0}, split_rngs={"params": True})

    tuned, plain = layers(with_lora(fn, 2)), layers(fn)
    (y, _), variables = liftcore.init(tuned)(KEY, ROW, None)
    (expected, _), base = liftcore.init(plain)(KEY, ROW, None)
    assert_same((y, variables["params"]), (expected, base["params"]))
    around = liftcore.lazy_init(with_lora(plain, 2, stacked=1))(KEY, ROW, None)
    assert shapes(around) == shapes(variables)
    trained = learned(variables)
    merged = jax.jit(liftcore.apply(plain))(merge_lora(trained, alpha=None), ROW, None)
    close = functools.partial(np.testing.assert_allclose, desired=merged[0], rtol=1e-5, atol=1e-6)
    close(jax.jit(liftcore.apply(tuned))(trained, ROW, None)[0])
    close(jax.jit(liftcore.apply(with_lora(plain, 2, stacked=1)))(trained, ROW, None)[0])
    assert (merged[0] != expected).any()


def test_several_updates_of_one_kernel_in_a_batch() -> None:
    tuned = with_lora(of_haiku(), 1)
    several = liftcore.vmap(
        tuned, in_axes=None, axis_size=4, variable_axes={"params": None, "lora": 0}, split_rngs={"params": False}
    )
    variables = liftcore.lazy_init(several)(KEY, ROW)
    assert shapes(variables["params"]) == {"linear": {"b": (8,), "w": (8, 8)}}
    assert shapes(variables["lora"]) == {"linear": {"w_lora": {"a": (4, 8, 1), "b": (4, 1, 8)}}}
    trained = variables | {"lora": jax.tree.map(lambda leaf: leaf + jnp.arange(4.0)[:, None, None], variables["lora"])}
    y = liftcore.apply(several)(trained, ROW)
    for number in range(4):
        updates = layer(trained["lora"], number)
        expected = liftcore.apply(tuned)({"params": variables["params"], "lora": updates}, ROW)
        np.testing.assert_allclose(y[number], expected, rtol=1e-5)


def test_kernels_with_different_updates() -> None:
    attention = PathContains("MultiHeadDotProductAttention_0")
    fn = with_lora(with_lora(BLOCK, 1, targets=attention), 3, targets=Not(attention))
    y, variables = liftcore.init(liftcore.jit(fn))(KEY, X)
    assert_same(variables["params"], BASE["params"])
    ranks = {leaf.shape[-1] for path, leaf in jax.tree.leaves_with_path(variables["lora"]) if path[-1].key == "a"}
    assert ranks == {1, 3}
    merged = merge_lora(learned(variables), alpha=None)
    np.testing.assert_allclose(
        liftcore.apply(fn)(learned(variables), X), liftcore.apply(BLOCK)(merged, X), rtol=1e-5, atol=1e-6
    )
    assert_same(y, liftcore.apply(BLOCK)(BASE, X))


def test_a_cell_with_two_kernels_and_a_layer_with_names_of_its_own() -> None:
    equinox = pytest.importorskip("equinox")
    cell = foreign.from_equinox(lambda key: equinox.nn.GRUCell(3, 4, key=key))
    variables = liftcore.lazy_init(with_lora(cell, 2))(KEY, jnp.ones(3), jnp.ones(4))
    assert {name: shapes(held["a"]) for name, held in variables["lora"].items()} == {
        "weight_ih_lora": (12, 2),
        "weight_hh_lora": (12, 2),
    }
    merged = merge_lora(learned(variables), alpha=None)["params"]
    assert (merged["weight_hh"] != variables["params"]["weight_hh"]).any()

    def own(scope: Any, x: Any) -> Any:
        return x @ scope.param("mix", jax.nn.initializers.normal(), (8, 8)).astype(x.dtype)

    variables = liftcore.lazy_init(with_lora(own, 1, names=["mix"], param_dtype=jnp.bfloat16))(KEY, ROW)
    assert variables["lora"]["mix_lora"]["a"].dtype == jnp.bfloat16
    assert merge_lora(variables, alpha=None)["params"]["mix"].dtype == jnp.float32


@pytest.mark.parametrize("make", [of_haiku, of_equinox])
def test_in_each_style(make: Any) -> None:
    tuned = with_lora(make(), 2)
    y, variables = liftcore.init(tuned)(KEY, ROW)
    pytree, pax_layer = eqx.Applied.init(tuned, KEY, ROW), pax.Layer(tuned, KEY, ROW)
    assert_same(pytree.variables, variables)
    assert len(jax.tree.leaves(pax_layer)) == len(jax.tree.leaves(variables)) == 4
    module = nnx.bridge.ToNNX(tuned, variables=variables)
    assert len(jax.tree.leaves(nnx.state(module, nnx.Param))) == 2
    assert_same((pytree(ROW), pax_layer(ROW), module(ROW)), (y, y, y))

    class Linen(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return tuned(self.scope.push("old"), x)

    assert shapes(Linen().init(KEY, ROW)["lora"]["old"]) == shapes(variables["lora"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "with_lora at .*: expected a rank of 1 or more as `rank`, given 0"),
        ({"targets": "x"}, "with_lora at /: Block has no kernel that `targets` matches, 'x': .*/kernel.*Write"),
        ({"names": ["mix"]}, "it has no kernels of these `names`. Pass the names"),
    ],
)
def test_what_has_no_target_is_an_error(options: Any, message: str) -> None:
    with pytest.raises(errors.LiftArgumentError, match=message):
        liftcore.init(functools.partial(with_lora, BLOCK)(**{"rank": 2, **options}))(KEY, X)
