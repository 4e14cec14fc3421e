"""Names of axes in modules: boxes in their variables, and logical names with rules."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import linen_like as nn
from liftcore import serialization
from liftcore.errors import LiftArgumentError, ScopeParamShapeError
from liftcore.meta import is_box
from linen_like.spmd import (
    PARTITION_NAME,
    LogicallyPartitioned,
    Partitioned,
    RulesFallback,
    add_metadata_axis,
    get_logical_axis_rules,
    get_partition_spec,
    get_sharding,
    logical_axis_rules,
    logical_to_mesh,
    logical_to_mesh_axes,
    logical_to_mesh_sharding,
    unbox,
    with_logical_constraint,
    with_logical_partitioning,
    with_partitioning,
)
from tests.lift.test_metadata import names
from tests.linen.lifted import KEY, X, assert_same

KERNEL = with_partitioning(jax.nn.initializers.lecun_normal(), (None, "model"))
BOXED = nn.Dense(3, kernel_init=KERNEL)
LAYERS = {PARTITION_NAME: "layers"}
RULES = (("embed", "in"), ("mlp", "out"), ("batch", ("in", "out")))
OWN = {"variable_axes": {"params": 0, "batch_stats": 0}, "split_rngs": {"params": True}}


def mesh(kind: AxisType = AxisType.Auto) -> Any:
    """A mesh of four devices that need not be there, for what is only traced."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((2, 2), ("in", "out"), axis_types=(kind, kind)))


def constraints(fn: Any, *args: Any) -> list[Any]:
    """The specs of the sharding constraints that a function puts."""
    eqns = jax.make_jaxpr(fn)(*args).eqns
    return [eqn.params["sharding"].spec for eqn in eqns if eqn.primitive.name == "sharding_constraint"]


# -- boxes in modules --------------------------------------------------------------------------------------------------


def test_layers_keep_boxes_in_their_variables_and_compute_without() -> None:
    variables = BOXED.init(KEY, X)
    assert names(variables) == {"params": {"kernel": (None, "model"), "bias": None}}
    assert get_partition_spec(variables)["params"] == {
        "kernel": PartitionSpec(None, "model"),
        "bias": PartitionSpec(),
    }
    plain = nn.Dense(3).init(KEY, X)
    assert_same(unbox(variables), plain)
    np.testing.assert_array_equal(BOXED.apply(variables, X), nn.Dense(3).apply(plain, X))
    np.testing.assert_array_equal(BOXED.apply(plain, X), nn.Dense(3).apply(variables, X))
    gradient = jax.jit(jax.grad(lambda variables: BOXED.apply(variables, X).sum()))(variables)
    assert names(gradient) == names(variables)
    with pytest.raises(ScopeParamShapeError):
        nn.Dense(4, kernel_init=KERNEL).apply(variables, X)


def test_all_layers_take_boxed_initializers() -> None:
    ones = with_partitioning(jax.nn.initializers.ones, ("x",))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Embed(5, 3, embedding_init=with_partitioning(jax.nn.initializers.ones, ("vocab", "x")))(x)
            x = nn.Conv(3, (2,), kernel_init=with_partitioning(jax.nn.initializers.ones, (None, None, "x")))(x)
            x = nn.LayerNorm(scale_init=ones, bias_init=ones)(x)
            return nn.BatchNorm(use_running_average=False, scale_init=ones)(x)

    variables = Model().init(KEY, jnp.zeros((2, 4), int))
    assert names(variables)["params"] == {
        "Embed_0": {"embedding": ("vocab", "x")},
        "Conv_0": {"kernel": (None, None, "x"), "bias": None},
        "LayerNorm_0": {"scale": ("x",), "bias": ("x",)},
        "BatchNorm_0": {"scale": ("x",), "bias": None},
    }
    Model().apply(variables, jnp.zeros((2, 4), int), mutable=["batch_stats"])


