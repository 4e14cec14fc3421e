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


def test_dense_is_a_product_and_a_sum() -> None:
    x, params = array(2, 3, 4), {"kernel": array(4, 5), "bias": array(5)}
    y = liftcore.apply(nn.dense)({"params": params}, x, 5)
    np.testing.assert_allclose(y, x @ params["kernel"] + params["bias"], rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4), (4,), (1, 1, 4)])
def test_dense_takes_any_shape_but_a_scalar(shape: tuple[int, ...]) -> None:
    made = jax.eval_shape(lambda key, x: liftcore.init(nn.dense)(key, x, 5), jax.random.key(0), array(*shape))
    assert made[0].shape == (*shape[:-1], 5)
    assert made[1]["params"]["kernel"].shape == (shape[-1], 5)


def test_dense_refuses_a_scalar() -> None:
    with pytest.raises(LiftArgumentError, match=re.escape("dense at /head: expected inputs of shape (..., in)")):
        liftcore.init(lambda scope: nn.dense(scope.push("head"), 1.0, 5))(jax.random.key(0))


def test_dense_general_sums_over_axes_and_keeps_batch_dimensions_apart() -> None:
    x, params = array(2, 3, 4, 5), {"kernel": array(2, 3, 5, 6, 7), "bias": array(2, 6, 7)}
    y = liftcore.apply(nn.dense_general)({"params": params}, x, (6, 7), axis=(-1, 1), batch_dims=(0,))
    expected = np.einsum("bthd,btdef->bhef", x, params["kernel"]) + params["bias"][:, None]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("layer", "features"), [(nn.dense, 5), (nn.dense_general, (5,))])
def test_inputs_without_features_give_the_bias(layer: Any, features: Any) -> None:
    ones = jax.nn.initializers.ones
    y, variables = liftcore.init(layer)(jax.random.key(0), np.zeros((2, 0), np.float32), features, bias_init=ones)
    assert variables["params"]["kernel"].shape == (0, 5)
    np.testing.assert_array_equal(y, np.ones((2, 5)))


def test_dense_general_to_no_new_axes_is_a_sum() -> None:
    y, variables = liftcore.init(nn.dense_general)(
        jax.random.key(0), array(3, 4), (), bias_init=jax.nn.initializers.ones
    )
    assert y.shape == (3,)
    np.testing.assert_allclose(y, array(3, 4) @ variables["params"]["kernel"] + 1, rtol=1e-5)


def test_dense_general_asks_its_initializers_for_a_matrix_and_keeps_a_box() -> None:
    asked, names = [], ("batch", "in", None, "out", None)

    def init_fn(key: Any, shape: Any, dtype: Any) -> Any:
        asked.append(shape)
        return liftcore.meta.Partitioned(jnp.ones(shape, dtype), names)

    options = {"axis": (1, 2), "batch_dims": (0,), "kernel_init": init_fn, "use_bias": False}
    _, variables = liftcore.init(nn.dense_general)(jax.random.key(0), array(2, 3, 4), (5, 6), **options)
    assert asked == [(24, 30)]
    assert variables["params"]["kernel"].names == names
    assert variables["params"]["kernel"].value.shape == (2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"axis": 3}, "axis is (3,), but the inputs have 3 dimensions (valid axes: from -3 to 2)."),
        ({"batch_dims": (5,)}, "batch_dims is (5,), but the inputs have 3 dimensions"),
        ({"batch_dims": (1,)}, "batch_dims are (1,), but only the leading axes, counted from the front, can be"),
        ({"batch_dims": (-3,)}, "Move them to the front, and pass `batch_dims=(0,)`."),
        ({"batch_dims": (0, 0)}, "Move them to the front, and pass `batch_dims=(0, 1)`."),
        ({"axis": (0, 2), "batch_dims": (0, 1)}, "axis is (0, 2) and batch_dims are (0, 1), which name one axis of"),
        ({"axis": (2, -1)}, "which name one axis of the inputs twice. Give each axis of the inputs once"),
    ],
)
def test_dense_general_refuses_axes_that_do_not_fit(arguments: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match="dense_general at /: .*" + re.escape(message)):
        nn.dense_general(scope, array(2, 3, 4), 5, **arguments)
    assert scope.variables() == {}


