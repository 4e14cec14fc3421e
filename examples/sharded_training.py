"""Train one small transformer on one device, on eight, or in two processes: the same script, and the same losses.

Run it with `python examples/sharded_training.py`; it takes a few seconds on one CPU. With `--devices 8 --processes 2
--compare` it trains on eight simulated devices, four in each of two processes, and compares the losses with those on
one device. It prints how each kernel is sharded, and writes checkpoints and losses to `examples/out/sharded/`.

`RULES` says over which axis of the mesh each logical name of the model is sharded. Nothing else in the model or the
training depends on the number of devices. The state is saved, and restored onto a mesh of another shape.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from tqdm import tqdm

import linen_like as nn
from liftcore.checkpoints import OrbaxCheckpoints
from liftcore.training import TrainState

EMBED, MLP, HEADS, DEPTH = 32, 64, 4, 2
BATCH_SIZE, TEST_SIZE, LEARNING_RATE, TOLERANCE = 128, 256, 0.1, 1e-5

# Over "data" to save memory (FSDP), over "model" to divide the work (tensor parallelism); layers are not divided.
RULES = (("batch", "data"), ("embed", "data"), ("heads", "model"), ("mlp", "model"), ("layers", None))


def kernel(*names: str | None) -> Any:
    """Return an initializer of kernels whose axes have logical names."""
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Block(nn.Module):
    """A transformer block. Where a product sums over a sharded axis, the compiler adds the communication."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        """Map `x`, `(batch, rows, embed)`, to the next carry of the scan."""
        init = {"kernel_init": kernel("embed", "heads", None), "out_kernel_init": kernel("heads", None, "embed")}
        x = x + nn.MultiHeadDotProductAttention(HEADS, use_bias=False, **init)(nn.LayerNorm()(x))
        y = nn.gelu(nn.Dense(MLP, kernel_init=kernel("embed", "mlp"))(nn.LayerNorm()(x)))
        x = x + nn.Dense(EMBED, kernel_init=kernel("mlp", "embed"))(y)
        return nn.with_logical_constraint(x, ("batch", None, None)), None


class RowReader(nn.Module):
    """A transformer that reads an image as a sequence of rows of pixels."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `images`, `(batch, 8, 8)`, to logits, `(batch, 10)`."""
        x = nn.Dense(EMBED, kernel_init=kernel(None, "embed"))(images)
        x = x + self.param("positions", nn.initializers.normal(0.1), (8, EMBED))
        options: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        blocks = nn.scan(Block, length=DEPTH, metadata_params={nn.PARTITION_NAME: "layers"}, **options)
        x, _ = blocks(name="blocks")(x, None)
        return nn.Dense(10, kernel_init=kernel("embed", None))(nn.LayerNorm()(x).mean(axis=1))


MODEL = RowReader()


def create(key: jax.Array, images: jax.Array) -> TrainState:
    """Make the whole state of a run; `init_sharded` makes it shard by shard."""
    params = MODEL.init(key, images)["params"]
    return TrainState.create(apply_fn=MODEL.apply, params=params, tx=optax.sgd(LEARNING_RATE, momentum=0.9))


def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step; return the new state, and the loss before it."""

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = state.value_and_grad(loss_fn)()
    return state.apply_gradients(grads=grads), loss


def accuracy(state: TrainState, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the share of images whose most probable class is the right one."""
    return (state.apply_fn({"params": state.params}, images).argmax(-1) == labels).mean()


