from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError, ModifyScopeVariableError
from tests.layers.row import array

X = array(6, 3)
STATE = {"mean": array(3), "var": np.array([1.0, 4.0, 9.0], np.float32)}
plain_batch_norm = partial(nn.batch_norm, use_bias=False, use_scale=False)


def test_batch_norm_in_training_centres_and_scales_each_feature() -> None:
    train = liftcore.apply(plain_batch_norm, mutable=["batch_stats"])
    y, mutated = train({"batch_stats": STATE}, X, use_running_average=False, momentum=0.75)
    np.testing.assert_allclose(y, (X - X.mean(0)) / X.std(0), rtol=1e-4)
    np.testing.assert_allclose(mutated["batch_stats"]["mean"], 0.75 * STATE["mean"] + 0.25 * X.mean(0), rtol=1e-5)
    np.testing.assert_allclose(mutated["batch_stats"]["var"], 0.75 * STATE["var"] + 0.25 * X.var(0), rtol=1e-5)


def test_batch_norm_in_evaluation_uses_and_keeps_the_running_statistics() -> None:
    y = liftcore.apply(plain_batch_norm)({"batch_stats": STATE}, X, use_running_average=True)
    np.testing.assert_allclose(y, (X - STATE["mean"]) / np.sqrt(STATE["var"]), rtol=1e-4)


def test_init_leaves_the_running_statistics_alone_and_needs_no_mapped_axis() -> None:
    _, variables = liftcore.init(plain_batch_norm)(jax.random.key(0), X, use_running_average=False, axis_name="lanes")
    np.testing.assert_array_equal(variables["batch_stats"]["mean"], np.zeros(3))
    np.testing.assert_array_equal(variables["batch_stats"]["var"], np.ones(3))


def test_batch_norm_that_trains_asks_for_its_state_to_be_mutable() -> None:
    with pytest.raises(ModifyScopeVariableError, match=r'mutable=\["batch_stats"\]'):
        liftcore.apply(plain_batch_norm)({"batch_stats": STATE}, X, use_running_average=False)


def test_layer_norm_centres_and_scales_each_example() -> None:
    params = {"params": {"scale": array(3), "bias": array(3)}}
    y = liftcore.apply(nn.layer_norm)(params, X)
    expected = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True) * array(3) + array(3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_masked_elements_are_normalised_but_do_not_count() -> None:
    mask = np.array([True, True, False])
    y = liftcore.apply(nn.layer_norm)({}, X, mask=mask, use_scale=False, use_bias=False)
    left = X[:, :2]
    np.testing.assert_allclose(y, (X - left.mean(1, keepdims=True)) / left.std(1, keepdims=True), rtol=1e-3)


def test_parameters_have_the_shape_of_the_feature_axes() -> None:
    def shapes(layer: Any, **arguments: Any) -> Any:
        made = jax.eval_shape(partial(liftcore.init(layer), **arguments), jax.random.key(0), array(2, 3, 4))[1]
        return {collection: {name: x.shape for name, x in found.items()} for collection, found in made.items()}

    assert shapes(nn.layer_norm, feature_axes=(0, -1)) == {"params": {"scale": (2, 4), "bias": (2, 4)}}
    assert shapes(nn.batch_norm, axis=(1, 2), use_running_average=True, use_bias=False) == {
        "params": {"scale": (3, 4)},
        "batch_stats": {"mean": (3, 4), "var": (3, 4)},
    }


@pytest.mark.parametrize(
    ("layer", "x", "arguments", "message"),
    [
        (nn.batch_norm, X, {}, "batch_norm at /: `use_running_average` is missing"),
        (
            nn.batch_norm,
            X,
            {"use_running_average": True, "axis": 2},
            "batch_norm at /: axis is (2,), and the inputs have 2",
        ),
        (nn.batch_norm, X[0, 0], {"use_running_average": True}, "axis is (-1,), and the inputs have 0 dimensions"),
        (nn.batch_norm, X, {"use_running_average": False, "mask": X[:, :2]}, "the mask has shape (6, 2)"),
        (nn.layer_norm, X, {"reduction_axes": (0, -3)}, "layer_norm at /: reduction_axes is (0, -3)"),
        (nn.layer_norm, X, {"feature_axes": 5}, "feature_axes is (5,)"),
        (nn.layer_norm, X, {"mask": X[None]}, "the mask has shape (1, 6, 3), which does not broadcast"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(layer: Any, x: Any, arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        layer(scope, jnp.asarray(x), **arguments)
    assert scope.variables() == {}
