"""Train a small GPT on the characters of Python's own documentation, and generate text with it.

Run it with `python examples/char_lm.py`. It takes a few minutes on two CPU cores, and writes checkpoints and a picture
of the losses to `examples/out/char_lm/`. If the run is stopped or killed, `--resume` continues from the last
checkpoint. The result is the same, byte for byte, as that of an unbroken run.

- `nn.scan(nn.remat(Block))` compiles one layer for all, and recomputes its activations in the backward pass,
- `accumulate_gradients` computes the gradients of a batch in parts, one after the other,
- `Checkpoints` saves the `TrainState` and the position in the data in a folder,
- `nn.generate` reads the whole prompt in one step, and then adds one character after the other.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from tqdm import tqdm

import liftcore
import linen_like as nn
from liftcore.checkpoints import Checkpoints
from liftcore.training import TrainState, accumulate_gradients

TEXT = "\n\n".join(topics[name] for name in sorted(topics))
ALPHABET = sorted(set(TEXT))
TOKENS = np.searchsorted(ALPHABET, list(TEXT)).astype(np.int32)
HALF = jnp.bfloat16
PROMPTS = ("The ", 'The "while" statement ', "If an exception is raised, ")


# --- the model -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer: attention over the characters before, then a perceptron, each added to its input."""

    heads: int
    decode: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """Map `x`, the carry of the scan, to the next carry; there is nothing to stack."""
        width = x.shape[-1]
        attend = nn.MultiHeadAttention(
            self.heads,
            dtype=HALF,
            use_bias=False,
            is_causal=True,
            rotary=nn.rotary_embedding,
            decode=self.decode,
            ragged_cache=True,
        )
        x = x + attend(nn.RMSNorm(dtype=HALF)(x))
        y = nn.gelu(nn.Dense(4 * width, dtype=HALF)(nn.RMSNorm(dtype=HALF)(x)))
        return x + nn.Dense(width, dtype=HALF)(y), None


class GPT(nn.Module):
    """A decoder-only transformer, computed in bfloat16, with parameters and logits in float32."""

    layers: int
    width: int
    heads: int
    decode: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Map `tokens`, `(batch, length)`, to logits for the character after each token."""
        words = nn.Embed(len(ALPHABET), self.width, dtype=HALF, name="words")
        axes = {"params": 0, "cache": nn.InPlace(0)}  # a new token is written into the cache, which is not copied
        blocks = nn.scan(nn.remat(Block), length=self.layers, variable_axes=axes, split_rngs={"params": True})
        x, _ = blocks(self.heads, self.decode, name="blocks")(words(tokens))
        return nn.Dense(len(ALPHABET), name="head")(nn.RMSNorm(name="norm")(x))


# --- training --------------------------------------------------------------------------------------------------------


def batch_at(position: int, args: argparse.Namespace) -> np.ndarray:
    """Return the batch at a position in the data: windows of the text, each once per epoch, shuffled anew each time."""
    size = args.length + 1
    windows = len(TOKENS) * 9 // 10 // size  # the last tenth is the test text
    epoch, number = divmod(position, windows // args.batch_size)
    order = np.random.default_rng([args.seed, epoch]).permutation(windows)
    starts = order[number * args.batch_size : (number + 1) * args.batch_size] * size
    return TOKENS[starts[:, None] + np.arange(size)]


def make_step(model: GPT, parts: int) -> Any:
    """Return the compiled training step, `(state, batch) -> (state, loss)`, and the compiled loss."""

    def loss_fn(scope: liftcore.Scope, batch: jax.Array) -> jax.Array:
        logits = model.clone(parent=scope)(batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    gradients = accumulate_gradients(loss_fn, parts)

    def step(state: TrainState, batch: jax.Array) -> tuple[TrainState, jax.Array]:
        (loss, grads), state = state.run(gradients, batch)
        return state.apply_gradients(grads=grads["params"]), loss

    return jax.jit(step, donate_argnums=0), jax.jit(liftcore.apply(loss_fn))


def start(model: GPT, args: argparse.Namespace) -> dict[str, Any]:
    """Make the content of a checkpoint: everything that the next steps depend on, and the losses so far."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.learning_rate, min(50, args.steps // 4), args.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    variables = jax.jit(model.init)(jax.random.key(args.seed), jnp.zeros((1, args.length), jnp.int32))
    state = TrainState.create(apply_fn=model.apply, variables=variables, tx=optimizer).replace(step=jnp.array(0))
    return {"state": state, "position": 0, "losses": np.full((args.steps, 2), np.nan, np.float32)}


