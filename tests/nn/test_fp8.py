from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from liftcore import nn
from liftcore.errors import LiftArgumentError
from tests.layers.row import array
from tests.machine import tolerance

PRODUCTS = [nn.fp8_dot_general, nn.fp8_simulated_dot_general]
DIMENSIONS = (((1,), (0,)), ((), ()))
X, K = 10 * array(3, 4), array(4, 5)
CLOSE = dict.fromkeys(("rtol", "atol"), tolerance(jnp.float8_e4m3fn, 1e-5))


def meta(scale: float, *history: float) -> nn.Fp8Meta:
    return nn.Fp8Meta(jnp.full(1, scale), jnp.array(history))


def rounded(x: Any, scale: float, dtype: Any = jnp.float8_e4m3fn) -> np.ndarray:
    """What is left of numbers in 8 bits."""
    largest = float(jnp.finfo(dtype).max)
    return np.asarray(np.clip(np.asarray(x, np.float32) / scale, -largest, largest).astype(dtype), np.float32) * scale


def multiply(product: Any, x: Any, k: Any, *metas: Any) -> Any:
    return product(x, k, DIMENSIONS, **dict(zip(("lhs_meta", "rhs_meta", "grad_meta"), metas, strict=True)))


@pytest.mark.parametrize("product", PRODUCTS)
def test_operands_are_rounded_with_the_scale_of_the_steps_before(product: Any) -> None:
    metas = meta(1.0, 7.0, 28.0), meta(0.5, 0.0, 0.0), meta(1.0, 0.0)
    expected = rounded(X, 28 / 448) @ rounded(K, 0.5)  # nothing seen yet: the scale stays
    np.testing.assert_allclose(multiply(product, X, K, *metas), expected, **CLOSE)


@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_are_rounded_and_those_of_scales_are_the_next_scales(product: Any) -> None:
    metas = meta(1.0, 7.0, 28.0), meta(0.5, 0.0, 0.0), meta(1.0, 3.0)
    g = array(3, 5)
    _, pullback = jax.vjp(lambda *args: multiply(product, *args), X, K, *metas)
    by_x, by_k, *following = pullback(jnp.asarray(g))
    g = rounded(g, 3 / 57344, jnp.float8_e5m2)
    np.testing.assert_allclose(by_x, g @ rounded(K, 0.5).T, **CLOSE)
    np.testing.assert_allclose(by_k, rounded(X, 28 / 448).T @ g, **CLOSE)
    scales, histories = zip(*following, strict=True)
    np.testing.assert_allclose(np.concatenate(scales), [28 / 448, 0.5, 3 / 57344], rtol=1e-6)
    for history, expected in zip(
        histories, ([abs(X).max(), 7], [abs(K).max(), 0], [abs(array(3, 5)).max()]), strict=True
    ):
        np.testing.assert_allclose(history, expected, rtol=1e-6)


@pytest.mark.parametrize("product", PRODUCTS)
def test_history_that_is_not_finite_leaves_the_scale_as_it_was(product: Any) -> None:
    start = meta(2.0, jnp.inf, 1.0), meta(3.0, jnp.nan, 1.0), meta(4.0, 0.0)
    _, pullback = jax.vjp(lambda *metas: multiply(product, X, K, *metas), *start)
    assert [float(found.scale[0]) for found in pullback(jnp.ones((3, 5)))] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("batch", [0, 1])
def test_any_number_of_rows_is_multiplied(product: Any, batch: int) -> None:
    metas = [meta(1.0, 1.0)] * 3
    y, pullback = jax.vjp(lambda x, *metas: multiply(product, x, K, *metas), jnp.ones((batch, 4)), *metas)
    assert y.shape == (batch, 5)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(pullback(y)))


@pytest.mark.parametrize("product", PRODUCTS)
def test_batch_axes_and_axes_anywhere_are_multiplied(product: Any) -> None:
    x, k = array(2, 4, 3, 6), array(6, 5, 4, 2)
    dimensions = (((1, 3), (2, 0)), ((0,), (3,)))
    options = dict.fromkeys(("lhs_meta", "rhs_meta", "grad_meta"), meta(0.01, 0.0))

    def loss(fn: Any) -> Any:
        return jax.grad(lambda x, k: (fn(x, k) ** 2).sum(), (0, 1))(x, k)

    ours = loss(lambda x, k: product(x, k, dimensions, **options))
    for mine, exact in zip(ours, loss(lambda x, k: jax.lax.dot_general(x, k, dimensions)), strict=True):
        np.testing.assert_allclose(mine, exact, atol=0.1 * abs(exact).max())


def test_what_cannot_be_is_refused() -> None:
    metas = dict.fromkeys(("lhs_meta", "rhs_meta", "grad_meta"), meta(1.0, 0.0))
    with pytest.raises(LiftArgumentError, match="fp8_dot_general: expected a kernel of a floating dtype, given int32"):
        nn.fp8_dot_general(X, jnp.ones((4, 5), int), DIMENSIONS, **metas)
    with pytest.raises(LiftArgumentError, match="fp8_dot_general: 8-bit numbers have only one precision, given 'high"):
        nn.fp8_dot_general(X, jnp.asarray(K), DIMENSIONS, "highest", **metas)


@pytest.mark.parametrize(
    ("equation", "x", "k"),
    [
        ("ij,jk->ki", X, K),
        ("...j,jk->...k", array(2, 3, 4), K),
        ("aij,jk->ik", array(2, 3, 4), K),
        ("bij,bjk->bik", array(2, 3, 4), array(2, 4, 5)),
        ("...ij,...jk->...ik", array(2, 3, 4), array(1, 4, 5)),
        ("i,j->ij", X[0], K[0]),
    ],
)
def test_einsum_gives_each_operand_its_own_scale(equation: str, x: Any, k: Any) -> None:
    metas = {"lhs_meta": meta(1.0, 448.0), "rhs_meta": meta(1.0, 44.8), "grad_meta": meta(1.0, 1.0)}
    y = nn.fp8_einsum(equation, x, jnp.asarray(k), **metas)
    summed = x.sum(0) if equation.startswith("aij") else x
    expected = np.einsum(equation.replace("a", ""), rounded(summed, 1.0), rounded(k, 0.1))
    np.testing.assert_allclose(y, expected, **CLOSE)


def test_einsum_refuses_what_is_no_product_of_two() -> None:
    metas = dict.fromkeys(("lhs_meta", "rhs_meta", "grad_meta"), meta(1.0, 0.0))
    for equation, message in [
        ("ii,ij->j", 'fp8_einsum: "ii,ij->j" has a letter twice in one operand'),
        ("ij->j", "fp8_einsum: the equation is "),
        ("ij,kj->ik", 'fp8_einsum: "j" has sizes 4 and 5'),
    ]:
        with pytest.raises(LiftArgumentError, match=message):
            nn.fp8_einsum(equation, array(4, 4), jnp.asarray(K), **metas)
