"""Lifted `vmap`: its arguments, and what happens to variables and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import In, InOut, Out, Scope, nn
from liftcore.errors import (
    AxisSizeError,
    LiftArgumentError,
    LiftError,
    LoopInvarianceError,
    ModifyScopeVariableError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from liftcore.filters import All, PathContains

KEY = jax.random.key(0)
RNGS = {"params": KEY, "dropout": jax.random.key(1)}
SPLIT = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}


def dense(scope: Scope, x: Any) -> Any:
    return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))


def pure(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A lifted function of no state."""
    lifted = liftcore.vmap(lambda scope, *args, **kwargs: fn(*args, **kwargs), **options)
    return lambda *args, **kwargs: liftcore.apply(lifted)({}, *args, **kwargs)


# -- arguments and results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_axes", "shapes"),
    [
        (0, [(3, 2), (3, 2)]),
        (1, [(2, 3), (2, 3)]),
        (-1, [(2, 3), (2, 3)]),
        ((0, None), [(3, 2), (2,)]),
        ([0, -1], [(3, 2), (2, 3)]),
        ((None, 1), [(2,), (2, 3)]),
    ],
)
def test_in_axes_are_those_of_jax(in_axes: Any, shapes: list[tuple[int, ...]]) -> None:
    x, y = (jnp.arange(float(np.prod(shape))).reshape(shape) for shape in shapes)

    def fn(x: Any, y: Any) -> Any:
        assert x.shape == y.shape == (2,)
        return x * 2 - y

    expected = jax.vmap(fn, tuple(in_axes) if isinstance(in_axes, list) else in_axes)(x, y)
    np.testing.assert_array_equal(pure(fn, in_axes=in_axes)(x, y), expected)


def test_in_axes_may_be_a_pytree_prefix() -> None:
    def fn(batch: dict[str, Any], scale: Any) -> Any:
        return batch["a"][0] + batch["a"][1].sum() + batch["b"] * scale

    batch = {"a": (jnp.arange(3.0), jnp.ones((2, 3))), "b": jnp.arange(2.0)}
    axes: Any = ({"a": (0, 1), "b": None}, None)
    np.testing.assert_array_equal(pure(fn, in_axes=axes)(batch, 2.0), jax.vmap(fn, axes)(batch, 2.0))


@pytest.mark.parametrize("out_axes", [0, 1, -1, (0, 1), (1, {"s": 0}), (-1, None)])
def test_out_axes_are_those_of_jax(out_axes: Any) -> None:
    def fn(x: Any) -> Any:
        second = {"s": jnp.stack([x, -x])} if out_axes != (-1, None) else {"s": jnp.ones(2)}
        return jnp.stack([x, 2 * x]), second

    x = jnp.arange(3.0)
    ours, theirs = pure(fn, out_axes=out_axes)(x), jax.vmap(fn, out_axes=out_axes)(x)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("option", ["in_axes", "out_axes"])
@pytest.mark.parametrize("axes", ["rows", 1.5, (0, {"y": "rows"})])
@pytest.mark.parametrize("lift", [liftcore.vmap, liftcore.scan, liftcore.pmap])
def test_axes_that_are_no_numbers_say_so(lift: Any, axes: Any, option: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf"{lift.__name__}, {option}: expected an int or None, given"):
        lift(lambda scope, x: x, **{option: axes})


def test_axes_that_are_no_prefix_say_so() -> None:
    with pytest.raises(LiftArgumentError, match="not a prefix") as caught:
        pure(lambda x: x, in_axes=({"a": 0},))(jnp.ones(3))
    assert "in_axes" in caught.value.where
    with pytest.raises(LiftArgumentError, match="not a prefix"):
        pure(lambda x, y: x, in_axes=(0, 0, 0))(jnp.ones(3), jnp.ones(3))


def test_axis_size_alone_is_enough() -> None:
    lifted = liftcore.vmap(dense, in_axes=None, axis_size=5, **SPLIT)
    y, variables = liftcore.init(lifted)(KEY, jnp.ones(3))
    assert y.shape == (5, 2)
    assert variables["params"]["w"].shape == (5, 3, 2)
    assert len(np.unique(variables["params"]["w"])) == 30


