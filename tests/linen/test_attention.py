"""Attention layers: what goes beyond Linen's, decoding, and what they refuse."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from linen_like.errors import InvalidRngError, LiftArgumentError, ScopeParamShapeError, ScopeVariableNotFoundError
from tests.layers.bits import quick
from tests.layers.row import array

X, MEMORY = array(2, 5, 8), array(2, 3, 6)
KEY = jax.random.key(0)
Attention = functools.partial(nn.MultiHeadAttention, num_heads=4)


def shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_shared_heads_are_repeated_ones(kv_heads: int) -> None:
    layer = Attention(num_kv_heads=kv_heads)

    @quick
    def both(x: Any) -> Any:
        y, variables = layer.init_with_output(KEY, x)
        repeated = jax.tree.map(lambda p: p, variables["params"])
        for name in ("key", "value"):
            repeated[name] = jax.tree.map(lambda p: jnp.repeat(p, 4 // kv_heads, -2), repeated[name])
        return variables, y, Attention().apply({"params": repeated}, x)

    variables, y, expected = both(X)
    assert shapes(variables["params"]["key"]) == {"bias": (kv_heads, 2), "kernel": (8, kv_heads, 2)}
    assert shapes(variables["params"]["query"]) == {"bias": (4, 2), "kernel": (8, 4, 2)}
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)


def test_causal_field_is_a_causal_mask() -> None:
    variables = Attention().init(KEY, X)
    y = Attention(is_causal=True).apply(variables, X)
    np.testing.assert_array_equal(y, Attention().apply(variables, X, mask=nn.make_causal_mask(X[..., 0])))


# -- implementations ---------------------------------------------------------------------------------------------------


def test_fused_implementation_gives_the_same_up_to_rounding() -> None:
    layer = Attention(num_kv_heads=2, is_causal=True, rotary=nn.rotary_embedding, dropout_rate=0.1, deterministic=True)

    @quick
    def both(x: Any) -> Any:
        variables = layer.init(KEY, x)
        return [layer.clone(implementation=name).apply(variables, x, mask=np.tri(5)[::-1]) for name in ("xla", None)]

    np.testing.assert_allclose(*both(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "call", "option"),
    [
        ({"dropout_rate": 0.1}, {"deterministic": False, "dropout_rng": KEY}, "dropout_rate"),
        ({}, {"sow_weights": True}, "module"),
        ({"precision": "highest"}, {}, "precision"),
        (
            dict.fromkeys(("qk_attn_weights_einsum_cls", "attn_weights_value_einsum_cls"), lambda: jnp.einsum),
            {},
            "qk_attn_weights_einsum",
        ),
    ],
)
def test_fused_implementation_says_what_stands_in_its_way(config: Any, call: Any, option: str) -> None:
    with pytest.raises(
        LiftArgumentError, match=f"dot_product_attention of MultiHeadAttention at /: .*not support `{option}`"
    ):
        jax.eval_shape(functools.partial(Attention(implementation="xla", **config).init, **call), KEY, X)


# -- decoding ----------------------------------------------------------------------------------------------------------


def decoded(layer: Any, params: Any, x: Any, **call: Any) -> tuple[Any, Any]:
    """All steps, one after the other, and the cache at the end."""
    cache = layer.init(KEY, x)["cache"]

    def step(cache: Any, x: Any) -> Any:
        y, mutated = layer.apply({"params": params, "cache": cache}, x, mutable=["cache"], **call)
        return mutated["cache"], y

    cache, ys = jax.lax.scan(step, cache, jnp.moveaxis(x[:, :, None], 1, 0))
    return jnp.moveaxis(ys[:, :, 0], 0, 1), cache


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared heads": {"num_kv_heads": 2},
    "rotary": {"rotary": functools.partial(nn.rotary_embedding, interleaved=False)},
    "all": {"num_kv_heads": 1, "rotary": nn.rotary_embedding, "normalize_qk": True},
    "fused": {"implementation": "xla", "rotary": nn.rotary_embedding},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_step_by_step_is_causal_attention_at_once(name: str) -> None:
    layer = Attention(**CONFIGS[name], is_causal=True)

    @quick
    def both(x: Any) -> Any:
        expected, variables = layer.init_with_output(KEY, x)
        return expected, *decoded(layer.clone(decode=True), variables["params"], x)

    expected, y, cache = both(X)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    heads = CONFIGS[name].get("num_kv_heads", 4)
    assert shapes(cache) == {"cached_key": (2, 5, heads, 2), "cached_value": (2, 5, heads, 2), "cache_index": ()}
    assert cache["cache_index"] == 5


def test_positions_may_be_given() -> None:
    layer = Attention(rotary=nn.rotary_embedding)

    @quick
    def results(x: Any) -> Any:
        variables = layer.init(KEY, x)
        shifted = jnp.arange(5) + np.array([[3], [20]])
        of_keys = {"key_positions": jnp.arange(5) + 7}
        return (
            layer.apply(variables, x),
            layer.apply(variables, x, positions=shifted),
            layer.apply(variables, x, positions=jnp.arange(5) + 7, **of_keys),
            layer.apply(variables, x, x + 0, positions=jnp.arange(5) + 7, **of_keys),
            layer.apply(variables, x, x + 0),
            layer.apply(variables, x, **of_keys),
        )

    first, *same, other = results(X)
    for y in same:  # all at once, only distances count
        np.testing.assert_allclose(y, first, rtol=1e-3, atol=1e-4)
    assert not np.allclose(other, first, atol=1e-3)


def test_decoding_beyond_the_cache_is_nan_under_jit_and_an_error_otherwise() -> None:
    layer = Attention(decode=True)
    variables = layer.init(KEY, X[:, :1])
    step = functools.partial(layer.apply, mutable=["cache"])
    _, mutated = step(variables, X[:, :1])
    full = {**variables, **mutated}
    with pytest.raises(LiftArgumentError, match="decode_cache at /: the cache is full: it has room for 1 positions"):
        step(full, X[:, 1:2])
    y, after = quick(step)(full, X[:, 1:2])
    assert np.isnan(y).all()
    np.testing.assert_array_equal(after["cache"]["cached_key"], full["cache"]["cached_key"])


def test_decoding_needs_a_cache_that_may_be_written() -> None:
    layer = Attention(decode=True)
    variables = layer.init(KEY, X)
    params = {"params": variables["params"]}
    for mutable in (False, ["cache"]):
        with pytest.raises(
            ScopeVariableNotFoundError, match="decode_cache at /: this is one step of decoding, but there"
        ):
            layer.apply(params, X[:, :1], mutable=mutable)
    with pytest.raises(nn.errors.ModifyScopeVariableError, match='collection "cache" is immutable here'):
        layer.apply(variables, X[:, :1])
    _, made = layer.apply(params, X, mutable=["cache"])  # whole inputs make it, as `init` does
    assert shapes(made["cache"]) == shapes(variables["cache"])


class Decoder(nn.Module):
    """Layers under `scan` and `remat`, with a cache for each."""

    decode: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def body(layer: Any, x: Any) -> Any:
            return x + layer(x), None

        layer = Attention(num_kv_heads=2, rotary=nn.rotary_embedding, is_causal=True, decode=self.decode, name="layer")
        run = nn.scan(nn.remat(body), variable_axes={"params": 0, "cache": 0}, split_rngs={"params": True}, length=3)
        return run(layer, x)[0]


def test_decoding_under_scan_and_remat_is_all_at_once() -> None:
    @quick
    def both(x: Any) -> Any:
        expected, variables = Decoder().init_with_output(KEY, x)
        return expected, *decoded(Decoder(decode=True), variables["params"], x)

    expected, y, cache = both(X)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
    assert cache["layer"]["cached_key"].shape == (3, 2, 5, 2, 2)
    np.testing.assert_array_equal(cache["layer"]["cache_index"], 5)


def test_cache_that_a_lift_does_not_take_is_an_error_about_the_lift() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.vmap(nn.MultiHeadAttention, variable_axes={"params": None}, split_rngs={"params": False})(
                4, decode=True
            )(x)

    with pytest.raises(nn.errors.ModifyScopeVariableError, match="cache"):
        jax.eval_shape(Model().init, KEY, X)


# -- other functions that attend ---------------------------------------------------------------------------------------


def narrow(query: Any, key: Any, value: Any) -> Any:
    return query + key.mean() + value.mean()


@pytest.mark.parametrize(
    ("config", "call", "option"),
    [
        ({}, {"mask": np.ones((5, 5))}, "mask"),
        ({"is_causal": True}, {}, "is_causal"),
        ({"implementation": "cudnn"}, {}, "implementation"),
        ({"dropout_rate": 0.5}, {"deterministic": False}, "dropout_rate"),
        ({}, {"sow_weights": True}, "module"),
        ({"qk_attn_weights_einsum_cls": lambda: jnp.einsum}, {}, "qk_attn_weights_einsum"),
    ],
)
def test_function_that_cannot_do_what_was_asked_for_is_refused(config: Any, call: Any, option: str) -> None:
    layer = Attention(attention_fn=narrow, **config)
    with pytest.raises(LiftArgumentError, match=f"has no parameter `{option}`, so this option"):
        jax.eval_shape(functools.partial(layer.init, **call), KEY, X)


def test_function_with_keyword_arguments_gets_all_of_them() -> None:
    def wide(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return nn.dot_product_attention(query, key, value, **options)

    @quick
    def both(x: Any) -> Any:
        variables = Attention().init(KEY, x)
        return [Attention(**given).apply(variables, x, mask=np.tri(5)) for given in ({}, {"attention_fn": wide})]

    np.testing.assert_array_equal(*both(X))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "args", "call", "message"),
    [
        (
            {"num_heads": 3},
            (X,),
            {},
            "8 features of queries, keys and values cannot be divided among num_heads=3. Choose",
        ),
        ({"qkv_features": 6}, (X,), {}, "6 features of queries, keys and values cannot be divided among num_heads=4"),
        ({"num_heads": 0}, (X,), {}, "divided among num_heads=0"),
        (
            {"num_kv_heads": 3},
            (X,),
            {},
            "num_heads=4 heads of queries cannot share num_kv_heads=3 heads of keys evenly",
        ),
        ({"num_kv_heads": 0}, (X,), {}, "cannot share num_kv_heads=0"),
        (
            {},
            (X[0, 0],),
            {},
            "expected inputs_q, inputs_k and inputs_v of shapes (*batch, queries, features), (*batch, k",
        ),
        ({}, (X, MEMORY[:1]), {}, "given (2, 5, 8), (1, 3, 6) and (1, 3, 6)"),
        ({}, (X, MEMORY, X), {}, "given (2, 5, 8), (2, 3, 6) and (2, 5, 8)"),
        (
            {},
            (X, X, np.ones((2, 1, 5, 5))),
            {},
            "given (2, 5, 8), (2, 5, 8) and (2, 1, 5, 5). Pass inputs of one batch, ",
        ),
        ({}, (X, None, X), {}, "`inputs_v` was given without `inputs_k`, so its keys are missing"),
        ({}, (X, X), {"inputs_kv": X}, "together with `inputs_k` or `inputs_v`, but it means both"),
        (
            {},
            (X,),
            {"mask": np.ones((2, 5, 5))},
            "the mask has shape (2, 5, 5), which does not broadcast to the shape of",
        ),
        ({}, (X,), {"positions": np.arange(5)}, "positions were given, but the layer does not use them"),
        ({"rotary": nn.rotary_embedding}, (X,), {"positions": np.arange(4)}, "the positions have shape (4,)"),
        ({"qk_attn_weights_einsum_cls": lambda: jnp.einsum}, (X,), {}, "`qk_attn_weights_einsum` was given alone"),
    ],
)
def test_what_cannot_be_is_refused_with_the_place(config: Any, args: Any, call: Any, message: str) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, *args: Any) -> Any:
            return nn.MultiHeadAttention(**{"num_heads": 4, **config}, name="attend")(*args, **call)

    with pytest.raises(LiftArgumentError, match=re.escape(message)) as error:
        jax.eval_shape(Model().init, KEY, *args)
    assert error.value.where.endswith("MultiHeadAttention at /attend")


def test_inputs_of_other_features_are_refused_with_the_path_of_the_kernel() -> None:
    variables = Attention().init(KEY, X, MEMORY)
    with pytest.raises(ScopeParamShapeError, match=r'"kernel" at /key: .*\(6, 4, 2\).*\(8, 4, 2\)'):
        Attention().apply(variables, X, X)


def test_dropout_asks_for_deterministic_and_for_a_key() -> None:
    layer = Attention(dropout_rate=0.5)
    variables = layer.init(KEY, X, deterministic=True)
    with pytest.raises(LiftArgumentError, match=r'"deterministic" of MultiHeadAttention.* neither to the constructor'):
        layer.apply(variables, X)
    with pytest.raises(InvalidRngError, match='no RNG stream "dropout" was given'):
        layer.apply(variables, X, deterministic=False)
    assert layer.apply(variables, X, deterministic=False, dropout_rng=KEY).shape == X.shape


def test_deprecated_ways_warn_where_they_are_used() -> None:
    layer = nn.SelfAttention(num_heads=4)
    with pytest.warns(DeprecationWarning, match="call `MultiHeadDotProductAttention` with one input"):
        variables = layer.init(KEY, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = nn.MultiHeadDotProductAttention(4).apply(variables, X, mask=np.tri(5))
    with pytest.warns(DeprecationWarning, match="SelfAttention"):
        np.testing.assert_array_equal(layer.apply(variables, X, np.tri(5)), y)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.MultiHeadAttention(4)(x, inputs_kv=x)

    with pytest.warns(DeprecationWarning, match="pass it as `inputs_k`") as warned:
        jax.eval_shape(Model().init, KEY, X)
    assert warned[0].filename == __file__
