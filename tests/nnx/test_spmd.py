"""Shardings of objects follow names and rules as those of the core do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

import linen_like as nn
import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from liftcore.meta import Partitioned, get_sharding

optax = pytest.importorskip("optax")

P = PartitionSpec
MESH = AbstractMesh((2, 4), ("data", "model"))
BOTH = [("embed", "model"), ("mlp", "model"), ("mlp", "data")]

SPECS: dict[str, tuple[Any, Any, tuple[int, ...], PartitionSpec | str]] = {
    "no names": (None, BOTH, (4, 4), P()),
    "no rules": (("data", "model"), [], (4, 4), P("data", "model")),
    "a list": (["data", None], [], (4, 4), P("data", None)),
    "a spec": (P("data", None), [], (4, 4), P("data", None)),
    "several mesh axes": ((("data", "model"), None), [], (8, 4), P(("data", "model"), None)),
    "a rule for two mesh axes": (("embed",), [("embed", ("data", "model"))], (8,), P(("data", "model"))),
    "a rule for a list": (("embed",), [("embed", ["data", "model"])], (8,), P(("data", "model"))),
    "a rule for None": (("embed", "mlp"), [("embed", None), ("mlp", "data")], (4, 4), P(None, "data")),
    "a mesh axis that is taken": (("mlp", "embed"), BOTH, (4, 4), P("data", "model")),
    "all mesh axes are taken": (("embed", "mlp"), BOTH[:2], (4, 4), P("model", None)),
    "the first rule applies": (("embed",), [("embed", "data"), ("embed", "model")], (4,), P("data")),
    "a mesh axis beside a rule": (("embed", "data"), BOTH, (4, 4), P("model", "data")),
    "a dimension of one": (("data", "model"), [], (1, 4), P(None, "model")),
    "fewer axes than names": (("data", "model"), [], (4,), P()),
    "fewer names than axes": (("data",), [], (4, 4), P("data")),
    "an unknown axis": (("dta", None), [], (4, 4), r"no axis 'dta' \(axes: \['data', 'model'\]\). Did you mean 'data'"),
    "an unknown name": (("embd", None), BOTH, (4, 4), "'embd' has no rule .* Did you mean 'embed'"),
    "a rule for an unknown axis": (("embed",), [("embed", "modl")], (4,), "'modl' has no rule|no axis 'modl'"),
    "one mesh axis twice": (("data", "data"), [], (4, 4), r"'data' occurs twice"),
    "one name twice": (("embed", "embed"), BOTH, (4, 4), r"'embed' occurs twice"),
    "a size that does not divide": (("model",), [], (6,), r"dimension 0 of shape \(6,\) .* does not divide 6"),
    "rules that are not pairs": (("embed",), ["embed"], (4,), "expected pairs of a logical name and a mesh axis"),
}


@pytest.mark.parametrize("name", SPECS)
def test_names_and_rules_mean_what_they_mean_in_the_core(name: str) -> None:
    names, rules, shape, expected = SPECS[name]
    value = jnp.ones(shape)

    def ours() -> Any:
        with nnx.logical_axis_rules(rules):
            return nnx.get_named_sharding(nnx.Dict(w=nnx.Param(value, sharding=names)), MESH).w.get_value().spec

    def own_rules() -> Any:
        model = nnx.Dict(w=nnx.Param(value, sharding=names, sharding_rules=rules))
        return nnx.as_abstract(model, MESH).w.get_value().sharding.spec

    def core() -> Any:
        return get_sharding({"w": value if names is None else Partitioned(value, names)}, MESH, rules)["w"].spec

    for use in (ours, own_rules, core):
        if isinstance(expected, str):
            with pytest.raises(LiftArgumentError, match=expected):
                use()
        else:
            assert use() == expected


def test_one_error_lists_all_variables() -> None:
    model = nnx.Dict(a=nnx.Param(jnp.ones(3), sharding=("dta",)), b=[nnx.Param(jnp.ones(3), sharding=("data",))])
    with pytest.raises(LiftArgumentError, match=r'(?s)"a": the mesh has no axis.*"b.0": dimension 0'):
        nnx.get_named_sharding(model, MESH)


def test_both_styles_follow_the_same_rules_and_jit_knows_them() -> None:
    kernel = nnx.Param(jnp.ones((2, 3)), sharding=("embed", "mlp"))
    seen = []

    @jax.jit
    def spec(x: Any) -> Any:
        seen.append((nnx.get_partition_spec(kernel).get_value(), nn.logical_to_mesh_axes(("embed", "mlp"))))
        return x

    for rules in (BOTH, {"embed": "data"}):
        with nnx.logical_axis_rules(rules):
            spec(1.0)
    with nn.logical_axis_rules(BOTH):
        spec(1.0)
    assert seen == [(P("model", "data"), P("model", "data")), (P("data", "mlp"), P("data", None))]


def test_a_variable_may_bring_its_mesh() -> None:
    model = nnx.Dict(w=nnx.Param(jnp.ones(4), sharding=("data",), mesh=MESH), b=nnx.Param(jnp.ones(4)))
    abstract = nnx.as_abstract(model)
    assert (abstract.w.get_value().sharding.spec, abstract.b.get_value().sharding) == (P("data"), None)


# --- the state of optimizers ------------------------------------------------------------------------------------------


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim == 2, params)


TRANSFORMATIONS = {
    "adam": optax.adam(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "masked": optax.masked(optax.adam(0.1), matrices),
    "labels": optax.multi_transform({True: optax.adam(0.1), False: optax.sgd(0.1)}, matrices),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1)),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "factored": optax.adafactor(0.1, min_dim_size_to_factor=1),
}


@pytest.mark.parametrize("with_mesh", [True, False])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_the_state_of_an_optimizer_may_be_sharded_otherwise(name: str, with_mesh: bool) -> None:
    mesh = jax.make_mesh((1, 1), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh) if with_mesh else nnx.logical_axis_rules(()):
        metadata = {
            "out_sharding": (None, None),
            "optimizer_sharding": ("embed", None),
            "sharding_rules": [("embed", "x")],
        }
        model = nnx.Dict(w=nnx.Param(jnp.ones((2, 2)), **metadata), b=nnx.Param(jnp.ones(2), sharding=("y",)))
        optimizer = nnx.Optimizer(model, TRANSFORMATIONS[name], wrt=nnx.Param)
        states = nnx.state(optimizer, nnx.OptVariable).flat_state()
        of_w = [one for path, one in states if path[-1] == "w"]
        assert of_w
        for one in of_w:
            assert (one.out_sharding, one.get_metadata("optimizer_sharding", None)) == (("embed", None), None)
            for array in jax.tree.leaves(one.get_raw_value()):
                sharded = with_mesh and array.shape == (2, 2)
                assert not sharded or array.sharding.spec == P("x", None)
        assert {one.out_sharding for path, one in states if path[-1] == "b"} <= {("y",)}
        assert (model.w.out_sharding, model.w.optimizer_sharding) == ((None, None), ("embed", None))
        optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))


def test_the_sharding_of_an_optimizer_must_fit_the_mesh() -> None:
    with jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))):
        model = nnx.Dict(w=nnx.Param(jnp.ones(2), optimizer_sharding=("z",)))
        with pytest.raises(LiftArgumentError, match=r"state at .*mu.*w.*: the mesh has no axis 'z' \(axes: \['x'\]\)"):
            nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


def test_a_mapping_adds_its_axis_to_the_sharding_of_the_optimizer() -> None:
    @nnx.vmap(axis_size=3, transform_metadata={nnx.PARTITION_NAME: "layers"})
    def make() -> Any:
        return nnx.Param(jnp.ones(2), out_sharding=(None,), optimizer_sharding=("x",))

    assert make().get_metadata() == {"out_sharding": ("layers", None), "optimizer_sharding": ("layers", "x")}
    inside = []
    nnx.vmap(lambda w: inside.append(w.get_metadata()))(make())
    assert inside == [{"out_sharding": (None,), "optimizer_sharding": ("x",)}]
