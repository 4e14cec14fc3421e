"""Learn a density with a neural ODE: a flow that carries points in the plane to a normal distribution.

Run it with `python examples/neural_ode.py`. It takes about a minute on two CPU cores, and writes a picture of the flow
to `examples/out/`. The points are the two principal components of real handwritten digits. Along the flow, the
logarithm of the density changes by the trace of a Jacobian (Chen et al., "Neural Ordinary Differential Equations",
2018). The module computes it with three lifted transformations:

- `nn.jacfwd` differentiates the velocity field, a submodule, with respect to the point,
- `nn.vmap` does this for each point of the batch, with the same parameters,
- `nn.scan` takes the steps of the solver. Training differentiates through all three.

All steps of the solver share one field, which `init` creates inside these lifts.
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
from sklearn.decomposition import PCA
from tqdm import tqdm

import linen_like as nn
from liftcore.training import TrainState, count

HIDDEN, SOLVER_STEPS, STEPS, BATCH, LEARNING_RATE, TARGET = 64, 10, 1500, 256, 3e-3, 2.72

Point = jax.Array


# --- the model -------------------------------------------------------------------------------------------------------


class Field(nn.Module):
    """A velocity for each point and time."""

    @nn.compact
    def __call__(self, x: Point, time: jax.Array) -> Point:
        """Map a point, `(2,)`, and a time to a velocity, `(2,)`."""
        hidden = jnp.concatenate([x, jnp.stack([time, jnp.sin(jnp.pi * time)])])
        for _ in range(2):
            hidden = nn.tanh(nn.Dense(HIDDEN)(hidden))
        return nn.Dense(2, kernel_init=nn.initializers.normal(0.01))(hidden)


class Flow(nn.Module):
    """Carries points from time 0, the data, to time 1, a standard normal distribution; or back."""

    backward: bool = False

    @nn.compact
    def __call__(self, points: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Map points, `(batch, 2)`, to their final positions, the integral of the divergence, and their paths."""
        field = Field(name="field")
        step = (-1 if self.backward else 1) / SOLVER_STEPS

        def velocity(field: Field, x: Point, time: jax.Array) -> tuple[Point, jax.Array]:
            """Return the velocity at a point, and its divergence: the trace of its Jacobian."""
            jacobian = nn.jacfwd(lambda field, x: field(x, time), field, x, argnums=1)
            return field(x, time), jnp.trace(jacobian)

        each = nn.vmap(velocity, in_axes=(0, None), variable_axes={"params": None}, split_rngs={"params": False})

        def midpoint(field: Field, carry: tuple[jax.Array, jax.Array], time: jax.Array) -> tuple[Any, jax.Array]:
            """Take one step of the solver, with the velocity in the middle of the step."""
            x, change = carry
            half, _ = each(field, x, time)
            rate, divergence = each(field, x + step / 2 * half, time + step / 2)
            return (x + step * rate, change + step * divergence), x

        solve = nn.scan(midpoint, variable_broadcast="params", split_rngs={"params": False})
        times = (1 if self.backward else 0) + step * jnp.arange(SOLVER_STEPS)
        (arrived, change), paths = solve(field, (points, jnp.zeros(len(points))), times)
        return arrived, change, jnp.concatenate([paths, arrived[None]])


def log_density(params: Any, points: jax.Array) -> jax.Array:
    """Return the logarithm of the learned density at some points."""
    arrived, change, _ = Flow().apply({"params": params}, points)
    return jax.scipy.stats.norm.logpdf(arrived).sum(axis=-1) + change


# --- the training ----------------------------------------------------------------------------------------------------


@jax.jit
def train_step(state: TrainState, points: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step of maximum-likelihood training; return the new state and the loss."""
    loss, grads = state.value_and_grad(lambda params: -jnp.mean(log_density(params, points)))()
    return state.apply_gradients(grads=grads), loss


def train(points: np.ndarray, steps: int, seed: int) -> TrainState:
    """Train under a progress bar."""
    flow, rng = Flow(), np.random.default_rng(seed)
    params = jax.jit(flow.init)(jax.random.key(seed), points[:1])["params"]
    print(f"{count({'params': params}):,} parameters, {SOLVER_STEPS} steps of the solver")
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps)))
    state = TrainState.create(apply_fn=flow.apply, params=params, tx=tx)
    with tqdm(range(steps), desc="training", unit="step") as bar:
        bar.set_postfix_str("compiling …")
        for step in bar:
            state, loss = train_step(state, points[rng.integers(len(points), size=BATCH)])
            if step % 25 == 0:
                bar.set_postfix(loss=f"{loss:.3f}")
    return state


# --- the picture -----------------------------------------------------------------------------------------------------


def draw(params: Any, points: np.ndarray, labels: np.ndarray, key: jax.Array, path: Path) -> None:
    """Draw the data, the density, and samples of a normal distribution that flow back to the data."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    data, density, back = figure.subplots(1, 3)
    reach = np.linspace(-3, 3, 120, dtype=np.float32)
    grid = np.stack(np.meshgrid(reach, reach), axis=-1)
    values = np.exp(jax.jit(log_density)(params, grid.reshape(-1, 2))).reshape(120, 120)
    samples = jax.random.normal(key, (300, 2))
    paths = jax.jit(Flow(backward=True).apply)({"params": params}, samples)[2]

    data.scatter(*points.T, c=labels, cmap="tab10", s=5)
    data.set_title("1,797 digits, two principal components")
    density.pcolormesh(reach, reach, values, cmap="magma", rasterized=True)
    density.set_title("learned density")
    back.plot(*np.moveaxis(paths, -1, 0), color="#1769aa", linewidth=0.5, alpha=0.5)
    back.scatter(*paths[-1].T, color="#d9480f", s=6, zorder=3)
    back.set_title("samples of a normal distribution flow back")
    for axes in (data, density, back):
        axes.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xticks=(), yticks=())
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of parameters and batches (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="output folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    points = PCA(2, whiten=True, random_state=0).fit_transform(digits.data).astype(np.float32)
    held_out = np.arange(len(points)) % 5 == 0
    state = train(points[~held_out], args.steps, args.seed)

    loss = -np.mean(jax.jit(log_density)(state.params, points[held_out]))
    normal = -np.mean(jax.scipy.stats.norm.logpdf(points[held_out]).sum(axis=-1))
    print(f"held out: {loss:.3f} nats per point; a normal distribution needs {normal:.3f}")
    draw(state.params, points, digits.target, jax.random.key(args.seed + 1), args.out / "neural_ode.png")
    print(f"picture: {args.out / 'neural_ode.png'}")
    if args.steps >= STEPS and loss > TARGET:
        sys.exit(f"neural_ode.py: the held-out points need more than {TARGET} nats")


if __name__ == "__main__":
    main()
