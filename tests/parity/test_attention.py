"""Attention against `flax.linen.attention`: functions, masks, decoding step by step, and what is deprecated."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like
from linen_like import attention as ours
from tests.layers.bits import assert_close, assert_same_bits, quick
from tests.layers.row import BF16, array
from tests.parity.attention_styles import language_model, translator

linen = pytest.importorskip("flax.linen")

theirs = linen.attention
SIDES = (ours, theirs)
Q, K, V = array(2, 5, 4, 6), array(2, 3, 4, 6), array(2, 3, 4, 7)
X = array(2, 5, 8)


def half(*args: Any, **kwargs: Any) -> Any:
    return jax.lax.dot_general(*args, **kwargs) / 2


def test_transformer_that_decodes_step_by_step_is_that_of_linen() -> None:
    def results(nn: Any, x: Any) -> Any:
        model = translator(nn)
        y, variables = model.init_with_output(jax.random.key(0), x)
        return y, variables, model.apply(variables, x, method="generate", mutable=["cache"])

    x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
    assert_same_bits(*quick(lambda x: (results(linen_like, x), results(linen, x)))(x))


def test_all_of_the_module_is_here() -> None:
    defined = {name for name, thing in vars(theirs).items() if getattr(thing, "__module__", None) == theirs.__name__}
    assert defined <= set(ours.__all__)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": array(4, 5, 3), "mask": np.arange(15).reshape(5, 3) % 4},
        {"bias": array(4, 5, 3), "dtype": BF16, "force_fp32_for_softmax": True},
        {"dropout_rate": 0.3, "dropout_rng": jax.random.key(1)},
        {"dropout_rate": 0.3, "dropout_rng": jax.random.key(1), "broadcast_dropout": False, "dtype": BF16},
        {"einsum_dot_general": half, "precision": "highest"},
        {
            "qk_attn_weights_einsum": jnp.einsum,
            "attn_weights_value_einsum": functools.partial(jnp.einsum, precision=None),
        },
    ],
)
def test_functions_are_those_of_linen(options: dict[str, Any]) -> None:
    of_weights = {"einsum" if name.startswith("qk") else name: x for name, x in options.items() if "value" not in name}

    @quick
    def both(query: Any, key: Any, value: Any) -> Any:
        def run(side: Any) -> Any:
            def total(*args: Any) -> Any:
                return jnp.sum(jnp.sin(side.dot_product_attention(*args, **options)))

            grads = jax.grad(total, (0, 1, 2))(query, key, value)
            y = side.dot_product_attention(query, key, value, **options)
            return y, side.dot_product_attention_weights(query, key, **of_weights), grads

        return run(ours), run(theirs)

    assert_same_bits(*both(Q, K, V))


def test_positions_of_arguments_are_those_of_linen() -> None:
    bias, mask = array(4, 5, 3), np.arange(15).reshape(5, 3) % 4
    weights = (bias, mask, False, jax.random.key(0), 0.5, False, BF16, None, None, True, half)

    @quick
    def both(query: Any, key: Any, value: Any) -> Any:
        return [
            (
                side.dot_product_attention(query, key, value, *weights),
                side.dot_product_attention_weights(query, key, *weights),
            )
            for side in SIDES
        ]

    assert_same_bits(*both(Q, K, V))


def test_masks_are_those_of_linen() -> None:
    tokens = np.array([[3, 1, 0, 0], [2, 5, 4, 0]])
    for side_options in ({}, {"extra_batch_dims": 2, "dtype": jnp.int8}):
        made = []
        for side in SIDES:
            causal = side.make_causal_mask(tokens, **side_options)
            padding = side.make_attention_mask(tokens[:, :2] > 0, tokens > 0, jnp.logical_and, **side_options)
            made.append((causal, padding, side.combine_masks(causal, None, causal * 2, dtype=bool)))
        assert_same_bits(*made)


@pytest.mark.parametrize("name", ["MultiHeadDotProductAttention", "MultiHeadAttention", "SelfAttention"])
def test_fields_and_defaults_are_those_of_linen(name: str) -> None:
    def described(layer: Any) -> dict[str, Any]:
        fields = [field for field in dataclasses.fields(layer) if field.init and not field.kw_only]
        return {field.name: "callable" if callable(field.default) else field.default for field in fields}

    mine, others = described(getattr(ours, name)), described(getattr(theirs, name))
    others = {field: default for field, default in others.items() if field not in ("parent", "name")}
    assert list(mine) == list(others)
    assert {field: default for field, default in mine.items() if default is not dataclasses.MISSING} == {
        field: default for field, default in others.items() if default is not dataclasses.MISSING
    }


def decoded(side: Any, x: Any, mask: Any = None, **config: Any) -> Any:
    """Each step's output, and the cache after it."""
    layer = side.MultiHeadAttention(num_heads=2, decode=True, **config)
    variables = layer.init(jax.random.key(0), x)

    def step(cache: Any, x: Any) -> Any:
        y, mutated = layer.apply({"params": variables["params"], "cache": cache}, x, mask=mask, mutable=["cache"])
        return mutated["cache"], (y, mutated["cache"])

    return variables, jax.lax.scan(step, variables["cache"], jnp.moveaxis(jnp.expand_dims(x, -2), -3, 0))[1]


