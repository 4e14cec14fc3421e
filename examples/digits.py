"""Train an ensemble of five small convolutional networks on real handwritten digits.

Run it with `python examples/digits.py`. It takes about half a minute on two CPU cores, and leaves a checkpoint and a
picture in `examples/out/`. Three lifted transformations carry the model:

- `nn.remat` recomputes a residual block in the backward pass instead of storing its activations,
- `nn.scan` runs the blocks one after the other, as one block over parameters stacked on a leading axis,
- `nn.vmap` makes five networks out of one, each with its own parameters, batch statistics and dropout.

Inside them a module keeps its state as it always does; `variable_axes` and `split_rngs` say what each transformation
does with that state.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

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
from liftcore.training import TrainState

MEMBERS, CLASSES = 5, 10
FEATURES, DEPTH, DROPOUT_RATE = 16, 3, 0.3
EPOCHS, BATCH_SIZE, LEARNING_RATE = 15, 32, 1e-2
TARGET_ACCURACY = 0.97

Variables = dict[str, Any]


# --- the model -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block: convolution, normalisation, dropout, convolution, and the input added back."""

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


# Every member sees the same images (`in_axes=None`); its variables lie on a leading axis of size 5.
Ensemble = nn.vmap(
    DigitNet,
    in_axes=None,
    axis_size=MEMBERS,
    variable_axes={"params": 0, "batch_stats": 0},
    split_rngs={"params": True, "dropout": True},
)


@jax.jit
def initialise(key: jax.Array) -> Variables:
    """Make the variables of a fresh ensemble."""
    return Ensemble().init(key, jnp.zeros((1, 8, 8, 1)))


@jax.jit
def forward(variables: Variables, images: np.ndarray) -> jax.Array:
    """Return the probabilities that each member gives, `(members, batch, classes)`."""
    return nn.softmax(Ensemble().apply(variables, images))


def predict(variables: Variables, images: np.ndarray) -> np.ndarray:
    """Return `forward` as a NumPy array."""
    return np.asarray(forward(variables, images))


# --- the data --------------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Images, `(n, 8, 8, 1)` with values from 0 to 1, and their labels, `(n,)`."""

    images: np.ndarray
    labels: np.ndarray


def load_data() -> tuple[Data, Data]:
    """Load the 1,797 digits of scikit-learn; a quarter is kept for the test."""
    digits = load_digits()
    images = np.float32(digits.images[..., None] / 16)
    split = train_test_split(images, digits.target, test_size=0.25, stratify=digits.target, random_state=0)
    train_images, test_images, train_labels, test_labels = split
    return Data(train_images, train_labels), Data(test_images, test_labels)


def batches(data: Data, rng: np.random.Generator) -> Iterator[Data]:
    """Yield the full batches of one epoch, in random order."""
    order = rng.permutation(len(data.labels))
    for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        yield Data(data.images[rows], data.labels[rows])


# --- the training ----------------------------------------------------------------------------------------------------


class State(TrainState):
    """All that a training step changes: parameters, the state of the optimiser, and batch statistics."""

    batch_stats: Variables

    @property
    def variables(self) -> Variables:
        """Return what the ensemble is applied to."""
        return {"params": self.params, "batch_stats": self.batch_stats}


