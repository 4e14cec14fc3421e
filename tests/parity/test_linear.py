"""Linear, convolutional and normalization layers against `flax.linen` where one row of the table is not enough."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from tests.layers.bits import assert_same_bits, quick
from tests.layers.row import Row, array, everything, modular
from tests.machine import devices

linen = pytest.importorskip("flax.linen")

LAYERS = [
    *("Dense", "DenseGeneral", "Einsum", "Conv", "ConvLocal", "ConvTranspose", "Embed"),
    *("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm", "SpectralNorm", "WeightNorm"),
]


@pytest.mark.parametrize("name", LAYERS)
def test_fields_and_defaults_are_those_of_linen(name: str) -> None:
    def described(layer: Any) -> dict[str, Any]:
        own = ("parent", "name", "out_sharding")
        fields = [field for field in dataclasses.fields(layer) if field.init and field.name not in own]
        made = {field.name: field.default_factory for field in fields}
        defaults = {
            field.name: field.default if made[field.name] is dataclasses.MISSING else made[field.name]()
            for field in fields
        }
        return {name: "callable" if callable(value) else value for name, value in defaults.items()}

    ours, theirs = described(getattr(linen_like, name)), described(getattr(linen, name))
    assert list(ours) == list(theirs)
    assert ours == theirs


@pytest.mark.parametrize(
    ("file", "names"),
    [
        (
            "linear",
            ["Array", "Conv", "ConvLocal", "ConvTranspose", "Dense", "DenseGeneral", "Dtype", "Einsum", "Embed"],
        ),
        ("linear", ["Initializer", "PrecisionLike", "PromoteDtypeFn", "default_kernel_init", "default_embed_init"]),
        (
            "normalization",
            ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "SpectralNorm", "WeightNorm"],
        ),
    ],
)
def test_names_are_where_linen_has_them(file: str, names: list[str]) -> None:
    for library in ("linen_like", "flax.linen"):
        found = importlib.import_module(f"{library}.{file}")
        assert [name for name in names if not hasattr(found, name)] == [], library


def both_apply(rows: list[Row]) -> None:
    """Compares outputs of several configurations in one program; the parameters are ours."""
    pairs = [[modular(row.module(library), row) for library in (linen_like, linen)] for row in rows]

    def run(key: Any, inputs: Any) -> Any:
        results: list[list[Any]] = [[], []]
        for (ours, theirs), x in zip(pairs, inputs, strict=True):
            _, variables = ours.init({"params": key}, x)
            for result, side in zip(results, (ours, theirs), strict=True):
                result.append(side.apply(variables, {}, x))
        return results

    assert_same_bits(*quick(run)(jax.random.key(0), [row.inputs for row in rows]))


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL", 1, [(2, 0)]])
def test_convolutions_mix_padding_strides_dilations_groups_and_masks(padding: Any) -> None:
    numbers = not isinstance(padding, str)
    rows = []
    for strides, spacing, groups in [(1, 1, 2), (1, 2, 1), (3, 1, 1), (3, 2, 2)]:
        config = {"features": 4, "kernel_size": 3, "padding": padding, "strides": strides, "kernel_dilation": spacing}
        config |= {"input_dilation": 2} if numbers and strides == 1 else {}
        mask = np.arange(3 * (4 // groups) * 4).reshape(3, 4 // groups, 4) % 3
        rows.append(Row("Conv", {**config, "feature_group_count": groups, "mask": mask}, array(2, 7, 4)))
        if groups == 1:
            rows.append(Row("ConvLocal", config, array(2, 7, 4)))
    both_apply(rows)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", 1, [(2, 0)]])
def test_transposed_convolutions_mix_padding_strides_dilation_and_masks(padding: Any) -> None:
    rows = []
    for strides, spacing, transposed in [(1, 1, True), (1, 2, False), (3, 1, False), (3, 2, True)]:
        config = {"features": 3, "kernel_size": 2, "padding": padding, "strides": strides, "kernel_dilation": spacing}
        mask = np.arange(24).reshape((2, 3, 4) if transposed else (2, 4, 3)) % 3
        rows.append(Row("ConvTranspose", {**config, "transpose_kernel": transposed, "mask": mask}, array(2, 5, 4)))
    both_apply(rows)


def test_element_type_of_a_transposed_convolution_is_that_of_linen() -> None:
    """Of values only: older JAX has no gradient of it."""
    config = {"features": 3, "kernel_size": 2, "dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}
    both_apply([Row("ConvTranspose", config, array(2, 5, 4))])


@pytest.mark.parametrize("name", ["RMSNorm", "GroupNorm", "InstanceNorm"])
def test_norm_over_a_mapped_axis_is_that_of_linen(name: str) -> None:
    x = array(3, 2, 5, 4)
    config = {"num_groups": 2} if name == "GroupNorm" else {}
    variables = jax.tree.map(
        lambda leaf: array(*leaf.shape), getattr(linen, name)(**config).init(jax.random.key(0), x[0])
    )
    sides = [getattr(library, name)(**config, axis_name="elements") for library in (linen_like, linen)]

    def both(x: Any) -> Any:
        return [jax.vmap(lambda x, side=side: side.apply(variables, x), axis_name="elements")(x) for side in sides]

    assert_same_bits(*quick(both)(x))


@pytest.mark.parametrize("name", ["BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm"])
@pytest.mark.filterwarnings("ignore:.*pmap")
def test_norm_over_groups_of_devices_is_that_of_linen(name: str) -> None:
    x = array(4, 2, 5, 4)
    config = {"num_groups": 2} if name == "GroupNorm" else {}
    call = {"use_running_average": False} if name == "BatchNorm" else {}
    layer = getattr(linen, name)(**config)
    variables = quick(lambda x: layer.init(jax.random.key(0), x, **call))(x[0])
    config |= {"axis_name": "elements", "axis_index_groups": [[0, 2], [1, 3]]}
    sides = [getattr(library, name)(**config) for library in (linen_like, linen)]

    def both(x: Any) -> Any:
        return [side.apply(variables, x, **call, mutable=["batch_stats"]) for side in sides]

    ours, theirs = jax.pmap(both, axis_name="elements", devices=devices(4))(x)
    assert_same_bits(ours, theirs)


def wrapping_model(nn: Any) -> Any:
    """A model that wraps layers where they are made, and a block with a dropout."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(4)(x))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.SpectralNorm(nn.Conv(4, (2,)))(x, update_stats=train)
            x = nn.WeightNorm(nn.Dense(4), variable_filter=["bias", "Dense_0"])(nn.relu(x))
            return nn.WeightNorm(Block(), scale_init=nn.initializers.normal())(x) if train else x

    return Model()


