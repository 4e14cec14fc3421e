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
from liftcore.errors import LiftArgumentError, ModifyScopeVariableError, ScopeParamShapeError
from tests.layers.bits import quick
from tests.layers.row import array
from tests.machine import devices

X = array(6, 3)
STATE = {"mean": array(3), "var": np.array([1.0, 4.0, 9.0], np.float32)}
plain_batch_norm = partial(nn.batch_norm, use_bias=False, use_scale=False)


def run(layer: Any, variables: Any, x: Any, *args: Any, **options: Any) -> Any:
    return quick(lambda variables, x: liftcore.apply(layer)(variables, x, *args, **options))(variables, x)


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
    _, variables = liftcore.init(plain_batch_norm)(
        jax.random.key(0), X, use_running_average=False, axis_name="elements"
    )
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


def test_rms_norm_divides_each_example_by_its_root_mean_square() -> None:
    mask, scale = np.array([True, True, False]), array(3)
    y = run(nn.rms_norm, {"params": {"scale": scale}}, X, epsilon=0.0)
    np.testing.assert_allclose(y, X / np.sqrt((X**2).mean(1, keepdims=True)) * scale, rtol=1e-5)
    y = run(nn.rms_norm, {}, X, mask=mask, use_scale=False)
    np.testing.assert_allclose(y, X / np.sqrt((X[:, :2] ** 2).mean(1, keepdims=True)), rtol=1e-4)


@pytest.mark.parametrize("groups", [{"num_groups": 2}, {"num_groups": None, "group_size": 3}])
def test_group_norm_is_a_norm_of_each_group(groups: dict[str, Any]) -> None:
    x = array(2, 5, 6)
    y = run(nn.group_norm, {}, x, use_scale=False, use_bias=False, **groups)
    parts = x.reshape(2, 5, 2, 3)
    centred = parts - parts.mean((1, 3), keepdims=True)
    np.testing.assert_allclose(y, (centred / parts.std((1, 3), keepdims=True)).reshape(x.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [np.array([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1]], bool)[..., None], np.array(True)])
def test_group_norm_takes_a_mask_of_places(mask: np.ndarray) -> None:
    x = array(2, 5, 4)
    y = run(nn.group_norm, {}, x, 2, mask=mask, use_scale=False, use_bias=False)
    full = np.broadcast_to(mask, x.shape)
    left = x[0, :, :2][full[0, :, :2]]
    np.testing.assert_allclose(y[0, :, :2], (x[0, :, :2] - left.mean()) / left.std(), rtol=1e-4, atol=1e-5)


def test_group_norm_of_one_group_and_of_groups_of_one_are_other_layers() -> None:
    x, plain = array(2, 3, 4), {"use_scale": False, "use_bias": False}
    one = run(nn.group_norm, {}, x, 1, **plain)
    np.testing.assert_allclose(one, run(nn.layer_norm, {}, x, reduction_axes=(1, 2), **plain), rtol=1e-5)
    each = run(nn.group_norm, {}, x, None, 1, **plain)
    np.testing.assert_allclose(each, run(nn.instance_norm, {}, x, **plain), rtol=1e-5)


def test_instance_norm_centres_and_scales_each_feature_of_each_example() -> None:
    x = array(2, 5, 3)
    y = run(nn.instance_norm, {"params": {"scale": array(3), "bias": array(3)}}, x)
    expected = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) * array(3) + array(3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.layer_norm, nn.rms_norm, nn.group_norm, nn.instance_norm])
def test_constant_inputs_give_finite_gradients(layer: Any) -> None:
    options = {"num_groups": 2} if layer is nn.group_norm else {}
    plain = {"use_scale": False} if layer is nn.rms_norm else {"use_scale": False, "use_bias": False}
    grad = quick(jax.grad(lambda x: liftcore.apply(layer)({}, x, **options, **plain).sum()))(jnp.zeros((2, 3, 4)))
    assert np.isfinite(grad).all()


def test_moments_are_shared_by_the_elements_of_a_group() -> None:
    """Four devices in two pairs: each pair is one batch."""
    x = array(4, 2, 3)
    options = {"axis_name": "elements", "axis_index_groups": [[0, 3], [1, 2]], "use_running_average": False}
    train = liftcore.apply(partial(plain_batch_norm, momentum=0.0, **options), mutable=["batch_stats"])
    over = jax.pmap(lambda x: train({"batch_stats": STATE}, x), axis_name="elements", devices=devices(4))
    y, mutated = over(x)
    for pair in ([0, 3], [1, 2]):
        batch = x[pair]
        expected = (batch - batch.mean((0, 1))) / batch.std((0, 1))
        np.testing.assert_allclose(y[jnp.array(pair)], expected, rtol=1e-3, atol=1e-4)
        means = mutated["batch_stats"]["mean"][jnp.array(pair)]
        np.testing.assert_allclose(means, [batch.mean((0, 1))] * 2, rtol=1e-5)


