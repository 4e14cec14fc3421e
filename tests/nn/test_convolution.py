from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError
from tests.layers.row import array

convolve = liftcore.apply(nn.conv)


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


@pytest.mark.parametrize("batch", [(), (0,), (2, 0), (2, 1, 3)])
def test_batch_may_be_of_any_shape(batch: tuple[int, ...]) -> None:
    def run(key: Any, x: Any) -> Any:
        return liftcore.init(nn.conv)(key, x, 4, (3, 2), strides=2)[0]

    assert jax.eval_shape(run, jax.random.key(0), array(*batch, 5, 6, 3)).shape == (*batch, 3, 3, 4)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((6,), {}, "expected inputs of shape (*batch, 1 spatial sizes, features), given (6,). Give `kernel_size`"),
        ((6, 4), {"strides": (1, 2)}, "strides has 2 entries, (1, 2), and kernel_size has 1, (3,). Give strides one"),
        ((6, 4), {"kernel_dilation": ()}, "kernel_dilation has 0 entries"),
        ((6, 4), {"padding": "SAMEISH"}, "given 'SAMEISH'. Pass `padding=\"SAME\"` or `padding=[(1, 1)]`."),
        ((6, 4), {"padding": [1, 1]}, "for each of 1 spatial dimensions, given [1, 1]"),
        ((6, 4), {"padding": [(1, 1, 1)]}, "given [(1, 1, 1)]"),
        ((6, 4), {"input_dilation": 2}, "with input_dilation=(2,) padding must be given in numbers, not as 'SAME'"),
        ((6, 6, 4), {"kernel_size": (3, 3), "padding": "CAUSAL"}, 'padding "CAUSAL" needs one spatial dimension'),
        (
            (6, 4),
            {"feature_group_count": 3},
            "the inputs' features are 4, which do not divide into feature_group_count=3",
        ),
        ((6, 4), {"feature_group_count": 4}, "features are 5, which do not divide into feature_group_count=4"),
        ((6, 4), {"feature_group_count": 0}, "feature_group_count=0"),
        (
            (6, 4),
            {"mask": np.ones((3, 4))},
            "mask has shape (3, 4), and the kernel that it is multiplied with (3, 4, 5)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(shape: Any, arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match="conv at /: .*" + re.escape(message)):
        nn.conv(scope, array(*shape), 5, **{"kernel_size": 3, **arguments})
    assert scope.variables() == {}
