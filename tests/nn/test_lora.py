from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError, ScopeParamShapeError, ScopeVariableNotFoundError
from tests.layers.row import array

X, A, B = array(5, 3), array(3, 2), array(2, 4)
UPDATE = {"lora": {"a": A, "b": B}}


def test_update_is_a_product_of_low_rank() -> None:
    apply = liftcore.apply(nn.lora)
    np.testing.assert_allclose(apply(UPDATE, X, 4, 2), X @ A @ B, rtol=1e-5)
    np.testing.assert_allclose(apply(UPDATE, X, 4, 2, alpha=6.0), 3 * X @ A @ B, rtol=1e-5)


@pytest.mark.parametrize("batch", [(), (0,), (1, 7)])
def test_batch_may_be_of_any_shape(batch: tuple[int, ...]) -> None:
    assert liftcore.apply(nn.lora)(UPDATE, jnp.ones((*batch, 3)), 4, 2).shape == (*batch, 4)


def test_new_update_is_zero_and_its_gradient_reaches_b_first() -> None:
    y, variables = liftcore.init(nn.lora)(jax.random.key(0), X, 4, 2)
    np.testing.assert_array_equal(y, 0)
    assert jax.tree.map(jnp.shape, variables) == {"lora": {"a": (3, 2), "b": (2, 4)}}
    grads = jax.grad(lambda variables: liftcore.apply(nn.lora)(variables, X, 4, 2).sum())(variables)
    assert (grads["lora"]["a"] == 0).all()
    assert (grads["lora"]["b"] != 0).all()


def test_axes_and_batch_dimensions_are_those_of_dense_general() -> None:
    x = array(2, 3, 5, 4)
    where = {"axis": (1, -1), "batch_dims": (0,)}
    y, variables = liftcore.init(nn.lora)(jax.random.key(0), x, (6, 7), 2, **where, b_init=jax.nn.initializers.normal())
    a, b = variables["lora"]["a"], variables["lora"]["b"]
    assert (a.shape, b.shape) == ((2, 3, 4, 2), (2, 2, 6, 7))
    np.testing.assert_allclose(y, np.einsum("nirj,nijk,nkfg->nrfg", x, a, b), rtol=1e-4, atol=1e-6)
    kernel = jnp.zeros((2, 3, 4, 6, 7))
    merged = nn.merge_lora({"params": {"kernel": kernel}, **variables}, alpha=None)
    dense = liftcore.apply(nn.dense_general)(merged, x, (6, 7), **where, use_bias=False)
    np.testing.assert_allclose(dense, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "options", "expected"),
    [
        (jnp.bfloat16, {}, jnp.float32),
        (jnp.bfloat16, {"param_dtype": jnp.bfloat16}, jnp.bfloat16),
        (jnp.int32, {}, jnp.float32),
        (jnp.float32, {"dtype": jnp.float16}, jnp.float16),
    ],
)
def test_dtype_is_the_given_one_or_what_inputs_and_update_promote_to(x: Any, options: Any, expected: Any) -> None:
    y, variables = jax.eval_shape(
        lambda: liftcore.init(nn.lora)(jax.random.key(0), jnp.ones((1, 3), x), 4, 2, **options)
    )
    assert y.dtype == expected
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(options.get("param_dtype", jnp.float32))}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("stack", [(), (2,), (2, 3)])
def test_merging_adds_the_update_and_unmerging_takes_it_back(stack: tuple[int, ...], dtype: Any) -> None:
    kernel = jnp.asarray(array(*stack, 3, 4), dtype)
    updates = {"layer": {"a": array(*stack, 3, 2), "b": 0.1 * array(*stack, 2, 4)}}
    other = {"layer": {"kernel": kernel, "bias": kernel[..., 0, :]}, "head": {"kernel": kernel}}
    merged = nn.merge_lora({"params": other, "lora": updates, "batch_stats": {}}, alpha=4.0)
    assert set(merged) == {"params", "batch_stats"}
    assert merged["params"]["head"]["kernel"] is kernel
    eps = float(jnp.finfo(dtype).eps)
    product = 2 * updates["layer"]["a"] @ updates["layer"]["b"]
    found = np.asarray(merged["params"]["layer"]["kernel"], np.float32)
    np.testing.assert_allclose(found, np.asarray(kernel, np.float32) + product, rtol=eps, atol=1e-6)
    back = nn.unmerge_lora(merged, updates, alpha=4.0)
    assert back["lora"] is updates
    largest = np.maximum(abs(np.asarray(kernel, np.float32)), abs(found))
    error = abs(np.asarray(back["params"]["layer"]["kernel"], np.float32) - np.asarray(kernel, np.float32))
    assert (error <= eps * largest).all()
    assert back["params"]["layer"]["kernel"].dtype == dtype


@pytest.mark.parametrize("collection", ["lora", "params"])
def test_update_for_inputs_without_features_is_zero(collection: str) -> None:
    x = np.zeros((2, 0), np.float32)
    y, _ = liftcore.init(nn.lora)(jax.random.key(0), x, 3, rank=2, alpha=None, collection=collection)
    np.testing.assert_array_equal(y, np.zeros((2, 3)))


def test_merging_keeps_boxes() -> None:
    kernel = liftcore.meta.Partitioned(jnp.ones((3, 4)), ("in", "out"))
    merged = nn.merge_lora({"params": {"kernel": kernel}, **UPDATE}, alpha=None)["params"]["kernel"]
    assert merged.names == ("in", "out")
    np.testing.assert_allclose(merged.unbox(), 1 + A @ B, rtol=1e-6)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda: liftcore.init(nn.lora)(jax.random.key(0), X, 4, 0),
            "lora at /: expected a rank of 1 or more as `rank`, given 0",
        ),
        (lambda: liftcore.apply(nn.lora)(UPDATE, X, 4, 2, axis=2), "lora at /: axis is (2,), but the inputs have 2"),
        (
            lambda: nn.merge_lora({"params": {}}, alpha=None),
            "merge_lora: expected updates in the `collection` \"lora\", given ['params']",
        ),
        (
            lambda: nn.merge_lora({"params": {"x": {}}, "lora": {"x": UPDATE["lora"]}}, alpha=None),
            'merge_lora: "lora/x" is an update without a kernel: "params" has none there',
        ),
        (
            lambda: nn.merge_lora({"params": {}, "mine": {"x": UPDATE["lora"]}}, alpha=None, collection="mine"),
            'merge_lora: "mine/x" is an update without a kernel: "params" has none there',
        ),
        (
            lambda: nn.unmerge_lora({"params": {"x": {"kernel": X}}}, {"x": UPDATE["lora"]}, alpha=None),
            "unmerge_lora: the update at /x has shapes (3, 2) and (2, 4), which do not make (5, 3)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fn: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        fn()


def test_stored_update_of_other_sizes_or_none_is_refused() -> None:
    with pytest.raises(
        ScopeParamShapeError, match=r'"lora/a" at /: expected a stored value of shape \(3, 1\), given \(3, 2\)'
    ):
        liftcore.apply(nn.lora)(UPDATE, X, 4, 1)
    with pytest.raises(ScopeVariableNotFoundError, match='"lora/a" at /: there is no such variable'):
        liftcore.apply(nn.lora)({"lora": {"other": {}}}, X, 4, 2)