@pytest.mark.parametrize(
    ("batch", "config"),
    [
        ((2,), {"dtype": BF16, "normalize_qk": True}),
        ((), {"qkv_features": 4, "param_dtype": BF16, "force_fp32_for_softmax": True}),
        ((1, 2), {}),
    ],
)
def test_decoding_is_that_of_linen(batch: tuple[int, ...], config: dict[str, Any]) -> None:
    mask = np.ones((*batch, 1, 1, 5), bool)
    mask[..., 1] = False

    def both(x: Any) -> Any:
        return [[decoded(side, x, mask, **config) for mask in (None, mask)] for side in SIDES]

    assert_same_bits(*quick(both)(array(*batch, 5, 8)))


def test_model_that_decodes_in_one_apply_is_that_of_linen() -> None:
    def model(nn: Any) -> Any:
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                layer = nn.MultiHeadDotProductAttention(2, decode=True)
                steps = range(0 if self.is_initializing() else x.shape[-2])
                return [layer(x)] if self.is_initializing() else [layer(x[:, i : i + 1]) for i in steps]

        return Model()

    def run(nn: Any, x: Any) -> Any:
        variables = model(nn).init(jax.random.key(0), x)
        return model(nn).apply(variables, x, mutable=["cache"])

    assert_same_bits(*quick(lambda x: [run(nn, x) for nn in (linen_like, linen)])(X))


def test_self_attention_is_that_of_linen_and_deprecated() -> None:
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}

    def run(side: Any, x: Any) -> Any:
        layer = side.SelfAttention(num_heads=2, qkv_features=4, dropout_rate=0.5)
        y, variables = layer.init_with_output(keys, x, deterministic=False)
        sown = layer.apply(variables, x, None, True, None, True, mutable=["intermediates"])
        return y, variables, layer.apply(variables, x, np.tri(5), False, keys["dropout"]), sown

    for side in SIDES:
        with pytest.warns(DeprecationWarning, match="SelfAttention"):
            jax.eval_shape(functools.partial(run, side), X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert_same_bits(*quick(lambda x: [run(side, x) for side in SIDES])(X))


def test_keys_and_values_in_one_argument_are_those_of_linen_and_deprecated() -> None:
    memory, results = array(2, 3, 6), []
    for side in SIDES:
        with pytest.warns(DeprecationWarning, match="inputs_kv"):
            results.append(side.MultiHeadAttention(2).init_with_output(jax.random.key(0), X, inputs_kv=memory))
        with pytest.raises(ValueError, match="inputs_kv"):
            side.MultiHeadAttention(2).init(jax.random.key(0), X, memory, inputs_kv=memory)
        with pytest.raises(ValueError, match="inputs_k"):
            side.MultiHeadAttention(2).init(jax.random.key(0), X, inputs_v=memory)
    assert_same_bits(*results)


def test_square_values_are_no_reason_to_warn() -> None:
    square, results = array(2, 5, 5), []
    for side in SIDES:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            results.append(side.MultiHeadAttention(2).init_with_output(jax.random.key(0), X, X, square))
        assert bool(warned) == (side is theirs)  # it takes them for a mask
    assert_same_bits(*results)


DTYPES = [jnp.int8, jnp.int64, jnp.uint32, jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64]


@pytest.mark.parametrize("config", [{"decode": True}, {"force_fp32_for_softmax": True, "normalize_qk": True}])
def test_dtypes_are_those_of_linen(config: dict[str, Any]) -> None:
    for given, told, stored in [
        *((given, None, jnp.float32) for given in DTYPES),
        *((jnp.float32, told, jnp.float32) for told in DTYPES[3:]),
        *((jnp.bfloat16, None, stored) for stored in DTYPES[3:]),
    ]:

        def run(side: Any, told: Any, stored: Any, x: Any) -> Any:
            layer = side.MultiHeadAttention(2, told, stored, **config)
            made = layer.init_with_output(jax.random.key(0), x)
            return made, layer.apply(made[1], x, mutable=["cache", "intermediates"], sow_weights=True)

        with jax.enable_x64(True):
            x = jax.ShapeDtypeStruct((2, 1, 4), given)
            mine, other = (jax.eval_shape(functools.partial(run, side, told, stored), x) for side in SIDES)
        assert mine == other, (given, told, stored)


@pytest.mark.parametrize("decode", [False, True])
def test_language_model_of_scanned_layers_is_that_of_linen(decode: bool) -> None:
    def run(nn: Any, x: Any) -> Any:
        model = language_model(nn, decode)
        made = model.init_with_output(jax.random.key(0), x)
        if not decode:
            return made, jax.grad(lambda params: (model.apply({"params": params}, x) ** 2).mean())(made[1]["params"])
        first = model.apply(made[1], x, mutable=["cache"])
        return made, first, model.apply({**made[1], **first[1]}, x, mutable=["cache"])

    both = quick(lambda x: [run(nn, x) for nn in (linen_like, linen)])
    assert_close(*both(jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)), "model")
