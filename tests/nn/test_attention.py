"""Attention as functions: against plain numpy and `jax.nn`, with every option, and what it refuses."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError, ScopeVariableNotFoundError
from tests.layers.bits import quick
from tests.layers.row import array

Q, K, V = array(2, 5, 4, 6), array(2, 3, 4, 6)[..., ::-1], array(2, 3, 4, 7)
MASK = np.array([[[[1, 1, 0]]], [[[0, 1, 1]]]], bool)
BIAS = array(4, 5, 3)


def by_hand(query: Any, key: Any, value: Any, bias: Any = 0.0, mask: Any = True) -> tuple[Any, Any]:
    """Weights and averages in float64, head by head; heads of queries share those of keys."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    shares = query.shape[-2] // key.shape[-2]
    key, value = (np.repeat(x, shares, -2) for x in (key, value))
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1]) + bias
    weights = np.exp(logits) * np.broadcast_to(mask, logits.shape)
    weights /= weights.sum(-1, keepdims=True)
    return weights, np.einsum("bhqk,bkhd->bqhd", weights, value)


CASES = {
    "plain": {},
    "mask": {"mask": MASK},
    "bias": {"bias": BIAS},
    "both": {"bias": BIAS, "mask": MASK},
    "numbers as a mask": {"mask": 2.0 * MASK},
}


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("case", CASES)
def test_attention_is_what_its_formula_says(case: str, heads: int) -> None:
    key, value, options = K[..., :heads, :], V[..., :heads, :], CASES[case]
    hand = {**options, "mask": np.asarray(options["mask"]) != 0} if "mask" in options else options
    weights, y = by_hand(Q, key, value, **hand)
    np.testing.assert_allclose(nn.dot_product_attention_weights(Q, key, **options), weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(nn.dot_product_attention(Q, key, value, **options), y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("case", [*CASES, "causal"])
def test_attention_is_that_of_jax(case: str, heads: int) -> None:
    options = CASES.get(case, {"is_causal": True})
    args = Q, K[..., :heads, :], V[..., :heads, :6]
    theirs = {name: jnp.asarray(x, bool) if name == "mask" else x for name, x in options.items()}
    theirs = {name: x[None] if name == "bias" else x for name, x in theirs.items()}
    expected = jax.nn.dot_product_attention(*args, **theirs)
    np.testing.assert_allclose(nn.dot_product_attention(*args, **options), expected, rtol=1e-4, atol=1e-5)
    fused = nn.dot_product_attention(*args, **options, implementation="xla")
    np.testing.assert_array_equal(fused, expected)


@pytest.mark.parametrize("batch", [(), (2, 3), (0,), (1, 1, 2)])
def test_any_number_of_batch_dimensions_is_fused(batch: tuple[int, ...]) -> None:
    query, key = array(*batch, 5, 4, 6), array(*batch, 3, 2, 6)
    whole, rest = np.ones((*batch, 1, 5, 3), bool), np.tril(np.ones((5, 3), bool))

    @quick
    def both(query: Any, key: Any, bias: Any) -> Any:
        attend = functools.partial(nn.dot_product_attention, query, key, key, bias)
        masks = (None, whole & rest, rest, whole[..., :1, :])
        return [[attend(mask, implementation=name) for name in ("xla", None)] for mask in masks]

    for fused, ours in both(query, key, array(4, 1, 3)):
        assert fused.shape == query.shape
        np.testing.assert_allclose(fused, ours, rtol=1e-4, atol=1e-5)


def test_causal_attention_sees_no_later_key() -> None:
    weights = nn.dot_product_attention_weights(Q, array(2, 5, 4, 6), is_causal=True)
    assert (np.asarray(weights)[..., ~np.tri(5, dtype=bool)] == 0).all()
    masked = nn.dot_product_attention_weights(Q, array(2, 5, 4, 6), mask=nn.make_causal_mask(jnp.ones((2, 5))))
    np.testing.assert_array_equal(weights, masked)


def test_query_that_sees_nothing_weighs_all_alike() -> None:
    weights = nn.dot_product_attention_weights(Q, K, mask=np.zeros((1, 1), bool))
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_weights_are_in_the_dtype_of_the_computation(dtype: Any) -> None:
    def attend(query: Any, key: Any, value: Any) -> Any:
        options = {"dtype": dtype, "bias": BIAS}
        forced = nn.dot_product_attention_weights(query, key, force_fp32_for_softmax=True, **options)
        weights = nn.dot_product_attention_weights(query, key, **options)
        return weights, nn.dot_product_attention(query, key, value, **options), forced

    made = jax.eval_shape(attend, Q, K, V)
    assert [x.dtype for x in made] == [dtype, dtype, jnp.float32]


def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    ones = jnp.ones((4, 20, 3, 2))
    drop = functools.partial(nn.dot_product_attention_weights, ones, ones, dropout_rng=jax.random.key(0))
    shared, own = (np.asarray(20 * drop(dropout_rate=0.25, broadcast_dropout=broadcast)) for broadcast in (True, False))
    for weights in (shared, own):
        np.testing.assert_allclose(np.unique(weights.round(3)), [0, 1.333])
        assert abs((weights == 0).mean() - 0.25) < 0.06
    assert (shared == shared[:1, :1]).all()
    assert (own != own[:1, :1]).any()
    assert not drop(dropout_rate=1.0).any()
    np.testing.assert_allclose(drop(dropout_rate=0.25, deterministic=True), 1 / 20, rtol=1e-6)


def test_weights_are_sown_before_dropout() -> None:
    def attend(scope: liftcore.Scope) -> Any:
        return nn.dot_product_attention(Q, K, V, dropout_rng=jax.random.key(0), dropout_rate=0.5, module=scope)

    _, mutated = liftcore.apply(attend, mutable=["intermediates"])({})
    (sown,) = mutated["intermediates"]["attention_weights"]
    np.testing.assert_array_equal(sown, nn.dot_product_attention_weights(Q, K))


def test_products_may_be_given() -> None:
    def half(*args: Any, **kwargs: Any) -> Any:
        return jax.lax.dot_general(*args, **kwargs) / 2

    expected = nn.dot_product_attention(Q / 2, K, V) / 2
    einsum = functools.partial(jnp.einsum, _dot_general=half)
    for options in (
        {"einsum_dot_general": half},
        {"qk_attn_weights_einsum": einsum, "attn_weights_value_einsum": einsum},
    ):
        np.testing.assert_allclose(nn.dot_product_attention(Q, K, V, **options), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "depth"), [(0, 3, 2, 4), (1, 1, 1, 1), (3, 5, 7, 3), (3, 2, 0, 4)]
)
def test_sizes_may_be_zero_one_and_odd(queries: int, keys: int, heads: int, depth: int) -> None:
    y = nn.dot_product_attention(*(array(2, n, heads, depth) for n in (queries, keys, keys)), is_causal=True)
    assert y.shape == (2, queries, heads, depth)
    assert np.isfinite(y).all()


def test_gradient_is_that_of_finite_differences() -> None:
    with jax.enable_x64(True):
        args = [jnp.asarray(x[:1], jnp.float64) for x in (Q, K[..., :2, :], V[..., :2, :])]
        check_grads(functools.partial(nn.dot_product_attention, mask=MASK[:1]), args, 1, modes=["rev"])


EINSUMS = {"qk_attn_weights_einsum": jnp.einsum, "attn_weights_value_einsum": jnp.einsum}


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ([(5, 4), (3, 4), (3, 4)], {}, "each needs the shape (*batch, length, heads, depth); given query (5, 4), key"),
        ([(5, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4)], {}, "each needs the shape"),
        (
            [(2, 5, 2, 4), (1, 3, 2, 4), (2, 3, 2, 4)],
            {},
            "the batch dimensions differ; given query (2, 5, 2, 4), key (1",
        ),
        ([(5, 2, 4), (3, 2, 5), (3, 2, 5)], {}, "queries and keys differ in depth"),
        ([(5, 2, 4), (3, 2, 4), (2, 2, 4)], {}, "keys and values differ in length or heads"),
        ([(5, 2, 4), (3, 2, 4), (3, 1, 4)], {}, "keys and values differ in length or heads"),
        ([(5, 3, 4), (3, 2, 4), (3, 2, 4)], {}, "3 heads of queries cannot share 2 heads of keys evenly"),
        ([(5, 2, 4), (3, 4, 4), (3, 4, 4)], {}, "2 heads of queries cannot share 4 heads of keys evenly"),
        (None, {"mask": np.ones((2, 5, 3))}, "the mask has shape (2, 5, 3), which does not broadcast to the shape of"),
        (
            None,
            {"mask": np.ones((2, 1, 5, 2))},
            "heads, queries, keys) = (2, 4, 5, 3). Give the mask these sizes",
        ),
        (None, {"mask": np.ones((3, 2, 1, 5, 3))}, "the mask has shape (3, 2, 1, 5, 3)"),
        (None, {"bias": np.ones((5, 5))}, "the bias has shape (5, 5), which does not"),
        (None, {"bias": np.ones((5, 5)), "implementation": "xla"}, "the bias has shape (5, 5), which does not"),
        (None, {"dropout_rate": 0.1}, "dropout_rate is 0.1, but there is no key to draw with. Pass `dropout_rng=key`"),
        (None, {"dropout_rate": 1.5}, "expected a probability from 0 to 1 as `dropout_rate`, given 1.5"),
        (None, {"qk_attn_weights_einsum": jnp.einsum}, "`qk_attn_weights_einsum` was given alone"),
        (None, {**EINSUMS, "precision": "highest"}, "`qk_attn_weights_einsum` and `precision` were both given"),
        (None, {**EINSUMS, "einsum_dot_general": jax.lax.dot_general}, "and `einsum_dot_general` were both given"),
        (None, {"implementation": "flash"}, "there is no implementation 'flash'"),
        (None, {"implementation": "xla", "dropout_rate": 0.1}, "does not support `dropout_rate`"),
        (None, {"implementation": "xla", "module": "a scope"}, "does not support `module`"),
        (
            None,
            {"implementation": "cudnn", "precision": "highest"},
            "'cudnn' computes attention as a whole, which does not",
        ),
        (
            None,
            {"implementation": "xla", **EINSUMS},
            "support `qk_attn_weights_einsum`, `attn_weights_value_einsum`. Leave",
        ),
        (None, {"implementation": "xla"}, "needs values with the depth of the keys, 6, given 7"),
    ],
)
def test_what_cannot_be_is_refused(shapes: Any, options: Any, message: str) -> None:
    args = (Q, K, V) if shapes is None else [array(*shape) for shape in shapes]
    with pytest.raises(LiftArgumentError, match=re.escape(message)) as error:
        nn.dot_product_attention(*args, **options)
    assert error.value.where.startswith("dot_product_attention")