def test_the_size_may_come_from_variables_alone() -> None:
    lifted = liftcore.vmap(dense, in_axes=None, variable_axes={"params": 0})
    assert liftcore.apply(lifted)({"params": {"w": jnp.ones((4, 3, 2))}}, jnp.ones(3)).shape == (4, 2)


def test_sizes_that_disagree_name_each_argument() -> None:
    def fn(scope: Scope, x: Any, table: Any) -> Any:
        return x

    lifted = liftcore.vmap(fn, variable_axes={"params": 0})
    variables = {"params": {"a": {"w": jnp.ones((4, 2))}}}
    model = liftcore.apply(lambda scope, *args: scope.child(lifted, "a")(*args))
    with pytest.raises(AxisSizeError) as caught:
        model(variables, jnp.ones((2, 3)), {"t": jnp.ones(3), "u": jnp.ones((2, 5))})
    assert caught.value.where == "vmap(fn) at /a"
    for part in ("x: 2", "table['t']: 3", "table['u']: 2", "variables[\"params\"]['w']: 4"):
        assert part in caught.value.what
    with pytest.raises(AxisSizeError, match="the size given: 3, x: 2"):
        liftcore.apply(liftcore.vmap(lambda scope, x: x, axis_size=3))({}, jnp.ones(2))


def test_sizes_that_disagree_number_arguments_without_a_name() -> None:
    def fn(scope: Scope, x: Any, *more: Any) -> Any:
        first = more[0]  # a local value of the function is no parameter of it
        return x + first

    with pytest.raises(AxisSizeError, match=r"\(x: 2, args\[1\]: 3, args\[2\]: 4\)"):
        liftcore.apply(liftcore.vmap(fn))({}, jnp.ones(2), jnp.ones(3), jnp.ones(4))


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 4, 5)), (1, (4, 3, 5)), (-1, (4, 5, 3))])
def test_a_body_that_creates_sees_the_shape_of_a_slice(axis: int, shape: tuple[int, ...]) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.variable("state", "seen", lambda: jnp.zeros(x.shape)).value.sum() + x.sum()

    _, variables = liftcore.init(liftcore.vmap(fn, axis, variable_axes={"state": 0}))(KEY, jnp.ones(shape))
    assert variables["state"]["seen"].shape == (3, 4, 5)


def test_a_value_without_the_axis_says_so() -> None:
    with pytest.raises(AxisSizeError, match=r"x has shape \(\) and no axis 0 to map over") as caught:
        liftcore.apply(liftcore.vmap(lambda scope, x: x))({}, 1.0)
    assert "None" in caught.value.fix
    with pytest.raises(AxisSizeError, match=r"variables\[\"params\"\]\['w'\] has shape \(3,\) and no axis 1"):
        liftcore.apply(liftcore.vmap(dense, variable_axes={"params": 1}))({"params": {"w": jnp.ones(3)}}, jnp.ones(3))


def test_no_size_at_all_says_how_to_give_it() -> None:
    with pytest.raises(AxisSizeError, match=r"nothing is mapped.*`axis_size=…`"):
        liftcore.apply(liftcore.vmap(lambda scope, x: x, in_axes=None))({}, jnp.ones(2))


def test_axis_name_serves_collectives() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        w = scope.param("w", jax.random.normal, ())
        total = scope.variable("stats", "total", lambda: jnp.zeros(()))
        if scope.is_mutable_collection("stats"):
            total.value += jax.lax.psum(x * w, "elements")
        return jax.lax.psum(x, "elements"), jax.lax.axis_index("elements")

    lifted = liftcore.vmap(
        fn, axis_name="elements", variable_axes={"params": 0, "stats": None}, split_rngs={"params": True}
    )
    x = jnp.arange(3.0)
    (sums, index), variables = liftcore.init(lifted)(KEY, x)
    assert sums.tolist() == [3.0, 3.0, 3.0]
    assert index.tolist() == [0, 1, 2]
    total = (x * variables["params"]["w"]).sum()
    np.testing.assert_allclose(variables["stats"]["total"], total, rtol=1e-6)
    _, mutated = liftcore.apply(lifted, mutable=["stats"])(variables, x)
    np.testing.assert_allclose(mutated["stats"]["total"], 2 * total, rtol=1e-6)


