"""Train a small transformer whose perceptrons are mixtures of experts, on real handwritten digits.

Run it with `python examples/mixture_of_experts.py`. It takes about half a minute on two CPU cores, and writes a picture
to `examples/out/`, which shows how the tokens of each digit are distributed among the experts.

- `nn.vmap` makes eight experts out of one perceptron. A router sends each token to one of them.
- Each mixture sows a loss that grows when some experts get more tokens than others. The `nn.scan` over the blocks
  stacks what is sown, without being asked to.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import linen_like as nn
from liftcore.training import TrainState, count

EXPERTS, WIDTH, HIDDEN, HEADS, BLOCKS, TOKENS = 8, 32, 64, 4, 2, 16
ROOM = 1.5  # an expert takes at most this many times its equal share of the tokens; the others skip the mixture
EPOCHS, BALANCE, BATCH, LEARNING_RATE, TARGET_ACCURACY = 20, 0.01, 32, 5e-3, 0.93


# --- the model -------------------------------------------------------------------------------------------------------


class Expert(nn.Module):
    """A perceptron with one hidden layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x`, `(..., width)`, to the same shape."""
        return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(HIDDEN)(x)))


# One expert for each element of the leading axis, each with parameters of its own.
Experts = nn.vmap(Expert, variable_axes={"params": 0}, split_rngs={"params": True})


class Mixture(nn.Module):
    """Sends each token to the expert with the highest probability in the router."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map tokens, `(tokens, width)`, to the outputs of their experts, weighted by the router's probabilities."""
        chances = nn.softmax(nn.Dense(EXPERTS, use_bias=False, name="router")(x))
        expert = jnp.argmax(chances, axis=-1)
        chosen = jax.nn.one_hot(expert, EXPERTS, dtype=int)
        self.sow("losses", "balance", EXPERTS * jnp.sum(chosen.mean(axis=0) * chances.mean(axis=0)))
        self.sow("intermediates", "chosen", expert)

        room = int(ROOM * len(x) / EXPERTS)
        place = jnp.sum((jnp.cumsum(chosen, axis=0) - 1) * chosen, axis=-1)  # how many tokens its expert had before
        sent = chosen[:, :, None] * jax.nn.one_hot(place, room)[:, None, :]  # (tokens, experts, room)
        answers = Experts(name="experts")(jnp.einsum("ter,tw->erw", sent, x))
        return jnp.einsum("ter,erw,te->tw", sent, answers, chances)


class Block(nn.Module):
    """Attention and a mixture, each added to its normalized input."""

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """Map `x`, `(batch, tokens, width)`, the carry of the scan, to the next."""
        x += nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x))
        return x + Mixture()(nn.LayerNorm()(x).reshape(-1, WIDTH)).reshape(x.shape), None


class Classifier(nn.Module):
    """A transformer over the sixteen patches of 2 x 2 pixels."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Map images, `(batch, 8, 8)`, to logits, `(batch, 10)`."""
        patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, TOKENS, 4)
        x = nn.Dense(WIDTH)(patches) + self.param("positions", nn.initializers.normal(0.1), (TOKENS, WIDTH))
        blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=BLOCKS)
        x, _ = blocks(name="blocks")(x)
        return nn.Dense(10)(nn.LayerNorm()(x).mean(axis=1))


# --- the training ----------------------------------------------------------------------------------------------------


@jax.jit
def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array, jax.Array]:
    """Take one step; return the new state, the loss, and the balance loss, which is 1 for an even load."""

    def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits, sown = state.apply_fn({"params": params}, images, mutable=["losses"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        balance = jnp.mean(jnp.stack(jax.tree.leaves(sown["losses"])))
        return loss + BALANCE * balance, (loss, balance)

    (_, (loss, balance)), grads = state.value_and_grad(loss_fn, has_aux=True)()
    return state.apply_gradients(grads=grads), loss, balance


@jax.jit
def predict(state: TrainState, images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the classes, and the expert of each token in each block, `(blocks, batch, tokens)`."""
    logits, sown = state.apply_fn({"params": state.params}, images, mutable=["intermediates"])
    (chosen,) = jax.tree.leaves(sown)
    return jnp.argmax(logits, axis=-1), chosen.reshape(BLOCKS, -1, TOKENS)


def train(state: TrainState, images: np.ndarray, labels: np.ndarray, epochs: int, seed: int) -> TrainState:
    """Train under a progress bar."""
    rng = np.random.default_rng(seed)
    with tqdm(total=epochs * (len(images) // BATCH), desc="compiling …", unit="step") as bar:
        for _ in range(epochs):
            order = rng.permutation(len(images))[: len(images) // BATCH * BATCH]
            for rows in order.reshape(-1, BATCH):
                state, loss, balance = train_step(state, images[rows], labels[rows])
                bar.set_description("training", refresh=False)
                bar.update()
            bar.set_postfix(loss=f"{loss:.3f}", balance=f"{balance:.3f}")
    return state


# --- the picture -----------------------------------------------------------------------------------------------------


def draw(chosen: np.ndarray, labels: np.ndarray, path: Path) -> None:
    """Draw, for each block, the share of each digit's tokens that each expert gets."""
    figure = Figure(figsize=(5.5 * BLOCKS, 4), layout="constrained")
    for number, (axes, experts) in enumerate(zip(figure.subplots(1, BLOCKS, squeeze=False)[0], chosen, strict=True)):
        shares = np.stack([np.bincount(experts[labels == digit].ravel(), minlength=EXPERTS) for digit in range(10)])
        shares = shares / shares.sum(axis=1, keepdims=True)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        load = np.bincount(experts.ravel(), minlength=EXPERTS) / experts.size
        axes.set_xticks(range(EXPERTS), [f"{number}\n{share:.0%}" for number, share in enumerate(load)])
        axes.set_yticks(range(10))
        axes.set(title=f"block {number}", xlabel="expert, and its share of all tokens", ylabel="digit")
    figure.colorbar(image, ax=figure.axes, format="{x:.0%}", label="share of the digit's tokens")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the training set (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and batches (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="output folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    images, target = np.float32(digits.images / 16), np.int32(digits.target)
    images, test_images, labels, test_labels = train_test_split(images, target, stratify=target, random_state=0)

    model = Classifier()
    params = jax.jit(model.init)(jax.random.key(args.seed), images[:1])["params"]
    tx = optax.adamw(optax.cosine_decay_schedule(LEARNING_RATE, args.epochs * (len(images) // BATCH)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    print(f"{count({'params': params}):,} parameters, most of them in {BLOCKS} x {EXPERTS} experts")
    state = train(state, images, labels, args.epochs, args.seed)

    classes, chosen = jax.device_get(predict(state, test_images))
    accuracy = np.mean(classes == test_labels)
    load = [np.bincount(block.ravel(), minlength=EXPERTS) / block.size for block in chosen]
    print(
        f"test accuracy: {accuracy:.2%}; an expert gets {np.min(load):.1%} to {np.max(load):.1%} of its block's tokens"
    )
    draw(chosen, test_labels, args.out / "mixture_of_experts.png")
    print(f"picture: {args.out / 'mixture_of_experts.png'}")
    if args.epochs >= EPOCHS and accuracy < TARGET_ACCURACY:
        sys.exit(f"mixture_of_experts.py: the test accuracy is below {TARGET_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