def mesh_of(model_size: int, kind: str) -> Mesh:
    """Make a mesh of the devices of all processes."""
    types = (AxisType.Explicit if kind == "explicit" else AxisType.Auto,) * 2
    return jax.make_mesh((jax.device_count() // model_size, model_size), ("data", "model"), axis_types=types)


def on_mesh(mesh: Mesh, *arrays: np.ndarray) -> list[jax.Array]:
    """Shard batches; each process reads only the part that its devices hold."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return [jax.make_array_from_callback(array.shape, sharding, array.__getitem__) for array in arrays]


def train(state: TrainState, mesh: Mesh, data: list[np.ndarray], steps: int) -> tuple[TrainState, list]:
    """Train under a progress bar, which the first process shows; return the state and the losses."""
    losses, rng, shardings = [], np.random.default_rng(0), jax.tree.map(lambda leaf: leaf.sharding, state)
    step = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))  # shardings as before
    with tqdm(total=steps, desc="compiling …", unit="step", disable=jax.process_index() > 0) as bar:
        for _ in range(steps):
            chosen = rng.choice(len(data[1]), BATCH_SIZE, replace=False)
            state, loss = step(state, *on_mesh(mesh, data[0][chosen], data[1][chosen]))
            losses.append(float(loss))
            bar.set_description("training")
            bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
            bar.update()
    return state, losses


def show_shards(params: Any) -> None:
    """Print how each kernel is sharded, and what one device holds of it."""
    print(f"{'shape':<15}{'sharded over':<32}{'on a device':<15}kernel")
    for path, leaf in jax.tree.leaves_with_path(nn.unbox(params)):
        name, shard = jax.tree_util.keystr(path, simple=True, separator="/"), leaf.addressable_shards[0].data.shape
        if name.endswith("kernel"):
            print(f"{leaf.shape!s:<15}{tuple(leaf.sharding.spec)!s:<32}{shard!s:<15}{name}")


def run(args: argparse.Namespace) -> None:
    """Run one process: train, save, restore and report."""
    jax.config.update("jax_num_cpu_devices", args.devices // args.processes)
    if args.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.process)
    digits = load_digits()
    data = (digits.images / 16).astype(np.float32), digits.target.astype(np.int32)
    train_set, test_set = [one[TEST_SIZE:] for one in data], [one[:TEST_SIZE] for one in data]
    mesh, other = (mesh_of(size, args.axes) for size in ((2, 4) if args.devices % 4 == 0 else (1, 1)))
    inputs = jax.random.key(0), jax.ShapeDtypeStruct((BATCH_SIZE, 8, 8), np.float32)

    with nn.logical_axis_rules(RULES), OrbaxCheckpoints(args.out / "checkpoints") as checkpoints:
        with jax.set_mesh(mesh):
            state, losses = train(nn.init_sharded(create, mesh)(*inputs), mesh, train_set, args.steps)
            before = float(jax.jit(accuracy)(state, *on_mesh(mesh, *test_set)))
            checkpoints.save(args.steps, state)
        with jax.set_mesh(other):
            restored = checkpoints.restore(nn.init_sharded(create, other).eval_shape(*inputs))
            after = float(jax.jit(accuracy)(restored, *on_mesh(other, *test_set)))
    if jax.process_index() == 0:
        show_shards(state.params)
        print(f"mesh: {dict(mesh.shape)}, {args.axes} axes, {args.processes} process(es)")
        print(f"losses: {losses[0]:.6f}, {losses[1]:.6f}, …, {losses[-1]:.6f}; test accuracy {before:.2%}")
        print(f"restored onto a mesh of {dict(other.shape)}: test accuracy {after:.2%}")
        (args.out / "losses.json").write_text(json.dumps(losses))


def spawn(args: argparse.Namespace, out: Path, devices: int, processes: int) -> list[float]:
    """Run this script in child processes; return the losses."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, __file__, "--out", out, "--devices", devices, "--processes", processes, "--port", port]
    command += ["--steps", args.steps, "--axes", args.axes, "--process"]
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    children = [subprocess.Popen([*map(str, command), str(number)], env=env) for number in range(processes)]
    if sum(child.wait() for child in children):
        sys.exit("sharded_training.py: a process failed")
    return json.loads((out / "losses.json").read_text())


def main() -> None:
    """Read the options; run here or in child processes; compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1, help="simulated devices, in total (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="processes, joined over loopback (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="training steps (%(default)s)")
    parser.add_argument("--axes", choices=("auto", "explicit"), default="auto", help="mesh axes (%(default)s)")
    parser.add_argument("--compare", action="store_true", help="compare the losses with those of one device")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out/sharded", help="output folder")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process is not None:
        return run(args)
    if args.devices % args.processes or args.steps < 2:
        parser.error("--devices must be a multiple of --processes, and --steps at least 2")
    losses = spawn(args, args.out, args.devices, args.processes)
    if args.compare:
        single = spawn(args, args.out / "single", 1, 1)
        difference = float(np.max(np.abs(np.subtract(losses, single)) / single))
        print(f"greatest relative difference from the losses on one device: {difference:.1e}")
        sys.exit(f"sharded_training.py: more than {TOLERANCE}" if difference > TOLERANCE else 0)


if __name__ == "__main__":
    main()
