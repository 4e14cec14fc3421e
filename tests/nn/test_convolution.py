from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError, ScopeParamShapeError
from tests.layers.row import array

convolve = liftcore.apply(nn.conv)
spread = liftcore.apply(nn.conv_transpose)


def by_loop(x: np.ndarray, kernel: np.ndarray, stride: int, dilation: int, groups: int) -> np.ndarray:
    """One-dimensional convolution without padding, as its definition reads."""
    size, share, features = kernel.shape
    length = (len(x) - dilation * (size - 1) - 1) // stride + 1
    y = np.zeros((length, features))
    for p, q, i, o in np.ndindex(length, size, share, features):
        first = o // (features // groups) * share
        y[p, o] += x[stride * p + dilation * q, first + i] * kernel[q, i, o]
    return y


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 3, 2)])
def test_conv_is_the_sum_that_defines_it(stride: int, dilation: int, groups: int) -> None:
    x, kernel, bias = array(9, 4), array(3, 4 // groups, 6), array(6)
    window = {"strides": stride, "kernel_dilation": dilation, "feature_group_count": groups, "padding": "valid"}
    y = convolve({"params": {"kernel": kernel, "bias": bias}}, x, 6, 3, **window)
    np.testing.assert_allclose(y, by_loop(x, kernel, stride, dilation, groups) + bias, rtol=1e-5)


def test_causal_conv_sees_the_past_only() -> None:
    params = {"params": {"kernel": array(3, 1, 1)}}
    x = np.zeros((6, 1), np.float32)
    x[2] = 1
    y = convolve(params, x, 1, 3, padding="CAUSAL", use_bias=False)
    np.testing.assert_allclose(y[:, 0], [0, 0, *params["params"]["kernel"][::-1, 0, 0], 0], rtol=1e-6)


def test_circular_conv_commutes_with_rotation() -> None:
    params, x = {"params": {"kernel": array(4, 2, 3)}}, array(6, 2)
    rotated = convolve(params, np.roll(x, 2, axis=0), 3, 4, padding="CIRCULAR", use_bias=False)
    straight = convolve(params, x, 3, 4, padding="CIRCULAR", use_bias=False)
    np.testing.assert_allclose(rotated, np.roll(straight, 2, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_conv_local_has_a_kernel_for_each_place(stride: int) -> None:
    x, (places, size, features) = array(9, 4), ((9 - 3) // stride + 1, 3, 2)
    kernel, bias = array(places, 4 * size, features), array(places, features)
    options = {"strides": stride, "padding": "VALID"}
    y = liftcore.apply(nn.conv_local)({"params": {"kernel": kernel, "bias": bias}}, x, features, size, **options)
    seen = np.stack([x[stride * p : stride * p + size].T.ravel() for p in range(places)])
    np.testing.assert_allclose(y, np.einsum("pi,pio->po", seen, kernel) + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "CIRCULAR", "REFLECT", "CAUSAL", 1, [(0, 3)]])
@pytest.mark.parametrize(("size", "stride", "dilation"), [(3, 1, 1), (2, 3, 2)])
def test_conv_local_with_one_kernel_everywhere_is_conv(padding: Any, size: int, stride: int, dilation: int) -> None:
    x, kernel = array(1, 7, 4), array(size, 4, 2)
    options = {"strides": stride, "padding": padding, "kernel_dilation": dilation, "use_bias": False}
    y = convolve({"params": {"kernel": kernel}}, x, 2, size, **options)
    fused = np.moveaxis(kernel, 0, 1).reshape(4 * size, 2)  # features outside, places inside
    local = {"params": {"kernel": np.stack([fused] * y.shape[1])}}
    np.testing.assert_allclose(liftcore.apply(nn.conv_local)(local, x, 2, size, **options), y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR"])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (2, 2)])
def test_transposed_kernel_makes_the_transpose_of_conv(padding: str, size: int, stride: int) -> None:
    """The product of `conv(x)` with `z` is that of `x` with the transpose of `z`, where both are of fitting sizes."""
    params = {"params": {"kernel": array(size, 4, 3)}}
    x = array(1, 8 if padding != "VALID" else (4 - 1) * stride + size, 4)
    y = convolve(params, x, 3, size, strides=stride, padding=padding, use_bias=False)
    z = np.cos(np.arange(y.size)).reshape(y.shape)
    back = spread(params, z, 4, size, strides=stride, padding=padding, use_bias=False, transpose_kernel=True)
    assert back.shape == x.shape
    np.testing.assert_allclose((y * z).sum(), (x * back).sum(), rtol=1e-4)


def test_conv_transpose_adds_the_kernel_of_each_input_mirrored() -> None:
    x = np.zeros((3, 1), np.float32)
    x[1] = 2
    kernel = array(3, 1, 1)
    y = spread({"params": {"kernel": kernel}}, x, 1, 3, strides=4, padding="VALID", use_bias=False)[:, 0]
    expected = np.zeros(12)
    expected[4:7] = 2 * kernel[::-1, 0, 0]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_conv_transpose_computes_in_one_dtype_and_returns_another() -> None:
    options = {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32, "use_bias": False}
    run = liftcore.init(lambda scope, x: nn.conv_transpose(scope, x, 3, 2, **options)[0])
    program = str(jax.make_jaxpr(run)(jax.random.key(0), array(5, 4)))
    assert "preferred_element_type=float32" in program
    assert "bf16" in program
    assert jax.eval_shape(run, jax.random.key(0), array(5, 4))[0].dtype == jnp.float32


@pytest.mark.parametrize(("size", "stride"), [(2, 1), (3, 2), (9, 1)])
def test_circular_conv_transpose_commutes_with_rotation(size: int, stride: int) -> None:
    params, x, options = (
        {"params": {"kernel": array(size, 2, 3)}},
        array(4, 2),
        {"padding": "CIRCULAR", "strides": stride},
    )
    rotated = spread(params, np.roll(x, 1, axis=0), 3, size, use_bias=False, **options)
    straight = spread(params, x, 3, size, use_bias=False, **options)
    assert straight.shape == (4 * stride, 3)
    np.testing.assert_allclose(rotated, np.roll(straight, stride, axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (0,), (2, 0), (2, 1, 3)])
@pytest.mark.parametrize(
    ("layer", "sizes"), [(nn.conv, (3, 3)), (nn.conv_local, (3, 3)), (nn.conv_transpose, (10, 12))]
)
def test_batch_may_be_of_any_shape(layer: Any, sizes: tuple[int, ...], batch: tuple[int, ...]) -> None:
    def run(key: Any, x: Any) -> Any:
        return liftcore.init(layer)(key, x, 4, (3, 2), strides=2)[0]

    assert jax.eval_shape(run, jax.random.key(0), array(*batch, 5, 6, 3)).shape == (*batch, *sizes, 4)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((6,), {}, "expected inputs of shape (*batch, 1 spatial sizes, features), given (6,). Give `kernel_size`"),
        ((6, 4), {"strides": (1, 2)}, "strides has 2 entries, (1, 2), but kernel_size has 1, (3,). Give strides one"),
        ((6, 4), {"kernel_dilation": ()}, "kernel_dilation has 0 entries"),
        (
            (6, 4),
            {"strides": 0},
            "expected entries of 1 or more as `strides`, given (0,). Pass `strides=(1,)` or more.",
        ),
        ((6, 4), {"kernel_size": (0,)}, "expected entries of 1 or more as `kernel_size`, given (0,)"),
        ((0, 4), {"padding": "CIRCULAR"}, 'padding "CIRCULAR" repeats the inputs, but of spatial sizes (0,) there are'),
        ((6, 4), {"padding": "SAMEISH"}, "given 'SAMEISH'. Pass `padding=\"SAME\"` or `padding=[(1, 1)]`."),
        ((6, 4), {"padding": [1, 1]}, "for each of 1 spatial dimensions as `padding`, given [1, 1]"),
        ((6, 4), {"padding": [(1, 1, 1)]}, "given [(1, 1, 1)]"),
        ((6, 4), {"input_dilation": 2}, "with input_dilation=(2,) padding must be given in numbers, not as 'SAME'"),
        ((6, 6, 4), {"kernel_size": (3, 3), "padding": "CAUSAL"}, 'padding "CAUSAL" needs one spatial dimension'),
        (
            (6, 4),
            {"feature_group_count": 3},
            "the inputs' features are 4, which cannot be divided into feature_group_count=3",
        ),
        ((6, 4), {"feature_group_count": 4}, "features are 5, which cannot be divided into feature_group_count=4"),
        ((6, 4), {"feature_group_count": 0}, "feature_group_count=0"),
        (
            (6, 4),
            {"mask": np.ones((3, 4))},
            "expected an array of the kernel's shape (3, 4, 5) as `mask`, given (3, 4)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(shape: Any, arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match="conv at /: .*" + re.escape(message)):
        nn.conv(scope, array(*shape), 5, **{"kernel_size": 3, **arguments})
    assert scope.variables() == {}


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((6,), {}, "expected inputs of shape (*batch, 1 spatial sizes, features), given (6,)"),
        ((2, 4), {"padding": "VALID"}, "the kernel spans (3,), but the padded inputs are only (2,): it does not fit"),
        ((6, 4), {"mask": np.ones((3, 4, 5))}, "an array of the kernel's shape (6, 12, 5) as `mask`, given"),
        ((6, 4), {"strides": (1, 1)}, "strides has 2 entries"),
        ((0, 4), {"padding": "REFLECT"}, 'padding "REFLECT" repeats the inputs'),
    ],
)
def test_conv_local_refuses_what_does_not_fit(shape: Any, arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match="conv_local at /: .*" + re.escape(message)):
        nn.conv_local(scope, array(*shape), 5, **{"kernel_size": 3, **arguments})
    assert scope.variables() == {}


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((6,), {}, "expected inputs of shape (*batch, 1 spatial sizes, features), given (6,)"),
        ((6, 4), {"padding": "CAUSAL"}, "expected SAME, VALID, CIRCULAR, an int, or a list"),
        ((6, 4), {"padding": "REFLECT"}, "given 'REFLECT'. Pass `padding=\"SAME\"`"),
        ((6, 4), {"strides": (2, 2)}, "strides has 2 entries"),
        ((6, 4), {"kernel_dilation": 0}, "expected entries of 1 or more as `kernel_dilation`, given (0,)"),
        ((0, 4), {"padding": "circular"}, 'padding "CIRCULAR" repeats the inputs'),
        ((6, 4), {"mask": np.ones((3, 5, 4))}, "an array of the kernel's shape (3, 4, 5) as `mask`, given (3, 5, 4)"),
        ((6, 4), {"mask": np.ones((3, 4, 5)), "transpose_kernel": True}, "Pass a mask of shape (3, 5, 4)."),
    ],
)
def test_conv_transpose_refuses_what_does_not_fit(shape: Any, arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match="conv_transpose at /: .*" + re.escape(message)):
        nn.conv_transpose(scope, array(*shape), 5, **{"kernel_size": 3, **arguments})
    assert scope.variables() == {}


def test_local_kernel_for_inputs_of_another_length_is_refused() -> None:
    _, variables = liftcore.init(nn.conv_local)(jax.random.key(0), array(6, 4), 5, 3)
    with pytest.raises(
        ScopeParamShapeError, match=r"stored value has shape \(6, 12, 5\), but its initializer makes .*\(7, "
    ) as raised:
        liftcore.apply(nn.conv_local)(variables, array(7, 4), 5, 3)
    assert raised.value.__notes__ == ["The conv_local at / was called with inputs of shape (7, 4)."]
