"""Train an ensemble of five small convolutional networks on real handwritten digits.

Run it with `python examples/digits.py`. It takes about a minute on two CPU cores, and writes a checkpoint and a
picture to `examples/out/`. Three lifted transformations build the model:

- `nn.remat` recomputes a residual block in the backward pass instead of storing its activations,
- `nn.scan` runs the blocks one after the other, as one block over parameters stacked on a leading axis,
- `nn.vmap` makes five networks out of one, each with its own parameters, batch statistics and dropout masks.

The modules inside keep their state as usual; `variable_axes` and `split_rngs` say what each transformation does with
it.
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
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import linen_like as nn
from digits_picture import History, draw
from liftcore.checkpoints import load_file, save_file
from liftcore.training import TrainState, count

MEMBERS, CLASSES = 5, 10
FEATURES, DEPTH, DROPOUT_RATE = 16, 3, 0.3
EPOCHS, BATCH_SIZE, LEARNING_RATE = 15, 32, 1e-2
TARGET_ACCURACY = 0.97

Variables = dict[str, Any]
Data = tuple[np.ndarray, np.ndarray]  # images, `(n, 8, 8, 1)` with values from 0 to 1, and their labels, `(n,)`


# --- the model -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block: convolution, normalization, dropout, convolution, and the input added back."""

    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """Map `x`, the carry of the scan, to the next carry; there is nothing to stack."""
        y = nn.Conv(FEATURES, (3, 3), use_bias=False)(x)
        y = nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(y)
        y = nn.Dropout(DROPOUT_RATE, deterministic=not self.train)(nn.relu(y))
        return x + nn.Conv(FEATURES, (3, 3))(y), None


class DigitNet(nn.Module):
    """One network: a stem that halves the image, `DEPTH` residual blocks, and a linear head on the mean pixel."""

    train: bool = False

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `images`, `(batch, 8, 8, 1)`, to logits, `(batch, 10)`."""
        blocks = nn.scan(
            nn.remat(Block),
            length=DEPTH,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True, "dropout": True},
        )
        x = nn.relu(nn.Conv(FEATURES, (3, 3), strides=2, name="stem")(images))
        x, _ = blocks(self.train, name="blocks")(x)
        return nn.Dense(CLASSES, name="head")(nn.relu(x).mean(axis=(1, 2)))


# All members see the same images (`in_axes=None`). Their variables are stacked on a leading axis of size 5.
Ensemble = nn.vmap(
    DigitNet,
    in_axes=None,
    axis_size=MEMBERS,
    variable_axes={"params": 0, "batch_stats": 0},
    split_rngs={"params": True, "dropout": True},
)


@jax.jit
def initialize(key: jax.Array) -> Variables:
    """Make the variables of a new ensemble."""
    return Ensemble().init(key, jnp.zeros((1, 8, 8, 1)))


@jax.jit
def predict(variables: Variables, images: np.ndarray) -> jax.Array:
    """Return the class probabilities from each member, `(members, batch, classes)`."""
    return nn.softmax(Ensemble().apply(variables, images))


# --- the training ----------------------------------------------------------------------------------------------------


def loss_fn(
    state: TrainState, images: np.ndarray, labels: np.ndarray
) -> tuple[jax.Array, tuple[TrainState, jax.Array]]:
    """Return the sum of the losses of all members, the state with new batch statistics, and each member's loss."""
    logits, state = state.apply(images)
    targets = jnp.broadcast_to(labels, logits.shape[:-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean(axis=-1)
    return losses.sum(), (state, losses)


@jax.jit
def train_step(state: TrainState, images: np.ndarray, labels: np.ndarray) -> tuple[TrainState, jax.Array]:
    """Take one step for all members at once; return the new state, and the loss of each member before the step."""
    state, (_, losses) = state.minimize(loss_fn, images, labels, has_aux=True)
    return state, losses


def train(variables: Variables, train_set: Data, test_set: Data, epochs: int, seed: int) -> tuple[Variables, History]:
    """Train the ensemble under a progress bar; return its variables and its losses in each epoch."""
    images, labels = train_set
    per_epoch = len(labels) // BATCH_SIZE
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, epochs * per_epoch))
    rng, rngs, history = np.random.default_rng(seed), {"dropout": jax.random.key(seed + 1)}, History()
    state = TrainState.create(apply_fn=Ensemble(train=True).apply, variables=variables, tx=optimizer, rngs=rngs)
    with tqdm(total=epochs * per_epoch, desc="compiling …", unit="step") as bar:
        for _ in range(epochs):
            losses = []
            for rows in rng.permutation(len(labels))[: per_epoch * BATCH_SIZE].reshape(per_epoch, BATCH_SIZE):
                state, loss = train_step(state, images[rows], labels[rows])
                losses.append(loss)
                bar.set_description("training", refresh=False)
                bar.update()
            chances = np.asarray(predict(state.variables, test_set[0])).mean(axis=0)
            test_loss = -np.log(np.maximum(chances[np.arange(len(chances)), test_set[1]], 1e-12)).mean()
            history.add(np.mean(losses, axis=0), float(test_loss))
            bar.set_postfix(loss=f"{np.mean(losses):.3f}", test_loss=f"{test_loss:.3f}")
    return state.variables, history