def test_spmd_axis_name_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = jax.vmap

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs.get("spmd_axis_name"))
        return real(*args, **kwargs)

    monkeypatch.setattr(jax, "vmap", spy)
    lifted = liftcore.vmap(lambda scope, x: x * 2, spmd_axis_name="data")
    assert liftcore.apply(lifted)({}, jnp.ones(2)).tolist() == [2.0, 2.0]
    assert seen == ["data"]


# -- keyword arguments -------------------------------------------------------------------------------------------------


def test_keyword_arrays_are_mapped_and_python_values_passed_on() -> None:
    seen: list[Any] = []

    def fn(x: Any, *, y: Any, scale: float, flag: bool, text: str, none: None) -> Any:
        seen.append((scale, flag, text, none))
        assert jnp.shape(y) == ()
        return x + y * scale

    x = jnp.arange(3.0)
    result = pure(fn)(x, y=np.arange(3.0, dtype=np.float32), scale=2.0, flag=True, text="t", none=None)
    np.testing.assert_array_equal(result, 3 * x)
    assert seen == [(2.0, True, "t", None)]


@pytest.mark.parametrize(
    ("kw_axes", "shape"), [(0, (3, 2)), (1, (2, 3)), (None, (2,)), ({"y": 1}, (2, 3)), ({"y": {"a": -1}}, (2, 3))]
)
def test_kw_axes_is_a_prefix_of_the_keyword_arguments(kw_axes: Any, shape: tuple[int, ...]) -> None:
    def fn(x: Any, *, y: Any) -> Any:
        assert y["a"].shape == (2,)
        return x + y["a"]

    result = pure(fn, kw_axes=kw_axes)(jnp.zeros(3), y={"a": jnp.ones(shape)})
    assert result.shape == (3, 2)


def test_positional_arguments_may_be_given_by_name() -> None:
    def fn(scope: Scope, x: Any, y: Any) -> Any:
        return x + y

    x = jnp.arange(3.0)
    assert liftcore.apply(liftcore.vmap(fn))({}, x, y=x).tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(AxisSizeError, match=r"keyword arguments\['y'\]: 2"):
        liftcore.apply(liftcore.vmap(fn))({}, x, y=jnp.ones(2))


# -- variables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_variables_lie_along_their_axis(axis: int) -> None:
    lifted = liftcore.vmap(dense, variable_axes={"params": axis}, split_rngs={"params": True})
    x = jnp.arange(15.0).reshape(5, 3)
    y, variables = liftcore.init(lifted)(KEY, x)
    w = variables["params"]["w"]
    assert w.shape[axis] == 5
    elements = jnp.moveaxis(w, axis, 0)
    np.testing.assert_allclose(y, jnp.einsum("bi,bio->bo", x, elements), rtol=1e-5)
    np.testing.assert_allclose(liftcore.apply(lifted)(variables, x), y, rtol=1e-6)


def test_shared_variables_have_no_axis() -> None:
    lifted = liftcore.vmap(dense, variable_axes={"params": None}, split_rngs={"params": False})
    y, variables = liftcore.init(lifted)(KEY, jnp.ones((5, 3)))
    plain = liftcore.init(dense)(KEY, jnp.ones((5, 3)))
    jax.tree.map(np.testing.assert_array_equal, (y, variables), plain)


def test_the_first_filter_that_matches_says_the_axis() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        lora = scope.push("lora").param("w", jax.random.normal, (3,))
        return x + scope.param("base", jax.random.normal, (3,)) + lora

    axes = {All("params", PathContains("lora")): 0, "params": None}
    lifted = liftcore.vmap(fn, in_axes=None, axis_size=4, variable_axes=axes, split_rngs={"params": False})
    y, variables = liftcore.init(lifted)(KEY, jnp.zeros(3))
    assert jax.tree.map(jnp.shape, variables["params"]) == {"base": (3,), "lora": {"w": (4, 3)}}
    variables["params"]["lora"]["w"] = jnp.arange(12.0).reshape(4, 3)
    y = liftcore.apply(lifted)(variables, jnp.zeros(3))
    np.testing.assert_allclose(y, variables["params"]["base"] + variables["params"]["lora"]["w"], rtol=1e-6)
    grads = jax.grad(lambda v: liftcore.apply(lifted)(v, jnp.zeros(3)).sum())(variables)["params"]
    assert grads["base"].tolist() == [4.0, 4.0, 4.0]
    assert grads["lora"]["w"].shape == (4, 3)


