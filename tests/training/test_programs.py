"""Small whole programs, as users write them who know Keras: what they need of several parts works together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export

import linen_like as nn
import nnx_like as nnx
from liftcore import filters, training
from liftcore.checkpoints import Checkpoints, load_file, save_file

pytestmark = pytest.mark.rest

ROWS, EPOCHS, SIZE = 48, 4, 16
IMAGES = np.random.default_rng(0).normal(size=(ROWS, 4, 4, 1)).astype(np.float32)
LABELS = (IMAGES[:, :2].sum((1, 2, 3)) > 0).astype(np.int32)
TX = optax.adam(1e-2)


class CNN(nn.Module):
    frozen: bool = False
    classes: int = 2

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=self.frozen or not train, momentum=0.9)(x)
        x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = nn.Dropout(0.1, deterministic=not train)(x.reshape(x.shape[0], -1))
        return nn.Dense(self.classes, name="head")(x)


def losses_of(logits: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


class State(training.TrainState):
    metrics: Any = None


def loss_fn(state: Any, x: Any, y: Any) -> Any:
    logits, state = state.apply(x, train=True)
    losses = losses_of(logits, y)
    metrics = state.metrics.update(loss=losses, logits=logits, labels=y)
    return losses.mean(), state.replace(metrics=metrics)


@jax.jit
def train_step(state: Any, x: Any, y: Any) -> Any:
    return state.minimize(loss_fn, x, y)


def measure(state: Any, x: Any, y: Any) -> dict[str, Any]:
    logits = state.apply_fn(state.variables, x)
    return {"loss": losses_of(logits, y), "accuracy": logits.argmax(-1) == y}


def batches(order: Any) -> list[Any]:
    return [(IMAGES[order[i : i + SIZE]], LABELS[order[i : i + SIZE]]) for i in range(0, len(order), SIZE)]


MODEL, METRICS = CNN(), training.MultiMetric({"loss": training.Average("loss"), "accuracy": training.Accuracy()})


def new_state(model: nn.Module = MODEL, **options: Any) -> Any:
    variables = options.pop("variables", None) or model.init(jax.random.key(0), IMAGES[:1])
    rngs = {"dropout": jax.random.key(1)}
    return State.create(apply_fn=model.apply, variables=variables, tx=TX, rngs=rngs, metrics=METRICS, **options)


class KilledError(Exception):
    """Stands for the signal that ends a process."""


def fit(folder: Path, killed_in: int | None = None) -> dict[str, Any]:
    state, names = new_state(), ("loss", "accuracy", "val_loss", "val_accuracy")
    stopping = training.EarlyStopping(patience=1, mode="max", best=state)
    run = {"state": state, "stopping": stopping, "epoch": 0, "history": {name: np.zeros(EPOCHS) for name in names}}
    with Checkpoints(folder, keep=1) as checkpoints:
        if checkpoints.latest() is not None:
            run = checkpoints.restore(run)
        while run["epoch"] < EPOCHS and not run["stopping"].should_stop:
            epoch, state = run["epoch"], run["state"].replace(metrics=METRICS)
            for batch in batches(np.random.default_rng(epoch).permutation(ROWS)):
                state, _ = train_step(state, *batch)
            if epoch == killed_in:
                raise KilledError
            found = training.evaluate(measure, state, batches(np.arange(40)))
            logs = {**state.metrics.compute(), **{f"val_{name}": value for name, value in found.items()}}
            for name, value in logs.items():
                run["history"][name][epoch] = value
            stopping = run["stopping"].update(logs["val_accuracy"], state)
            run = {**run, "state": state, "stopping": stopping, "epoch": epoch + 1}
            checkpoints.save(epoch + 1, run)
    return run


def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path: Path) -> None:
    before = train_step._cache_size()  # type: ignore[attr-defined]
    unbroken = fit(tmp_path / "unbroken")
    with pytest.raises(KilledError):
        fit(tmp_path / "broken", killed_in=1)
    assert Checkpoints(tmp_path / "broken").latest() == 1
    resumed = fit(tmp_path / "broken")
    assert jax.tree.all(jax.tree.map(lambda one, other: bool(np.all(one == other)), resumed, unbroken))
    assert unbroken["history"]["loss"][0] > unbroken["history"]["loss"][unbroken["epoch"] - 1] > 0
    assert train_step._cache_size() - before <= 2  # type: ignore[attr-defined]  # a step that is a number, then arrays


def test_a_new_head_is_trained_and_nothing_else_changes(tmp_path: Path) -> None:
    state, _ = train_step(new_state(), IMAGES, LABELS)
    save_file(tmp_path / "base.msgpack", state)
    model, head = CNN(frozen=True, classes=3), filters.PathContains("head")
    fresh = model.init(jax.random.key(5), IMAGES[:1])
    chosen = filters.All(("params", "batch_stats"), filters.Not(head))
    pretrained = load_file(tmp_path / "base.msgpack", fresh, filter=chosen)
    start = new_state(model, variables=pretrained, trainable=head)
    tuned, _ = train_step(start, IMAGES, 2 * LABELS)
    same = [
        bool(jax.tree.all(jax.tree.map(jnp.array_equal, *parts)))
        for parts in zip(*(filters.split(one.variables, head, ...) for one in (start, tuned)), strict=True)
    ]
    assert same == [False, True]
    assert training.count(tuned.trainable_params) == 16 * 3 + 3


class ScaleByRunningMean(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        gain = self.param("gain", nn.initializers.ones, x.shape[-1:])
        size = self.variable("running", "size", jnp.ones, x.shape[-1:])
        if train and not self.is_initializing():
            size.value = 0.9 * size.value + 0.1 * jax.lax.stop_gradient(jnp.abs(x).mean(0))
        return gain * x / size.value


def test_a_layer_of_ones_own_keeps_a_running_mean() -> None:
    x, model = 10 * IMAGES[:, 0, :, 0], ScaleByRunningMean()
    state = training.TrainState.create(
        apply_fn=model.apply, variables=model.init(jax.random.key(0), x), tx=optax.sgd(0.01)
    )

    def loss_fn(state: Any, x: Any) -> Any:
        out, state = state.apply(x, train=True)
        return (out**2).mean(), state

    expected, step = np.ones(4), jax.jit(lambda state, x: state.minimize(loss_fn, x)[0])
    for _ in range(5):
        state, expected = step(state, x), 0.9 * expected + 0.1 * np.abs(x).mean(0)
    np.testing.assert_allclose(state.variables["running"]["size"], expected, rtol=1e-5)
    assert np.all(state.params["gain"] != 1)


def test_equal_blocks_with_a_flag_are_traced_once() -> None:
    runs = []

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            runs.append(train)
            y = nn.BatchNorm(use_running_average=not train)(nn.Dense(x.shape[-1])(x))
            return x + nn.Dropout(0.1, deterministic=not train)(y)

    class Deep(nn.Module):
        mode: str = "scan"

        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            return nn.Stack(Block(name="blocks"), 20, mode=self.mode)(x, train=train)

    x, loop = IMAGES[:, 0, :, 0], Deep("loop")
    variables = jax.jit(Deep().init)(jax.random.key(0), x)
    assert variables["batch_stats"]["blocks"]["BatchNorm_0"]["mean"].shape == (20, 4)
    for model, times in ((Deep(), 1), (loop, 20)):
        runs.clear()
        jax.eval_shape(
            lambda variables, x, model=model: model.apply(
                variables, x, train=True, mutable=["batch_stats"], rngs={"dropout": jax.random.key(1)}
            ),
            variables,
            x,
        )
        assert runs == [True] * times
    np.testing.assert_allclose(Deep().apply(variables, x), loop.apply(variables, x), rtol=1e-4)


def test_a_model_is_saved_loaded_and_exported(tmp_path: Path) -> None:
    variables = MODEL.init(jax.random.key(0), IMAGES[:1])
    save_file(tmp_path / "model.msgpack", variables)
    loaded = load_file(tmp_path / "model.msgpack", jax.eval_shape(MODEL.init, jax.random.key(0), IMAGES[:1]))
    bound, (batch,) = MODEL.bind(loaded), export.symbolic_shape("batch")
    exported = export.export(jax.jit(lambda x: bound(x)))(jax.ShapeDtypeStruct((batch, 4, 4, 1), jnp.float32))
    for rows in (1, 7):
        expected = MODEL.apply(variables, IMAGES[:rows])
        np.testing.assert_allclose(exported.call(IMAGES[:rows]), expected, atol=1e-5)


def test_objects_hold_their_weights_and_know_their_mode(tmp_path: Path) -> None:
    def make(seed: int) -> nnx.Sequential:
        rngs = nnx.Rngs(seed)
        return nnx.Sequential(
            nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs),
            nnx.BatchNorm(4, momentum=0.9, rngs=rngs),
            lambda x: nnx.relu(x).reshape(x.shape[0], -1),
            nnx.Dropout(0.2, rngs=rngs),
            nnx.Linear(16, 2, rngs=rngs),
        )

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: losses_of(model(x), y).mean())(model)
        optimizer.update(model, grads)
        return loss

    model = make(0)
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)
    losses = [float(step(model, optimizer, IMAGES, LABELS)) for _ in range(20)]
    assert losses[-1] < losses[0]
    model.eval()
    before = jnp.copy(model.layers[1].mean[...])
    rows = training.evaluate(
        lambda model, x, y: {"accuracy": model(x).argmax(-1) == y}, model, batches(np.arange(40)), jit=nnx.jit
    )
    assert 0.5 < rows["accuracy"] <= 1
    assert jnp.array_equal(model.layers[1].mean[...], before)
    save_file(tmp_path / "model.msgpack", nnx.state(model))
    again = make(1)
    nnx.update(again, load_file(tmp_path / "model.msgpack", nnx.state(again)))
    again.eval()
    assert jnp.array_equal(again(IMAGES), model(IMAGES))


class Gan(nnx.Module):
    """All that a step changes: two networks, their optimizers, metrics, and the noise."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.generator = nnx.Sequential(
            nnx.Linear(4, 16, rngs=rngs),
            nnx.BatchNorm(16, rngs=rngs),
            nnx.relu,
            nnx.Linear(16, 16, rngs=rngs),
            lambda x: x.reshape(-1, 4, 4, 1),
        )
        self.critic = nnx.Sequential(
            nnx.SpectralNorm(nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs), rngs=rngs),
            lambda x: nnx.leaky_relu(x).reshape(x.shape[0], -1),
            nnx.Dropout(0.1, rngs=rngs),
            nnx.SpectralNorm(nnx.Linear(16, 1, rngs=rngs), rngs=rngs),
        )
        self.of_generator = nnx.Optimizer(self.generator, TX, wrt=nnx.Param)
        self.of_critic = nnx.Optimizer(self.critic, TX, wrt=nnx.Param)
        self.metrics = nnx.MultiMetric(critic=nnx.metrics.Average("critic"), generator=nnx.metrics.Average("generator"))
        self.rngs = nnx.Rngs(noise=seed)