# -- masks -------------------------------------------------------------------------------------------------------------


def test_attention_mask_compares_each_query_with_each_key() -> None:
    segments = jnp.array([[1, 1, 2], [1, 2, 2]])
    mask = nn.make_attention_mask(segments, segments[:, :2], jnp.equal, extra_batch_dims=2, dtype=bool)
    assert mask.shape == (1, 1, 2, 1, 3, 2)
    np.testing.assert_array_equal(mask[0, 0, :, 0], segments[:, :, None] == segments[:, None, :2])


@pytest.mark.parametrize("length", [0, 1, 3])
def test_causal_mask_is_a_triangle(length: int) -> None:
    mask = nn.make_causal_mask(np.ones((2, length)), dtype=jnp.int8)
    assert (mask.shape, mask.dtype) == ((2, 1, length, length), jnp.int8)
    np.testing.assert_array_equal(mask[0, 0], np.tri(length))


def test_masks_combine_to_what_all_let_through() -> None:
    causal, padding = nn.make_causal_mask(jnp.ones((2, 3))), np.array([1, 1, 0]).reshape(1, 1, 1, 3)
    both = nn.combine_masks(None, causal, padding, dtype=bool)
    np.testing.assert_array_equal(both[1, 0], np.tri(3) * [1, 1, 0])
    assert nn.combine_masks(None, None) is None
    assert nn.combine_masks(np.ones(2)).dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.make_attention_mask(1, jnp.ones(3)),
            "make_attention_mask: expected inputs of shapes (*batch, queries)",
        ),
        (lambda: nn.make_attention_mask(jnp.ones((2, 3)), jnp.ones((3, 3))), "given (2, 3) and (3, 3)"),
        (
            lambda: nn.make_causal_mask(1.0),
            "make_causal_mask: expected an array of shape (*batch, length), given",
        ),
        (lambda: nn.combine_masks(jnp.ones((3, 3)), jnp.ones(3)), "masks of shapes (3, 3), (3,) cannot be combined"),
        (lambda: nn.combine_masks(jnp.ones((3, 3)), jnp.ones((3, 2))), "masks of shapes (3, 3), (3, 2) cannot be"),
    ],
)
def test_masks_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        make()


