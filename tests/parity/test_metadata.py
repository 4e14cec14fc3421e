"""Boxes against those of `flax.linen`: the same names, values and bytes, also under `vmap` and `scan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import linen_like
from liftcore import meta, serialization
from linen_like import spmd
from tests.layers.bits import assert_same_bits, quick

linen = pytest.importorskip("flax.linen")
peer = pytest.importorskip("flax.serialization")

RNGS = {"params": jax.random.key(0)}
X = jax.random.normal(jax.random.key(2), (2, 4, 3))
LAYERS = {meta.PARTITION_NAME: "layers"}
INIT = jax.nn.initializers.uniform(1.0)  # its numbers are the same in a loop and outside
MODELS: dict[str, Callable[[Any, Any], Any]] = {}


def model(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Adds a model, made of a library and of where its boxes come from."""
    MODELS[build.__name__] = build
    return build


def layers(nn: Any, boxes: Any) -> tuple[Any, Any]:
    """A layer with boxes in three collections, for mapping and for loops."""
    kernel = boxes.with_partitioning(INIT, (None, "model"))
    logical = boxes.with_logical_partitioning(INIT, ("embed", "mlp"))

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3, kernel_init=kernel)(x)
            x = nn.Dense(3, kernel_init=logical)(nn.tanh(x))
            n = self.variable("state", "n", boxes.with_partitioning(jnp.zeros, ("x",)), (3,))
            n.value = n.value + x.mean(range(x.ndim - 1))
            return x + n.value

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> tuple[Any, Any]:
            return Layer(name="layer")(x), None

    return Layer, Step


def own(axis: int) -> dict[str, Any]:
    return {"variable_axes": {"params": axis, "state": axis}, "split_rngs": {"params": True}, "metadata_params": LAYERS}


def exact(nn: Any) -> dict[str, Any]:
    """The option with which Linen draws the keys of the first trace."""
    return {"check_constancy_invariants": False} if nn is linen else {}


@model
def plain(nn: Any, boxes: Any) -> Any:
    return layers(nn, boxes)[0]()


@model
def mapped(nn: Any, boxes: Any) -> Any:
    return nn.vmap(layers(nn, boxes)[0], **own(0))()


@model
def mapped_along_another_axis(nn: Any, boxes: Any) -> Any:
    return nn.vmap(layers(nn, boxes)[0], **own(1))()


@model
def looped(nn: Any, boxes: Any) -> Any:
    return nn.scan(layers(nn, boxes)[1], in_axes=nn.broadcast, length=3, **own(0), **exact(nn))()


@model
def shared(nn: Any, boxes: Any) -> Any:
    axes = {"params": None, "state": 0}
    return nn.vmap(layers(nn, boxes)[0], variable_axes=axes, split_rngs={"params": False}, metadata_params=LAYERS)()


@model
def nested(nn: Any, boxes: Any) -> Any:
    inner = nn.scan(layers(nn, boxes)[1], in_axes=nn.broadcast, length=3, **own(0), **exact(nn))
    outer = {**own(0), "metadata_params": {meta.PARTITION_NAME: "outer"}}
    return nn.vmap(inner, in_axes=(0, None), **outer)()


@model
def rematerialized(nn: Any, boxes: Any) -> Any:
    return nn.remat(layers(nn, boxes)[0])(name="block")


@model
def added(nn: Any, boxes: Any) -> Any:
    init = boxes.with_partitioning(INIT, (None, "model"))
    lifted = boxes.add_metadata_axis(nn.Dense, variable_axes={"params": 0}, metadata_params=LAYERS)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lifted(3, kernel_init=init)(x)

    return Model()


def arguments(name: str) -> tuple[Any, ...]:
    return (X, None) if name in ("looped", "nested") else (X,)


def described(tree: Any) -> Any:
    """A tree of either library, with its boxes as plain dicts."""

    def is_box(value: Any) -> bool:
        return hasattr(value, "replace_boxed")

    def describe(leaf: Any) -> Any:
        if not is_box(leaf):
            return leaf
        return {"type": type(leaf).__name__, "names": leaf.names, "mesh": leaf.mesh, "value": leaf.value}

    return jax.tree.map(describe, tree, is_leaf=is_box)


def statics(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else None, tree)


