"""`nn.map`, `nn.pmap` and `nn.shard_map` over classes and methods."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import linen_like as nn
from linen_like.errors import AxisSizeError, LiftArgumentError, LoopInvarianceError
from tests.linen.lifted import KEY, RNGS, X, assert_close, assert_same, element, shapes

OWN: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
SHARED: dict[str, Any] = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


class Layer(nn.Module):
    features: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.tanh(nn.Dense(self.features)(x))

    def twice(self, x: Any) -> Any:
        return 2 * self(x)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("options", [OWN, SHARED], ids=["own", "shared"])
def test_map_gives_what_vmap_gives(options: Any, batch_size: Any) -> None:
    mapped, elements = nn.map(Layer, **options, batch_size=batch_size)(), nn.vmap(Layer, **options)()
    xs = jnp.stack([X, 2 * X, -X])
    y, variables = mapped.init_with_output(KEY, xs)
    expected_y, expected = elements.init_with_output(KEY, xs)
    assert_close(variables, expected)
    assert_close(y, expected_y)

    def loss(variables: Any, model: Any) -> Any:
        return (model.apply(variables, xs) ** 2).sum()

    assert_close(jax.grad(loss)(variables, mapped), jax.grad(loss)(variables, elements))


def test_lifted_classes_are_named_after_the_mapping() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.map(Layer, **SHARED)()(x)
            x = nn.pmap(Layer, **SHARED)()(x[None])[0]
            whole = PartitionSpec()
            return nn.shard_map(Layer, {"params": whole}, False, mesh=MESH, in_specs=whole, out_specs=whole)()(x)

    y, variables = Model().init_with_output(KEY, X)
    assert list(variables["params"]) == ["MapLayer_0", "PmapLayer_0", "Shard_mapLayer_0"]
    x = X
    for name in variables["params"]:
        x = Layer().apply({"params": variables["params"][name]}, x)
    assert_close(y, x)


def test_methods_are_chosen() -> None:
    mapped = nn.map(Layer, **OWN, methods="twice")()
    variables = mapped.init(KEY, X, method="twice")
    assert shapes(variables["params"]["Dense_0"]) == {"bias": (2, 3), "kernel": (2, 3, 3)}
    y = mapped.apply(variables, X, method="twice")
    for index in range(2):
        assert_close(y[index], Layer().apply(element(variables, index), X[index], method="twice"))


def test_pmap_has_a_named_axis_and_a_class_with_fields() -> None:
    class Mean(nn.Module):
        scale: float

        @nn.compact
        def __call__(self, x: Any, flag: str, *, shift: Any) -> Any:
            assert flag == "mean"
            self.sow("intermediates", "x", x)
            return jax.lax.pmean(self.scale * nn.Dense(2)(x), "batch") + shift

    Elements = nn.pmap(Mean, **SHARED, axis_name="batch", in_axes=(0, None), kw_axes=None, devices=jax.devices()[:1])
    y, variables = Elements(2.0).init_with_output(KEY, X[None], "mean", shift=jnp.float32(1))
    assert_close(y[0], 2 * nn.Dense(2).apply({"params": variables["params"]["Dense_0"]}, X) + 1)
    _, kept = Elements(2.0).apply(variables, X[None], "mean", shift=jnp.float32(1), mutable=["intermediates"])
    assert_close(kept, {"intermediates": {"x": (X[None],)}})


def test_shard_map_partitions_parameters() -> None:
    class RowParallel(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return jax.lax.psum(nn.Dense(4, use_bias=False)(x), "i")

    options = {"mesh": MESH, "in_specs": PartitionSpec(None, "i"), "out_specs": PartitionSpec()}
    Parallel = nn.shard_map(RowParallel, {"params": PartitionSpec("i")}, {"params": "i"}, **options)
    y, variables = Parallel().init_with_output(KEY, X)
    assert shapes(variables["params"]) == {"Dense_0": {"kernel": (3, 4)}}
    assert_close(y, X @ variables["params"]["Dense_0"]["kernel"])
    assert_close(jax.jit(Parallel().apply)(variables, X), y)


def test_wrong_mappings_are_told() -> None:
    with pytest.raises(LoopInvarianceError, match=r"map\(Layer\) at /"):
        nn.map(Layer, {"params": None}, {"params": True})().init(KEY, X)
    with pytest.raises(AxisSizeError, match=r"map\(Layer\) at /"):
        nn.map(Layer, **SHARED)().init(KEY, ())
    with pytest.raises(LiftArgumentError, match=r"donate_argnums"):
        nn.pmap(Layer, **SHARED, donate_argnums=0)().init(KEY, X[None])
    with pytest.raises(LiftArgumentError, match=r"variable_specs"):
        nn.shard_map(Layer, {"params": 0}, mesh=MESH, in_specs=PartitionSpec(), out_specs=PartitionSpec())().init(
            KEY, X
        )


def test_equal_lifts_are_one_class() -> None:
    assert nn.map(Layer, **OWN) is nn.map(Layer, **OWN)
    assert nn.map(Layer, **OWN) is not nn.map(Layer, **OWN, batch_size=2)
    assert_same(nn.map(Layer, **OWN)().init(RNGS, X), nn.map(Layer, **OWN)().init(RNGS, X))
