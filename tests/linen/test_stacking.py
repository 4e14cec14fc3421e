"""Layers stacked along an axis, and layers with names of their own: there and back without loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linen_like as nn
from liftcore import freeze, serialization
from liftcore.errors import LiftArgumentError
from liftcore.filters import PathContains
from linen_like import Stack, stack_layers, unstack_layers
from tests.linen.lifted import KEY, X, assert_close, assert_same, shapes


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(3))
        return x + nn.Dense(3)(x) - mean.value


class Looped(nn.Module):
    length: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(3, name="embed")(x)
        for number in range(self.length):
            x = Layer(name=f"layer_{number}")(x)
        return nn.Dense(1, name="head")(x)


class Stacked(nn.Module):
    mode: str = "scan"

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(3, name="embed")(x)
        x = Stack(Layer(parent=None), 3, self.mode, name="layers")(x)
        return nn.Dense(1, name="head")(x)


PATHS = "layer_{}", "layers/block"


def test_a_model_of_named_layers_becomes_one_of_stacked_layers() -> None:
    variables = Looped().init(KEY, X)
    stacked = stack_layers(variables, *PATHS)
    assert jax.tree.structure(stacked) == jax.tree.structure(Stacked().init(KEY, X))
    assert_close(Stacked().apply(stacked, X), Looped().apply(variables, X))
    assert_same(unstack_layers(stacked, *reversed(PATHS)), variables)


@pytest.mark.parametrize("mode", ["scan", "loop", "jit"])
def test_a_stack_becomes_named_layers(mode: str) -> None:
    variables = Stacked(mode).init(KEY, X)
    layers = unstack_layers(variables, *reversed(PATHS))
    assert_close(Looped().apply(layers, X), Stacked(mode).apply(variables, X))
    assert_same(stack_layers(layers, *PATHS), variables)


def test_scanned_layers_too_along_any_axis() -> None:
    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            class Step(Layer):
                @nn.compact
                def __call__(self, x: Any, _: Any) -> Any:
                    return super().__call__(x), None

            x = nn.Dense(3, name="embed")(x)
            axes = {"params": -1, "batch_stats": 0}
            x, _ = nn.scan(Step, axes, length=3, split_rngs={"params": True})(name="layers")(x, None)
            return nn.Dense(1, name="head")(x)

    variables = Scanned().init(KEY, X)
    params = unstack_layers({"params": variables["params"]}, "layers", "layer_{}", axis=-1)
    stats = unstack_layers({"batch_stats": variables["batch_stats"]}, "layers", "layer_{}")
    assert_close(Looped().apply({**params, **stats}, X), Scanned().apply(variables, X))
    assert_same(stack_layers(params, "layer_{}", "layers", axis=-1), {"params": variables["params"]})


def test_a_checkpoint_in_bytes() -> None:
    layers = serialization.msgpack_restore(serialization.to_bytes(Looped().init(KEY, X)))
    stacked = stack_layers(layers, *PATHS)
    assert_close(Stacked().apply(stacked, X), Looped().apply(layers, X))
    assert_same(unstack_layers(stacked, *reversed(PATHS)), layers)


DTYPES = [np.float32, np.float64, np.int8, np.uint32, np.bool_, np.complex64, ml_dtypes.bfloat16, np.float16]


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_there_and_back_changes_no_bit(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    in_jax = data.draw(st.booleans())

    def array(shape: list[int], dtype: Any) -> Any:
        made = rng.integers(0, 2**8, shape).astype(dtype)
        return jnp.asarray(made) if in_jax and made.dtype.itemsize <= 4 else made

    names = st.sampled_from(["w", "b", "inner/w", "inner/deep/b"])
    sorts = data.draw(
        st.dictionaries(names, st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES)))
    )
    layers: dict[str, Any] = {"params": {"rest": {"w": array([2], np.float32)}}}
    for number in range(length if sorts else 0):
        for path, (shape, dtype) in sorts.items():
            inner = layers["params"].setdefault("net", {}).setdefault(f"h_{number}", {}).setdefault("block", {})
            for name in path.split("/")[:-1]:
                inner = inner.setdefault(name, {})
            inner[path.split("/")[-1]] = array(shape, dtype)
    if not sorts:
        return
    before = jax.tree.map(lambda leaf: (type(leaf), leaf.dtype, leaf.tobytes()), layers)
    stacked = stack_layers(layers, "net/h_{}/block", "net/h")
    again = unstack_layers(stacked, "net/h", "net/h_{}/block")
    assert jax.tree.map(lambda leaf: (type(leaf), leaf.dtype, leaf.tobytes()), again) == before
    assert jax.tree.map(lambda leaf: (type(leaf), leaf.dtype, leaf.tobytes()), layers) == before  # given in, unchanged
    assert_same(stack_layers(again, "net/h_{}/block", "net/h"), stacked)


def test_layers_may_move_to_where_they_were_counted() -> None:
    layers = {"params": {"h": {"0": {"w": np.ones(2)}, "1": {"w": np.zeros(2)}}, "rest": {"b": np.ones(1)}}}
    stacked = stack_layers(layers, "h/{}", "h")
    assert shapes(stacked) == {"params": {"h": {"w": (2, 2)}, "rest": {"b": (1,)}}}
    assert_same(unstack_layers(stacked, "h", "h/{}"), layers)


def test_ten_layers_are_counted_as_numbers() -> None:
    layers = {"params": {f"h_{number}": {"w": np.float32(number)} for number in reversed(range(11))}}
    assert stack_layers(layers, "h_{}", "h")["params"]["h"]["w"].tolist() == list(range(11))


def test_frozen_trees_sown_tuples_and_empty_collections() -> None:
    layers = freeze(
        {
            "intermediates": {f"h_{number}": {"y": (jnp.float32(number), jnp.ones(2))} for number in range(2)},
            "params": {},
        }
    )
    stacked = stack_layers(layers, "h_{}", "h")
    assert shapes(stacked) == {"intermediates": {"h": {"y": ((2,), (2, 2))}}, "params": {}}
    assert_same(unstack_layers(stacked, "h", "h_{}"), layers.unfreeze())


def test_it_runs_under_jax_transformations_and_on_shapes() -> None:
    layers = {"params": {f"h_{number}": {"w": jnp.ones((2, 3))} for number in range(2)}}
    abstract = jax.eval_shape(lambda layers: stack_layers(layers, "h_{}", "h"), layers)
    assert abstract["params"]["h"]["w"].shape == (2, 2, 3)
    gradient = jax.grad(lambda layers: (stack_layers(layers, "h_{}", "h")["params"]["h"]["w"] ** 2).sum())(layers)
    assert_same(gradient, jax.tree.map(lambda leaf: 2 * leaf, layers))


def test_variables_that_all_layers_share() -> None:
    stacked = {
        "params": {"h": {"w": np.arange(3.0), "tied": np.ones(2)}},
        "counter": {"h": {"n": np.float32(7)}},
    }
    shared = ("counter", PathContains("tied"))
    layers = unstack_layers(stacked, "h", "h_{}", shared=shared)
    assert shapes(layers["params"]) == {f"h_{number}": {"w": (), "tied": (2,)} for number in range(3)}
    assert layers["counter"] == {f"h_{number}": {"n": 7} for number in range(3)}
    assert_same(stack_layers(layers, "h_{}", "h", shared=shared), stacked)
    for change, tree, paths in ((stack_layers, layers, ("h_{}", "h")), (unstack_layers, stacked, ("h", "h_{}"))):
        with pytest.raises(LiftArgumentError, match=r"h_\{\}.*, shared: the filter .* matches no variable"):
            change(tree, *paths, shared=PathContains("misspelled"))
        change(tree, *paths, shared=(shared, PathContains("misspelled")))
    layers["params"]["h_2"]["tied"] = np.zeros(2)
    text = r'"tied" is shared by all layers, but in "h_2" it differs from the one in layer 0'
    with pytest.raises(LiftArgumentError, match=text):
        stack_layers(layers, "h_{}", "h", shared=shared)
    with pytest.raises(LiftArgumentError, match="nothing there is stacked, so the number of layers is unknown"):
        unstack_layers(stacked, "h", "h_{}", shared=True)


def test_boxes_gain_and_lose_the_name_of_the_axis() -> None:
    params = {nn.PARTITION_NAME: "layers"}
    layers = {"params": {f"h_{number}": {"w": nn.Partitioned(jnp.ones((2, 3)), ("in", "out"))} for number in range(4)}}
    for axis, names in ((0, ("layers", "in", "out")), (1, ("in", "layers", "out")), (-1, ("in", "out", "layers"))):
        stacked = stack_layers(layers, "h_{}", "h", axis=axis, metadata_params=params)
        box = stacked["params"]["h"]["w"]
        assert box.names == names
        assert box.value.shape[axis] == 4
        again = unstack_layers(stacked, "h", "h_{}", axis=axis, metadata_params=params)
        assert jax.tree.structure(again) == jax.tree.structure(layers)


# -- misuse ------------------------------------------------------------------------------------------------------------


def tree(**changes: Any) -> Any:
    layers = {f"h_{number}": {"w": np.ones((2, 3)), "b": np.ones(3)} for number in range(3)}
    return {"params": {"rest": {"w": np.ones(1)}, **layers, **changes}, "stats": {}}


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"params": {"g_0": {}}}, r"no collection holds such layers \(available at the top: \{'params': \['g_0'\]\}\)"),
        (
            tree(h_4={"w": np.ones((2, 3)), "b": np.ones(3)}),
            r"in params: layers are missing: \['h_3'\] \(found: .*'h_4'",
        ),
        (
            {**tree(), "stats": {"h_1": {"m": np.ones(1)}}},
            r"in stats: layers are missing: \['h_0', 'h_2'\] \(found: \['h_1'\]",
        ),
        (
            tree(h_1={"w": np.ones((2, 3))}),
            r'"h_1" differs from layer 0 \(b: float64\[3\] in layer 0, none in layer 1\)',
        ),
        (tree(h_2={"w": np.ones((2, 3)), "b": np.ones(3), "c": 1}), r"c: none in layer 0, int\[\] in layer 2"),
        (
            tree(h_1={"w": np.ones((2, 4)), "b": np.ones(3)}),
            r"w: float64\[2,3\] in layer 0, float64\[2,4\] in layer 1",
        ),
        (
            tree(h_1={"w": np.ones((2, 3)), "b": np.ones(3, np.int32)}),
            r"b: float64\[3\] in layer 0, int32\[3\] in layer 1",
        ),
        (tree(h={"taken": np.ones(1)}), r'"params/h" is already taken\. Choose a free name'),
    ],
)
def test_layers_that_cannot_be_stacked(variables: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=r'stack_layers\("h_\{\}", "h"\).*' + text):
        stack_layers(variables, "h_{}", "h")


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"params": {"g": {"w": np.ones(3)}}},
            r"no collection holds anything at this path \(available at the top: \{'params': \['g'\]\}",
        ),
        (
            {"params": {"h": {"w": np.ones(3), "b": np.ones((2, 3))}}},
            r"sizes of axis 0 differ \(params/w: 3, params/b: 2\)",
        ),
        (
            {"params": {"h": {"w": np.float32(3)}}},
            r'"params/w" has shape \(\), so it has no axis 0 of layers.*`shared="params"`',
        ),
        ({"params": {"h": {"w": np.ones(3)}, "h_2": {}}}, r'"params/h_2" is already taken'),
    ],
)
def test_stacks_that_cannot_be_taken_apart(variables: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=r'unstack_layers\("h", "h_\{\}"\): .*' + text):
        unstack_layers(variables, "h", "h_{}")


@pytest.mark.parametrize("layers", ["h", "h_{}/{}"])
def test_paths_of_layers_have_one_number(layers: str) -> None:
    for convert in (lambda: stack_layers(tree(), layers, "h"), lambda: unstack_layers(tree(), "h", layers)):
        with pytest.raises(LiftArgumentError, match=r"expected a path with one `\{\}` for the number of the layer"):
            convert()


def test_paths_below_a_name_that_is_missing() -> None:
    with pytest.raises(LiftArgumentError, match="there is nothing at encoder"):
        stack_layers(tree(), "encoder/h_{}", "h")
    with pytest.raises(LiftArgumentError, match="there is nothing at encoder"):
        unstack_layers(tree(), "encoder/h", "h_{}")
