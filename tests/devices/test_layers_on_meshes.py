"""Every layer on meshes of Explicit and of Auto axes gives what it gives on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import linen_like as nn
from docs.mesh_table import WORKS, by_version, outcome
from liftcore.errors import LiftArgumentError
from tests.devices.mesh_cases import cases
from tests.devices.mesh_run import check, mesh_of_sizes
from tests.devices.object_cases import OBJECTS
from tests.devices.object_run import check_object

PARALLEL = ("batch", "columns", "rows")
"""Data parallel, and tensor parallel with kernels split by their columns or their rows."""

QUICK = [
    ("Embed", "batch"),
    ("Dropout, broadcast_dims", "batch"),
    ("RNN", "batch"),
    ("Dense, two layers", "rows"),
    ("Conv", "columns"),
    ("GroupNorm", "features"),
    ("DenseGeneral, batch", "batch"),
    ("RNN, convolutions", "features"),
    ("LoRA, Conv", "columns"),
]
"""What raised on the meshes that `jax.make_mesh` gives, on one version of JAX or another."""


@pytest.mark.parametrize(("name", "kind"), QUICK)
def test_a_layer_follows_its_inputs_on_an_explicit_mesh(name: str, kind: str) -> None:
    check(name, kind)


def test_a_product_that_jax_cannot_shard_names_the_layer_and_the_line() -> None:
    layer = nn.Dense(8, dot_general=lambda x, y, dims, **_: jax.lax.dot_general(x, y, dims))
    x, mesh = jnp.ones((2, 8)), mesh_of_sizes({"model": 4})
    variables = layer.init(jax.random.key(0), x)
    with jax.set_mesh(mesh):
        variables["params"]["kernel"] = jax.device_put(variables["params"]["kernel"], P("model"))
        with pytest.raises(LiftArgumentError) as caught:
            jax.jit(layer.apply)(variables, jax.device_put(x, P(None, "model")))
    assert caught.value.where == "dense at /"
    assert "inputs P(None, 'model'), kernel P('model', None)" in caught.value.what
    assert "`out_sharding=P(…)`" in caught.value.fix


WITH_SHARDING: dict[str, Any] = {
    "dense": lambda to: nn.Dense(8, out_sharding=to),
    "einsum": lambda to: nn.Einsum((8, 8), "bta,ac->btc", out_sharding=to),
    "conv": lambda to: nn.Conv(8, (3,), out_sharding=to),
    "conv_transpose": lambda to: nn.ConvTranspose(8, (3,), out_sharding=to),
    "conv_local": lambda to: nn.ConvLocal(8, (3,), out_sharding=to),
    "embedding": lambda to: nn.Embed(8, 8, out_sharding=to),
}


@pytest.mark.parametrize("name", WITH_SHARDING)
def test_a_requested_sharding_that_the_mesh_lacks_names_the_layer(name: str) -> None:
    x, mesh = jnp.ones((2, 8, 8)), mesh_of_sizes({"data": 2})
    x, make = x[..., 0].astype(int) if name == "embedding" else x, WITH_SHARDING[name]

    def refused(to: Any, text: str) -> None:
        with pytest.raises(LiftArgumentError, match=rf"^{name} at /: .*{text}"):
            jax.eval_shape(make(to).init, jax.random.key(0), x)

    refused(P("data"), r"there is no mesh\. .* `with jax.set_mesh\(mesh\):`")
    with jax.set_mesh(mesh_of_sizes({"data": 2}, AxisType.Auto)):
        refused(P("data"), r"names the axis 'data', but the Explicit axes of the mesh are \[\]")
    with jax.set_mesh(mesh):
        refused(P(None, ("data", "modle")), r"names the axis 'modle', but .* are \['data'\]")
        refused("data", r"expected a PartitionSpec or a NamedSharding as `out_sharding`, given 'data'")
        y, _ = jax.eval_shape(make(NamedSharding(mesh, P("data"))).init_with_output, jax.random.key(0), x)
        assert y.shape == (2, 8, 8)
    with pytest.raises(LiftArgumentError, match=r"runs a module: write `out_sharding=None if self.is_initializing\(\)"):
        nn.init_sharded(make(P("data")), mesh)(jax.random.key(0), x)


@pytest.mark.rest
@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_layer_does_what_the_table_says(name: str, kind: str) -> None:
    said = by_version().get(jax.__version__, {}).get(name, {}).get(kind, WORKS)
    if said == WORKS:
        check(name, kind)
    else:
        assert outcome(name, kind) == said


WRONG_IN_XLA = {("Conv, groups", "columns"), ("Conv, groups", "rows"), ("LoRA, Conv", "columns")}
"""XLA's gradients of groups of features on a mesh of two axes, see `docs/meshes.md`: no layer can see Auto axes."""

ON_AUTO = [case for case in cases() if case[1] in PARALLEL and case not in WRONG_IN_XLA]


@pytest.mark.rest
@pytest.mark.parametrize(("name", "kind"), ON_AUTO)
def test_a_layer_on_auto_axes_gives_what_it_gives_on_one_device(name: str, kind: str) -> None:
    check(name, kind, AxisType.Auto)


@pytest.mark.rest
@pytest.mark.parametrize("kind", PARALLEL)
@pytest.mark.parametrize("axis_type", [AxisType.Explicit, AxisType.Auto], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_gives_what_it_gives_on_one_device(name: str, axis_type: Any, kind: str) -> None:
    check_object(name, kind, axis_type)
