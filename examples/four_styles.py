"""Train a model whose parts are written in four styles on real handwritten digits.

Run it with `python examples/four_styles.py`. It takes about 20 seconds on two CPU cores, prints which variable belongs
to which style, and writes one checkpoint of all variables to `examples/out/`. The model has

- a stem, a function of a scope (`liftcore`),
- blocks, Linen-style modules (`linen_like`), each with a residual part that is an object with reference semantics
  (`nnx_like`), all under one `nn.scan(nn.remat(…))`,
- a head, a pytree (`equinox_like`).

`in_bfloat16` is a lifted transformation that this file defines, in ten lines. All four styles use it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
from liftcore.checkpoints import load_file, save_file
from liftcore.training import TrainState

WIDTH, BLOCKS, EPOCHS, BATCH, LEARNING_RATE, TARGET_ACCURACY = 64, 4, 15, 64, 3e-3, 0.96


# --- a lift of our own -----------------------------------------------------------------------------------------------


def in_bfloat16(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Lift a function of a scope: inside, it computes in bfloat16; outside, its parameters stay in float32."""

    def transform(
        scope_fn: Callable[..., Any], repack_fn: Callable[..., Any], variables: Any, rngs: Any, x: Any
    ) -> tuple[Any, Any]:
        params, *others = variables
        low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        scope = scope_fn([low, *others], rngs)
        return fn(scope, x.astype(jnp.bfloat16)).astype(x.dtype), repack_fn(scope)

    return liftcore.pack(transform, ["params", True], ["params", True], [True], name="in_bfloat16")


# --- the model -------------------------------------------------------------------------------------------------------


def stem(scope: liftcore.Scope, images: jax.Array) -> jax.Array:
    """Map images, `(batch, 64)`, to features: a function of a scope."""
    scale = scope.param("scale", nn.initializers.ones, (images.shape[-1],))
    return liftcore.nn.dense(scope.push("dense"), images * scale, WIDTH)


class Residual(nnx.Module):
    """A perceptron and a batch normalization, added to the input: an object."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """Map features to features; statistics change in place while training."""
        return x + jax.nn.relu(self.linear(self.norm(x, use_running_average=not train)))


class Block(nn.Module):
    """A normalization, a dense layer and a residual part: a Linen-style module that holds an object."""

    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """Map features, the carry of the scan, to the next carry."""
        x = nn.lift_with(in_bfloat16, nn.Dense)(WIDTH, name="dense")(nn.LayerNorm(name="norm")(x))
        residual = nnx.object_in_scope(Residual)
        return in_bfloat16(lambda scope, x: residual(scope, x, self.train))(self.scope.push("residual"), x), None


class Head(eqx.Module):
    """A linear layer: a pytree."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, key: jax.Array) -> None:
        self.weight = jax.random.normal(key, (10, WIDTH)) / WIDTH**0.5
        self.bias = jnp.zeros(10)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map features, `(batch, WIDTH)`, to logits."""
        return x @ self.weight.T + self.bias


class Model(nn.Module):
    """The stem, the blocks and the head."""

    train: bool = False

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Map images, `(batch, 64)`, to logits, `(batch, 10)`."""
        x = in_bfloat16(stem)(self.scope.push("stem"), images)
        axes = {"params": 0, "batch_stats": 0}
        blocks = nn.scan(nn.remat(Block), variable_axes=axes, split_rngs={"params": True}, length=BLOCKS)
        x, _ = blocks(self.train, name="blocks")(x)
        return in_bfloat16(lambda scope, x: eqx.adopt(scope, Head)(x))(self.scope.push("head"), x)


# --- the training ----------------------------------------------------------------------------------------------------


def loss_fn(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, TrainState]:
    """Return the loss, and the state with the running statistics of the objects."""
    logits, state = state.apply(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state


@jax.jit
def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step; return the new state and the loss."""
    return state.minimize(loss_fn, images, labels)


@jax.jit
def predict(state: TrainState, images: jax.Array) -> jax.Array:
    """Return the most probable classes."""
    return jnp.argmax(Model().apply(state.variables, images), axis=-1)


def new_state(seed: int, steps: int) -> TrainState:
    """Make the variables of a model, and the state of the optimizer."""
    variables = jax.jit(Model().init)(jax.random.key(seed), jnp.zeros((1, 64)))
    tx = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps))
    return TrainState.create(apply_fn=Model(train=True).apply, variables=variables, tx=tx)


STYLES = {"stem": "liftcore", "blocks/residual": "nnx_like", "blocks": "linen_like", "head": "equinox_like"}


def show(variables: Any) -> None:
    """Print the variables, each with the style that it belongs to."""
    for path, leaf in jax.tree.leaves_with_path(variables):
        collection, *names = [key.key for key in path]
        name = "/".join(names)
        style = next(style for start, style in STYLES.items() if name.startswith(start))
        print(f"  {collection:<12} {name:<30} {leaf.shape!s:<12} {leaf.dtype!s:<8} {style}")


def main() -> None:
    """Train, measure, save, restore."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the training set (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and batches (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="output folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    data, target = np.float32(digits.data / 16), np.int32(digits.target)
    images, test_images, labels, test_labels = train_test_split(data, target, stratify=target, random_state=0)
    order, steps = np.random.default_rng(args.seed), args.epochs * (len(images) // BATCH)
    state = new_state(args.seed, steps)
    with tqdm(range(steps), desc="training", unit="step") as bar:
        bar.set_postfix_str("compiling …")
        for _ in bar:
            rows = order.choice(len(images), BATCH, replace=False)
            state, loss = train_step(state, images[rows], labels[rows])
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

    show(state.variables)
    accuracy = np.mean(predict(state, test_images) == test_labels)
    path = args.out / "four_styles.ckpt"
    save_file(path, state)
    restored = load_file(path, new_state(args.seed + 1, steps))
    if not np.array_equal(predict(restored, test_images), predict(state, test_images)):
        sys.exit("four_styles.py: the restored model gives different predictions")
    print(f"test accuracy: {accuracy:.2%}; one checkpoint of {path.stat().st_size:,} bytes, read back: the same")
    if args.epochs >= EPOCHS and accuracy < TARGET_ACCURACY:
        sys.exit(f"four_styles.py: the test accuracy is below {TARGET_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