def train(model: GPT, run: dict[str, Any], checkpoints: Checkpoints, args: argparse.Namespace) -> dict[str, Any]:
    """Train to the last step under a progress bar, and save a checkpoint every `save_every` steps."""
    step, loss_of = make_step(model, args.accumulate)
    starts = np.linspace(len(TOKENS) * 9 // 10, len(TOKENS) - args.length - 1, args.batch_size).astype(int)
    held_out = TOKENS[starts[:, None] + np.arange(args.length + 1)]
    state, position, losses = run["state"], run["position"], np.array(run["losses"])
    with tqdm(total=args.steps, initial=position, desc="compiling …", unit="step") as bar:
        while position < args.steps:
            state, loss = step(state, batch_at(position, args))
            losses[position, 0] = loss
            position += 1
            if position % args.save_every == 0 or position == args.steps:
                losses[position - 1, 1] = loss_of(state.variables, held_out)
                run = {"state": state, "position": position, "losses": losses}
                checkpoints.save(position, run)
                bar.set_postfix(loss=f"{loss:.3f}", test_loss=f"{losses[position - 1, 1]:.3f}")
            bar.set_description("training")
            bar.update()
    return run


# --- the results ---------------------------------------------------------------------------------------------------


def write(model: GPT, variables: Any, args: argparse.Namespace) -> list[str]:
    """Return each prompt with the text that the model adds; all prompts are one batch."""
    found = nn.generate(
        model.clone(decode=True),
        variables,
        [np.searchsorted(ALPHABET, list(prompt)) for prompt in PROMPTS],
        max_new_tokens=args.new_tokens,
        key=jax.random.key(args.seed + 1),
        temperature=0.7,
        top_p=0.95,
    )
    new = [[ALPHABET[token] for token in tokens] for tokens in np.asarray(found.tokens)]
    return [prompt + "".join(text) for prompt, text in zip(PROMPTS, new, strict=True)]


def draw(losses: np.ndarray, path: Path) -> None:
    """Draw the training losses, and the test losses where they were measured."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    steps, measured = np.arange(1, len(losses) + 1), np.isfinite(losses[:, 1])
    axes.plot(steps, losses[:, 0], color="#9fb3c8", label="training, each step")
    axes.plot(steps[measured], losses[measured, 1], color="#d9480f", marker=".", label="testing")
    axes.set(xlabel="step", ylabel="cross entropy per character (nats)", title="A small GPT on Python's documentation")
    axes.legend()
    figure.savefig(path)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default, text in (
        ("steps", 600, "steps of training"),
        ("batch-size", 32, "windows of text in a batch"),
        ("accumulate", 2, "parts of a batch that are computed one after the other"),
        ("length", 128, "characters in a window"),
        ("layers", 4, "layers"),
        ("width", 128, "features of a character"),
        ("heads", 4, "heads of attention"),
        ("save-every", 50, "steps between two checkpoints"),
        ("new-tokens", 100, "characters to write at the end, or 0"),
        ("seed", 0, "seed of parameters, batches and samples"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="maximum learning rate (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out/char_lm", help="folder to write to")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint there")
    return parser.parse_args()


def main() -> None:
    """Train or resume, draw the losses, and generate text."""
    args = arguments()
    model = GPT(args.layers, args.width, args.heads)
    with Checkpoints(args.out) as checkpoints:
        run, latest = start(model, args), checkpoints.latest()
        if latest is not None and not args.resume:
            sys.exit(f"{args.out} contains a run up to step {latest}: pass --resume to continue it, or another --out")
        if latest is not None:
            run = checkpoints.restore(run)
            print(f"continuing from step {latest}")
        run = train(model, run, checkpoints, args)
    draw(run["losses"], args.out / "losses.png")
    print(f"test loss: {run['losses'][-1, 1]:.3f} nats per character; picture: {args.out / 'losses.png'}")
    for text in write(model, run["state"].variables, args) if args.new_tokens else ():
        print(f"\n---\n{text}")


if __name__ == "__main__":
    main()
