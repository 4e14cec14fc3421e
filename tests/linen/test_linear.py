"""Linear and convolutional layers as modules: what their functions do not have."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import LiftArgumentError
from linen_like.linear import default_embed_init, default_kernel_init
from tests.layers.row import ROWS, SERIES

KEY = jax.random.key(0)


class Halves(nn.Module):
    """Half of the usual product, and one number that is learned."""

    @nn.compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        shift = self.param("shift", nn.initializers.ones, ())
        return jax.lax.dot_general(*args, **kwargs) / 2 + shift


def test_product_of_dense_general_may_be_a_submodule() -> None:
    params = {"kernel": np.ones((4, 2, 3), np.float32), "Halves_0": {"shift": np.float32(1)}}
    layer = nn.DenseGeneral((2, 3), use_bias=False, dot_general_cls=Halves)
    y = layer.apply({"params": params}, ROWS)
    np.testing.assert_allclose(y, np.broadcast_to(ROWS.sum(1)[:, None, None] / 2 + 1, (3, 2, 3)), rtol=1e-5)


def test_equation_is_given_once() -> None:
    with pytest.raises(ValueError, match=r"einsum_str.*neither"):
        nn.Einsum((4, 5)).init(KEY, ROWS)
    with pytest.raises(ValueError, match=r"einsum_str.*constructor.*call"):
        nn.Einsum((4, 5), "ab,bc->ac").init(KEY, ROWS, "ab,bc->ac")


@pytest.mark.parametrize(
    "option",
    [
        {"feature_group_count": 2},
        {"conv_general_dilated": jax.lax.conv_general_dilated},
        {"conv_general_dilated_cls": lambda: jax.lax.conv_general_dilated},
    ],
)
def test_local_convolution_refuses_what_it_cannot_heed(option: dict[str, Any]) -> None:
    model = nn.Sequential([nn.ConvLocal(4, 3, **option)])
    with pytest.raises(LiftArgumentError, match=r"ConvLocal at /layers_0: .* cannot be used .* or use `Conv`"):
        jax.eval_shape(model.init, KEY, SERIES)


def test_default_initializers_are_those_of_the_layers() -> None:
    assert nn.Dense(1).kernel_init is default_kernel_init
    assert nn.Embed(1, 1).embedding_init is default_embed_init