@pytest.mark.parametrize("layer", [plain_batch_norm, partial(nn.layer_norm, reduction_axes=(0, 1))])
def test_mean_of_no_examples_is_refused_but_by_init(layer: Any) -> None:
    options = {"use_running_average": False} if layer is plain_batch_norm else {}
    _, variables = jax.eval_shape(lambda key: liftcore.init(layer)(key, X[:0], **options), jax.random.key(0))
    message = "at /: there is nothing to average over: the inputs have shape (0, 3), the reduced axes are (0,"
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        jax.eval_shape(lambda given: liftcore.apply(layer, mutable=True)(given, X[:0], **options), variables)


def test_running_statistics_of_other_sizes_are_refused_and_not_broadcast() -> None:
    stats = {"batch_stats": {"mean": np.zeros(1, np.float32), "var": np.ones(1, np.float32)}}
    with pytest.raises(ScopeParamShapeError) as raised:
        liftcore.apply(lambda scope, x: plain_batch_norm(scope.push("norm"), x, True))(
            {"batch_stats": {"norm": stats["batch_stats"]}}, X
        )
    assert str(raised.value).startswith(
        '"batch_stats/mean" at /norm: expected a stored value of shape (3,), given (1,). Check the sizes'
    )
    assert raised.value.__notes__ == ["The batch_norm at /norm was called with inputs of shape (6, 3)."]


@pytest.mark.parametrize("layer", [nn.layer_norm, nn.rms_norm, nn.group_norm, nn.instance_norm])
def test_scale_for_other_inputs_is_refused_with_both_shapes(layer: Any) -> None:
    options = {"num_groups": 1} if layer is nn.group_norm else {}
    params = {"params": {"scale": array(4), "bias": array(4)}}
    with pytest.raises(
        ScopeParamShapeError, match=r'param "scale" at /: .* \(4,\), but its initializer makes .* \(3,\)'
    ) as raised:
        liftcore.apply(layer)(params, array(2, 2, 3), **options)
    assert raised.value.__notes__ == [f"The {layer.__name__} at / was called with inputs of shape (2, 2, 3)."]


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
            "batch_norm at /: axis is (2,), but the inputs have 2",
        ),
        (nn.batch_norm, X[0, 0], {"use_running_average": True}, "axis is (-1,), but the inputs have 0 dimensions"),
        (nn.batch_norm, X, {"use_running_average": False, "mask": X[:, :2]}, "the mask has shape (6, 2)"),
        (nn.layer_norm, X, {"reduction_axes": (0, -3)}, "layer_norm at /: reduction_axes is (0, -3)"),
        (nn.layer_norm, X, {"feature_axes": 5}, "feature_axes is (5,)"),
        (nn.layer_norm, X, {"mask": X[None]}, "the mask has shape (1, 6, 3), which does not broadcast"),
        (nn.rms_norm, X, {"reduction_axes": 2}, "rms_norm at /: reduction_axes is (2,), but the inputs have 2"),
        (nn.rms_norm, X, {"feature_axes": -3}, "feature_axes is (-3,)"),
        (nn.rms_norm, X, {"mask": X[:, :2]}, "rms_norm at /: the mask has shape (6, 2)"),
        (
            nn.instance_norm,
            X,
            {"feature_axes": (0, 1)},
            "instance_norm at /: feature_axes are (0, 1) for inputs of shape",
        ),
        (nn.instance_norm, X[0], {}, "the first axis is the batch. Leave the first axis out, or add an axis before it"),
        (nn.instance_norm, X, {"mask": X[:2]}, "the mask has shape (2, 3)"),
        (nn.group_norm, X, {}, "group_norm at /: the inputs have 3 features, which cannot be divided by num_groups=32"),
        (
            nn.group_norm,
            X,
            {"num_groups": None, "group_size": 2},
            "which cannot be divided by group_size=2. Pass a `group_s",
        ),
        (nn.group_norm, X, {"num_groups": 0}, "num_groups=0"),
        (nn.group_norm, X, {"num_groups": None}, "expected `num_groups` or `group_size`, given num_groups=None and"),
        (nn.group_norm, X, {"num_groups": 3, "group_size": 1}, "given num_groups=3 and group_size=1. Pass one of them"),
        (
            nn.group_norm,
            X,
            {"reduction_axes": 0},
            "reduction_axes are (0,) for inputs of shape (6, 3); the last",
        ),
        (nn.group_norm, X, {"num_groups": 3, "mask": X[:2]}, "the mask has shape (2, 3)"),
        (nn.group_norm, X[0, 0], {}, "the axis of features is (-1,), but the inputs have 0 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(layer: Any, x: Any, arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        layer(scope, jnp.asarray(x), **arguments)
    assert scope.variables() == {}