def counted(scope: Scope, x: Any) -> Any:
    count = scope.variable("state", "n", lambda: jnp.zeros(()))
    count.value += x
    return count.value


def test_in_only_variables_do_not_come_out() -> None:
    def read(scope: Scope, x: Any) -> Any:
        return x + scope.variable("state", "n").value

    variables = {"state": {"n": jnp.arange(3.0)}}
    lifted = liftcore.vmap(read, variable_axes={"state": In(0)})
    assert liftcore.apply(lifted)(variables, jnp.ones(3)).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(UnliftedCollectionError, match="no output group"):
        liftcore.apply(liftcore.vmap(counted, variable_axes={"state": In(0)}), mutable=True)(variables, jnp.ones(3))


def test_out_only_variables_do_not_go_in() -> None:
    def make(scope: Scope, x: Any) -> Any:
        assert not scope.has_variable("state", "n")
        return counted(scope, x)

    lifted = liftcore.vmap(make, variable_axes={"state": Out(0)})
    _, variables = liftcore.init(lifted)(KEY, jnp.arange(3.0))
    assert variables["state"]["n"].tolist() == [0.0, 1.0, 2.0]


def test_variables_may_come_out_along_another_axis() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        state = scope.variable("state", "s")
        state.value = state.value + x
        return x

    lifted = liftcore.vmap(fn, variable_axes={"state": InOut(0, 1)})
    given = jnp.arange(6.0).reshape(3, 2)
    _, mutated = liftcore.apply(lifted, mutable=["state"])({"state": {"s": given}}, jnp.ones(3))
    np.testing.assert_array_equal(mutated["state"]["s"], (given + 1).T)
    shared = liftcore.vmap(fn, variable_axes={"state": InOut(None, 0)})
    _, mutated = liftcore.apply(shared, mutable=["state"])({"state": {"s": given}}, jnp.arange(3.0))
    np.testing.assert_array_equal(mutated["state"]["s"], given + jnp.arange(3.0)[:, None, None])


def test_a_shared_variable_may_be_written_if_all_elements_write_the_same() -> None:
    lifted = liftcore.vmap(
        lambda scope, x: counted(scope, jax.lax.psum(x, "elements")),
        axis_name="elements",
        variable_axes={"state": None},
    )
    _, mutated = liftcore.apply(lifted, mutable=["state"])({"state": {"n": jnp.float32(1)}}, jnp.arange(3.0))
    assert mutated == {"state": {"n": 4.0}}


@pytest.mark.parametrize("made", [True, False])
def test_a_shared_variable_that_differs_between_elements_is_an_error(made: bool) -> None:
    def fn(scope: Scope, x: Any) -> Any:
        if made:
            scope.push("inner").variable("state", "n", lambda: x)
        else:
            scope.push("inner").put_variable("state", "n", x)
        return x

    lifted = liftcore.vmap(fn, variable_axes={"state": None})
    with pytest.raises(LoopInvarianceError) as caught:
        liftcore.apply(lambda scope, x: lifted(scope.push("a"), x), mutable=True)({}, jnp.arange(3.0))
    assert caught.value.where == "vmap(fn) at /a"
    assert "state/inner/n" in caught.value.what
    assert '`variable_axes={"state": 0}`' in caught.value.fix


def test_a_shared_parameter_from_split_keys_is_an_error() -> None:
    lifted = liftcore.vmap(dense, variable_axes={"params": None}, split_rngs={"params": True})
    with pytest.raises(LoopInvarianceError, match=r"params/w.*differs between.*do not split the stream"):
        liftcore.init(lifted)(KEY, jnp.ones((2, 3)))


def test_batch_statistics_are_kept_for_each_element() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return nn.batch_norm(scope, x, use_running_average=False)

    lifted = liftcore.vmap(fn, variable_axes={"params": 0, "batch_stats": 0}, split_rngs={"params": True})
    x = jnp.arange(24.0).reshape(2, 4, 3)
    y, variables = liftcore.init(lifted)(KEY, x)
    assert variables["batch_stats"]["mean"].shape == variables["params"]["scale"].shape == (2, 3)
    y, mutated = liftcore.apply(lifted, mutable=["batch_stats"])(variables, x)
    for element in range(2):
        alone = jax.tree.map(lambda leaf, element=element: leaf[element], variables)
        expected, stats = liftcore.apply(fn, mutable=["batch_stats"])(alone, x[element])
        np.testing.assert_allclose(y[element], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mutated["batch_stats"]["mean"][element], stats["batch_stats"]["mean"], rtol=1e-6)


