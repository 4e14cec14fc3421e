"""Rows of attention layers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.layers.row import BF16, Config, Row, array, doubled

X, MEMORY, VALUES = array(2, 5, 8), array(2, 3, 6), array(2, 3, 7)
CAUSAL = np.tril(np.ones((1, 1, 5, 5), bool))
PADDING = np.arange(3) < np.array([3, 1])[:, None, None, None]
BASE = {"num_heads": 2}
TRAIN, EVAL = {"deterministic": False}, {"deterministic": True}
DROP = {**BASE, "dropout_rate": 0.4}


def plain_attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """An `attention_fn` that takes only a mask."""
    weights = jnp.einsum("...qhd,...khd->...hqk", query, key)
    weights = jax.nn.softmax(weights if mask is None else jnp.where(mask, weights, -1e9))
    return jnp.einsum("...hqk,...khd->...qhd", weights, value)


def einsums(nn: Any) -> dict[str, Any]:
    """Both products by functions: twice the usual ones."""
    names = ("qk_attn_weights_einsum_cls", "attn_weights_value_einsum_cls")
    return {**BASE, **dict.fromkeys(names, lambda: doubled(jnp.einsum))}


def learned_einsums(nn: Any) -> dict[str, Any]:
    """Both products by submodules with parameters."""

    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, *args: Any) -> Any:
            return jnp.einsum(*args) * self.param("scale", jax.nn.initializers.normal(), ())

    return {**BASE, "qk_attn_weights_einsum_cls": Scaled, "attn_weights_value_einsum_cls": Scaled}


def learned_dot_generals(nn: Any) -> dict[str, Any]:
    """All projections by submodules with parameters."""

    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return jax.lax.dot_general(*args, **kwargs) * self.param("scale", jax.nn.initializers.normal(), ())

    return {**BASE, "qkv_dot_general_cls": Scaled, "out_dot_general_cls": Scaled}


def learned_attention(nn: Any) -> dict[str, Any]:
    """A submodule with a parameter that attends."""

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, query: Any, key: Any, value: Any, dropout_rng: Any = None) -> Any:
            scale = self.param("scale", jax.nn.initializers.normal(), ())
            return scale * plain_attention(query, key, value)

    return {**BASE, "attention_fn": Attention()}


def _mha(config: Config, inputs: Any, call: dict[str, Any] | None = None) -> Row:
    return Row("MultiHeadDotProductAttention", config, inputs, call or {})


TABLE = {
    "attention": _mha(BASE, X),
    "attention, short name": Row("MultiHeadAttention", BASE, X),
    "attention, one head": _mha({"num_heads": 1}, X),
    "attention, a head for each feature": _mha({"num_heads": 8}, X),
    "attention, cross": _mha(BASE, (X, MEMORY)),
    "attention, other values": _mha(BASE, (X, MEMORY, VALUES)),
    "attention, keys are the queries": _mha(BASE, (X, X, array(2, 5, 3))),
    "attention, features": _mha({**BASE, "qkv_features": 6, "out_features": 3}, (X, MEMORY)),
    "attention, no bias": _mha({**BASE, "use_bias": False}, X),
    "attention, no batch": _mha(BASE, X[0]),
    "attention, two batch dimensions": _mha(BASE, (array(2, 1, 5, 4), array(2, 1, 3, 4))),
    "attention, one position": _mha(BASE, X[:, :1]),
    "attention, no position": _mha(BASE, X[:, :0]),
    "attention, no example": _mha(BASE, X[:0]),
    "attention, one feature": _mha({"num_heads": 1}, X[..., :1]),
    "attention, causal": _mha(BASE, X, {"mask": CAUSAL}),
    "attention, causal in numbers": _mha(BASE, X, {"mask": CAUSAL.astype(np.float32)}),
    "attention, padding": _mha(BASE, (X, MEMORY), {"mask": PADDING}),
    "attention, mask for each head": _mha(BASE, X, {"mask": np.stack([CAUSAL[0, 0], CAUSAL[0, 0].T])[None]}),
    "attention, mask of all": _mha(BASE, X, {"mask": np.zeros((1, 1, 5, 5), bool)}),
    "attention, bfloat16": _mha({**BASE, "dtype": BF16}, X),
    "attention, bfloat16 parameters": _mha({**BASE, "param_dtype": BF16}, X),
    "attention, all bfloat16": _mha({**BASE, "dtype": BF16, "param_dtype": BF16}, X.astype(BF16), {"mask": CAUSAL}),
    "attention, float32 softmax": _mha({**BASE, "dtype": BF16, "force_fp32_for_softmax": True}, X),
    "attention, float32 softmax of float32": _mha({**BASE, "force_fp32_for_softmax": True}, X),
    "attention, integers": _mha(BASE, np.arange(24).reshape(2, 3, 4) % 5),
    "attention, precision": _mha({**BASE, "precision": "highest"}, X),
    "attention, initializers": _mha(
        {**BASE, "kernel_init": jax.nn.initializers.normal(), "bias_init": jax.nn.initializers.normal()}, X
    ),
    "attention, initializers of out": _mha(
        {**BASE, "out_kernel_init": jax.nn.initializers.ones, "out_bias_init": jax.nn.initializers.normal()}, X
    ),
    "attention, normalised": _mha({**BASE, "normalize_qk": True}, X),
    "attention, normalised in bfloat16": _mha({**BASE, "normalize_qk": True, "dtype": BF16}, (X, MEMORY)),
    "attention, dropout": _mha(DROP, X, TRAIN),
    "attention, dropout by the field": _mha({**DROP, **TRAIN}, X, {"mask": CAUSAL}),
    "attention, dropout of each head": _mha({**DROP, "broadcast_dropout": False}, X, TRAIN),
    "attention, dropout in bfloat16": _mha({**DROP, "dtype": BF16}, X, TRAIN),
    "attention, dropout with a key": _mha(DROP, X, {**TRAIN, "dropout_rng": jax.random.key(3)}),
    "attention, dropout, deterministic": _mha(DROP, X, EVAL),
    "attention, dropout, deterministic by the field": _mha({**DROP, **EVAL}, X),
    "attention, sown": _mha(BASE, X, {"sow_weights": True, "mask": CAUSAL}),
    "attention, sown with dropout": _mha(DROP, X, {"sow_weights": True, **TRAIN}),
    "attention, dot generals": _mha(
        {**BASE, "qkv_dot_general": doubled(jax.lax.dot_general), "out_dot_general": doubled(jax.lax.dot_general)}, X
    ),
    "attention, learned dot generals": _mha(learned_dot_generals, X),
    "attention, einsums": _mha(einsums, X),
    "attention, learned einsums": _mha(learned_einsums, X, {"mask": CAUSAL}),
    "attention, own function": _mha({**BASE, "attention_fn": plain_attention}, X, {"mask": CAUSAL}),
    "attention, function of the library": _mha(
        lambda nn: {**BASE, "attention_fn": functools.partial(nn.dot_product_attention, bias=CAUSAL[0] * 2.0)}, X
    ),
    "attention, module for a function": _mha(learned_attention, X),
    "attention, decode": _mha({**BASE, "decode": True}, X[:, :1]),
    "attention, decode with a mask": _mha(
        {**BASE, "decode": True, "normalize_qk": True}, X[:, :1], {"mask": np.ones((2, 1, 1, 1))}
    ),
    "attention, decode in bfloat16": _mha({**BASE, "decode": True, "dtype": BF16}, X[:, :1]),
}

OWN = {
    "attention, grouped queries": _mha({"num_heads": 4, "num_kv_heads": 2}, X),
    "attention, rotary": _mha(lambda nn: {**BASE, "rotary": nn.rotary_embedding, "is_causal": True}, X),
    "attention, positions": _mha(
        lambda nn: {**BASE, "rotary": functools.partial(nn.rotary_embedding, interleaved=False)},
        X,
        {"positions": np.arange(5)[::-1]},
    ),
    "attention, as a whole": _mha({**BASE, "is_causal": True, "implementation": "xla"}, X),
}
"""What `flax.linen` does not have."""
