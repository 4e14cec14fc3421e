"""Boxes: what is in them, the names of their axes, and variables that are boxed."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import liftcore
from liftcore import Scope, filters, meta, serialization, struct
from liftcore.errors import LiftArgumentError, ModifyScopeVariableError, ScopeParamShapeError
from liftcore.mesh_specs import follow_rules
from liftcore.meta import (
    PARTITION_NAME,
    AxisMetadata,
    Partitioned,
    add_axis,
    constrain,
    get_partition_spec,
    get_sharding,
    has_boxes,
    is_box,
    remove_axis,
    replace_boxed,
    unbox,
    with_partitioning,
)
from tests.lift.quick import assert_same

KEY = jax.random.key(0)
LAYERS = {PARTITION_NAME: "layers"}
MATRIX = jnp.arange(12.0).reshape(3, 4)
BOX = Partitioned(MATRIX, ("in", "out"))


class Counted(struct.PyTreeNode, AxisMetadata):
    """A box of another kind: it knows how many axes were added, and where the last one was."""

    value: Any
    added: tuple[int, ...] = struct.field(pytree_node=False, default=())

    def unbox(self) -> Any:
        return self.value

    def replace_boxed(self, value: Any) -> Self:
        return self.replace(value=value)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        return self.replace(added=(*self.added, index))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        assert self.added[-1] == index
        return self.replace(added=self.added[:-1])


# -- boxes as pytrees --------------------------------------------------------------------------------------------------


def test_a_box_is_a_pytree_node_with_static_names() -> None:
    assert jax.tree.leaves(BOX) == [MATRIX]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, {"w": BOX})["w"]
    assert (doubled.names, doubled.mesh) == (BOX.names, None)
    np.testing.assert_array_equal(doubled.value, 2 * MATRIX)
    assert jax.tree.structure(BOX) != jax.tree.structure(Partitioned(MATRIX, ("out", "in")))
    assert jax.tree_util.keystr(jax.tree.leaves_with_path(BOX)[0][0]) == ".value"


def test_a_box_passes_through_jit_and_grad() -> None:
    runs = []

    @jax.jit
    def double(box: Partitioned) -> Partitioned:
        runs.append(box.names)
        return box.replace_boxed(2 * box.unbox())

    for names in (("in", "out"), ("in", "out"), ("in", None)):
        assert double(Partitioned(MATRIX, names)).names == names
    assert runs == [("in", "out"), ("in", None)]
    gradient = jax.grad(lambda box: (box.unbox() ** 2).sum())(BOX)
    assert gradient.names == BOX.names
    np.testing.assert_array_equal(gradient.value, 2 * MATRIX)


def test_names_may_be_given_as_any_sequence() -> None:
    for names in (["in", "out"], PartitionSpec("in", "out"), iter(("in", "out"))):
        assert Partitioned(MATRIX, names).names == ("in", "out")  # type: ignore[arg-type]


def test_a_box_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(BOX))
    assert copy.names == BOX.names
    np.testing.assert_array_equal(copy.value, MATRIX)


def test_a_box_must_say_all_that_a_box_can_do() -> None:
    class Half(AxisMetadata):
        def unbox(self) -> Any:
            return 0

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


# -- unbox and replace_boxed -------------------------------------------------------------------------------------------


def test_unbox_takes_away_boxes_only() -> None:
    tree = {"a": BOX, "b": [MATRIX, Counted((1.0, {"c": 2.0}))], "d": None, "e": "text"}
    assert [is_box(BOX), is_box(tree), has_boxes(tree), has_boxes(MATRIX)] == [True, False, True, False]
    plain = unbox(tree)
    assert plain["a"] is MATRIX
    assert plain["b"][1] == (1.0, {"c": 2.0})
    assert (plain["d"], plain["e"]) == (None, "text")
    assert unbox(Counted(BOX)) is MATRIX


def test_unbox_of_what_has_no_boxes_is_the_tree_itself() -> None:
    tree = {"a": MATRIX, "b": (1, None)}
    assert unbox(tree) is tree
    assert unbox(MATRIX) is MATRIX
    assert unbox(None) is None


def test_replace_boxed_is_the_inverse_of_unbox() -> None:
    tree = {"a": BOX, "b": [MATRIX, Counted((1.0, {"c": 2.0}))]}
    assert_same(replace_boxed(tree, unbox(tree)), tree)
    assert_same(
        replace_boxed(tree, jax.tree.map(lambda leaf: 2 * leaf, unbox(tree))), jax.tree.map(lambda x: 2 * x, tree)
    )


def test_a_box_among_the_values_takes_the_place_of_the_old_one() -> None:
    other = Partitioned(MATRIX, ("a", "b"))
    assert replace_boxed(BOX, other) is other
    assert replace_boxed({"a": BOX}, {"a": other})["a"] is other


def test_values_of_another_structure_stand_as_they_are() -> None:
    assert replace_boxed({"a": BOX}, (1, 2)) == (1, 2)
    assert replace_boxed({"a": BOX}, {"b": 1}) == {"b": 1}
    assert replace_boxed(MATRIX, 1) == 1
    assert replace_boxed(None, 1) == 1
    assert replace_boxed(BOX, (1, 2)) == Partitioned((1, 2), BOX.names)  # the box is round all of it


# -- axes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        (0, ("layers", "in", "out")),
        (1, ("in", "layers", "out")),
        (2, ("in", "out", "layers")),
        (-1, ("in", "out", "layers")),
        (-2, ("in", "layers", "out")),
        (-3, ("layers", "in", "out")),
    ],
)
def test_an_axis_is_added_and_removed(axis: int, names: tuple[str, ...]) -> None:
    tree = {"a": Partitioned(jnp.ones((3, 4, 5)), ("in", "out")), "b": MATRIX}
    stacked = add_axis(tree, axis, LAYERS)
    assert stacked["a"].names == names
    assert stacked["b"] is MATRIX
    assert_same(remove_axis(stacked, axis, LAYERS), tree)


def test_a_custom_box_counts_axes_from_the_front() -> None:
    stacked = add_axis({"w": Counted(jnp.ones((3, 4, 5)))}, -1, {})
    assert stacked["w"].added == (2,)
    assert remove_axis(stacked, -1, {})["w"].added == ()


def test_an_axis_without_a_name_is_unnamed() -> None:
    stacked = add_axis(BOX, 0, {})
    assert stacked.names == (None, "in", "out")
    assert remove_axis(stacked, 0, {}).names == ("in", "out")


def test_axes_beyond_the_last_name_are_unnamed() -> None:
    short = Partitioned(jnp.ones((2, 3, 4)), ("in",))
    assert add_axis(short, 2, LAYERS).names == ("in", None, "layers")
    assert add_axis(short, -1, LAYERS).names == ("in", None, "layers")
    assert remove_axis(short, 2, {}).names == ("in",)


def test_an_axis_of_another_name_is_not_removed() -> None:
    with pytest.raises(LiftArgumentError) as caught:
        remove_axis(BOX, 0, LAYERS)
    assert str(caught.value) == (
        "Partitioned: the box (names: ('in', 'out')) calls axis 0 'in', but the lift calls it 'layers'. "
        "Give the lift `metadata_params={PARTITION_NAME: 'in'}`, or variables that its `init` created."
    )
    with pytest.raises(LiftArgumentError, match="calls axis 0 'in', but the lift calls it None"):
        remove_axis(BOX, 0, {})
    with pytest.raises(LiftArgumentError, match="calls axis 2 None, but the lift calls it 'layers'"):
        remove_axis(BOX, 2, LAYERS)


@pytest.mark.parametrize("value", [None, (jnp.ones(2), jnp.ones((2, 2)))])
def test_an_axis_from_the_end_needs_arrays_of_one_rank(value: Any) -> None:
    assert add_axis(Partitioned(value, ()), 0, LAYERS).names == ("layers",)
    with pytest.raises(LiftArgumentError, match=r"axis -1 counts from the end, but the arrays in the box have \["):
        add_axis(Partitioned(value, ()), -1, LAYERS)
    with pytest.raises(LiftArgumentError, match=r"axis -3 counts from the end, but the arrays in the box have \[2\]"):
        add_axis(BOX, -3, LAYERS)


# -- names as JAX takes them -------------------------------------------------------------------------------------------


def test_specs_and_shardings_follow_the_names() -> None:
    mesh = jax.make_mesh((1, 1), ("in", "out"), axis_types=(AxisType.Auto,) * 2)
    tree = {"a": BOX, "b": MATRIX, "c": Partitioned(MATRIX, (("in", "out"), None)), "d": "text"}
    specs = get_partition_spec(tree)
    assert specs == {
        "a": PartitionSpec("in", "out"),
        "b": PartitionSpec(),
        "c": PartitionSpec(("in", "out"), None),
        "d": None,
    }
    shardings = get_sharding(tree, mesh)
    assert shardings.pop("d") is None
    assert shardings == {name: NamedSharding(mesh, specs[name]) for name in shardings}
    assert get_partition_spec(Counted(MATRIX)).value == PartitionSpec()  # such a box knows no names


def test_specs_are_known_before_anything_is_computed() -> None:
    fn = with_partitioning(jax.nn.initializers.ones, ("in", "out"))
    shapes = jax.eval_shape(liftcore.init(lambda scope: scope.param("w", fn, (3, 4))), KEY)[1]
    assert get_partition_spec(shapes) == {"params": {"w": PartitionSpec("in", "out")}}
    assert unbox(shapes)["params"]["w"].shape == (3, 4)
    lazily = liftcore.lazy_init(lambda scope: scope.param("w", fn, (3, 4)))(KEY)
    assert lazily["params"]["w"].names == ("in", "out")


def constraints(fn: Any, *args: Any) -> list[Any]:
    """The specs of the sharding constraints that a function puts."""
    eqns = jax.make_jaxpr(fn)(*args).eqns
    return [eqn.params["sharding"].spec for eqn in eqns if eqn.primitive.name == "sharding_constraint"]


def test_without_a_mesh_nothing_is_constrained() -> None:
    assert constraints(unbox, BOX) == []
    assert BOX.unbox() is MATRIX


def devices(*kinds: AxisType) -> AbstractMesh:
    """A mesh of four devices that need not be there."""
    return AbstractMesh((2, 2), ("in", "out"), axis_types=kinds)


def test_what_is_read_is_constrained_to_the_mesh() -> None:
    with jax.sharding.use_abstract_mesh(devices(AxisType.Auto, AxisType.Auto)):
        assert constraints(unbox, BOX) == [PartitionSpec("in", "out")]
        shapes = jax.eval_shape(lambda: BOX)
        assert unbox(shapes) is shapes.value  # there is no array to constrain


def test_what_is_read_is_constrained_to_the_mesh_of_the_box() -> None:
    mesh = jax.make_mesh((1, 1), ("in", "out"), axis_types=(AxisType.Auto,) * 2)
    assert constraints(unbox, BOX.replace(mesh=mesh)) == [PartitionSpec("in", "out")]
    assert BOX.replace(mesh=mesh).unbox().sharding == NamedSharding(mesh, PartitionSpec("in", "out"))


def test_explicit_axes_are_resharded() -> None:
    with jax.sharding.use_abstract_mesh(devices(AxisType.Explicit, AxisType.Explicit)):
        resharded = jax.eval_shape(unbox, Partitioned(np.ones((2, 4)), ("in", "out")))
        assert resharded.sharding.spec == PartitionSpec("in", "out")


def test_manual_axes_are_left_alone() -> None:
    spec, mesh = PartitionSpec("in", ("out", "in")), jax.make_mesh((1, 1), ("in", "out"))
    for given in (None, mesh):
        with jax.sharding.use_abstract_mesh(devices(AxisType.Manual, AxisType.Manual)):
            assert constraints(functools.partial(constrain, spec=spec, mesh=given), MATRIX) == []
        with jax.sharding.use_abstract_mesh(devices(AxisType.Manual, AxisType.Auto)):
            left = constraints(functools.partial(constrain, spec=spec, mesh=given), MATRIX)
            assert left == [PartitionSpec(None, "out")]


def test_a_variable_may_be_read_inside_shard_map() -> None:
    mesh = jax.make_mesh((1, 1), ("in", "out"), axis_types=(AxisType.Auto,) * 2)
    spec = PartitionSpec("in")
    for box in (BOX, BOX.replace(mesh=mesh)):
        mapped = jax.shard_map(lambda box: 2 * unbox(box), mesh=mesh, in_specs=spec, out_specs=spec)
        np.testing.assert_array_equal(mapped(box), 2 * MATRIX)


def test_equal_initializers_are_equal() -> None:
    ones = jax.nn.initializers.ones
    first, second = (with_partitioning(ones, names) for names in (("in", "out"), ["in", "out"]))
    assert len({first, second}) == 1
    assert first != with_partitioning(ones, ("in", None))


# -- variables in boxes ------------------------------------------------------------------------------------------------

ONES = with_partitioning(jax.nn.initializers.ones, ("in", "out"))


def test_a_parameter_is_stored_in_its_box_and_read_without_it() -> None:
    def model(scope: Scope) -> Any:
        w = scope.param("w", ONES, (3, 4))
        assert not is_box(w)
        return w

    w, variables = liftcore.init(model)(KEY)
    box = variables["params"]["w"]
    assert (type(box), box.names) == (Partitioned, ("in", "out"))
    np.testing.assert_array_equal(w, box.value)
    np.testing.assert_array_equal(liftcore.apply(model)(variables), w)
    np.testing.assert_array_equal(liftcore.apply(model)(unbox(variables)), w)
    np.testing.assert_array_equal(jax.jit(liftcore.apply(model))(variables), w)
    gradient = jax.grad(lambda variables: liftcore.apply(model)(variables).sum())(variables)
    assert gradient["params"]["w"].names == ("in", "out")


def test_a_parameter_may_be_read_in_its_box() -> None:
    def model(scope: Scope) -> Any:
        return scope.param("w", ONES, (3, 4), unbox=False)

    box, variables = liftcore.init(model)(KEY)
    assert box.names == ("in", "out")
    assert liftcore.apply(model)(variables).names == ("in", "out")


@pytest.mark.parametrize("unboxed", [True, False])
def test_the_shape_of_a_boxed_parameter_is_checked(unboxed: bool) -> None:
    def model(scope: Scope, *shape: int) -> Any:
        return scope.param("w", ONES, shape, unbox=unboxed)

    variables = liftcore.init(model)(KEY, 3, 4)[1]
    for stored in (variables, unbox(variables)):
        assert jax.tree.leaves(liftcore.apply(model)(stored, 3, 4))[0].shape == (3, 4)
        with pytest.raises(
            ScopeParamShapeError, match=r"stored value has shape \(3, 4\), but its initializer makes shape \(4, 4\)"
        ):
            liftcore.apply(model)(stored, 4, 4)


def test_a_boxed_parameter_need_not_be_made_to_be_read() -> None:
    runs = []

    def init_fn(key: Any, shape: Any) -> Any:
        runs.append(shape)
        return jnp.ones(shape)

    def model(scope: Scope) -> Any:
        return scope.param("w", with_partitioning(init_fn, ("in",)), (3,))

    variables = liftcore.init(model)(KEY)[1]
    liftcore.apply(model)(variables)
    assert len(runs) == 1


def test_a_variable_is_written_into_its_box() -> None:
    def model(scope: Scope) -> Any:
        box = with_partitioning(jnp.zeros, ("in",))
        n = scope.variable("state", "n", box, (3,))
        n.value += 1
        assert not is_box(n.value)
        return n.value

    _, variables = liftcore.init(model)(KEY)
    assert variables["state"]["n"].names == ("in",)
    n, mutated = liftcore.apply(model, mutable=["state"])(variables)
    np.testing.assert_array_equal(n, 2 * jnp.ones(3))
    assert mutated["state"]["n"].names == ("in",)
    np.testing.assert_array_equal(mutated["state"]["n"].value, n)
    with pytest.raises(ModifyScopeVariableError):
        liftcore.apply(model)(variables)


def test_a_variable_may_be_read_and_written_with_its_box() -> None:
    def model(scope: Scope) -> Any:
        box = with_partitioning(jnp.zeros, ("in",))
        n = scope.variable("state", "n", box, (3,), unbox=False)
        assert n.value.names == ("in",)
        n.value = n.value.replace(names=("out",))
        m = scope.variable("state", "m", box, (3,), unbox=False)
        m.value = m.value.value
        return scope.variable("state", "o", box, (3,))

    _, variables = liftcore.init(model)(KEY)
    assert variables["state"]["n"].names == ("out",)
    assert not is_box(variables["state"]["m"])
    assert variables["state"]["o"].names == ("in",)


def test_a_variable_of_several_boxes_keeps_them() -> None:
    def model(scope: Scope) -> Any:
        start = {"a": Partitioned(jnp.zeros(2), ("in",)), "b": (jnp.zeros(3),)}
        n = scope.variable("state", "n", lambda: start)
        n.value = jax.tree.map(lambda leaf: leaf + 1, n.value)
        return n.value

    n, variables = liftcore.init(model)(KEY)
    assert not has_boxes(n)
    assert variables["state"]["n"]["a"].names == ("in",)
    assert_same(unbox(variables)["state"]["n"], n)


def test_get_and_put_variable_leave_boxes_to_the_user() -> None:
    def model(scope: Scope) -> Any:
        box = scope.get_variable("state", "n")
        assert is_box(box)
        scope.put_variable("state", "n", box.unbox())

    _, mutated = liftcore.apply(model, mutable=["state"])({"state": {"n": BOX}})
    assert mutated["state"]["n"] is MATRIX


def test_sown_values_are_in_no_box() -> None:
    def model(scope: Scope) -> Any:
        scope.sow("intermediates", "w", scope.param("w", ONES, (3, 4)))

    _, variables = liftcore.init(model)(KEY)
    assert not has_boxes(variables["intermediates"])


def test_filters_see_boxes() -> None:
    variables = {"params": {"a": BOX, "b": MATRIX}}
    boxed, plain = filters.split(variables, Partitioned, ...)
    assert (list(boxed["params"]), list(plain["params"])) == (["a"], ["b"])
    named = filters.split(variables, lambda path, value: "in" in getattr(value, "names", ()), ...)[0]
    assert list(named["params"]) == ["a"]


# -- state dicts -------------------------------------------------------------------------------------------------------


def test_the_state_of_a_box_is_what_is_in_it() -> None:
    tree = {"params": {"a": BOX, "b": MATRIX}}
    state = serialization.to_state_dict(tree)
    assert state["params"]["a"] == {"value": MATRIX}
    zeros = jax.tree.map(jnp.zeros_like, tree)
    assert_same(serialization.from_state_dict(zeros, state), tree)
    assert_same(serialization.from_bytes(zeros, serialization.to_bytes(tree)), tree)


@jax.tree_util.register_pytree_node_class
class Looking:
    """A node that looks at its child when it is made, and whose metadata cannot be compared."""

    def __init__(self, array: Any) -> None:
        self.array, self.ndim = array, array.ndim

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        return (self.array,), np.ones(2)

    @classmethod
    def tree_unflatten(cls, _: Any, children: tuple[Any]) -> Looking:
        return cls(*children)


def test_boxes_are_looked_for_without_making_nodes_or_comparing_their_metadata() -> None:
    node = Looking(jnp.ones(3))
    assert not has_boxes([node, node])
    assert has_boxes([node, Partitioned(jnp.ones(3), ("a",))])


# --- names that fit nothing -------------------------------------------------------------------------------------------


def test_an_axis_that_the_mesh_does_not_have_is_told_of_with_the_variable() -> None:
    mesh = jax.make_mesh((1,), ("model",), devices=jax.devices()[:1])
    variables = {"params": {"dense": {"kernel": meta.Partitioned(jnp.ones((3, 4)), (None, ("modle", "model")))}}}
    with pytest.raises(
        LiftArgumentError, match=r"the mesh has no axis 'modle' \(axes: \['model'\]\)\. Did you mean 'model'"
    ) as caught:
        meta.get_sharding(variables, mesh)
    assert caught.value.where == '"params/dense/kernel"'
    box = variables["params"]["dense"]["kernel"]
    for use in (lambda: box.get_sharding(mesh), lambda: box.replace(mesh=mesh).unbox()):
        with pytest.raises(LiftArgumentError, match=r"the mesh has no axis 'modle'"):
            use()
    with (
        jax.set_mesh(mesh),
        pytest.raises(LiftArgumentError, match=r"array of shape \(3, 4\): the mesh has no axis 'mo"),
    ):
        box.unbox()


def test_more_names_than_axes_are_told_of_when_the_variable_is_made() -> None:
    names, fix = ("a", None, "b"), "('a', None)"
    init = meta.with_partitioning(jax.nn.initializers.ones, names)

    def model(scope: Any) -> Any:
        return scope.push("layer").param("w", init, (3, 4))

    count = f"it has {len(names)} axis names, {names}, but 2 axes: its shape is (3, 4). Give at most one name for each"
    for lift in (lambda fn: fn, liftcore.remat, liftcore.jit):
        with pytest.raises(LiftArgumentError) as caught:
            liftcore.init(lambda scope, lift=lift: lift(lambda scope: model(scope))(scope))(jax.random.key(0))
        assert caught.value.where.startswith('"params/w" at /')
        assert count in str(caught.value)
        assert f"`with_partitioning(init_fn, {fix})`" in caught.value.fix


def test_names_are_counted_when_lifts_have_named_their_axes() -> None:
    def element(names: Any, **options: Any) -> Any:
        init = meta.with_partitioning(jax.nn.initializers.ones, names)
        mapped = liftcore.vmap(
            lambda scope, x: x @ scope.param("w", init, (3, 4)), variable_axes={"params": 0}, split_rngs=True, **options
        )
        return liftcore.init(mapped)(jax.random.key(0), jnp.ones((2, 3)))[1]["params"]["w"].names

    assert element(("a", "b")) == (None, "a", "b")
    assert element(("a", "b"), metadata_params={meta.PARTITION_NAME: "elements"}) == ("elements", "a", "b")
    assert element(()) == (None,)
    assert element(("a",)) == (None, "a")
    with pytest.raises(LiftArgumentError, match=r'"params/w" at /.* axis names'):
        element(("a", "b", "c"))


NAMED = {meta.PARTITION_NAME: "layers"}
SHORT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "plain": (lambda fn: fn, ("a",), (3, 4)),
    "jit": (liftcore.jit, ("a",), (3, 4)),
    "vmap, first": (lambda fn: stacked_by(liftcore.vmap, fn, 0, axis_size=2), ("layers", "a"), (2, 3, 4)),
    "vmap, second": (lambda fn: stacked_by(liftcore.vmap, fn, 1, axis_size=2), ("a", "layers"), (3, 2, 4)),
    "vmap, last": (lambda fn: stacked_by(liftcore.vmap, fn, -1, axis_size=2), ("a", None, "layers"), (3, 4, 2)),
    "scan, last": (lambda fn: stacked_by(liftcore.scan, fn, 2, length=2), ("a", None, "layers"), (3, 4, 2)),
    "vmap of vmap": (
        lambda fn: stacked_by(liftcore.vmap, SHORT["vmap, last"][0](fn), 0, axis_size=5),
        ("layers", "a", None, "layers"),
        (5, 3, 4, 2),
    ),
}


def stacked_by(lift: Callable[..., Any], fn: Callable[..., Any], axis: int, **size: int) -> Callable[..., Any]:
    def body(scope: Any, *carry: Any) -> Any:
        fn(scope)
        return (None, None) if carry else None

    lifted = lift(body, variable_axes={"params": axis}, split_rngs=True, metadata_params=NAMED, **size)
    return lambda scope: lifted(scope, *[None for _ in (0,) if lift is liftcore.scan])


@pytest.mark.parametrize("name", SHORT)
def test_axes_beyond_the_last_name_have_none_in_lifts_too(name: str) -> None:
    lift, names, shape = SHORT[name]
    init = meta.with_partitioning(jax.nn.initializers.ones, ("a",))

    def model(scope: Any) -> None:
        assert scope.param("w", init, (3, 4)).shape == (3, 4)

    variables = liftcore.init(lift(model))(jax.random.key(0))[1]
    box = variables["params"]["w"]
    assert (box.names, box.value.shape) == (names, shape)
    liftcore.apply(lift(model))(variables)
    assert meta.get_partition_spec(variables)["params"]["w"] == PartitionSpec(*names)
    mesh = jax.make_mesh(
        (1, 1), ("a", "layers"), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    if names.count("layers") < 2:
        assert meta.get_sharding(variables, mesh)["params"]["w"].spec == PartitionSpec(*names)
        with jax.set_mesh(mesh):
            jax.jit(liftcore.apply(lift(model)))(variables)


@pytest.mark.parametrize("rules", [{"embed": "data"}, "embed", [("embed", "data", "model")], [1]])
def test_rules_are_pairs(rules: Any) -> None:
    with pytest.raises(
        LiftArgumentError, match=r"rules: expected pairs of a logical name and a mesh axis, given"
    ) as told:
        follow_rules(("embed",), rules)
    assert ("Write a list of pairs: `[('embed', 'data')]`" in str(told.value)) == isinstance(rules, dict)