def test_a_mapped_network_has_a_leading_axis_on_every_parameter() -> None:
    def mlp(scope: Scope, x: Any) -> Any:
        x = jax.nn.relu(scope.child(nn.dense, prefix="Dense_")(x, 4))
        return scope.child(nn.dense, prefix="Dense_")(x, 1)

    def model(scope: Scope, x: Any) -> Any:
        return scope.child(liftcore.vmap(mlp, **SPLIT), "mlp")(x)

    y, variables = liftcore.init(model)(KEY, jnp.ones((5, 8, 3)))
    assert y.shape == (5, 8, 1)
    assert jax.tree.map(jnp.shape, variables["params"]) == {
        "mlp": {
            "Dense_0": {"kernel": (5, 3, 4), "bias": (5, 4)},
            "Dense_1": {"kernel": (5, 4, 1), "bias": (5, 1)},
        }
    }


def test_captured_values_are_stacked_though_no_axis_is_given() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "y", {"twice": 2 * x})
        scope.push("a").sow("intermediates", "z", x)
        return x

    x = jnp.arange(3.0)
    _, mutated = liftcore.apply(liftcore.vmap(fn), mutable=["intermediates"])({}, x)
    (y,), (z,) = mutated["intermediates"]["y"], mutated["intermediates"]["a"]["z"]
    np.testing.assert_array_equal(y["twice"], 2 * x)
    np.testing.assert_array_equal(z, x)
    assert liftcore.apply(liftcore.vmap(fn))({}, x).tolist() == x.tolist()


def test_captured_values_of_a_listed_collection_follow_its_axis() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        scope.sow("intermediates", "y", x)
        return x

    lifted = liftcore.vmap(fn, variable_axes={"intermediates": 1})
    _, mutated = liftcore.apply(lifted, mutable=["intermediates"])({}, jnp.ones((3, 2)))
    assert mutated["intermediates"]["y"][0].shape == (2, 3)


# -- keys --------------------------------------------------------------------------------------------------------------


def draws(scope: Scope, *names: str) -> Any:
    return {name: jax.random.key_data(scope.make_rng(name)) for name in names}


def elements(split_rngs: Any, *names: str, rngs: Any = RNGS) -> dict[str, bool]:
    """For each stream, whether three elements draw different keys."""
    lifted = liftcore.vmap(lambda scope: draws(scope, *names), axis_size=3, split_rngs=split_rngs)
    found = liftcore.apply(lifted)({}, rngs=rngs)
    return {name: len(np.unique(keys, axis=0)) == 3 for name, keys in found.items()}


def test_split_rngs_says_which_elements_draw_differently() -> None:
    both = ("params", "dropout")
    assert elements({"params": True, "dropout": False}, *both) == {"params": True, "dropout": False}
    assert elements(True, *both) == {"params": True, "dropout": True}
    assert elements(False, *both) == {"params": False, "dropout": False}
    assert elements({"dropout": True, ...: False}, *both) == {"params": False, "dropout": True}
    assert elements({("params", "dropout"): True}, *both) == {"params": True, "dropout": True}
    with pytest.raises(UnliftedStreamError, match=r'vmap\(<lambda>\).*split_rngs=\{"dropout": True\}'):
        elements({"params": True}, *both)


def test_a_sequence_that_was_not_given_follows_the_rule_of_its_own_name() -> None:
    only = {"params": KEY}
    assert elements({"params": False, "noise": True}, "noise", "params", rngs=only) == {"noise": True, "params": False}
    assert elements({"params": True, "noise": False}, "noise", "params", rngs=only) == {"noise": False, "params": True}
    assert elements({"params": True}, "noise", rngs=only) == {"noise": True}
    assert elements({"noise": True}, "noise", rngs=only) == {"noise": True}


