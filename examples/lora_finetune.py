"""Fine-tune a pretrained encoder with low-rank adapters, to find functions of Python's library by what they do.

Run it with `python examples/lora_finetune.py`. It takes about a minute on two CPU cores, and writes the adapters and a
picture to `examples/out/`. The model is the encoder of `sentence_embeddings.py`; that file says how to install the
pretrained weights. A query is the first paragraph of a function's docstring, and its answer is the function's code. The
test uses functions of files that are not in the training set.

- `nn.LoRA` adds adapters to the kernels that one filter selects, inside the `nn.scan` over the layers.
- A second filter selects the adapters. Only they are differentiated, updated by the optimizer, and saved.
- The pretrained weights stay the same bit for bit, so one copy of them serves many tasks, each a file of kilobytes.
"""

from __future__ import annotations

import argparse
import ast
import operator
import random
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from tqdm import tqdm

import linen_like as nn
from liftcore import filters
from liftcore.checkpoints import load_file, save_file
from liftcore.training import TrainState, count
from sentence_embeddings import Encoder, find_weights, read_weights

LENGTH, BATCH, NEIGHBORS, TESTED = 32, 32, 8, 384
STEPS, LEARNING_RATE, TEMPERATURE, TARGET_GAIN = 40, 2e-3, 0.05, 0.03
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}

TARGETS = filters.PathContains("attention")  # the kernels that get an adapter: four in each of the six layers
ADAPTERS = filters.PathContains("lora_", exact=False)  # the adapters are `lora_a` and `lora_b`, beside each kernel


# --- the data --------------------------------------------------------------------------------------------------------


Texts = tuple[np.ndarray, np.ndarray]  # tokens, `(texts, LENGTH)`, and how many of each row count, `(texts,)`
Pairs = tuple[Texts, Texts]  # queries, and the answer to each of them


def functions(path: Path) -> list[tuple[str, str]]:
    """Return the documented functions of a file, as pairs of documentation and code."""
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef) and len(node.body) > 1 and not node.name.startswith("_"):
            doc = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            body = "\n".join(ast.unparse(statement) for statement in node.body[1:])
            if len(doc) > 25:
                found.append((doc, f"{node.name}({ast.unparse(node.args)}) {body}"))
    return found


def standard_library(seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return `{documentation: code}` of the functions to train on, and of some of other files to test with."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*.py")) if SKIPPED.isdisjoint(path.relative_to(root).parts)]
    random.Random(seed).shuffle(files)
    parts = files[len(files) // 5 :], files[: len(files) // 5]
    train, test = (dict(pair for path in part for pair in functions(path)) for part in parts)
    chosen = random.Random(seed).sample([doc for doc in test if doc not in train], TESTED)
    return train, {doc: test[doc] for doc in chosen}


def tokenized(folder: Path, texts: dict[str, str]) -> Pairs:
    """Return texts as tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)

    def tokens(texts: list[str]) -> Texts:
        found = tokenizer.encode_batch(texts)
        ids, lengths = [one.ids for one in found], [sum(one.attention_mask) for one in found]
        return np.array(ids, np.int32), np.array(lengths, np.int32)

    return tokens(list(texts)), tokens(list(texts.values()))


# --- the training ----------------------------------------------------------------------------------------------------


def new_state(folder: Path, args: argparse.Namespace) -> TrainState:
    """Read the pretrained weights, and create adapters, which add zero at first."""
    base = read_weights(folder)
    model = nn.LoRA(Encoder(), rank=args.rank, alpha=2.0 * args.rank, targets=TARGETS, collection="params")
    example = jnp.zeros((1, LENGTH), int), jnp.ones(1, int)
    _, adapters = model.apply(base, *example, mutable=ADAPTERS, rngs=jax.random.key(args.seed))
    params = filters.merge(base, adapters)["params"]
    schedule = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, args.steps // 8, args.steps)
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(schedule), trainable=ADAPTERS)


@jax.jit
def train_step(state: TrainState, batch: Pairs) -> tuple[TrainState, jax.Array]:
    """Take one step: each query of a batch should be nearer to its own answer than to the others, and vice versa."""

    def loss_fn(params: Any) -> jax.Array:
        queries, answers = (state.apply_fn({"params": params}, *texts) for texts in batch)
        scores, own = queries @ answers.T / TEMPERATURE, jnp.arange(len(queries))
        losses = [optax.softmax_cross_entropy_with_integer_labels(logits, own) for logits in (scores, scores.T)]
        return jnp.mean(jnp.stack(losses))

    loss, grads = state.value_and_grad(loss_fn)()
    return state.apply_gradients(grads=grads), loss


def train(state: TrainState, pairs: Pairs, args: argparse.Namespace) -> TrainState:
    """Train under a progress bar. Some pairs of a batch are neighbors in a file: those are hard to tell apart."""
    rng = np.random.default_rng(args.seed)
    with tqdm(range(args.steps), desc="training", unit="step") as bar:
        bar.set_postfix_str("compiling …")
        for _ in bar:
            starts = rng.choice(len(pairs[0][0]) - NEIGHBORS, BATCH // NEIGHBORS, replace=False)
            rows = (starts[:, None] + np.arange(NEIGHBORS)).ravel()
            state, loss = train_step(state, jax.tree.map(operator.itemgetter(rows), pairs))
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return state


# --- the measures ----------------------------------------------------------------------------------------------------


@jax.jit
def ranks(state: TrainState, pairs: Pairs) -> jax.Array:
    """Return the rank of each query's answer among all answers: 1 for the nearest."""

    def embed(texts: Texts) -> jax.Array:
        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, 64, *leaf.shape[1:]), texts)
        return jax.lax.map(lambda part: state.apply_fn(state.variables, *part), parts).reshape(TESTED, -1)

    queries, answers = map(embed, pairs)
    scores = queries @ answers.T
    return 1 + jnp.sum(scores > jnp.diag(scores)[:, None], axis=1)