def critic_loss(critic: Any, real: Any, fake: Any) -> Any:
    return (nnx.relu(1 - critic(real)) + nnx.relu(1 + critic(fake))).mean()


def generator_loss(generator: Any, critic: Any, z: Any) -> Any:
    return -critic(generator(z)).mean()


@nnx.jit(donate_argnames="gan")
def gan_step(gan: Any, real: Any) -> None:
    fake = gan.generator(gan.rngs.noise.normal((SIZE, 4)))
    of_critic, grads = nnx.value_and_grad(critic_loss)(gan.critic, real, fake)
    gan.of_critic.update(gan.critic, grads)
    z = gan.rngs.noise.normal((SIZE, 4))
    of_generator, grads = nnx.value_and_grad(generator_loss)(gan.generator, gan.critic, z)
    gan.of_generator.update(gan.generator, grads)
    gan.metrics.update(critic=of_critic, generator=of_generator)


def distance(gan: Any) -> float:
    """How far the mean of what is generated is from that of the data, in evaluation."""
    gan.generator.eval()
    made = gan.generator(jax.random.normal(jax.random.key(9), (64, 4)))
    gan.generator.train()
    return float(jnp.abs(made.mean(0) - IMAGES.mean(0)).mean())


def fit_gan(folder: Path, seed: int = 0, killed_in: int | None = None) -> tuple[Any, list[dict[str, float]]]:
    gan, logs = Gan(seed), []
    run: dict[str, Any] = {"gan": nnx.state(gan), "epoch": 0}
    with Checkpoints(folder, keep=1, best=1, metric="distance", mode="min") as checkpoints:
        if checkpoints.latest() is not None:
            run = checkpoints.restore(run)
            nnx.update(gan, run["gan"])
        for epoch in range(run["epoch"], EPOCHS):
            if epoch == killed_in:
                raise KilledError
            gan.metrics.reset()
            for batch, _ in batches(np.random.default_rng(epoch).permutation(ROWS)):
                gan_step(gan, batch)
            found = {name: float(value) for name, value in gan.metrics.compute().items()}
            logs.append(found | {"distance": distance(gan)})
            checkpoints.save(epoch + 1, {"gan": nnx.state(gan), "epoch": epoch + 1}, metrics=logs[-1])
    return gan, logs


def test_two_networks_with_two_optimizers_resume_and_keep_the_best(tmp_path: Path) -> None:
    gan, logs = fit_gan(tmp_path / "unbroken")
    with pytest.raises(KilledError):
        fit_gan(tmp_path / "broken", killed_in=2)
    resumed, rest = fit_gan(tmp_path / "broken", seed=7)  # another seed: all comes from the checkpoint
    assert rest == logs[2:]
    states = (nnx.to_pure_dict(nnx.state(one)) for one in (resumed, gan))
    assert jax.tree.all(jax.tree.map(lambda one, other: bool(np.all(one == other)), *states))
    distances = [log["distance"] for log in logs]
    best, checkpoints = Gan(8), Checkpoints(tmp_path / "broken", metric="distance", mode="min", best=1)
    assert checkpoints.best_step() == 1 + int(np.argmin(distances))
    target = {"gan": nnx.state(best), "epoch": 0}
    nnx.update(best, checkpoints.restore(target, step=checkpoints.best_step())["gan"])
    assert distance(best) == min(distances)
    assert gan.of_generator.step.value == gan.of_critic.step.value == EPOCHS * ROWS // SIZE