@pytest.mark.parametrize("split", [True, False])
def test_an_inner_lift_goes_on_with_the_root_that_a_sequence_has_there(split: bool) -> None:
    inner = liftcore.vmap(lambda scope: draws(scope, "noise", "params"), axis_size=2, split_rngs={"params": split})
    outer = liftcore.vmap(inner, axis_size=3, split_rngs={"noise": True, "params": False})
    keys = liftcore.apply(outer)({}, rngs=KEY)
    assert len(np.unique(keys["noise"].reshape(6, 2), axis=0)) == (6 if split else 3)
    assert len(np.unique(keys["params"].reshape(6, 2), axis=0)) == (2 if split else 1)


def test_a_element_draws_from_its_part_of_the_split_root() -> None:
    lifted = liftcore.vmap(lambda scope: draws(scope.push("a"), "dropout"), axis_size=3, split_rngs=True)
    found = liftcore.apply(lambda scope: lifted(scope.push("b")))({}, rngs=RNGS)["dropout"]
    for element, root in enumerate(jax.random.split(RNGS["dropout"], 3)):
        alone = liftcore.bind({}, {"dropout": root}).push("b").push("a").make_rng("dropout")
        np.testing.assert_array_equal(found[element], jax.random.key_data(alone))


def test_raw_keys_are_split_like_typed_ones() -> None:
    def run(key: Any) -> Any:
        lifted = liftcore.vmap(dense, in_axes=None, axis_size=3, **SPLIT)
        return liftcore.init(lifted)(key, jnp.ones(3))

    jax.tree.map(np.testing.assert_array_equal, run(jax.random.key(3)), run(jax.random.PRNGKey(3)))


def test_draws_outside_go_on_after_the_lift() -> None:
    def model(scope: Scope) -> Any:
        first = draws(scope, "params")
        inside = liftcore.vmap(lambda scope: draws(scope, "params"), axis_size=2, split_rngs=True)(scope)
        return first, inside, draws(scope, "params")

    first, _, last = liftcore.apply(model)({}, rngs=KEY)
    bound = liftcore.bind({}, KEY)
    counts = [jax.random.key_data(bound.make_rng()).tolist() for _ in range(3)]
    assert [first["params"].tolist(), last["params"].tolist()] == [counts[0], counts[2]]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_vmaps_nest_with_axes_of_their_own() -> None:
    inner = liftcore.vmap(dense, in_axes=None, axis_size=2, variable_axes={"params": 1}, split_rngs=True)
    outer = liftcore.vmap(inner, in_axes=None, axis_size=5, variable_axes={"params": 0}, split_rngs=True)
    y, variables = liftcore.init(outer)(KEY, jnp.ones(3))
    assert y.shape == (5, 2, 2)
    assert variables["params"]["w"].shape == (5, 3, 2, 2)
    assert len(np.unique(variables["params"]["w"])) == 60


def test_the_program_is_that_of_jax() -> None:
    def plain(w: Any, x: Any) -> Any:
        return jax.vmap(lambda w, x: x @ w)(w, x)

    w, x = jnp.ones((5, 3, 2)), jnp.ones((5, 3))
    lifted = liftcore.apply(liftcore.vmap(dense, **SPLIT))
    ours = jax.make_jaxpr(lambda w, x: lifted({"params": {"w": w}}, x))(w, x)
    assert [eqn.primitive.name for eqn in ours.eqns] == [eqn.primitive.name for eqn in jax.make_jaxpr(plain)(w, x).eqns]


def test_the_lifted_function_keeps_its_name() -> None:
    def block(scope: Scope) -> Any:
        """A block."""

    lifted = liftcore.vmap(block)
    assert lifted.__name__ == "block"
    assert lifted.__doc__ == "A block."


@pytest.mark.parametrize(
    ("options", "where", "fix"),
    [
        ({"variable_axes": ["params"]}, "variable_axes", 'variable_axes={"params": 0}'),
        ({"variable_axes": {"params": "0"}}, "variable_axes['params']", "InOut(in_axis, out_axis)"),
        ({"variable_axes": {"params": True}}, "variable_axes['params']", "an int, None"),
        ({"split_rngs": {"params": 1}}, "split_rngs", 'split_rngs={"params": True'),
        ({"split_rngs": "params"}, "split_rngs", 'split_rngs={"params": True'),
    ],
)
def test_bad_options_are_refused_before_any_call(options: dict[str, Any], where: str, fix: str) -> None:
    with pytest.raises(LiftArgumentError) as caught:
        liftcore.vmap(dense, **options)
    assert caught.value.where == where
    assert fix in caught.value.fix


