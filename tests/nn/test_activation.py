from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError

prelu = liftcore.apply(nn.prelu)
SLOPE = {"params": {"negative_slope": jnp.float32(0.25)}}


def test_prelu_scales_what_is_negative_and_learns_from_it_alone() -> None:
    x = jnp.array([-4.0, -0.0, 0.0, 3.0, jnp.inf])
    np.testing.assert_array_equal(prelu(SLOPE, x), [-1, 0, 0, 3, jnp.inf])
    by_slope, by_x = jax.grad(lambda params, x: prelu(params, x).sum(), (0, 1))(SLOPE, x[:-1])
    assert by_slope["params"]["negative_slope"] == -4
    np.testing.assert_array_equal(by_x, [0.25, 1, 1, 1])


@pytest.mark.parametrize("shape", [(), (0,), (1, 3)])
def test_prelu_maps_any_shape(shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(prelu(SLOPE, -jnp.ones(shape)), -0.25 * np.ones(shape))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
def test_prelu_refuses_what_has_no_fractions_or_no_sign(dtype: Any) -> None:
    with pytest.raises(LiftArgumentError, match=rf"prelu at /: .* floating dtype, given {jnp.dtype(dtype)}. Convert"):
        liftcore.init(nn.prelu)(jax.random.key(0), jnp.ones(3, dtype))
