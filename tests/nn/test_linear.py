from __future__ import annotations

import re

import jax
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


def test_kernel_for_other_inputs_is_refused_with_both_shapes() -> None:
    params = {"kernel": array(4, 5), "bias": array(5)}
    with pytest.raises(ScopeParamShapeError, match=r'"kernel" at /: .* \(4, 5\), its initializer makes shape \(3, 5\)'):
        liftcore.apply(nn.dense)({"params": params}, array(2, 3), 5)
