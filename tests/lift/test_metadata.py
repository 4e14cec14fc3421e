"""Boxes under lifts: they gain and lose the axis that a lift adds, and change nothing else."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import In, InOut, Out, Scope, struct
from liftcore.errors import AxisSizeError, LiftArgumentError, LoopInvarianceError, UnliftedCollectionError
from liftcore.filters import All, PathContains
from liftcore.lift.metadata import add_metadata_axis
from liftcore.meta import PARTITION_NAME, AxisMetadata, Partitioned, has_boxes, is_box, unbox, with_partitioning
from tests.lift.quick import assert_same, compiled, key, uniform

KEY = key(0)
X = jnp.array([0.5, -1.0, 2.0])
KERNEL = with_partitioning(uniform, (None, "x"))
STATE = with_partitioning(jnp.zeros, ("x",))


def named(name: str) -> dict[str, str]:
    return {PARTITION_NAME: name}


def layer(scope: Scope, x: Any) -> Any:
    """A layer with a boxed parameter, a plain one, and a boxed state that it creates and writes."""
    kernel = scope.param("kernel", KERNEL, (3, 3))
    bias = scope.param("bias", uniform, (3,))
    assert not has_boxes((kernel, bias))
    y = jnp.tanh(x @ kernel + bias)
    mean = scope.variable("state", "mean", STATE, (3,))
    if scope.is_mutable_collection("state"):
        mean.value = 0.5 * mean.value + y
    return y + mean.value


def names(variables: Any) -> Any:
    """The names in a tree of variables; None for what is in no box."""
    return jax.tree.map(lambda leaf: leaf.names if is_box(leaf) else None, variables, is_leaf=is_box)


def mapped(fn: Callable[..., Any], name: str | None = None, axis: int = 0, **options: Any) -> Callable[..., Any]:
    """Two elements, each with variables of its own; the mean of what they give."""
    over = liftcore.vmap(
        fn,
        in_axes=None,
        axis_size=2,
        variable_axes={"params": axis, "state": axis},
        split_rngs={"params": True},
        metadata_params={} if name is None else named(name),
        **options,
    )
    return lambda scope, x: over(scope, x).mean(0)


def looped(fn: Callable[..., Any], name: str | None = None, axis: int = 0, **options: Any) -> Callable[..., Any]:
    """Three iterations, each with variables of its own."""
    over = liftcore.scan(
        lambda scope, x: (fn(scope, x), None),
        length=3,
        variable_axes={"params": axis, "state": axis},
        split_rngs={"params": True},
        metadata_params={} if name is None else named(name),
        **options,
    )
    return lambda scope, x: over(scope, x)[0]


def carrying(fn: Callable[..., Any], name: str | None = None, axis: int = 0) -> Callable[..., Any]:
    """Three iterations with one state, which goes from each to the next."""
    over = liftcore.scan(
        lambda scope, x: (fn(scope, x), None),
        length=3,
        variable_axes={"params": axis},
        variable_carry="state",
        split_rngs={"params": True},
        metadata_params={} if name is None else named(name),
    )
    return lambda scope, x: over(scope, x)[0]


def sharing(fn: Callable[..., Any], name: str | None = None, axis: int = 0) -> Callable[..., Any]:
    """Three iterations with the same parameters."""
    over = liftcore.scan(
        lambda scope, x: (fn(scope, x), None),
        length=3,
        variable_broadcast="params",
        variable_carry="state",
        split_rngs={"params": False},
        metadata_params={} if name is None else named(name),
    )
    return lambda scope, x: over(scope, x)[0]


def made(model: Callable[..., Any]) -> Any:
    """The variables that `init` makes, as shapes."""
    return jax.eval_shape(liftcore.init(model), KEY, X)[1]


def written(model: Callable[..., Any], variables: Any) -> Any:
    """The state that `apply` writes, as shapes."""
    return jax.eval_shape(lambda variables: liftcore.apply(model, mutable=["state"])(variables, X)[1], variables)


ADDING = {"vmap": mapped, "scan": looped}
LIFTS: dict[str, Callable[..., Any]] = {
    **ADDING,
    "carry": carrying,
    "shared": sharing,
    "remat": lambda fn, name=None: liftcore.remat(fn),
    "jit": lambda fn, name=None: liftcore.jit(fn),
}

PAIRS = list(itertools.product(ADDING, repeat=2))

# -- one lift ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lift", ADDING)
@pytest.mark.parametrize(
    ("axis", "kernel", "mean"),
    [
        (0, ("layers", None, "x"), ("layers", "x")),
        (1, (None, "layers", "x"), ("x", "layers")),
        (-1, (None, "x", "layers"), ("x", "layers")),
        (-2, (None, "layers", "x"), ("layers", "x")),
    ],
)
def test_a_box_gains_the_axis(lift: str, axis: int, kernel: Any, mean: Any) -> None:
    model = ADDING[lift](layer, "layers", axis)
    variables = made(model)
    assert names(variables) == {"params": {"kernel": kernel, "bias": None}, "state": {"mean": mean}}
    state = written(model, variables)
    assert jax.tree.structure(state["state"]) == jax.tree.structure(variables["state"])
    gradient = jax.eval_shape(jax.grad(lambda variables: liftcore.apply(model)(variables, X).sum()), variables)
    assert jax.tree.structure(gradient) == jax.tree.structure(variables)


@pytest.mark.parametrize("lift", ADDING)
def test_an_axis_without_a_name_is_unnamed(lift: str) -> None:
    model = ADDING[lift](layer, None, -1)
    variables = made(model)
    assert names(variables)["params"]["kernel"] == (None, "x", None)
    assert names(variables)["state"]["mean"] == ("x", None)
    assert names(written(model, variables))["state"]["mean"] == ("x", None)


@pytest.mark.parametrize("lift", ADDING)
def test_the_body_sees_boxes_without_the_axis(lift: str) -> None:
    seen = []

    def body(scope: Scope, x: Any) -> Any:
        box = scope.param("kernel", KERNEL, (3, 3), unbox=False)
        seen.append((box.names, box.value.shape))
        return x @ box.value

    model = ADDING[lift](body, "layers", 1)
    _, variables = liftcore.init(model)(KEY, X)
    liftcore.apply(model)(variables, X)
    assert seen == [((None, "x"), (3, 3))] * 2


def test_shared_and_carried_boxes_stay_as_they_are() -> None:
    _, variables = liftcore.init(sharing(layer, "layers"))(KEY, X)
    assert names(variables) == {"params": {"kernel": (None, "x"), "bias": None}, "state": {"mean": ("x",)}}
    elements = liftcore.vmap(
        layer,
        variable_axes={"params": None, "state": 0},
        split_rngs={"params": False},
        metadata_params=named("elements"),
    )
    _, variables = liftcore.init(elements)(KEY, jnp.stack([X, 2 * X]))
    assert names(variables) == {"params": {"kernel": (None, "x"), "bias": None}, "state": {"mean": ("elements", "x")}}


def test_filters_of_single_variables_choose_which_boxes_gain_the_axis() -> None:
    def adapted(scope: Scope, x: Any) -> Any:
        kernel = scope.param("kernel", KERNEL, (3, 3))
        return x @ kernel + x @ scope.param("lora", KERNEL, (3, 3))

    axes = {All("params", PathContains("lora")): -1, "params": None}
    elements = liftcore.vmap(
        adapted, variable_axes=axes, split_rngs={"params": False}, metadata_params=named("tenants")
    )
    xs = jnp.stack([X, 2 * X])
    _, variables = liftcore.init(elements)(KEY, xs)
    assert names(variables) == {"params": {"kernel": (None, "x"), "lora": (None, "x", "tenants")}}
    assert liftcore.apply(elements)(variables, xs).shape == (2, 3)


def test_boxes_go_in_along_one_axis_and_come_out_along_another() -> None:
    def body(scope: Scope, x: Any) -> Any:
        mean = scope.variable("state", "mean", STATE, (3,))
        mean.value += x
        return scope.get_variable("only", "in").names

    state = {"mean": Partitioned(jnp.ones((3, 2)), ("x", "elements"))}
    only = {"in": Partitioned(jnp.ones((4, 2)), ("y", "elements"))}
    for axis, expected in ((InOut(1, 0), ("elements", "x")), (InOut(-1, -1), ("x", "elements"))):
        elements = liftcore.vmap(
            lambda scope, x: (body(scope, x), x)[1],
            in_axes=None,
            variable_axes={"state": axis, "only": In(1)},
            metadata_params=named("elements"),
        )
        _, mutated = liftcore.apply(elements, mutable=["state"])({"state": state, "only": only}, X)
        assert names(mutated) == {"state": {"mean": expected}}
    out = liftcore.vmap(
        layer,
        in_axes=None,
        axis_size=2,
        variable_axes={"state": Out(0), "params": None},
        split_rngs={"params": False},
        metadata_params=named("elements"),
    )
    _, mutated = liftcore.apply(out, mutable=["state"])({"params": unbox(liftcore.init(layer)(KEY, X)[1]["params"])}, X)
    assert names(mutated) == {"state": {"mean": ("elements", "x")}}


def test_sown_values_pass_through() -> None:
    def body(scope: Scope, x: Any) -> Any:
        y = layer(scope, x)
        scope.sow("intermediates", "y", y)
        return y

    for lift in (mapped, looped):
        _, variables = liftcore.init(lift(body, "layers"))(KEY, X)
        assert not has_boxes(variables["intermediates"])
        assert variables["intermediates"]["y"][0].shape[1:] == (3,)


def test_the_same_scope_twice_and_a_parent_with_its_child() -> None:
    def body(scopes: Any, x: Any) -> Any:
        parent, same, child = scopes
        assert names({"a": parent.get_variable("params", "w")}) == names({"a": same.get_variable("params", "w")})
        return layer(child, x) @ parent.param("w", KERNEL, (3, 3))

    def model(scope: Scope, x: Any) -> Any:
        over = liftcore.vmap(
            body,
            in_axes=None,
            axis_size=2,
            variable_axes={True: 0},
            split_rngs=True,
            metadata_params=named("layers"),
        )
        return over((scope, scope, scope.push("child")), x)

    _, variables = liftcore.init(model)(KEY, X)
    assert names(variables)["params"]["w"] == ("layers", None, "x")
    assert names(variables)["params"]["child"]["kernel"] == ("layers", None, "x")
    liftcore.apply(model, mutable=True)(variables, X)


# -- nested ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_nested_lifts_name_an_axis_each(outer: str, inner: str) -> None:
    runs = []

    def body(scope: Scope, x: Any) -> Any:
        runs.append(scope.path)
        return layer(scope, x)

    model = ADDING[outer](ADDING[inner](body, "inner"), "outer")
    expected = {
        "params": {"kernel": ("outer", "inner", None, "x"), "bias": None},
        "state": {"mean": ("outer", "inner", "x")},
    }
    variables = made(model)
    assert names(variables) == expected
    assert names(written(model, variables)) == {"state": expected["state"]}
    jax.eval_shape(jax.grad(lambda variables: liftcore.apply(model)(variables, X).sum()), variables)
    assert len(runs) == 3  # once in init, in apply and in the gradient


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_nested_lifts_count_axes_from_the_end_too(outer: str, inner: str) -> None:
    for first, second, expected in ((-1, -1, (None, "x", "in", "out")), (1, -1, (None, "in", "x", "out"))):
        model = ADDING[outer](ADDING[inner](layer, "in", first), "out", second)
        variables = made(model)
        assert names(variables)["params"]["kernel"] == expected
        assert names(written(model, variables))["state"] == names(variables)["state"]


@pytest.mark.parametrize(("outer", "inner"), list(itertools.product(LIFTS, repeat=2)))
def test_boxes_change_no_number(outer: str, inner: str) -> None:
    def plain(scope: Scope, x: Any) -> Any:
        kernel = scope.param("kernel", uniform, (3, 3))
        bias = scope.param("bias", uniform, (3,))
        y = jnp.tanh(x @ kernel + bias)
        mean = scope.variable("state", "mean", jnp.zeros, (3,))
        if scope.is_mutable_collection("state"):
            mean.value = 0.5 * mean.value + y
        return y + mean.value

    def run(fn: Callable[..., Any]) -> Any:
        model = LIFTS[outer](LIFTS[inner](fn, "inner"), "outer")
        y, variables = liftcore.init(model)(KEY, X)
        again, mutated = liftcore.apply(model, mutable=["state"])(variables, X)
        gradient = jax.grad(lambda variables: liftcore.apply(model)(variables, X).sum())(variables)
        return y, variables, again, mutated, gradient

    boxed, expected = compiled(lambda: (run(layer), run(plain)))
    assert has_boxes(boxed[1])
    assert names(boxed[3]["state"]) == names(boxed[1]["state"])
    assert_same(unbox(boxed), expected)


@pytest.mark.parametrize("outer", LIFTS)
def test_a_state_that_the_body_creates_and_writes_is_carried_in_its_box(outer: str) -> None:
    def count(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", STATE, (3,))
        n.value += x
        return n.value

    model = LIFTS[outer](carrying(count, "inner"), "outer")
    variables = made(model)
    assert names(variables) == {"state": {"n": ("outer", "x") if outer in ADDING else ("x",)}}
    assert names(written(model, variables)) == names(variables)


def test_three_deep() -> None:
    model = mapped(liftcore.remat(looped(liftcore.jit(mapped(layer, "c")), "b")), "a")
    variables = made(model)
    assert names(variables)["params"]["kernel"] == ("a", "b", "c", None, "x")
    assert names(written(model, variables))["state"]["mean"] == ("a", "b", "c", "x")


@pytest.mark.parametrize("lift", [liftcore.jit, liftcore.remat])
def test_transparent_lifts_pass_boxes(lift: Callable[..., Any]) -> None:
    _, variables = liftcore.init(lift(layer))(KEY, X)
    assert_same(variables, liftcore.init(layer)(KEY, X)[1])
    for _ in range(2):  # a cached call as well
        _, mutated = liftcore.apply(lift(layer), mutable=["state"])(variables, X)
        assert names(mutated) == {"state": {"mean": ("x",)}}


def test_jit_is_traced_again_for_other_names_only() -> None:
    runs = []

    def body(scope: Scope, x: Any) -> Any:
        runs.append(x.shape)
        return scope.get_variable("params", "w").unbox() * x

    model = liftcore.apply(liftcore.jit(body))
    for each in (("a",), ("a",), ("b",), ("a",)):
        np.testing.assert_array_equal(model({"params": {"w": Partitioned(jnp.ones(3), each)}}, X), X)
    assert len(runs) == 2


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lift", "shown"), [("vmap", "vmap(layer)"), ("scan", "scan(<lambda>)")])
def test_a_lift_must_call_the_axis_as_the_box_does(lift: str, shown: str) -> None:
    def model(scope: Scope, x: Any, name: str | None) -> Any:
        return ADDING[lift](layer, name)(scope.push("encoder"), x)

    _, variables = liftcore.init(model)(KEY, X, "layers")
    with pytest.raises(LiftArgumentError) as caught:
        liftcore.apply(model)(variables, X, "blocks")
    assert caught.value.where == f'"params/kernel" in {shown} at /encoder'
    assert str(caught.value).endswith(
        "the box (names: ('layers', None, 'x')) calls axis 0 'layers', but the lift calls it 'blocks'. "
        "Give the lift `metadata_params={PARTITION_NAME: 'layers'}`, or variables that its `init` created."
    )
    with pytest.raises(LiftArgumentError, match="calls axis 0 'layers', but the lift calls it None"):
        liftcore.apply(model)(variables, X, None)


@pytest.mark.parametrize("lift", [liftcore.vmap, liftcore.scan, add_metadata_axis])
def test_metadata_params_must_be_a_mapping(lift: Any) -> None:
    with pytest.raises(LiftArgumentError, match=rf"metadata_params of {lift.__name__}: expected a mapping .*'layers'"):
        lift(layer, metadata_params="layers")


def test_an_axis_that_is_not_there_is_told_by_size() -> None:
    variables = {"params": {"w": Partitioned(X, ("x",))}}
    elements = liftcore.vmap(lambda scope, x: x, in_axes=None, variable_axes={"params": -2})
    with pytest.raises(AxisSizeError, match="no axis -2 to map over"):
        liftcore.apply(elements)(variables, X)


def test_errors_name_boxed_variables() -> None:
    def body(scope: Scope, x: Any) -> Any:
        return scope.variable("state", "w", lambda: Partitioned(x, ("x",))).value

    with pytest.raises(LoopInvarianceError, match=r"state/w"):
        liftcore.init(liftcore.vmap(body, variable_axes={"state": None}))(KEY, jnp.ones((2, 3)))
    loop = liftcore.scan(lambda scope, carry, x: (carry, body(scope, x)), variable_broadcast="state")
    with pytest.raises(LoopInvarianceError, match=r"state/w"):
        liftcore.init(loop)(KEY, X, jnp.ones((2, 3)))


# -- add_metadata_axis -------------------------------------------------------------------------------------------------


def stacked(scope: Scope, x: Any, kernel_init: Any = KERNEL, mean_init: Any = STATE) -> Any:
    """Two kernels in one array, and a state of each."""
    kernels = scope.param("kernel", kernel_init, (2, 3, 3))
    mean = scope.variable("state", "mean", mean_init, (2, 3))
    y = jnp.tanh(x @ kernels)
    if scope.is_mutable_collection("state"):
        mean.value += y
    count = scope.variable("count", "n", with_partitioning(jnp.zeros, ("x",)), (3,))
    if scope.is_mutable_collection("count"):
        count.value += 1
    scope.sow("intermediates", "y", y)
    return (y + mean.value).sum(0)


NAMED = add_metadata_axis(stacked, variable_axes={"params": 0, "state": -2}, metadata_params=named("experts"))


def test_add_metadata_axis_names_an_axis_that_is_there() -> None:
    y, variables = liftcore.init(NAMED)(KEY, X)
    assert names(variables) == {
        "params": {"kernel": ("experts", None, "x")},
        "state": {"mean": ("experts", "x")},
        "count": {"n": ("x",)},
        "intermediates": {"y": (None,)},
    }
    unnamed = functools.partial(stacked, kernel_init=KERNEL.fn, mean_init=STATE.fn)
    assert_same((y, unbox(variables)), unbox(liftcore.init(unnamed)(KEY, X)))
    y, mutated = liftcore.apply(NAMED, mutable=["state", "count"])(variables, X)
    assert names(mutated) == {"state": {"mean": ("experts", "x")}, "count": {"n": ("x",)}}
    assert_same(y, liftcore.apply(stacked, mutable=["state"])(unbox(variables), X)[0])


def test_add_metadata_axis_changes_no_equation() -> None:
    variables = liftcore.init(NAMED)(KEY, X)[1]
    ours = jax.make_jaxpr(liftcore.apply(NAMED))(variables, X)
    plain = jax.make_jaxpr(liftcore.apply(stacked))(variables, X)
    assert str(ours) == str(plain)


def test_add_metadata_axis_hides_the_axis_inside() -> None:
    seen = []

    def body(scope: Scope) -> Any:
        seen.append(scope.param("kernel", KERNEL, (2, 3, 3), unbox=False).names)

    lifted = add_metadata_axis(body, variable_axes={"params": 1}, metadata_params=named("experts"))
    _, variables = liftcore.init(lifted)(KEY)
    assert names(variables) == {"params": {"kernel": (None, "experts", "x")}}
    liftcore.apply(lifted)(variables)
    assert seen == [(None, "x")] * 2


def test_add_metadata_axis_takes_filters_of_single_variables_and_ways() -> None:
    def body(scope: Scope) -> Any:
        for name in "abcd":
            scope.variable("state", name, STATE, (3,))
        return [scope.get_variable("state", name).names for name in "abcd"]

    a, b, c = (All("state", PathContains(name)) for name in "abc")
    lifted = add_metadata_axis(body, variable_axes={a: InOut(0, 1), b: Out(0), c: In(0)}, metadata_params=named("n"))
    box = {axes: Partitioned(jnp.ones(3), axes) for axes in (("n", "x"), ("x",))}
    given = {"state": {"a": box["n", "x"], "c": box["n", "x"], "d": box["x",]}}
    inside, mutated = liftcore.apply(lifted, mutable=["state"])(given)
    assert inside == [("x",)] * 4
    assert names(mutated)["state"] == {"a": ("n", "x"), "b": ("n", "x"), "c": ("n", "x"), "d": ("x",)}

    def write(scope: Scope, name: str) -> None:
        scope.variable("state", name, STATE, (3,)).value += 1

    for name, expected in (("a", ("x", "n")), ("d", ("x",))):
        lifted = add_metadata_axis(
            write, variable_axes={a: InOut(0, 1), b: Out(0), c: In(0)}, metadata_params=named("n")
        )
        _, mutated = liftcore.apply(lifted, mutable=["state"])(given, name)
        assert names(mutated)["state"][name] == expected
    with pytest.raises(UnliftedCollectionError, match=r"no output group of add_metadata_axis\(write\) takes it"):
        liftcore.apply(lifted, mutable=["state"])(given, "c")


@pytest.mark.parametrize("outer", LIFTS)
def test_add_metadata_axis_nests(outer: str) -> None:
    runs = []

    def body(scope: Scope, x: Any) -> Any:
        runs.append(x.shape)
        return layer(scope, x)

    inner = add_metadata_axis(body, variable_axes={"params": 0}, metadata_params=named("inner"))
    model = LIFTS[outer](inner, "outer")
    variables = made(model)
    inside = ("inner", None, "x")
    assert names(variables)["params"]["kernel"] == (("outer", *inside) if outer in {*ADDING, "carry"} else inside)
    assert names(variables)["state"]["mean"] == (("outer", "x") if outer in ADDING else ("x",))
    assert names(written(model, variables))["state"] == names(variables)["state"]
    assert len(runs) == 2
    around = add_metadata_axis(LIFTS[outer](layer, "in"), variable_axes={"params": 0}, metadata_params=named("out"))
    assert names(made(around))["params"]["kernel"][0] == "out"


def test_add_metadata_axis_names_itself_in_errors() -> None:
    with pytest.raises(LiftArgumentError) as caught:
        liftcore.apply(NAMED)({"params": {"kernel": Partitioned(jnp.ones((2, 3, 3)), (None, "x"))}}, X)
    assert caught.value.where == '"params/kernel" in add_metadata_axis(stacked) at /'


def test_a_box_of_another_kind_is_told_where_the_axis_is() -> None:
    told = []

    class Box(struct.PyTreeNode, AxisMetadata):
        value: Any

        def unbox(self) -> Any:
            return self.value

        def replace_boxed(self, value: Any) -> Box:
            return Box(value)

        def add_axis(self, index: int, params: Any) -> Box:
            told.append(("add", index, params))
            return self

        def remove_axis(self, index: int, params: Any) -> Box:
            told.append(("remove", index, params))
            return self

    def body(scope: Scope, x: Any) -> Any:
        return x @ scope.param("w", lambda key: Box(uniform(key, (3, 3))))

    model = mapped(body, "layers", -1)
    _, variables = liftcore.init(model)(KEY, X)
    assert told == [("add", 2, named("layers"))]
    assert type(variables["params"]["w"]) is Box
    liftcore.apply(model)(variables, X)
    assert told[1:] == [("remove", 2, named("layers"))]


# --- boxes that change the shape of their value -----------------------------------------------------------------------


class Flat(struct.PyTreeNode, AxisMetadata):
    """A box of a user's own that keeps its value flat outside of lifts, and knows its shape."""

    value: Any
    shape: tuple[int, ...] = struct.field(pytree_node=False)

    def unbox(self) -> Any:
        return self.value

    def replace_boxed(self, value: Any) -> Any:
        return self.replace(value=value)

    def add_axis(self, index: int, params: Any) -> Any:
        return self.replace(value=self.value.ravel(), shape=self.value.shape)

    def remove_axis(self, index: int, params: Any) -> Any:
        return self.replace(value=self.value.reshape(self.shape), shape=(*self.shape[:index], *self.shape[index + 1 :]))


OWN: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}


@pytest.mark.parametrize("sized", [True, False], ids=["size given", "size found"])
@pytest.mark.parametrize("lift", [liftcore.vmap, liftcore.pmap, liftcore.scan])
def test_sizes_are_those_of_values_without_their_boxes(lift: Any, sized: bool) -> None:
    size = 1 if lift is liftcore.pmap else 2

    def body(scope: Scope, x: Any, *_: Any) -> Any:
        y = x * scope.param("w", lambda key: Flat(uniform(key, (3,)), (3,)))
        return (y, None) if lift is liftcore.scan else y

    def model(scope: Scope, x: Any, sized: bool) -> Any:
        if lift is liftcore.scan:
            return lift(body, length=size if sized else None, **OWN)(scope, x, None)[0]
        return lift(body, in_axes=None, axis_size=size if sized else None, **OWN)(scope, x)

    y, variables = liftcore.init(model)(KEY, X, True)
    assert variables["params"]["w"].value.shape == (3 * size,)
    np.testing.assert_allclose(liftcore.apply(model)(variables, X, sized), y, rtol=1e-6)
