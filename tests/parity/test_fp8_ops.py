"""Products in 8 bits against `flax.linen`: values, gradients, scales and histories of two steps, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from tests.layers.bits import assert_same_bits, quick
from tests.layers.row import BF16, array, weighted

linen = pytest.importorskip("flax.linen")

pytestmark = pytest.mark.filterwarnings("ignore:The Fp8DotGeneralOp is deprecated:DeprecationWarning")

X = 30 * array(2, 3, 4)


def dense(nn: Any, op: Any, **options: Any) -> Any:
    return nn.Dense(5, dot_general_cls=op, **options)


def general(nn: Any, op: Any, **options: Any) -> Any:
    return nn.DenseGeneral((2, 3), axis=(-1, 1), batch_dims=(0,), dot_general_cls=op, **options)


def two_steps(layer: Any, x: Any) -> Any:
    """All results of two steps; the second one uses the scales that the first one found."""

    def loss(variables: Any, x: Any) -> Any:
        y = layer.apply(variables, x)
        return weighted(y), y

    y, variables = layer.init_with_output(jax.random.key(0), x)
    seen = [y, variables]
    for _ in range(2):
        (grads, by_x), y = jax.grad(loss, (0, 1), has_aux=True)(variables, x)
        seen += [y, grads, by_x]
        variables = {**variables, "_overwrite_with_gradient": grads["_overwrite_with_gradient"]}
    return seen


@pytest.mark.parametrize(
    ("make", "op", "options"),
    [
        (dense, "Fp8DirectDotGeneralOp", {}),
        (dense, "Fp8DirectDotGeneralOp", {"dtype": BF16}),
        (dense, "Fp8DotGeneralOp", {}),
        (dense, "Fp8DotGeneralOp", {"dtype": BF16}),
        (dense, "NANOOFp8DotGeneralOp", {}),
        (general, "Fp8DirectDotGeneralOp", {}),
        (general, "Fp8DotGeneralOp", {}),
    ],
)
def test_layer_is_that_of_linen(make: Any, op: str, options: Any) -> None:
    ours, theirs = (make(nn, getattr(nn, op), **options) for nn in (linen_like, linen))
    assert_same_bits(*quick(lambda x: (two_steps(ours, x), two_steps(theirs, x)))(X))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...a,ab->...b", ((2, 3, 4), (4, 5))),
        ("bij,jkb->bki", ((2, 3, 4), (4, 5, 2))),
        ("aij,jk->ik", ((2, 3, 4), (4, 5))),
        ("...ij,...jk->...ik", ((2, 3, 4), (1, 4, 5))),
    ],
)
def test_einsum_is_that_of_linen(equation: str, shapes: Any) -> None:
    arrays = [jnp.asarray(array(*shape)) for shape in shapes]

    def side(module: Any) -> Any:
        variables = module.init(jax.random.key(0), equation, *arrays)
        variables = jax.tree.map(lambda leaf: leaf + 0.3, variables)

        def loss(variables: Any, *arrays: Any) -> Any:
            y = module.apply(variables, equation, *arrays)
            return weighted(y), y

        return variables, jax.grad(loss, (0, 1, 2), has_aux=True)(variables, *arrays)

    assert_same_bits(*quick(lambda: (side(linen_like.Fp8Einsum(3)), side(linen.Fp8Einsum(3))))())


def test_fields_and_names_are_those_of_linen() -> None:
    assert linen_like.Fp8DotGeneral is linen_like.Fp8DirectDotGeneralOp
    for name in ("Fp8DirectDotGeneralOp", "Fp8DotGeneralOp", "NANOOFp8DotGeneralOp", "Fp8Einsum"):
        ours, theirs = getattr(linen_like, name)(), getattr(linen, name)()
        for field in ("amax_history_length", "e4m3_dtype", "e5m2_dtype"):
            assert getattr(ours, field) == getattr(theirs, field)
    np.testing.assert_equal(linen_like.fp8_ops.OVERWRITE_WITH_GRADIENT, linen.fp8_ops.OVERWRITE_WITH_GRADIENT)