@jax.jit
def train_step(state: State, batch: Data, key: jax.Array) -> tuple[State, jax.Array]:
    """Take one step for all members at once; return the new state, and the loss that each member had before it."""

    def total_loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, Variables]]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, written = state.apply_fn(variables, batch.images, rngs={"dropout": key}, mutable=["batch_stats"])
        labels = jnp.broadcast_to(batch.labels, logits.shape[:-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(axis=-1)
        return losses.sum(), (losses, written)

    (_, (losses, written)), grads = state.value_and_grad(total_loss, has_aux=True)()
    return state.apply_gradients(grads=grads, **written), losses


def train(variables: Variables, train_set: Data, test_set: Data, epochs: int, seed: int) -> tuple[Variables, History]:
    """Train the ensemble under a progress bar; return its variables and the course of its losses."""
    steps = epochs * (len(train_set.labels) // BATCH_SIZE)
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps))
    state = State.create(apply_fn=Ensemble(train=True).apply, tx=optimizer, **variables)
    rng, dropout_key = np.random.default_rng(seed), jax.random.key(seed + 1)
    history = History()
    with tqdm(total=steps, desc="training", unit="step") as bar:
        bar.set_postfix_str("compiling …")
        for _ in range(epochs):
            losses = []
            for batch in batches(train_set, rng):
                state, loss = train_step(state, batch, jax.random.fold_in(dropout_key, bar.n))
                losses.append(loss)
                bar.update()
            test_loss = ensemble_loss(predict(state.variables, test_set.images), test_set.labels)
            history.add(np.mean(losses, axis=0), test_loss)
            bar.set_postfix(loss=f"{np.mean(losses):.3f}", test_loss=f"{test_loss:.3f}")
    return state.variables, history


# --- the measures ----------------------------------------------------------------------------------------------------


def ensemble_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the cross entropy of the ensemble, whose probabilities are the mean of its members'."""
    chosen = probabilities.mean(axis=0)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(chosen, 1e-12)).mean())


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images whose most probable class is the right one, over all that leads the last two axes."""
    return float(np.mean(np.argmax(probabilities, axis=-1) == labels))


def closest_kernels(params: Any) -> float:
    """Return the smallest distance between the same kernel in two members."""
    leaves = jax.tree.leaves_with_path(params)
    kernels = [np.reshape(leaf, (MEMBERS, -1)) for path, leaf in leaves if path[-1].key == "kernel"]
    return min(float(np.linalg.norm(one - other)) for kernel in kernels for one, other in combinations(kernel, 2))


def check(condition: bool, problem: str) -> None:
    """Stop with a message and a failing exit status unless the condition holds."""
    if not condition:
        sys.exit(f"digits.py: {problem}")


# --- the run ---------------------------------------------------------------------------------------------------------


def start(seed: int) -> Variables:
    """Make a fresh ensemble, and see to it that its members are five and not one."""
    variables = initialise(jax.random.key(seed))
    distance = closest_kernels(variables["params"])
    check(distance > 0, 'two members start from the same kernel; is "params" missing from `split_rngs`?')
    size = sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) // MEMBERS
    print(f"{MEMBERS} members of {size:,} parameters; no two start from kernels less than {distance:.2f} apart")
    return variables


def report(probabilities: np.ndarray, labels: np.ndarray, epochs: int) -> float:
    """Print how accurate the members and the ensemble are, and check it; return the accuracy of the ensemble."""
    mean_member, ensemble = accuracy(probabilities, labels), accuracy(probabilities.mean(axis=0), labels)
    print(f"test accuracy: {ensemble:.2%} (mean member: {mean_member:.2%})")
    check(ensemble >= mean_member, "the ensemble is worse than its mean member")
    check(ensemble >= TARGET_ACCURACY or epochs < EPOCHS, f"the test accuracy is below {TARGET_ACCURACY:.0%}")
    return ensemble


def save_and_restore(variables: Variables, path: Path, seed: int) -> Variables:
    """Write a checkpoint, and read it back into an ensemble that was made from another key."""
    save_file(path, variables)
    restored: Variables = load_file(path, initialise(jax.random.key(seed + 2)))
    return restored


def main() -> None:
    """Train, measure, save, restore, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the training set (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters, batches and dropout (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder for what is written")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs must be 1 or more")
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, picture = args.out / "digits.msgpack", args.out / "digits.png"

    train_set, test_set = load_data()
    variables, history = train(start(args.seed), train_set, test_set, args.epochs, args.seed)
    probabilities = predict(variables, test_set.images)
    before = report(probabilities, test_set.labels, args.epochs)

    restored = save_and_restore(variables, checkpoint, args.seed)
    after = accuracy(predict(restored, test_set.images).mean(axis=0), test_set.labels)
    check(after == before, f"the restored ensemble has test accuracy {after:.2%}, not {before:.2%}")
    print(f"checkpoint: {checkpoint} ({checkpoint.stat().st_size:,} bytes), read back: {after:.2%}")

    draw(history, probabilities, test_set.images, test_set.labels, picture)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main()