def test_einsum_adds_a_bias_where_the_kernel_reaches_the_result() -> None:
    x, params = array(2, 3, 4), {"kernel": array(4, 5, 2), "bias": array(2, 5)}
    y = liftcore.apply(nn.einsum)({"params": params}, x, (4, 5, 2), "abc, cda -> abd")
    expected = np.einsum("abc,cda->abd", x, params["kernel"]) + params["bias"][:, None]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("equation", "shape", "message"),
    [
        ("ab,bc", (4, 5), 'the equation is "ab,bc", but it must have two operands, the inputs and the kernel, and a'),
        ("ab->ab", (4, 5), 'the equation is "ab->ab"'),
        ("ab,bc,cd->ad", (4, 5), 'Write it like `einsum_str="...a,ab->...b"`.'),
        ("abc,cd->abd", (4, 5), '"abc" labels 3 dimensions of the inputs, but their shape is (3, 4). Give one letter'),
        ("...abc,cd->...abd", (4, 5), '"...abc" labels 3 dimensions of the inputs'),
        ("ab,b->a", (4, 5), '"b" labels 1 dimensions of the kernel, but their shape is (4, 5)'),
        ("ab,bc->ac", (3, 5), '"b" has sizes 4 and 3; the inputs have shape (3, 4), the kernel (3, 5). Check'),
        ("ab,bc->ac", (1, 5), '"b" has sizes 4 and 1'),
        ("...b,...bc->...c", (2, 4, 5), "a dimension of `...` has sizes 3 and 2"),
        ("ab,bc->ad", (4, 5), 'the result of "ab,bc->ad" has a letter twice, or one that no operand has'),
        ("ab,bc->aa", (4, 5), 'the result of "ab,bc->aa" has a letter twice'),
        ("a......b,bc->ac", (4, 5), '"a......b" is not a term of an equation. Use letters, and at most one ellipsis'),
        ("a1,bc->ac", (4, 5), '"a1" is not a term of an equation'),
    ],
)
def test_einsum_refuses_what_does_not_fit_its_equation(equation: str, shape: Any, message: str) -> None:
    scope = liftcore.bind({}, jax.random.key(0), mutable=True)
    with pytest.raises(LiftArgumentError, match="einsum at /mixer: .*" + re.escape(message)):
        nn.einsum(scope.push("mixer"), array(3, 4), shape, equation)
    assert scope.variables() == {}


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [(nn.dense, (5,)), (nn.dense_general, (5,)), (nn.conv, (5, ())), (nn.conv_transpose, (5, ()))],
)
def test_kernel_for_other_inputs_is_refused_with_both_shapes(layer: Any, arguments: Any) -> None:
    params = {"head": {"kernel": array(4, 5), "bias": array(5)}}
    applied = liftcore.apply(lambda scope, x: layer(scope.push("head"), x, *arguments))
    with pytest.raises(ScopeParamShapeError) as raised:
        applied({"params": params}, array(2, 3))
    assert str(raised.value) == (
        'param "kernel" at /head: the stored value has shape (4, 5), but its initializer makes shape (3, 5). Check the '
        "sizes of the module and of its inputs, or call `init` again for this model."
    )
    assert raised.value.__notes__ == [f"The {layer.__name__} at /head was called with inputs of shape (2, 3)."]


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (nn.dense, (5,)),
        (nn.dense_general, (5,)),
        (nn.einsum, ((4, 5), "...a,ab->...b")),
        (nn.conv, (5, 3)),
        (nn.conv_local, (5, 3)),
        (nn.conv_transpose, (5, 3)),
    ],
)
def test_precision_is_that_of_the_product(layer: Any, arguments: Any) -> None:
    def program(precision: Any) -> str:
        run = liftcore.init(lambda scope, x: layer(scope, x, *arguments, precision=precision))
        return str(jax.make_jaxpr(run)(jax.random.key(0), array(2, 3, 4)))

    assert "HIGHEST" not in program(None)
    assert "HIGHEST" in program("highest")
