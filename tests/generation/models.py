"""A small language model that decodes, and how to generate with it by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import linen_like as nn

VOCABULARY = 11


class Block(nn.Module):
    decode: bool = False
    ragged: bool = True

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        attend = nn.MultiHeadAttention(
            num_heads=2,
            num_kv_heads=1,
            rotary=nn.rotary_embedding,
            is_causal=True,
            decode=self.decode,
            ragged_cache=self.ragged,
            name="attend",
        )
        return x + 2 * attend(x), None


class LanguageModel(nn.Module):
    """Scanned layers; `learned` adds embeddings of positions, which the model counts itself."""

    decode: bool = False
    ragged: bool = True
    learned: bool = False

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(VOCABULARY, 8)(tokens)
        if self.learned:
            x = x + nn.Embed(48, 8, name="positions")(self._positions(tokens))
        blocks = nn.scan(
            nn.remat(Block), variable_axes={"params": 0, "cache": 0}, split_rngs={"params": True}, length=2
        )
        x, _ = blocks(self.decode, self.ragged, name="blocks")(x, None)
        return nn.Dense(VOCABULARY, kernel_init=nn.initializers.normal(2.0))(x)

    def _positions(self, tokens: Any) -> Any:
        counted = jnp.arange(tokens.shape[1])
        if not self.decode:
            return counted
        is_made = self.has_variable("cache", "cache_index")
        index = self.variable("cache", "cache_index", lambda: jnp.zeros(tokens.shape[:1], jnp.int32))
        positions = index.value[:, None] + counted
        if is_made:
            index.value += tokens.shape[1]
        return positions


def variables_of(model: Any, seed: int = 0) -> Any:
    return jax.jit(model.clone(decode=False).init)(jax.random.key(seed), jnp.zeros((1, 4), jnp.int32))


def by_hand(model: Any, variables: Any, prompt: list[int], number: int, stops: tuple[int, ...] = ()) -> Any:
    """The most probable tokens without a cache, and the logarithms of their probabilities: a whole pass for each."""
    plain, tokens, log_probs = model.clone(decode=False), np.zeros((1, 48), np.int32), []
    forward = jax.jit(plain.apply)
    tokens[0, : len(prompt)] = prompt
    found: list[int] = []
    while len(found) < number and not (found and found[-1] in stops):
        logits = np.asarray(forward(variables, tokens))[0, len(prompt) + len(found) - 1].astype(np.float64)
        found.append(int(logits.argmax()))
        log_probs.append(logits.max() - np.log(np.exp(logits).sum()))
        tokens[0, len(prompt) + len(found) - 1] = found[-1]
    return found, log_probs
