"""Train an object on handwritten digits: a script to copy for a model and data of your own.

It does what `template.py` does, with objects of `nnx_like`. docs/template.md explains both.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import nnx_like as nnx
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


class Network(nnx.Module):
    """A network that computes in bfloat16; its parameters and its logits are float32."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 32, (3, 3), use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.norm1 = nnx.BatchNorm(32, momentum=0.9, dtype=jnp.bfloat16, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.norm2 = nnx.BatchNorm(64, momentum=0.9, dtype=jnp.bfloat16, rngs=rngs)
        self.dropout, self.head = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images, `(batch, 8, 8, 1)`, to logits, `(batch, 10)`."""
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = nnx.max_pool(nnx.relu(norm(conv(x))), (2, 2), strides=(2, 2))
        return self.head(self.dropout(x.reshape(x.shape[0], -1)))


class Run(nnx.Module):
    """All that a training step updates."""

    def __init__(self, seed: int, steps: int) -> None:
        self.model = Network(nnx.Rngs(seed))
        schedule = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, steps // 10, steps)
        tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
        self.optimizer = nnx.Optimizer(self.model, tx, wrt=nnx.Param)
        self.ema = nnx.EMA(self.model, 0.98, only=(nnx.Param, nnx.BatchStat))
        accuracy, loss = nnx.metrics.Accuracy(), nnx.metrics.Average("loss")
        self.metrics = nnx.MultiMetric(train_accuracy=accuracy, train_loss=loss)

    def averaged(self) -> Network:
        """Return the network with its averaged variables, for evaluation."""
        network = self.ema.apply_to(self.model)
        network.eval()
        return network


@nnx.jit(donate_argnames="run")
def train_step(run: Run, images: jax.Array, labels: jax.Array) -> None:
    """Take one step, in place."""

    def loss_fn(model: Network) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits = model(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), {"logits": logits, "loss": losses}

    grads, found = nnx.grad(loss_fn, has_aux=True)(run.model)
    run.optimizer.update(run.model, grads)
    run.ema.update(run.model)
    run.metrics.update(labels=labels, **found)


def measure(run: Run, images: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Return the accuracy and the loss of each example, by the averaged variables."""
    logits = run.averaged()(images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"accuracy": logits.argmax(-1) == labels, "loss": losses}


def main() -> None:
    """Train, or resume; measure the best state on the test set, and export it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="training steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (%(default)s)")
    parser.add_argument("--out", type=Path, default="examples/out/objects", help="folder")
    parser.add_argument("--resume", action="store_true", help="continue the run in that folder")
    args = parser.parse_args()
    batches, valid, test = load_data(args.seed)
    run, stopping = Run(args.seed, args.steps), training.EarlyStopping(patience=3)
    print(nnx.tabulate(run.model, jnp.zeros((1, 8, 8, 1))))
    with Checkpoints(args.out, keep=1, best=1) as folder, SummaryWriter(str(args.out)) as log:
        if folder.latest() is not None:
            if not args.resume:
                sys.exit(f"{args.out} contains a run: pass --resume to continue it")
            state, stopping = folder.restore((nnx.state(run), stopping))
            nnx.update(run, state)
        start = int(run.optimizer.step)
        data = batches[start : args.steps].to_iter_dataset(READ)
        bar = tqdm(data, "compile and train", args.steps, initial=start)
        for step, batch in enumerate(bar, start + 1):
            if stopping.should_stop:
                break
            train_step(run, *batch)
            if step % INTERVAL == 0 or step == args.steps:
                found = training.evaluate(measure, run, valid, jit=nnx.jit)
                stopping = stopping.update(found["loss"])
                for name, value in {**run.metrics.compute(), **found}.items():
                    log.add_scalar(name, float(value), step)
                run.metrics.reset()
                folder.save(step, (nnx.state(run), stopping), metrics=found)
                bar.set_postfix({name: f"{value:.3f}" for name, value in found.items()})
        state, stopping = folder.restore((nnx.state(run), stopping), folder.best_step())
        nnx.update(run, state)
    network = run.averaged()
    images = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 8, 8, 1"), jnp.float32)
    program = jax.export.export(jax.jit(network), platforms=("cpu", "cuda"))(images)
    (args.out / "network.jax").write_bytes(program.serialize())
    found = training.evaluate(measure, run, test, jit=nnx.jit)
    print(f"test accuracy: {found['accuracy']:.2%}, after {int(run.optimizer.step)} steps")


if __name__ == "__main__":
    main()