@pytest.mark.parametrize("train", [True, False])
def test_wrapped_layers_in_a_model_are_those_of_linen(train: bool) -> None:
    row = Row("Model", {}, array(2, 3, 4), {"train": train})
    ours, theirs = (modular(wrapping_model(library), row) for library in (linen_like, linen))

    def compared(layer: Any, x: Any) -> Any:
        found = everything(
            layer, x
        )  # `init` of Linen runs the block twice, so its dropout draws the key of a second run
        return {name: found[name] for name in found if name != "init" or not train}

    assert_same_bits(*quick(lambda x: (compared(ours, x), compared(theirs, x)))(row.inputs))


@pytest.mark.parametrize(("name", "call"), [("WeightNorm", {}), ("SpectralNorm", {"update_stats": True})])
def test_wrapped_layer_sees_what_that_of_linen_sees_though_less_exact_parameters_are_not_stored(
    name: str, call: dict[str, Any]
) -> None:
    x = array(3, 4).astype(jnp.bfloat16)

    def both(key: Any, x: Any) -> Any:
        ours, theirs = (
            getattr(library, name)(library.Dense(3, use_bias=False), dtype=jnp.bfloat16)
            for library in (linen_like, linen)
        )
        y, variables = ours.init_with_output(key, x, **call)
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
        first, stored = theirs.init_with_output(key, x, **call)
        assert stored["params"]["layer_instance"]["kernel"].dtype == jnp.bfloat16
        sides = (side.apply(variables, x, **call, mutable=["batch_stats"]) for side in (ours, theirs))
        return (y, first), tuple(sides)

    for pair in quick(both)(jax.random.key(0), x):
        assert_same_bits(*pair)