def same(ours: Any, theirs: Any, exact: bool = True) -> None:
    """The same boxes, names and values; bit for bit, or up to rounding."""
    ours, theirs = described(ours), described(theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert statics(ours) == statics(theirs)
    arrays = [[leaf for leaf in jax.tree.leaves(tree) if not isinstance(leaf, str)] for tree in (ours, theirs)]
    if exact:
        assert_same_bits(*arrays)
    for mine, other in zip(*arrays, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_boxes_are_made_and_written(name: str) -> None:
    mine, other = MODELS[name](linen_like, spmd), MODELS[name](linen, linen)
    args = arguments(name)
    variables, expected = (quick(one.init)(RNGS, *args) for one in (mine, other))
    same(variables["params"], expected["params"])
    same(variables, expected, exact=False)
    (y, mutated), (z, others) = (
        quick(lambda v, one=one: one.apply(v, *args, mutable=["state"]))(v)
        for one, v in ((mine, variables), (other, expected))
    )
    same((mutated, y), (others, z), exact=False)


@pytest.mark.parametrize("name", ["plain", "mapped"])
def test_the_bytes_are_those_of_flax_both_ways(name: str) -> None:
    mine, other = MODELS[name](linen_like, spmd), MODELS[name](linen, linen)
    variables, expected = mine.init(RNGS, *arguments(name)), other.init(RNGS, *arguments(name))
    data = serialization.to_bytes(variables)
    assert data == peer.to_bytes(expected)
    assert described(serialization.to_state_dict(variables)).keys() == peer.to_state_dict(expected).keys()
    zeros, others = (jax.tree.map(jnp.zeros_like, tree) for tree in (variables, expected))
    same(serialization.from_bytes(zeros, data), variables)
    same(peer.from_bytes(others, data), expected)


def test_a_write_of_an_array_keeps_the_box() -> None:
    for nn, boxes in ((linen_like, spmd), (linen, linen)):

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x: Any, boxes: Any = boxes) -> Any:
                n = self.variable("state", "n", boxes.with_partitioning(jnp.zeros, ("x",)), (3,))
                raw = self.variable("state", "raw", boxes.with_partitioning(jnp.zeros, ("x",)), (3,), unbox=False)
                w = self.param("w", boxes.with_partitioning(jax.nn.initializers.ones, ("x",)), (3,), unbox=False)
                n.value = n.value + x
                return raw.value.names, w.names

        names, variables = Model().init_with_output(RNGS, jnp.ones(3))
        assert names == (("x",), ("x",))
        assert variables["state"]["n"].names == ("x",)


RULES = (("batch", "X"), ("features", "X"), ("heads", "Y"), ("batch", "Z"), ("both", ("X", "Y")), ("none", None))


@pytest.mark.parametrize(
    "names",
    [
        ("batch", "length", "heads", "features"),
        ("features", "batch"),
        ("both", "batch", "heads"),
        ("heads", "both"),
        ("none", None, "batch"),
        (("X", "W"), "batch", PartitionSpec.UNCONSTRAINED),
        (),
        None,
    ],
)
def test_logical_names_lead_to_the_same_axes(names: Any) -> None:
    expected = linen.logical_to_mesh_axes(names, RULES)
    assert spmd.logical_to_mesh_axes(names, RULES) == expected
    with linen.logical_axis_rules(RULES), spmd.logical_axis_rules(RULES):
        assert spmd.logical_to_mesh_axes(names) == linen.logical_to_mesh_axes(names) == expected


@pytest.mark.parametrize("logical", [True, False])
def test_the_same_constraints_are_put(logical: bool) -> None:
    def specs(nn: Any, boxes: Any) -> list[Any]:
        if logical:
            init = boxes.with_logical_partitioning(jax.nn.initializers.ones, ("heads", "batch"), rules=RULES)
        else:
            init = boxes.with_partitioning(jax.nn.initializers.ones, (None, ("X", "Y")))
        module = nn.Dense(4, use_bias=False, kernel_init=init)
        variables = module.init(RNGS, jnp.ones((2, 4)))
        assert boxes.get_partition_spec(variables)["params"]["kernel"] == PartitionSpec(
            *(("heads", "batch") if logical else (None, ("X", "Y")))
        )
        with jax.sharding.use_abstract_mesh(AbstractMesh((2, 2, 2), ("X", "Y", "Z"), axis_types=(AxisType.Auto,) * 3)):
            eqns = jax.make_jaxpr(module.apply)(variables, jnp.ones((2, 4))).eqns
        return [eqn.params["sharding"].spec for eqn in eqns if eqn.primitive.name == "sharding_constraint"]

    ours = specs(linen_like, spmd)
    assert len(ours) == 1
    assert ours == specs(linen, linen)


@pytest.mark.parametrize("name", sorted(set(spmd.__all__) & set(vars(linen))))
def test_signatures_are_those_of_linen(name: str) -> None:
    mine, other = getattr(spmd, name), getattr(linen, name)
    if not inspect.isfunction(mine):
        assert isinstance(mine, type) or mine == other
        return
    ours, theirs = (list(inspect.signature(one).parameters) for one in (mine, other))
    assert ours[: len(theirs)] == theirs