class Counter(nn.Module):
    """A module with a boxed parameter and a boxed state."""

    unboxed: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        w = self.param("w", with_partitioning(jax.nn.initializers.ones, ("x",)), (3,), unbox=self.unboxed)
        n = self.variable("state", "n", with_partitioning(jnp.zeros, ("x",)), (3,), unbox=self.unboxed)
        assert is_box(w) == is_box(n.value) == (not self.unboxed)
        n.value = jax.tree.map(lambda leaf: leaf + 1, n.value)
        return unbox(n.value) * unbox(w) * x


def test_params_and_variables_are_read_with_or_without_their_box() -> None:
    for unboxed in (True, False):
        module = Counter(unboxed)
        y, variables = module.init_with_output(KEY, X)
        assert names(variables) == {"params": {"w": ("x",)}, "state": {"n": ("x",)}}
        np.testing.assert_array_equal(y, X)
        y, mutated = module.apply(variables, X, mutable=["state"])
        assert names(mutated) == {"state": {"n": ("x",)}}
        np.testing.assert_array_equal(y, 2 * X)


class Stepper(nn.Module):
    """A layer that a loop takes too."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> tuple[Any, Any]:
        return nn.tanh(nn.Dense(3, kernel_init=KERNEL)(x)), None


@pytest.mark.parametrize("axis", [0, -1])
def test_lifted_modules_name_the_axis(axis: int) -> None:
    expected = ("layers", None, "model") if axis == 0 else (None, "model", "layers")
    options = {"variable_axes": {"params": axis}, "split_rngs": {"params": True}, "metadata_params": LAYERS}
    for cls, name in (
        (nn.vmap(Stepper, in_axes=(None, None), axis_size=2, **options), "Dense_0"),
        (nn.scan(Stepper, length=2, **options), "Dense_0"),
    ):
        variables = cls().init(KEY, X, None)
        assert names(variables) == {"params": {name: {"kernel": expected, "bias": None}}}
        cls().apply(variables, X, None)
        unnamed = nn.vmap(Stepper, in_axes=(None, None), axis_size=2, **{**options, "metadata_params": {}})
        assert names(unnamed().init(KEY, X, None))["params"]["Dense_0"]["kernel"] == tuple(
            None if name == "layers" else name for name in expected
        )


def test_methods_and_functions_of_modules_take_metadata_params() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, kernel_init=KERNEL)
            elements = nn.vmap(lambda module, layer, x: layer(x), metadata_params=LAYERS, **OWN)
            return elements(self, dense, x)

    variables = Model().init(KEY, X)
    assert names(variables)["params"]["Dense_0"]["kernel"] == ("layers", None, "model")
    assert Model().apply(variables, X).shape == (2, 3)


def test_a_jitted_module_with_boxes_is_not_traced_again() -> None:
    runs = []

    class Layer(nn.Module):
        init: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            runs.append(x.shape)
            return x @ self.param("w", self.init, (3, 3))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for wrap in (with_partitioning, with_logical_partitioning):
                for _ in range(2):  # equal initializers are equal fields
                    x = nn.jit(Layer)(wrap(jax.nn.initializers.ones, ("a", "b")))(x)
            return x

    variables = Model().init(KEY, X)
    assert len(runs) == 2
    assert {type(box) for box in jax.tree.leaves(variables, is_leaf=is_box)} == {Partitioned, LogicallyPartitioned}


def test_add_metadata_axis_over_modules() -> None:
    class Experts(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return x @ self.param("kernel", KERNEL, (2, 3, 3))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return add_metadata_axis(Experts, {"params": 0}, {PARTITION_NAME: "expert"})()(x)

    variables = Model().init(KEY, X)
    assert names(variables) == {"params": {"Map_variablesExperts_0": {"kernel": ("expert", None, "model")}}}
    assert Model().apply(variables, X).shape == (2, 2, 3)

    @functools.partial(add_metadata_axis, variable_axes={"params": 0}, metadata_params={PARTITION_NAME: "expert"})
    def function(module: Any, x: Any) -> Any:
        return module(x)

    class Calls(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return function(Experts(), x)

    assert names(Calls().init(KEY, X)) == {"params": {"Experts_0": {"kernel": ("expert", None, "model")}}}


# -- logical names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rules", "expected"),
    [
        (("a", "b"), (("a", "X"), ("b", "Y")), ("X", "Y")),
        (("a", "b"), [("a", "X"), ("b", "X"), ("b", "Y")], ("X", "Y")),  # the axis is taken: the next rule
        (("a", "b"), (("b", "X"), ("a", "X")), (None, "X")),  # rules go first to last, not axes
        (("a", "b"), (("a", ("X", "Y")), ("b", "Y"), ("b", "Z")), (("X", "Y"), "Z")),
        (("a", "b"), (("a", None), ("a", "X"), ("b", None)), (None, None)),  # None is a rule too
        (("a", None, "c"), (("a", "X"), ("d", "Y")), ("X", None, None)),
        (("a", ("X", "W")), (("a", "X"), ("a", "Y")), ("Y", ("X", "W"))),
        (("a", PartitionSpec.UNCONSTRAINED), (("a", "X"),), ("X", PartitionSpec.UNCONSTRAINED)),
        ((None, None), (("a", "X"),), (None, None)),
        ((), (("a", "X"),), ()),
    ],
)
def test_rules_lead_from_logical_names_to_the_mesh(given: Any, rules: Any, expected: Any) -> None:
    assert logical_to_mesh_axes(given, rules) == PartitionSpec(*expected)
    assert logical_to_mesh_axes(PartitionSpec(*given), rules) == PartitionSpec(*expected)
    with logical_axis_rules(rules):
        assert logical_to_mesh_axes(given) == PartitionSpec(*expected)


def test_trees_of_logical_names() -> None:
    tree = {"a": PartitionSpec("embed", "mlp"), "b": PartitionSpec(), "c": None}
    assert logical_to_mesh_axes(None, RULES) is None
    expected = {"a": PartitionSpec("in", "out"), "b": PartitionSpec(), "c": None}
    assert logical_to_mesh(tree, RULES) == expected
    with logical_axis_rules(RULES):
        assert logical_to_mesh(tree) == expected
    real = jax.make_mesh((1, 1), ("in", "out"), axis_types=(AxisType.Auto,) * 2)
    shardings = logical_to_mesh_sharding(tree, real, RULES)
    assert shardings == {"a": NamedSharding(real, expected["a"]), "b": NamedSharding(real, expected["b"]), "c": None}


def test_a_name_that_occurs_twice_is_an_error() -> None:
    with pytest.raises(LiftArgumentError) as caught:
        logical_to_mesh_axes(("a", "b", "a"), RULES)
    assert str(caught.value) == (
        "logical names ('a', 'b', 'a'): ['a'] occurs twice, but an axis of the mesh can split only one axis of an "
        "array. Give the axes different names; use None for axes that are not split."
    )


def test_rules_hold_within_their_block_and_thread() -> None:
    assert get_logical_axis_rules() == ()
    seen = []
    with logical_axis_rules([("a", ["X", "Y"])]):
        assert get_logical_axis_rules() == (("a", ("X", "Y")),)
        with logical_axis_rules(None):
            assert get_logical_axis_rules() == ()
        thread = threading.Thread(target=lambda: seen.append(get_logical_axis_rules()))
        thread.start()
        thread.join()
    assert get_logical_axis_rules() == ()
    assert seen == [()]

    def fail() -> None:
        with logical_axis_rules(RULES):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert get_logical_axis_rules() == ()


def test_jit_is_traced_again_under_other_rules() -> None:
    seen = []

    @jax.jit
    def fn(x: Any) -> Any:
        seen.append(get_logical_axis_rules())
        return x

    for rules in (RULES, RULES, None, RULES[:1], RULES):
        with logical_axis_rules(rules):
            fn(X)
    assert seen == [RULES, (), RULES[:1]]


def test_arrays_are_constrained_by_logical_names() -> None:
    constrain = functools.partial(with_logical_constraint, logical_axis_resources=("embed", "mlp"))
    with mesh():
        assert constraints(constrain, X) == []  # no rules
        with logical_axis_rules(RULES):
            assert constraints(constrain, X) == [PartitionSpec("in", "out")]
            assert constraints(lambda x: with_logical_constraint(x, None), X) == []
            assert constraints(lambda x: with_logical_constraint(x, ("other", "mlp")), X) == [
                PartitionSpec(None, "out")
            ]
        assert constraints(functools.partial(constrain, rules=RULES[:1]), X) == [PartitionSpec("in", None)]
    with logical_axis_rules(RULES):
        assert constraints(constrain, X) == []  # no mesh
        real = jax.make_mesh((1, 1), ("in", "out"), axis_types=(AxisType.Auto,) * 2)
        assert constraints(functools.partial(constrain, mesh=real), X) == [PartitionSpec("in", "out")]


def test_pytrees_are_constrained_by_a_prefix_of_names() -> None:
    tree = {"a": X, "b": (X, X), "c": X}
    spec = {"a": ("embed", None), "b": PartitionSpec(None, "mlp"), "c": None}
    with mesh(), logical_axis_rules(RULES):
        found = constraints(lambda tree: with_logical_constraint(tree, spec), tree)
    assert found == [PartitionSpec("in", None), *[PartitionSpec(None, "out")] * 2]


def test_what_becomes_of_names_without_a_rule() -> None:
    constrain = functools.partial(with_logical_constraint, logical_axis_resources=("other", "mlp"), rules=RULES)
    with mesh():
        fallback = RulesFallback.NO_CONSTRAINT
        assert constraints(functools.partial(constrain, fallback=fallback), X) == []
        fallback = RulesFallback.RAISE_ERROR
        with pytest.raises(LiftArgumentError) as caught:
            constraints(functools.partial(constrain, fallback=fallback), X)
        assert caught.value.what.startswith("no rule could be followed for ['other'] (rules: [('embed', 'in'),")
        assert caught.value.fix == 'Add one, such as `("other", None)` for an axis that is not split.'
        found = functools.partial(with_logical_constraint, logical_axis_resources=("embed", "mlp"), rules=RULES)
        assert constraints(functools.partial(found, fallback=fallback), X) == [PartitionSpec("in", "out")]


LOGICAL = with_logical_partitioning(jax.nn.initializers.lecun_normal(), ("embed", "mlp"))


def test_logical_names_of_variables_follow_the_rules() -> None:
    module = nn.Dense(3, use_bias=False, kernel_init=LOGICAL)
    variables = module.init(KEY, X)
    box = variables["params"]["kernel"]
    assert (type(box), box.names, box.rules) == (LogicallyPartitioned, ("embed", "mlp"), None)
    assert get_partition_spec(variables) == {"params": {"kernel": PartitionSpec("embed", "mlp")}}
    assert constraints(module.apply, variables, X) == []
    with mesh():
        assert constraints(module.apply, variables, X) == []
        with logical_axis_rules(RULES):
            assert constraints(module.apply, variables, X) == [PartitionSpec("in", "out")]
            assert logical_to_mesh(get_partition_spec(variables))["params"]["kernel"] == PartitionSpec("in", "out")


def test_a_logical_box_may_have_rules_and_a_mesh_of_its_own() -> None:
    real = jax.make_mesh((1, 1), ("in", "out"), axis_types=(AxisType.Auto,) * 2)
    init = with_logical_partitioning(jax.nn.initializers.ones, ["embed", "mlp"], real, [["mlp", "out"]])
    module = nn.Dense(3, use_bias=False, kernel_init=init)
    variables = jax.jit(module.init)(KEY, X)
    box = variables["params"]["kernel"]
    assert (box.names, box.mesh, box.rules) == (("embed", "mlp"), real, (("mlp", "out"),))
    assert constraints(module.apply, variables, X) == [PartitionSpec(None, "out")]
    assert get_sharding({"b": X}, real) == {"b": NamedSharding(real, PartitionSpec())}


def test_a_logical_box_gains_the_axis_of_a_lift() -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> tuple[Any, Any]:
            return nn.Dense(3, kernel_init=LOGICAL)(x), None

    loop = nn.scan(Layer, length=2, metadata_params=LAYERS, **OWN)()
    variables = loop.init(KEY, X, None)
    box = variables["params"]["Dense_0"]["kernel"]
    assert (type(box), box.names) == (LogicallyPartitioned, ("layers", "embed", "mlp"))
    with mesh(), logical_axis_rules(RULES):
        text = str(jax.make_jaxpr(loop.apply)(variables, X, None))
    assert "sharding_constraint" in text  # in the loop, where the names are those of one layer


def test_equal_names_are_no_error_without_a_mesh() -> None:
    init = with_logical_partitioning(jax.nn.initializers.ones, ("embed", "embed"))
    module = nn.Dense(3, kernel_init=init)
    variables = module.init(KEY, X)
    with logical_axis_rules(RULES):
        module.apply(variables, X)
        with mesh(), pytest.raises(LiftArgumentError, match=r"'embed'.* occurs twice"):
            jax.eval_shape(module.apply, variables, X)


def test_the_state_of_a_logical_box_is_what_is_in_it() -> None:
    variables = nn.Dense(3, kernel_init=LOGICAL).init(KEY, X)
    state = serialization.to_state_dict(variables)
    assert list(state["params"]["kernel"]) == ["value"]
    assert_same(serialization.from_bytes(variables, serialization.to_bytes(variables)), variables)


def test_logical_names_that_fit_nothing_are_told_of() -> None:
    init = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp", "heads"))
    with pytest.raises(LiftArgumentError, match=r'"params/kernel" at /: it has 3 axis names, .* its shape is \(3, 4\)'):
        nn.Dense(4, kernel_init=init).init(jax.random.key(0), jnp.ones((2, 3)))
    rules = (("embed", None), ("mlp", "modle"))
    raising = RulesFallback.RAISE_ERROR
    with pytest.raises(LiftArgumentError, match=r"no rule could be followed for \['embd'\].*Did you mean 'embed'\?"):
        nn.with_logical_constraint(jnp.ones((2, 3)), ("embd", None), rules, fallback=raising)
    mesh = jax.make_mesh((1,), ("model",), devices=jax.devices()[:1])
    specs = {"kernel": jax.sharding.PartitionSpec("embed", "mlp")}
    with pytest.raises(LiftArgumentError, match=r'"kernel": the mesh has no axis .modle. .*Did you mean .model'):
        nn.logical_to_mesh_sharding(specs, mesh, rules)


class Constrains(nn.Module):
    """Constrains its input, and has a kernel with logical names."""

    names: Any
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.with_logical_constraint(x, self.names, fallback=self.fallback)
        return nn.Dense(3, kernel_init=LOGICAL)(x)


def test_names_that_cannot_be_followed_are_told_of_with_the_path_of_the_module() -> None:
    class Model(nn.Module):
        names: Any
        fallback: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.remat(Constrains)(self.names, self.fallback, name="below")(x)

    def message(rules: Any, names: Any, fallback: Any = RulesFallback.AXIS_IS_UNSHARDED) -> str:
        with mesh(), logical_axis_rules(rules), pytest.raises(LiftArgumentError) as caught:
            jax.eval_shape(Model(names, fallback).init, KEY, X)
        return str(caught.value)

    where = "logical names ('embd', None) in RematConstrains at /below/remat(Constrains): "
    raising = RulesFallback.RAISE_ERROR
    told = message(RULES, ("embd", None), raising)
    assert told.startswith(where + "no rule could be followed for ['embd']")
    assert "Did you mean 'embed'?" in told
    told = message((("embd", "inn"),), ("embd", None))
    assert told.startswith(where + "the mesh has no axis 'inn' (axes: ['in', 'out']). Did you mean 'in'?")
    told = message((("mlp", "ot"),), (None, None))
    assert told.startswith(
        "logical names ('embed', 'mlp') in Dense at /below/remat(Constrains)/Dense_0: the mesh has no axis 'ot'"
    )


def test_a_name_without_a_rule_splits_nothing_by_default() -> None:
    with mesh(), logical_axis_rules(RULES):
        found = constraints(lambda x: with_logical_constraint(x, ("embd", "mlp")), X)
    assert found == [PartitionSpec(None, "out")]