def test_errors_inside_show_the_lifted_path() -> None:
    def fn(scope: Scope, x: Any) -> Any:
        return scope.push("dense").param("w", jax.random.normal, (4,))

    model = liftcore.apply(lambda scope, x: liftcore.vmap(fn, variable_axes={"params": 0})(scope.push("encoder"), x))
    with pytest.raises(LiftError, match=r'param "w" at /encoder/vmap\(fn\)/dense: .*\(3,\).*\(4,\)'):
        model({"params": {"encoder": {"dense": {"w": jnp.ones((2, 3))}}}}, jnp.ones(2))


def test_writing_what_is_immutable_outside_asks_for_it() -> None:
    lifted = liftcore.vmap(counted, variable_axes={"state": 0})
    with pytest.raises(ModifyScopeVariableError, match=r'"state/n" at /vmap\(counted\).*mutable=\["state"\]'):
        liftcore.apply(lifted)({"state": {"n": jnp.zeros(3)}}, jnp.ones(3))


def test_what_is_computed_from_constants_is_concrete_in_apply() -> None:
    """So a body may branch on it in Python, as under `jax.vmap`; in `init` NumPy, or JAX at once, does the same."""

    def by_jax() -> Any:
        return jnp.arange(3).sum()

    def at_once() -> Any:
        with jax.ensure_compile_time_eval():
            return by_jax()

    def model(scope: Scope, x: Any, steps: Any) -> Any:
        def body(scope: Scope, x: Any) -> Any:
            return x * int(steps()) * scope.param("w", lambda key: 2.0)

        return liftcore.vmap(body, variable_axes={"params": None}, split_rngs={"params": False})(scope, x)

    variables = {"params": {"w": 2.0}}
    assert liftcore.apply(model)(variables, jnp.ones(2), by_jax).tolist() == [6.0, 6.0]
    for steps in (at_once, lambda: np.arange(3).sum()):
        assert liftcore.init(model)(KEY, jnp.ones(2), steps)[0].tolist() == [6.0, 6.0]
    with pytest.raises(jax.errors.ConcretizationTypeError):
        liftcore.init(model)(KEY, jnp.ones(2), by_jax)


def test_over_a_scope_that_creates_nothing_it_does_what_it_does_over_others() -> None:
    runs: list[None] = []

    def body(scope: Scope, x: Any) -> Any:
        runs.append(None)
        scope.variable("state", "n", lambda: 0).value += 1
        scope.variable("stats", "x", lambda: 0).value = {"sum": 2 * x}
        scope.sow("intermediates", "x", x)
        return x * scope.param("w", None) + jax.random.uniform(scope.make_rng("dropout"))

    given = {"params": {"w": jnp.arange(3.0)}, "state": {"n": 0}, "stats": {"x": jnp.zeros(3)}}
    options = {"variable_axes": {"params": 0, "state": None, "stats": 0}, "split_rngs": {"dropout": True}}

    def run(creates: bool) -> Any:
        scope = liftcore.bind(given, RNGS, mutable=["state", "stats", "intermediates"], creates=creates)
        y = liftcore.vmap(body, **options)(scope, jnp.ones(3))
        return y, scope.variables(), jax.random.key_data(scope.make_rng("dropout"))

    jax.tree.map(np.testing.assert_array_equal, run(False), run(True))
    assert len(runs) == 2, "each runs the body once"


def test_over_a_scope_that_creates_nothing_errors_are_the_same() -> None:
    runs: list[None] = []

    def differs(scope: Scope, x: Any) -> None:
        scope.put_variable("state", "n", x)

    def fails(scope: Scope, x: Any) -> None:
        runs.append(None)
        scope.put_variable("state", "n", 1)
        raise ValueError("of the body")

    scope = liftcore.bind({"state": {"n": 0}}, mutable=True, creates=False)
    with pytest.raises(LoopInvarianceError, match=r"\['state/n'\] is shared by all elements"):
        liftcore.vmap(differs, variable_axes={"state": None})(scope, jnp.arange(3))
    with pytest.raises(ValueError, match="of the body"):
        liftcore.vmap(fails, variable_axes={"state": None})(scope, jnp.arange(3))
    assert len(runs) == 1
    assert scope.variables() == {"state": {"n": 0}}
