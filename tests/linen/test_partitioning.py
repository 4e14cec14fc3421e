"""The older way to name axes: names that lie beside the variables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import linen_like as nn
from linen_like import partitioning
from linen_like.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Layer(nn.Module):
    features: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        ones = nn.initializers.ones
        w = partitioning.param_with_axes("w", ones, (x.shape[-1], self.features), axes=("embed", "mlp"))
        b = partitioning.param_with_axes("b", ones, (self.features,))
        steps = partitioning.variable_with_axes("cache", "steps", jnp.zeros, (self.features,), axes=("mlp",))
        if self.is_mutable_collection("cache"):
            steps.value = steps.value + 1
        return x @ w + b + steps.value


class Step(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return Layer()(x), None


def names(variables: Any) -> dict[tuple[str, ...], Any]:
    """The kept names of all collections."""
    found = {}
    for collection in variables:
        if collection.endswith("_axes"):
            flat = nn.FrozenDict(partitioning.get_axis_names(variables[collection])).unfreeze()
            found[collection] = jax.tree.map(tuple, flat, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    return found


def test_names_lie_in_a_collection_of_their_own() -> None:
    variables = Layer().init(KEY, X)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"w": (3, 3), "b": (3,)}
    assert names(variables) == {"params_axes": {"w": ("embed", "mlp")}, "cache_axes": {"steps": ("mlp",)}}
    assert jax.tree.leaves((variables["params_axes"], variables["cache_axes"])) == []


def test_apply_needs_no_names_and_keeps_those_it_is_given() -> None:
    variables = Layer().init(KEY, X)
    values = {"params": variables["params"], "cache": variables["cache"]}
    y, mutated = Layer().apply(values, X, mutable=["cache"])
    np.testing.assert_array_equal(y, 6.0)
    assert list(mutated) == ["cache"]
    assert Layer().apply(variables, X).shape == (2, 3)
    _, mutated = Layer().apply(values, X, mutable=["cache", "params_axes"])
    assert names(mutated) == {"params_axes": {"w": ("embed", "mlp")}}


def test_a_scan_adds_the_name_of_its_axis_where_the_axis_lies() -> None:
    scanned = partitioning.scan_with_axes(
        Step,
        variable_axes={"params": 1, "cache": 0},
        split_rngs={"params": True},
        length=4,
        axes_collections=("params", "cache"),
    )
    variables = scanned(name="steps").init(KEY, X, None)
    assert variables["params"]["Layer_0"]["w"].shape == (3, 4, 3)
    below = {"params_axes": {"w": ("embed", "layers", "mlp")}, "cache_axes": {"steps": ("layers", "mlp")}}
    assert names(variables) == {collection: {"Layer_0": named} for collection, named in below.items()}
    (y, _), mutated = scanned(name="steps").apply(variables, X, None, mutable=["cache"])
    assert y.shape == (2, 3)
    np.testing.assert_array_equal(mutated["cache"]["Layer_0"]["steps"], 2.0)


def test_a_vmap_adds_names_for_the_collections_that_it_is_told() -> None:
    mapped = partitioning.vmap_with_axes(
        Layer,
        {"params": 0, "cache": 1},
        {"params": True},
        partitioning_axis_names={"params": "heads", "cache": "elements"},
    )
    variables = mapped().init(KEY, jnp.ones((4, 2, 3)))
    assert variables["cache"]["steps"].shape == (3, 4)
    assert names(variables) == {
        "params_axes": {"w": ("heads", "embed", "mlp")},
        "cache_axes": {"steps": ("mlp", "elements")},
    }
    assert mapped().apply(variables, jnp.ones((4, 2, 3))).shape == (4, 2, 3)


def test_values_are_constrained_where_there_are_rules_and_a_mesh() -> None:
    variables = Layer().init(KEY, X)
    rules = (("embed", None), ("mlp", "model"))

    def constraints() -> list[str]:
        jaxpr = jax.make_jaxpr(lambda variables: Layer().apply(variables, X, mutable=["cache"])[0])(variables)
        return [str(eqn.params["sharding"].spec) for eqn in jaxpr.eqns if eqn.primitive.name == "sharding_constraint"]

    assert constraints() == []
    with partitioning.axis_rules(rules), jax.set_mesh(jax.make_mesh((1,), ("model",), (jax.sharding.AxisType.Auto,))):
        found = constraints()
    assert found[0].replace("PartitionSpec", "P") == "P(None, 'model')"
    assert len(found) == 4  # the parameter; the variable read, set and read again


def test_the_module_may_be_given() -> None:
    class Holder(nn.Module):
        @nn.compact
        def __call__(self) -> Any:
            return Reader()(self)

    class Reader(nn.Module):
        def __call__(self, owner: nn.Module) -> Any:
            return partitioning.param_with_axes("w", nn.initializers.ones, (2,), axes=("mlp",), module=owner)

    assert jax.tree.map(jnp.shape, Holder().init(KEY)["params"]) == {"w": (2,)}


def test_a_function_without_a_module_is_told_to_have_one() -> None:
    with pytest.raises(LiftArgumentError, match=r'param_with_axes\("w"\): no method of a module is running.*`setup`'):
        partitioning.param_with_axes("w", nn.initializers.ones, (2,))


@pytest.mark.parametrize("make", ["param", "variable"])
def test_there_are_no_more_names_than_axes(make: str) -> None:
    class Wrong(nn.Module):
        @nn.compact
        def __call__(self) -> Any:
            if make == "param":
                return partitioning.param_with_axes("w", nn.initializers.ones, (3, 2), axes=("mlp",) * 3)
            return partitioning.variable_with_axes("state", "w", jnp.ones, (3, 2), axes=("mlp",) * 3).value

    with pytest.raises(
        LiftArgumentError, match=r"axes of \"w\" in Wrong at /: expected at most \[2\] names or None, one"
    ):
        Wrong().init(KEY)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("axes", [(), ("embed",), ("embed", "mlp")])
def test_a_lift_knows_its_axis_also_if_there_are_few_names(axes: Any, axis: int) -> None:
    class Few(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, _: Any) -> Any:
            partitioning.variable_with_axes("params", "v", jnp.ones, (4, 5), axes=axes)
            return carry, partitioning.param_with_axes("w", nn.initializers.ones, (4, 5), axes=axes).sum()

    options = {"variable_axes": {"params": axis}, "split_rngs": {"params": True}}
    scanned = partitioning.scan_with_axes(Few, length=3, axis_name="new", **options)()
    mapped = partitioning.vmap_with_axes(
        Few, in_axes=None, axis_size=3, partitioning_axis_names={"params": "new"}, **options
    )()
    expected = [*axes, *[None] * (2 - len(axes))]
    expected.insert(axis if axis >= 0 else 3 + axis, "new")
    for lifted in scanned, mapped:
        variables = jax.eval_shape(lifted.init, KEY, X, None)
        assert names(variables)["params_axes"] == {"v": tuple(expected), "w": tuple(expected)}


def test_axis_names_are_read_from_names_only() -> None:
    with pytest.raises(LiftArgumentError, match=r'"a/w" in get_axis_names: expected AxisMetadata.*params_axes'):
        partitioning.get_axis_names({"a": {"w": jnp.ones(2)}})


def test_a_collection_with_names_must_have_an_axis() -> None:
    with pytest.raises(LiftArgumentError, match=r"\['params'\] is not in `variable_axes`.*given: \['cache'\]"):
        partitioning.scan_with_axes(Step, variable_axes={"cache": 0}, length=2)
    with pytest.raises(LiftArgumentError, match=r"partitioning_axis_names of vmap_with_axes: \['cache'\]"):
        partitioning.vmap_with_axes(Layer, {"params": 0}, partitioning_axis_names={"cache": "x"})


@pytest.mark.parametrize("static", [1, (1,), (-1,)])
def test_static_arguments_of_remat_are_counted_without_the_module(static: Any) -> None:
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: Any, twice: bool) -> Any:
            y = nn.Dense(3)(x)
            return 2 * y if twice else y

    layer = partitioning.remat(Twice, static_argnums=static)(name="layer")
    variables = layer.init(KEY, X, True)
    np.testing.assert_array_equal(layer.apply(variables, X, True), Twice().apply(variables, X, True))


def test_a_pytree_of_arrays_has_a_pytree_of_names() -> None:
    axes = {"k": ("a", None), "i": ()}

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            tree = {"k": jnp.ones((2, 3)), "i": jnp.ones(())}
            w = partitioning.param_with_axes("w", lambda key: tree, axes=axes)
            c = partitioning.variable_with_axes("cache", "c", lambda: tree, axes=axes)
            s = partitioning.param_with_axes("s", nn.initializers.ones, (), axes=())
            return x * w["i"] * c.value["i"] * s

    variables = Model().init(jax.random.key(0), 1.0)
    assert variables["params_axes"]["w_axes"].names == variables["cache_axes"]["c_axes"].names == axes
    specs = partitioning.get_axis_names(variables["params_axes"])
    assert specs == {"w": {"k": PartitionSpec("a", None), "i": PartitionSpec()}, "s": PartitionSpec()}
    assert Model().apply(variables, 2.0) == 2.0
    box = partitioning.AxisMetadata(axes).add_axis(0, {nn.spmd.PARTITION_NAME: "layers"})
    assert box.names == {"k": ("layers", "a", None), "i": ("layers",)}
    assert box.remove_axis(0, {}).names == axes
