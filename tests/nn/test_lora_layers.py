from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError, ScopeParamShapeError
from tests.layers.row import array

KEY, RANDOM, X, IMAGE = jax.random.key(0), jax.nn.initializers.normal(), array(2, 5, 4), array(2, 6, 6, 4)


def equation(shape: tuple[int, ...], text: str) -> tuple[Any, ...]:
    return nn.lora_einsum, nn.einsum, X, {"shape": shape, "einsum_str": text}


def window(*size: int, **options: Any) -> tuple[Any, ...]:
    inputs = IMAGE if len(size) == 2 else X
    return nn.lora_conv, nn.conv, inputs, {"features": 6, "kernel_size": size, **options}


CASES = {
    "matrix": equation((4, 6), "...d,df->...f"),
    "heads first": equation((3, 4, 2), "btd,ndh->btnh"),
    "one matrix for each index": equation((5, 4, 6), "btd,tdf->btf"),
    "and summed over": equation((5, 4, 6), "btd,tdf->bf"),
    "elementwise": equation((2, 5, 4), "...d,...d->..."),
    "summed over by the kernel alone": equation((7, 4, 3), "btd,xdf->btf"),
    "conv": window(3, 3),
    "strides and groups": window(3, 3, strides=2, feature_group_count=2, padding="CIRCULAR"),
    "one dimension": window(3, padding="CAUSAL", kernel_dilation=2),
    "mask": window(2, 2, mask=(jnp.arange(2 * 2 * 4 * 6) % 3 / 2).reshape(2, 2, 4, 6)),
}


@pytest.mark.parametrize(
    ("case", "collection"), [*((case, "lora") for case in CASES), ("heads first", "params"), ("conv", "params")]
)
def test_update_is_what_its_product_adds_to_the_kernel(case: str, collection: str) -> None:
    update, layer, x, given = CASES[case]
    given_here = {"rank": 2, "alpha": 3.0, "collection": collection, "b_init": RANDOM}
    y, variables = liftcore.init(update)(KEY, x, **given, **given_here)
    base = liftcore.init(layer)(KEY, x, **given, use_bias=False)[1]
    both = {name: base.get(name, {}) | variables.get(name, {}) for name in {**base, **variables}}
    merged = nn.merge_lora(both, alpha=3.0, collection=collection)
    assert jax.tree.map(jnp.shape, merged) == jax.tree.map(jnp.shape, base)
    run = liftcore.apply(layer)
    difference = run(merged, x, **given, use_bias=False) - run(base, x, **given, use_bias=False)
    assert abs(y).max() > 1e-4
    np.testing.assert_allclose(difference, y, atol=2e-5)
    back = nn.unmerge_lora(merged, variables[collection], alpha=3.0, collection=collection)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), back, both)


def test_update_of_an_embedding_is_for_both_of_its_uses() -> None:
    a, b, table = array(7, 2), array(2, 3), array(7, 3)
    changed, update = table + 2.0 * a @ b, nn.LowRankEmbedding(a, b, 2.0)
    tokens, query = jnp.array([[0, 6, -1]]), array(5, 3)
    np.testing.assert_allclose(update.lookup(tokens), changed[tokens] - table[tokens], atol=1e-5)
    np.testing.assert_allclose(update.attend(query), query @ (changed - table).T, atol=1e-5)
    merged = nn.merge_lora({"params": {"embedding": table}, "lora": {"a": a, "b": b}}, alpha=4.0)
    np.testing.assert_allclose(merged["params"]["embedding"], changed, atol=1e-5)


def test_factors_have_the_same_values_in_each_collection() -> None:
    made = {name: liftcore.init(nn.lora)(KEY, X, 6, 2, collection=name)[1][name] for name in ("lora", "params", "new")}
    assert [sorted(factors) for factors in made.values()] == [["a", "b"], ["lora_a", "lora_b"], ["a", "b"]]
    for one in (made["params"]["lora_a"], made["new"]["a"]):
        np.testing.assert_array_equal(one, made["lora"]["a"])


def test_rows_of_a_new_factor_of_an_embedding_are_as_large_as_what_others_multiply_to() -> None:
    _, variables = liftcore.init(lambda scope: nn.lora_embedding(scope, 4000, 8, rank=4))(KEY)
    assert 1.9 < variables["lora"]["a"].var() * 4 / 4 < 2.1  # he_uniform of a fan-in of 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda scope: nn.lora_einsum(scope, X, (4, 6), "...d,df->...f", 0), "lora_einsum at /: expected a rank of 1"),
        (
            lambda scope: nn.lora_conv(scope, X, 6, 3, 1.5),
            "lora_conv at /: expected a rank of 1 or more as `rank`, given 1.5",
        ),
        (lambda scope: nn.lora_embedding(scope, 7, 3, -1), "lora_embedding at /: expected a rank .* given -1"),
        (lambda scope: nn.lora_einsum(scope, X, (4, 6), "df", 2), 'lora_einsum at /: the equation is "df"'),
        (lambda scope: nn.lora_conv(scope, X, 6, 3, 2, feature_group_count=3), "lora_conv at /: .*group"),
    ],
)
def test_what_does_not_fit_is_refused(fn: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=message):
        liftcore.init(fn)(KEY)


@pytest.mark.parametrize("collection", ["lora", "params"])
def test_stored_factor_of_other_sizes_is_refused(collection: str) -> None:
    stored = {collection: dict.fromkeys(("a", "b", "lora_a", "lora_b"), jnp.ones((2, 2)))}
    with pytest.raises(ScopeParamShapeError, match=r"a. at /: .*stored value"):
        liftcore.apply(lambda scope: nn.lora_embedding(scope, 7, 3, 2, collection=collection))(stored)
