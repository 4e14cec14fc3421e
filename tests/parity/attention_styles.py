"""Transformers in two styles of writing them; see `module_styles`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

__all__ = ["language_model", "translator"]

LENGTH, WORDS, FEATURES = 6, 11, 8


def _tokens(x: Any) -> Any:
    """Words for the input that all styles share: `(2, 3)` of them, 0 among them to pad."""
    return jnp.asarray(5 * (x + 1), jnp.int32)


def _layer(nn: Any) -> Any:
    """A layer with its norms first, made in `setup`: of an encoder, or of a decoder that decodes with a cache."""

    class Layer(nn.Module):
        is_decoder: bool = False

        def setup(self) -> None:
            self.norms = [nn.LayerNorm() for _ in range(3 if self.is_decoder else 2)]
            self.attend = nn.MultiHeadDotProductAttention(num_heads=2, decode=self.is_decoder)
            self.cross = nn.MultiHeadDotProductAttention(num_heads=2) if self.is_decoder else None
            self.mlp = nn.Sequential([nn.Dense(FEATURES), nn.relu, nn.Dense(FEATURES)])

        def __call__(self, x: Any, mask: Any, memory: Any = None, memory_mask: Any = None) -> Any:
            first, *cross, last = self.norms
            x = x + self.attend(first(x), mask=mask)
            if self.is_decoder:
                x = x + self.cross(cross[0](x), memory, mask=memory_mask)
            return x + self.mlp(last(x))

    return Layer


def translator(nn: Any) -> Any:
    """An encoder, and a decoder that decodes step by step with a cache."""

    class Transformer(nn.Module):
        def setup(self) -> None:
            self.words = nn.Embed(WORDS, FEATURES)
            self.places = self.param("places", nn.initializers.normal(), (LENGTH, FEATURES))
            self.encoder, self.decoder = _layer(nn)(), _layer(nn)(is_decoder=True)
            self.norm = nn.LayerNorm()

        def encode(self, source: Any) -> Any:
            mask = nn.make_attention_mask(source > 0, source > 0)
            return self.encoder(self.words(source) + self.places[: source.shape[-1]], mask)

        def predict(self, target: Any, mask: Any, first: int, memory: Any, source: Any) -> Any:
            x = self.words(target) + self.places[first : first + target.shape[-1]]
            memory_mask = nn.make_attention_mask(jnp.ones_like(target), source > 0)
            return self.words.attend(self.norm(self.decoder(x, mask, memory, memory_mask)))

        def __call__(self, x: Any) -> Any:
            source = _tokens(x)
            target = jnp.tile(source[:, ::-1], (1, LENGTH // source.shape[-1]))
            mask = nn.combine_masks(nn.make_causal_mask(target), nn.make_attention_mask(target > 0, target > 0))
            return self.predict(target, mask, 0, self.encode(source), source)

        def generate(self, x: Any) -> Any:
            """The next words, each from those before it, one step after the other."""
            source = _tokens(x)
            memory, word, logits = self.encode(source), source[:, :1], []
            for step in range(2):
                logits.append(self.predict(word, None, step, memory, source))
                word = jnp.argmax(logits[-1], -1)
            return jnp.concatenate(logits, 1)

    return Transformer()


def language_model(nn: Any, decode: bool) -> Any:
    """Layers scanned and rematerialized, with the words of the input as those of the output."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any) -> Any:
            attend = nn.MultiHeadAttention(num_heads=2, use_bias=False, normalize_qk=True, decode=decode, name="attend")
            x = x + attend(nn.LayerNorm(use_bias=False)(x), mask=mask)
            y = nn.Dense(2 * FEATURES)(nn.LayerNorm(use_bias=False)(x))
            return x + nn.Dense(FEATURES)(nn.silu(y)), None

    class LanguageModel(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            tokens = _tokens(x)
            if decode and not self.is_initializing():
                tokens = tokens[:, :1]
            words = nn.Embed(WORDS, FEATURES, name="words")
            blocks = nn.scan(
                nn.remat(Block),
                variable_axes={"params": 0, "cache": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=3,
                check_constancy_invariants=False,
            )(name="blocks")
            y, _ = blocks(words(tokens), None if decode else nn.make_causal_mask(tokens))
            return words.attend(nn.LayerNorm(name="norm")(y))

    return LanguageModel()