def report(texts: dict[str, str], before: np.ndarray, after: np.ndarray) -> None:
    """Print how many answers are found, and the queries that gained most."""
    print(f"\n{'answers found':<16}{'first':>8}{'in the first 5':>16}{'mean of 1 / place':>20}")
    for name, places in (("pretrained", before), ("with adapters", after)):
        print(f"{name:<16}{np.mean(places == 1):8.1%}{np.mean(places <= 5):16.1%}{np.mean(1 / places):20.3f}")
    print("\nThe queries that gained most:")
    for index in np.argsort(1 / before - 1 / after, stable=True)[:4]:
        doc, code = list(texts.items())[index]
        print(f"  {before[index]:>3} → {after[index]:<3} {code.partition('(')[0]:<20} {doc[:70]}")


def draw(before: np.ndarray, after: np.ndarray, path: Path) -> None:
    """Draw the share of the answers that are among the first 1, 2, 3, … results."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, results = figure.subplots(), np.arange(1, 21)
    for places, label, color in ((after, "with adapters", "#d9480f"), (before, "pretrained", "#616e7c")):
        axes.plot(results, [np.mean(places <= number) for number in results], ".-", color=color, label=label)
    axes.set(
        xlabel="results looked at", ylabel="answers found", title=f"Search among {TESTED} functions, not trained on"
    )
    axes.set_xticks((1, 5, 10, 15, 20))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, train, measure, save, restore, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of training (%(default)s)")
    parser.add_argument("--rank", type=int, default=4, help="rank of the adapters (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of adapters, files and batches (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="output folder")
    args = parser.parse_args()
    folder = find_weights()
    args.out.mkdir(parents=True, exist_ok=True)
    saved, picture = args.out / "lora_finetune.msgpack", args.out / "lora_finetune.png"

    train_texts, test_texts = standard_library(args.seed)
    train_pairs, test_pairs = tokenized(folder, train_texts), tokenized(folder, test_texts)
    print(f"{len(train_texts):,} functions to train on, {len(test_texts)} of other files to test with")
    state = new_state(folder, args)
    print(
        f"{count({'params': state.trainable_params}):,} of {count({'params': state.params}):,} parameters are trained"
    )
    before = np.asarray(ranks(state, test_pairs))
    state = train(state, train_pairs, args)
    after = np.asarray(ranks(state, test_pairs))
    report(test_texts, before, after)

    save_file(saved, state.trainable_params)
    fresh = new_state(folder, args)
    restored = fresh.replace(params=fresh.with_trainable(load_file(saved, fresh.trainable_params)))
    # `fresh` read the pretrained weights again, so this compares the base, too, bit for bit.
    if not jax.tree.all(jax.tree.map(np.array_equal, restored.params, state.params)):
        sys.exit("lora_finetune.py: the base has changed, or the adapters were not restored")
    draw(before, after, picture)
    print(f"\nadapters: {saved} ({saved.stat().st_size / 1000:,.0f} kB), read back beside an untouched base")
    print(f"picture: {picture}")
    gain = np.mean(1 / after) - np.mean(1 / before)
    if args.steps >= STEPS and gain < TARGET_GAIN:
        sys.exit(f"lora_finetune.py: the mean of 1 / place grew by {gain:.3f}, less than {TARGET_GAIN}")


if __name__ == "__main__":
    main()