# --- the run ---------------------------------------------------------------------------------------------------------


def load_data() -> tuple[Data, Data]:
    """Load the 1,797 digits of scikit-learn, and set a quarter of them aside for the test."""
    digits = load_digits()
    images = np.float32(digits.images[..., None] / 16)
    split = train_test_split(images, digits.target, test_size=0.25, stratify=digits.target, random_state=0)
    train_images, test_images, train_labels, test_labels = split
    return (train_images, train_labels), (test_images, test_labels)


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images whose most probable class is right; leading axes of members are averaged over."""
    return float(np.mean(np.argmax(probabilities, axis=-1) == labels))


def check(condition: bool, problem: str) -> None:
    """Stop with a message and a failing exit status unless the condition holds."""
    if not condition:
        sys.exit(f"digits.py: {problem}")


def main() -> None:
    """Train, measure, save, restore, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the training set (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters, batches and dropout (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="output folder")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs must be 1 or more")
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, picture = args.out / "digits.msgpack", args.out / "digits.png"

    train_set, (images, labels) = load_data()
    variables = initialize(jax.random.key(args.seed))
    kernels = [leaf for path, leaf in jax.tree.leaves_with_path(variables) if path[-1].key == "kernel"]
    different = all(len(np.unique(kernel, axis=0)) == MEMBERS for kernel in kernels)
    check(different, 'two members start from the same kernel; is "params" missing from `split_rngs`?')
    print(
        f"{MEMBERS} members of {count(variables, 'params') // MEMBERS:,} parameters, each with its own initial values"
    )

    variables, history = train(variables, train_set, (images, labels), args.epochs, args.seed)
    probabilities = np.asarray(predict(variables, images))
    mean_member, ensemble = accuracy(probabilities, labels), accuracy(probabilities.mean(axis=0), labels)
    print(f"test accuracy: {ensemble:.2%} (mean member: {mean_member:.2%})")
    check(ensemble >= mean_member, "the ensemble is worse than its mean member")
    check(ensemble >= TARGET_ACCURACY or args.epochs < EPOCHS, f"the test accuracy is below {TARGET_ACCURACY:.0%}")

    save_file(checkpoint, variables)
    restored = load_file(checkpoint, initialize(jax.random.key(args.seed + 2)))
    check(np.array_equal(predict(restored, images), probabilities), "the restored ensemble predicts something else")
    print(f"checkpoint: {checkpoint} ({checkpoint.stat().st_size:,} bytes), read back: the same predictions")

    draw(history, probabilities, images, labels, picture)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main()
