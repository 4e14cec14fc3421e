"""Names of axes in collections of their own against `flax.linen.partitioning`."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like
from linen_like import partitioning
from tests.layers.bits import assert_same_bits

linen = pytest.importorskip("flax.linen")
theirs = pytest.importorskip("flax.linen.partitioning")

KEY = jax.random.key(0)


def counting(key: Any, shape: tuple[int, ...]) -> Any:
    """An initializer that is no matter of keys: flax draws those of a scan later."""
    return jnp.arange(float(shape[0] * shape[1])).reshape(shape)


def models(nn: Any, partitioning: Any) -> Any:
    """The same models in one library and the other."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            w = partitioning.param_with_axes("w", counting, (x.shape[-1], 3), axes=("embed", "mlp"))
            steps = partitioning.variable_with_axes("cache", "steps", jnp.zeros, (3,), axes=("mlp",))
            steps.value = steps.value + 1
            return jnp.tanh(x @ w) + steps.value

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return Layer()(x), None

    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            axes = {"params": 1, "cache": 0}
            return partitioning.scan_with_axes(
                Step, axes, split_rngs={"params": True}, length=4, axes_collections=tuple(axes)
            )()(x, None)

    class Mapped(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            names = {"params": "heads", "cache": "elements"}
            options = {"split_rngs": {"params": True}, "partitioning_axis_names": names, "in_axes": None}
            return partitioning.vmap_with_axes(Layer, {"params": 0, "cache": 1}, axis_size=3, **options)()(x)

    return types.SimpleNamespace(Layer=Layer, Scanned=Scanned, Mapped=Mapped)


@pytest.mark.parametrize("name", ["Layer", "Scanned", "Mapped"])
def test_values_and_names_are_those_of_linen(name: str) -> None:
    sides = []
    for nn, module in ((linen_like, partitioning), (linen, theirs)):
        model = getattr(models(nn, module), name)()
        variables = model.init(KEY, jnp.ones((2, 3)))
        applied = model.apply(variables, jnp.ones((2, 3)), mutable=["cache"])
        values = {collection: tree for collection, tree in variables.items() if not collection.endswith("_axes")}
        named = {c: str(module.get_axis_names(tree)) for c, tree in variables.items() if c.endswith("_axes")}
        sides.append(((values, applied), named))
    (ours, our_names), (others, their_names) = sides
    assert_same_bits(ours, others)
    assert our_names == their_names
