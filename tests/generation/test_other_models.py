"""`generate` with objects and with modules that are pytrees: wrapped, and the error for those that are not."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import nnx_like as nnx
import pax_like as pax
from liftcore.errors import LiftArgumentError
from liftcore.generation import generate

TABLE = jax.random.normal(jax.random.key(0), (7, 7))


class Sums(eqx.Module):
    """The logits of a position are the sum of the rows of all tokens so far, which are in the cache."""

    table: Any

    def empty_cache(self, shape: Any) -> Any:
        return {"rows": jnp.zeros((*shape, 7)), "cache_index": jnp.zeros((), jnp.int32)}

    def __call__(self, tokens: Any, cache: Any) -> Any:
        start, length = cache["cache_index"], tokens.shape[1]
        rows = jax.lax.dynamic_update_slice(cache["rows"], self.table[tokens], (0, start, 0))
        sums = jax.lax.dynamic_slice(jnp.cumsum(rows, 1), (0, start, 0), self.table[tokens].shape)
        return sums, {"rows": rows, "cache_index": start + length}


class Decoder:
    """As docs/generation.md says it."""

    def __init__(self, static: Any) -> None:
        self.static = static

    def apply(self, variables: Any, tokens: Any, mutable: Any) -> Any:
        model = eqx.combine(variables["params"], self.static)
        logits, cache = model(tokens, variables.get("cache") or model.empty_cache(tokens.shape))
        return logits, {"cache": cache}


def test_a_module_with_its_cache_as_an_argument_generates() -> None:
    params, static = eqx.partition(Sums(TABLE), eqx.is_array)
    found = generate(Decoder(static), {"params": params}, [[1, 2]], max_new_tokens=3, bucket=4)
    tokens = [1, 2]
    for _ in range(3):
        tokens.append(int(TABLE[jnp.array(tokens)].sum(0).argmax()))
    assert found.tokens[0].tolist() == tokens[2:]


class Words(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.embed = nnx.Embed(5, 4, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        return self.embed(tokens)


class Plain(eqx.Module):
    table: Any

    def __call__(self, tokens: Any) -> Any:
        return self.table[tokens]


WORDS = Words(nnx.Rngs(0))
OTHERS: dict[str, Any] = {
    "object": WORDS,
    "bound method": WORDS.__call__,
    "class": Words,
    "module of Equinox": Plain(TABLE),
    "with a cache": Sums(TABLE),
    "module of Pax": pax.Linear(2, 2, key=jax.random.key(0)),
    "function of tokens": lambda tokens: TABLE[tokens],
    "compiled": jax.jit(lambda tokens: TABLE[tokens]),
    "partial": functools.partial(Plain(TABLE)),
    "partial with an option": functools.partial(lambda tokens, train: TABLE[tokens], train=False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_of_another_kind_is_told_what_is_taken(name: str) -> None:
    with pytest.raises(LiftArgumentError, match=r"or a function of a scope and of tokens, given .*def apply\(self"):
        generate(OTHERS[name], {}, [[1]], max_new_tokens=2)
