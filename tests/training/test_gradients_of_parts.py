"""`accumulate_gradients` and `per_example_gradients`, against loops by hand."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import AxisSizeError, CarryTypeError, LiftArgumentError, ScopeParamShapeError
from liftcore.filters import PathContains
from liftcore.training import DynamicScale, TrainState, accumulate_gradients, per_example_gradients
from tests.machine import make_mesh

X = jax.random.normal(jax.random.key(1), (8, 3))
RNGS = {"dropout": jax.random.key(2)}


class Model(nn.Module):
    plain: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(4)(x)
        if not self.plain:
            x = nn.BatchNorm(use_running_average=False, momentum=0.5)(x)
            x = nn.Dropout(0.5, deterministic=False)(x)
        return nn.Dense(1)(jnp.tanh(x))


MODEL = Model()
VARIABLES = jax.jit(MODEL.init)({"params": jax.random.key(0), "dropout": jax.random.key(0)}, X)


def loss(scope: Any, x: Any) -> Any:
    return jnp.mean((MODEL.clone(parent=scope)(x) - 1) ** 2)


def loss_of_one(scope: Any, x: Any) -> Any:
    return loss(scope, x[None])


def close(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), a, b))


def by_hand(fn: Any, batches: list[Any], stats: Any, carry: bool) -> tuple[Any, Any, list[Any]]:
    """Of each batch the value, the gradients and the batch statistics, which go on to the next one or do not."""
    values, grads, all_stats = [], [], []
    for key, x in zip(jax.random.split(RNGS["dropout"], len(batches)), batches, strict=True):

        def of(params: Any, x: Any, stats: Any, key: Any) -> Any:
            variables = {"params": params, "batch_stats": stats}
            return liftcore.apply(fn, mutable=["batch_stats"])(variables, x, rngs={"dropout": key})

        (value, mutated), grad = jax.value_and_grad(of, has_aux=True)(VARIABLES["params"], x, stats, key)
        values, grads, all_stats = [*values, value], [*grads, grad], [*all_stats, mutated["batch_stats"]]
        stats = mutated["batch_stats"] if carry else stats
    stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
    return jnp.stack(values), {"params": stack(*grads)}, all_stats


@pytest.mark.parametrize("jit", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
def test_microbatches_are_a_loop_with_statistics_and_keys(jit: Any) -> None:
    run = jit(liftcore.apply(accumulate_gradients(loss, 4), mutable=["batch_stats"]))
    (value, grads), mutated = run(VARIABLES, X, rngs=RNGS)
    values, expected, stats = by_hand(loss, [X[i::4] for i in range(4)], VARIABLES["batch_stats"], carry=True)
    assert close(value, values.mean())
    assert close(grads, jax.tree.map(lambda leaf: leaf.mean(0), expected))
    assert close(mutated["batch_stats"], stats[-1])


@pytest.mark.parametrize("jit", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
def test_examples_are_a_loop_whose_statistics_are_averaged(jit: Any) -> None:
    run = jit(liftcore.apply(per_example_gradients(loss_of_one), mutable=["batch_stats"]))
    (values, grads), mutated = run(VARIABLES, X, rngs=RNGS)
    expected = by_hand(loss_of_one, list(X), VARIABLES["batch_stats"], carry=False)
    assert close((values, grads), expected[:2])
    assert close(mutated["batch_stats"], jax.tree.map(lambda *leaves: sum(leaves) / 8, *expected[2]))


PLAIN = Model(plain=True)
PARAMS = jax.jit(PLAIN.init)(jax.random.key(0), X)


def plain_loss(scope: Any, x: Any, y: Any, scale: Any = 1.0) -> Any:
    return scale * jnp.mean((PLAIN.clone(parent=scope)(x) - y) ** 2)


@pytest.mark.parametrize("jit", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
@pytest.mark.parametrize("has_aux", [False, True])
def test_a_scale_changes_once_after_all_microbatches(jit: Any, has_aux: bool) -> None:
    y = jnp.arange(8.0)[:, None]
    fn = (lambda scope, x, y: (plain_loss(scope, x, y), x.sum())) if has_aux else plain_loss

    def run(scale: Any, variables: Any, factor: Any) -> Any:
        lifted = accumulate_gradients(lambda scope, x, y: fn(scope, factor * x, y), 4, has_aux, scale=scale)
        return liftcore.apply(lifted)(variables, X, y)

    def whole(params: Any) -> Any:
        return liftcore.apply(plain_loss)(params, X, y)

    scale = DynamicScale(scale=jnp.float32(1024), growth_interval=0)
    found, expected = jit(run)(scale, PARAMS, 1.0), scale.value_and_grad(whole)(PARAMS)
    assert close((found.dynamic_scale, found.finite, found.grad), (*expected[:2], expected.grad))
    assert close(found.aux[0] if has_aux else found.aux, expected.aux)
    assert not has_aux or found.aux[1].shape == (4,)
    assert found.dynamic_scale.scale == 2048
    infinite = jit(run)(scale, PARAMS, jnp.inf)
    assert not infinite.finite
    assert infinite.dynamic_scale.scale == 512


def test_a_scale_keeps_small_gradients_of_microbatches() -> None:
    def small(scope: Any, x: Any) -> Any:
        w = scope.param("w", lambda key: jnp.ones((), jnp.float16))
        return 1e-4 * jnp.mean(1e-5 * w * x).astype(jnp.float32)

    variables, x = {"params": {"w": jnp.ones((), jnp.float16)}}, jnp.ones((4, 2), jnp.float16)
    assert liftcore.apply(accumulate_gradients(small, 2))(variables, x)[1]["params"]["w"] == 0
    scaled = liftcore.apply(accumulate_gradients(small, 2, scale=DynamicScale()))(variables, x)
    assert jnp.allclose(scaled.grad["params"]["w"], 1e-9, rtol=0.02)
    assert scaled.grad["params"]["w"].dtype == jnp.float32


@pytest.mark.parametrize("has_aux", [False, True])
def test_a_scale_changes_once_after_all_examples(has_aux: bool) -> None:
    def fn(scope: Any, x: Any) -> Any:
        value = 1e-9 * (scope.param("w", lambda key: jnp.ones((), jnp.float16)) * x).astype(jnp.float32)
        return (value, 2 * x) if has_aux else value

    @jax.jit
    def run(scale: Any, x: Any) -> Any:
        return liftcore.apply(per_example_gradients(fn, has_aux, scale=scale))(variables, x)

    variables, x = {"params": {"w": jnp.ones((), jnp.float16)}}, jnp.arange(1, 4, dtype=jnp.float16)
    assert not liftcore.apply(per_example_gradients(fn, has_aux))(variables, x)[1]["params"]["w"].any()
    scale = DynamicScale(scale=jnp.float32(2**20), growth_interval=0)
    found, infinite = run(scale, x), run(scale, x.at[1].set(jnp.inf))
    values, aux = found.aux if has_aux else (found.aux, 2 * x)
    assert jnp.allclose(values, 1e-9 * x.astype(jnp.float32), rtol=1e-3)
    assert jnp.allclose(found.grad["params"]["w"], values, rtol=1e-3)
    assert (aux == 2 * x).all()
    assert (bool(found.finite), float(found.dynamic_scale.scale)) == (True, 2**21)
    assert (bool(infinite.finite), float(infinite.dynamic_scale.scale)) == (False, 2**19)


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_without_statistics_and_keys_it_is_the_whole_batch(steps: int) -> None:
    y = jnp.arange(8.0)[:, None]
    found = liftcore.apply(accumulate_gradients(plain_loss, steps))(PARAMS, X, y)
    assert close(found, liftcore.apply(liftcore.value_and_grad(plain_loss))(PARAMS, X, y))
    values, grads = liftcore.apply(per_example_gradients(plain_loss))(PARAMS, X, y)
    assert close((values.mean(), jax.tree.map(lambda leaf: leaf.mean(0), grads)), found)


def test_arguments_have_their_axes_or_are_shared() -> None:
    wide, y = X[:, :, None].swapaxes(0, 2)[0], jnp.float32(0.5)
    shared = accumulate_gradients(lambda scope, x, y, **kw: plain_loss(scope, x.T, y, **kw), 2, in_axes=(1, None))
    found = liftcore.apply(shared)(PARAMS, wide, y, scale=3.0)
    assert close(found, liftcore.apply(liftcore.value_and_grad(plain_loss))(PARAMS, X, y, scale=3.0))
    each = per_example_gradients(plain_loss, in_axes=(0, None))
    assert liftcore.apply(each)(PARAMS, X, y)[0].shape == (8,)


@pytest.mark.parametrize("lift", [functools.partial(accumulate_gradients, steps=4), per_example_gradients])
def test_keyword_arguments_have_their_axes_or_are_shared(lift: Any) -> None:
    def weighted(scope: Any, x: Any, y: Any, weights: Any, train: bool) -> Any:
        assert train
        return jnp.mean((PLAIN.clone(parent=scope)(x) - y) ** 2 * weights)

    y, weights = jnp.arange(8.0)[:, None], jnp.float32(0.5)
    values = liftcore.apply(lift(weighted, kw_axes={"y": 0, "weights": None, "train": None}))(
        PARAMS, X, y=y, weights=weights, train=True
    )[0]
    assert close(jnp.mean(values), liftcore.apply(weighted)(PARAMS, X, y, weights, True))
    with pytest.raises(AxisSizeError, match=r"weights'?\]? has shape \(\) and no axis 0"):
        liftcore.apply(lift(weighted))(PARAMS, X, y=y, weights=weights, train=True)


def test_flags_and_trees_pass_through() -> None:
    def fn(scope: Any, batch: Any, train: bool, name: str) -> Any:
        assert (train, name) == (True, "a")
        return plain_loss(scope, batch["x"], batch["y"][0])

    batch = {"x": X, "y": [jnp.ones((8, 1))]}
    found = liftcore.apply(accumulate_gradients(fn, 2, in_axes=(0, None, None)))(PARAMS, batch, True, "a")
    assert close(found, liftcore.apply(liftcore.value_and_grad(plain_loss))(PARAMS, X, jnp.ones((8, 1))))


def test_what_else_a_function_returns_is_stacked() -> None:
    def with_aux(scope: Any, x: Any) -> Any:
        y = PLAIN.clone(parent=scope)(x)
        return y.mean(), {"y": y}

    (value, aux), _ = liftcore.apply(accumulate_gradients(with_aux, 4, has_aux=True))(PARAMS, X)
    expected = PLAIN.apply(PARAMS, X)
    assert close(value, expected.mean())
    assert close(aux["y"].swapaxes(0, 1).reshape(8, 1), expected)
    (value, aux), _ = liftcore.apply(per_example_gradients(with_aux, has_aux=True))(PARAMS, X)
    assert close((value[:, None], aux["y"]), (expected, expected))


def test_what_microbatches_sow_is_stacked() -> None:
    def sowing(scope: Any, x: Any) -> Any:
        scope.put_variable("intermediates", "inputs", x)
        scope.put_variable("losses", "norm", (x**2).sum())
        return loss(scope, x)

    def run(**kwargs: Any) -> Any:
        fn = accumulate_gradients(sowing, 2, **kwargs)
        return liftcore.apply(fn, mutable=["batch_stats", "intermediates", "losses"])(VARIABLES, X, rngs=RNGS)

    (_, grads), mutated = run(stacked=["intermediates", "losses"])
    assert jnp.array_equal(mutated["intermediates"]["inputs"], jnp.stack([X[::2], X[1::2]]))
    assert mutated["losses"]["norm"].shape == (2,)
    plain, _ = liftcore.apply(accumulate_gradients(loss, 2), mutable=["batch_stats"])(VARIABLES, X, rngs=RNGS)
    assert close(grads, plain[1])
    with pytest.raises(CarryTypeError, match="carried variables that did not go in: losses/norm") as error:
        run()
    assert "stacked=" in "".join(error.value.__notes__)


def test_a_filter_chooses_the_gradients() -> None:
    state = TrainState.create(
        apply_fn=PLAIN.apply, params=PARAMS["params"], tx=optax.sgd(0.1), trainable=PathContains("Dense_1")
    )
    y = jnp.ones((8, 1))
    for run in (
        accumulate_gradients(plain_loss, 2, wrt=state.trainable),
        per_example_gradients(plain_loss, wrt=state.trainable),
    ):
        _, grads = liftcore.apply(run)({"params": state.params}, X, y)
        assert jax.tree.structure(grads["params"]) == jax.tree.structure(state.trainable_params)
    hand = liftcore.apply(accumulate_gradients(plain_loss, 2, wrt=state.trainable))({"params": state.params}, X, y)[1]
    after = state.apply_gradients(grads=hand["params"])
    assert int(after.step) == 1


def test_sums_are_not_kept_in_a_small_dtype() -> None:
    def loss(scope: Any, x: Any) -> Any:
        return jnp.sum(scope.param("w", lambda key: jnp.ones(1, jnp.bfloat16)) * x)

    _, grads = liftcore.apply(accumulate_gradients(loss, 512))(
        {"params": {"w": jnp.ones(1, jnp.bfloat16)}}, jnp.ones((512, 1), jnp.bfloat16)
    )
    assert (grads["params"]["w"].dtype, float(grads["params"]["w"][0])) == (jnp.bfloat16, 1.0)


@pytest.mark.parametrize("make", [functools.partial(accumulate_gradients, steps=2), per_example_gradients])
def test_both_may_run_in_init_and_below_a_model(make: Any) -> None:
    fn = loss if isinstance(make, functools.partial) else loss_of_one
    (_, grads), variables = liftcore.init(make(fn))({"params": jax.random.key(0), "dropout": jax.random.key(0)}, X)
    assert close(variables["params"], VARIABLES["params"])
    assert jax.tree.structure(grads["params"]) == jax.tree.structure(VARIABLES["params"])

    def outer(scope: Any, x: Any) -> Any:
        _, grads = scope.child(make(fn), "inner")(x)
        return sum(leaf.sum() for leaf in jax.tree.leaves(grads))

    found, variables = liftcore.init(outer)({"params": jax.random.key(0), "dropout": jax.random.key(0)}, X)
    assert list(variables["params"]) == ["inner"]
    assert jnp.isfinite(found)


def test_both_serve_modules_too() -> None:
    def of_module(module: Any, x: Any) -> Any:
        return jnp.mean((module(x) - 1) ** 2)

    expected = liftcore.apply(accumulate_gradients(loss, 4), mutable=["batch_stats"])(VARIABLES, X, rngs=RNGS)
    lifted = nn.lift_with(functools.partial(accumulate_gradients, steps=4), of_module)
    (value, (grads,)), mutated = nn.apply(lifted, MODEL, mutable=["batch_stats"])(VARIABLES, X, rngs=RNGS)
    assert close(((value, grads), mutated), expected)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_batches_and_parameters_may_be_spread_over_devices(kind: str) -> None:
    P = jax.sharding.PartitionSpec
    mesh = make_mesh((4, 2), "data", "model", kind=getattr(jax.sharding.AxisType, kind))

    def fn(scope: Any, x: Any) -> Any:
        return jnp.mean((x @ scope.param("w", jax.nn.initializers.ones, (3, 4))) ** 2)

    w = jax.random.normal(jax.random.key(0), (3, 4))
    expected = liftcore.apply(liftcore.value_and_grad(fn))({"params": {"w": w}}, X)
    with jax.set_mesh(mesh):
        spread = {"params": {"w": jax.device_put(w, P(None, "model"))}}, jax.device_put(X, P("data"))
        found = jax.jit(liftcore.apply(accumulate_gradients(fn, 2)))(*spread)
        assert found[1]["params"]["w"].sharding.spec == P(None, "model")
        assert close(jax.device_get(found), jax.device_get(expected))


def test_the_axis_of_examples_has_no_name_in_boxes() -> None:
    kernel_init = nn.with_partitioning(nn.initializers.ones, ("in", "out"))

    def fn(scope: Any, x: Any) -> Any:
        y = nn.Dense(2, kernel_init=kernel_init, parent=scope)(x)
        scope.put_variable("intermediates", "y", nn.Partitioned(y, ("axis",)))
        return y.sum()

    variables = liftcore.init(fn)(jax.random.key(0), X)[1]["params"]
    _, grads = liftcore.apply(per_example_gradients(fn), mutable=["intermediates"])({"params": variables}, X)[0]
    box = grads["params"]["kernel"]
    assert (box.names, box.value.shape) == ((None, "in", "out"), (8, 3, 2))
    (_, grads), mutated = liftcore.apply(accumulate_gradients(fn, 2), mutable=["intermediates"])(
        {"params": variables}, X
    )
    assert grads["params"]["kernel"].names == ("in", "out")
    assert mutated["intermediates"]["y"].names == (None, "axis")


ERRORS = {
    "size": (
        AxisSizeError,
        lambda: accumulate_gradients(plain_loss, 3, in_axes=(0, None)),
        "8 batch elements cannot be split into 3 microbatches",
    ),
    "axis": (AxisSizeError, lambda: accumulate_gradients(plain_loss, 2), r"args\[1\] has shape \(\) and no axis 0"),
    "steps": (LiftArgumentError, lambda: accumulate_gradients(plain_loss, 0), "steps=4"),
    "no pair": (
        LiftArgumentError,
        lambda: accumulate_gradients(plain_loss, 2, True, in_axes=(0, None)),
        r"the function to return a pair, as `has_aux` demands, given a float32\[\] array. Return `\(loss, aux\)`",
    ),
    "three values, scaled": (
        LiftArgumentError,
        lambda: accumulate_gradients(
            lambda *args: (plain_loss(*args), 1, 2), 2, True, in_axes=(0, None), scale=DynamicScale()
        ),
        "given 3 values",
    ),
    "no pair of an example, scaled": (
        LiftArgumentError,
        lambda: per_example_gradients(plain_loss, True, in_axes=(0, None), scale=DynamicScale()),
        r"per_example_gradients: .* given a float32\[\] array",
    ),
    "no scale": (
        LiftArgumentError,
        lambda: per_example_gradients(plain_loss, scale=8.0),  # type: ignore[arg-type]
        "expected a DynamicScale, given 8.0",
    ),
    "a bool": (
        LiftArgumentError,
        lambda: accumulate_gradients(plain_loss, True),
        "microbatches, 1 or more, given True",
    ),
    "function": (LiftArgumentError, lambda: per_example_gradients(3), "expected a function"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(
    "make", [functools.partial(accumulate_gradients, steps=2, in_axes=((1, 0),)), per_example_gradients]
)
def test_batch_sizes_that_disagree_are_an_error(make: Any) -> None:
    def fn(scope: Any, xy: Any) -> Any:
        return jnp.mean((xy[0] * scope.param("w", jax.nn.initializers.ones, ()) - xy[1]) ** 2)

    with pytest.raises(AxisSizeError, match=r"disagree \(.*\[0\]\[0\]: 6, args\[0\]\[1\]: 2\)|xy\[0\]: 1, xy\[1\]: 2"):
        liftcore.apply(make(fn))({"params": {"w": jnp.ones(())}}, (jnp.ones((1, 6)), jnp.ones((2, 1))))


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_parted_is_an_error(name: str) -> None:
    kind, make, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        liftcore.apply(make())(PARAMS, X, jnp.float32(1))


def test_microbatches_of_a_shard_are_summed_up_there() -> None:
    P = jax.sharding.PartitionSpec
    mesh = make_mesh((4,), "data")

    def of_shards(x: Any) -> Any:
        run = accumulate_gradients(plain_loss, 2, in_axes=(0, None))
        varying = jax.tree.map(lambda leaf: leaf + 0 * x.sum(), PARAMS)
        value, grads = liftcore.apply(run)(varying, x, jnp.float32(1))
        return jax.lax.pmean((value, grads), "data")

    found = jax.jit(jax.shard_map(of_shards, mesh=mesh, in_specs=P("data"), out_specs=P()))(X)
    assert close(found, liftcore.apply(liftcore.value_and_grad(plain_loss))(PARAMS, X, jnp.float32(1)))


def test_counters_that_examples_write_are_written_once() -> None:
    def counting(scope: Any, x: Any) -> Any:
        scope.variable("state", "seen", lambda: jnp.int32(0)).value += 1
        return scope.param("w", jax.nn.initializers.ones, ()) * x.sum()

    variables = {"params": {"w": jnp.ones(())}, "state": {"seen": jnp.int32(4)}}
    _, mutated = liftcore.apply(per_example_gradients(counting), mutable=["state"])(variables, X)
    assert (mutated["state"]["seen"].dtype, int(mutated["state"]["seen"])) == (jnp.int32, 5)
    _, mutated = liftcore.apply(accumulate_gradients(counting, 4), mutable=["state"])(variables, X)
    assert int(mutated["state"]["seen"]) == 8


def test_the_paths_in_errors_have_the_name_of_the_function() -> None:
    def loss(scope: Any, x: Any) -> Any:
        return jnp.mean(scope.param("w", jax.nn.initializers.ones, (5,)) * x)

    with pytest.raises(ScopeParamShapeError, match=r"at /eval_shape\(loss\)/value_and_grad\(loss\)"):
        liftcore.apply(accumulate_gradients(loss, 2))({"params": {"w": jnp.ones(4)}}, jnp.ones((4, 1)))