# -- positions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("features", [None, 4, 0])
def test_rotary_embedding_is_a_rotation_of_each_pair(features: int | None, interleaved: bool) -> None:
    x, positions, n = (
        array(2, 5, 3, 6),
        np.array([[0, 1, 2, 3, 4], [7, 7, 1, 0, 9]]),
        6 if features is None else features,
    )
    angles = positions[..., None, None] * 100.0 ** (-np.arange(0, n, 2) / max(n, 1))
    first, second = (slice(0, n, 2), slice(1, n, 2)) if interleaved else (slice(0, n // 2), slice(n // 2, n))
    turned = x.astype(np.complex128)[..., first] + 1j * x[..., second]
    turned = turned * np.exp(1j * angles)
    expected = x.astype(np.float64)
    expected[..., first], expected[..., second] = turned.real, turned.imag
    y = nn.rotary_embedding(x, positions, base=100.0, features=features, interleaved=interleaved)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_products_of_rotated_vectors_know_distances_only() -> None:
    x = jnp.broadcast_to(array(1, 1, 8), (6, 1, 8))
    near, far = (nn.rotary_embedding(x, jnp.arange(6) + start) for start in (0, 100))
    products = [np.einsum("qhd,khd->qk", y, y) for y in (near, far)]
    np.testing.assert_allclose(*products, rtol=1e-3)
    np.testing.assert_allclose(np.diagonal(products[0], 2), products[0][0, 2], rtol=1e-4)


@pytest.mark.parametrize(("given", "result"), [(jnp.bfloat16, jnp.bfloat16), (jnp.int32, jnp.float32)])
def test_rotation_keeps_floating_dtypes(given: Any, result: Any) -> None:
    turned = jax.eval_shape(nn.rotary_embedding, jax.ShapeDtypeStruct((3, 1, 2), given), np.arange(3))
    assert turned.dtype == result


@pytest.mark.parametrize(
    ("shape", "positions", "options", "message"),
    [
        ((3, 4), np.arange(3), {}, "expected x of shape (*batch, length, heads, depth), given (3, 4)"),
        ((3, 1, 5), np.arange(3), {}, "5 of the 5 features of a head cannot be rotated in pairs"),
        ((3, 1, 5), np.arange(3), {"features": 6}, "6 of the 5 features of a head cannot be rotated"),
        (
            (3, 1, 4),
            np.arange(4),
            {},
            "the positions have shape (4,), which does not broadcast to (*batch, length) = (3,)",
        ),
    ],
)
def test_rotation_refuses_what_does_not_fit(shape: Any, positions: Any, options: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)):
        nn.rotary_embedding(array(*shape), positions, **options)


# -- the cache ---------------------------------------------------------------------------------------------------------


def attend(scope: liftcore.Scope, x: Any, mask: Any = None) -> Any:
    cache = nn.decode_cache(scope, x, 2 * x)
    if cache is None:
        return nn.dot_product_attention(x, x, 2 * x, is_causal=True)
    query, keys, values, mask = cache.append(x, x, 2 * x, mask)
    return nn.dot_product_attention(query, keys, values, mask=mask)


STEP = liftcore.apply(attend, mutable=["cache"])
INPUTS = array(2, 4, 3, 6)


@pytest.fixture
def empty() -> Any:
    return liftcore.init(attend)({}, INPUTS)[1]


def test_step_by_step_is_all_at_once(empty: Any) -> None:
    expected = STEP({}, INPUTS)[0]
    step, variables = quick(STEP), empty
    for i in range(4):
        y, variables = step(variables, INPUTS[:, i : i + 1])
        np.testing.assert_allclose(y, expected[:, i : i + 1], rtol=1e-4, atol=1e-5)
    assert variables["cache"]["cache_index"] == 4
    np.testing.assert_array_equal(variables["cache"]["cached_value"], 2 * INPUTS)


def test_full_cache_is_an_error_or_nan_and_stays_as_it_is(empty: Any) -> None:
    full = {"cache": {**empty["cache"], "cached_key": INPUTS, "cache_index": jnp.array(4, jnp.int32)}}
    with pytest.raises(LiftArgumentError, match="it has room for 4 positions, but this would be number 5"):
        STEP(full, INPUTS[:, :1])
    y, after = jax.jit(STEP)(full, INPUTS[:, :1])
    assert np.isnan(y).all()
    np.testing.assert_array_equal(after["cache"]["cached_key"], INPUTS)
    assert after["cache"]["cache_index"] == 5


def test_step_without_a_cache_says_how_to_make_one() -> None:
    for mutable in (["cache"], False):
        with pytest.raises(ScopeVariableNotFoundError, match="there is no cache to decode with"):
            liftcore.apply(attend, mutable=mutable)({}, INPUTS[:, :1])


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (INPUTS[:1], None, "a key of shape (2, positions, 3, 6) and dtype float32, and as many queries; given (1, 4,"),
        (INPUTS[:, :1].astype(jnp.bfloat16), None, "and as many queries; given (2, 1, 3, 6) and bfloat16"),
        (INPUTS[:, :1], np.ones((2, 4)), "the mask has shape (2, 4), which does not broadcast to the shape of"),
    ],
)
def test_step_refuses_what_does_not_fit_its_cache(empty: Any, x: Any, mask: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=re.escape(message)) as error:
        STEP(empty, x, mask)
    assert error.value.where == "decode_cache at /"


def test_step_takes_a_mask_of_its_own(empty: Any) -> None:
    _, variables = STEP(empty, INPUTS[:, :1])
    y, _ = STEP(variables, INPUTS[:, 1:2], np.array([0, 1, 1, 1]))
    np.testing.assert_allclose(y, 2 * INPUTS[:, 1:2], rtol=1e-5)
