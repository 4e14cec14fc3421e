"""Train a network on handwritten digits: a script to copy for a model and data of your own.

It takes half a minute on two CPU cores. docs/template.md explains it part by part.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import linen_like as nn
from liftcore import training
from liftcore.checkpoints import Checkpoints

try:
    import flatbuffers  # noqa: F401 - `serialize` needs it
    import grain
    import optax
    from sklearn.datasets import load_digits
    from tensorboardX import SummaryWriter
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"{error}: pip install flatbuffers grain optax scikit-learn tensorboardX tqdm")

BATCH, LEARNING_RATE, INTERVAL, READ = 64, 3e-3, 60, grain.ReadOptions(2, 4)


def load_data(seed: int) -> list:
    """Return the training batch of each step, and the batches for validation and the test."""
    digits = load_digits()
    examples = list(zip(digits.images[..., None].astype("f4") / 16, digits.target, strict=True))
    np.random.default_rng(0).shuffle(examples)
    parts = examples[:1200], examples[1200:1500], examples[1500:]
    train, valid, test = map(grain.MapDataset.source, parts)
    train = train.seed(seed).shuffle().random_map(shifted).repeat().batch(BATCH)
    return [train, *(part.batch(BATCH).to_iter_dataset(READ) for part in (valid, test))]


def shifted(example: tuple, rng: np.random.Generator) -> tuple:
    """Augment the data: move an image by up to one pixel in each direction."""
    image, label = example
    row, column = rng.integers(0, 3, size=2)
    return np.pad(image, ((1, 1), (1, 1), (0, 0)))[row : row + 8, column : column + 8], label


class Network(nn.Module):
    """A network that computes in bfloat16; its parameters and its logits are float32."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Map images, `(batch, 8, 8, 1)`, to logits, `(batch, 10)`."""
        for features in (32, 64):
            x = nn.Conv(features, (3, 3), use_bias=False, dtype=jnp.bfloat16)(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=jnp.bfloat16)(x)
            x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = nn.Dropout(0.3, deterministic=not train)(x.reshape(x.shape[0], -1))
        return nn.Dense(10)(x)


class State(training.TrainState):
    """The state of a run: the variables and the optimizer, and what else a step updates."""

    ema: training.ExponentialMovingAverage
    metrics: training.MultiMetric


def new_state(seed: int, steps: int) -> State:
    """Return the state before the first step."""
    model, key, images = Network(), jax.random.key(seed), jnp.zeros((1, 8, 8, 1))
    variables = jax.jit(model.init)(key, images)
    schedule = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, steps // 10, steps)
    metrics = {"train_accuracy": training.Accuracy(), "train_loss": training.Average("loss")}
    return State.create(
        apply_fn=model.apply,
        variables=variables,
        tx=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)),
        rngs={"dropout": jax.random.key(seed + 1)},
        ema=training.ExponentialMovingAverage.create(variables, 0.98, only=True, debias=True),
        metrics=training.MultiMetric(metrics),
    )


def loss_fn(state: State, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, State]:
    """Return the loss of a batch, and the state with new batch statistics and metrics."""
    logits, state = state.apply(images, train=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    metrics = state.metrics.update(logits=logits, labels=labels, loss=losses)
    return losses.mean(), state.replace(metrics=metrics)


@partial(jax.jit, donate_argnums=0)
def train_step(state: State, images: jax.Array, labels: jax.Array) -> State:
    """Take one step."""
    state, _ = state.minimize(loss_fn, images, labels)
    return state.replace(ema=state.ema.update(state.variables))


def measure(state: State, images: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Return the accuracy and the loss of each example, by the averaged variables."""
    logits = state.apply_fn(state.ema.apply_to(state.variables), images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"accuracy": logits.argmax(-1) == labels, "loss": losses}


def main() -> None:
    """Train, or resume; measure the best state on the test set, and export it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="training steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (%(default)s)")
    parser.add_argument("--out", type=Path, default="examples/out/template", help="folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in that folder")
    args = parser.parse_args()
    print(Network().tabulate(jax.random.key(args.seed), jnp.zeros((1, 8, 8, 1))))
    batches, valid, test = load_data(args.seed)
    state, stopping = new_state(args.seed, args.steps), training.EarlyStopping(patience=3)
    with Checkpoints(args.out, keep=1, best=1) as folder, SummaryWriter(str(args.out)) as log:
        if folder.latest() is not None:
            if not args.resume:
                sys.exit(f"{args.out} contains a run: pass --resume to continue it")
            state, stopping = folder.restore((state, stopping))
        start = int(state.step)
        data = batches[start : args.steps].to_iter_dataset(READ)
        bar = tqdm(data, "compile and train", args.steps, initial=start)
        for step, batch in enumerate(bar, start + 1):
            if stopping.should_stop:
                break
            state = train_step(state, *batch)
            if step % INTERVAL == 0 or step == args.steps:
                found = training.evaluate(measure, state, valid)
                stopping = stopping.update(found["loss"])
                for name, value in {**state.metrics.compute(), **found}.items():
                    log.add_scalar(name, float(value), step)
                state = state.replace(metrics=state.metrics.reset())
                folder.save(step, (state, stopping), metrics=found)
                bar.set_postfix({name: f"{value:.3f}" for name, value in found.items()})
        state, stopping = folder.restore((state, stopping), folder.best_step())
    network = partial(state.apply_fn, state.ema.apply_to(state.variables))
    images = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 8, 8, 1"), jnp.float32)
    program = jax.export.export(jax.jit(network), platforms=("cpu", "cuda"))(images)
    (args.out / "network.jax").write_bytes(program.serialize())
    found = training.evaluate(measure, state, test)
    print(f"test accuracy: {found['accuracy']:.2%}, after {state.step} steps")


if __name__ == "__main__":
    main()
