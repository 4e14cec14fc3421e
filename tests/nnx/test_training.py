"""Optimizers, metrics, averages and the functional train state."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from liftcore.training import ExponentialMovingAverage, labels, mask
from nnx_like.errors import TraceContextError

optax = pytest.importorskip("optax")


class Model(nnx.Module):
    def __init__(self) -> None:
        self.kernel = nnx.Param(jnp.arange(4.0).reshape(2, 2), names="ab")
        self.layers = [nnx.Param(jnp.ones(2))]
        self.seen = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel.value + self.layers[0].value

    def double(self, x: Any) -> Any:
        self.seen.value = self.seen.value + 1
        return 2 * self(x)


def ones_like(model: Any, kind: Any = nnx.Param) -> Any:
    return jax.tree.map(jnp.ones_like, nnx.state(model, kind))


def lists(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.tolist(), nnx.to_pure_dict(tree))


# --- optimizers -------------------------------------------------------------------------------------------------------


def test_the_state_is_made_of_variables_that_keep_the_metadata_of_parameters() -> None:
    optimizer = nnx.Optimizer(Model(), optax.adam(1e-2), wrt=nnx.Param)
    paths = [path for path, _ in nnx.state(optimizer).flat_state()]
    assert paths == [
        ("opt_state", 0, "count"),
        ("opt_state", 0, "mu", "kernel"),
        ("opt_state", 0, "mu", "layers", 0),
        ("opt_state", 0, "nu", "kernel"),
        ("opt_state", 0, "nu", "layers", 0),
        ("step",),
    ]
    adam = optimizer.opt_state[0]
    assert (type(adam.count), type(adam.mu["kernel"]), type(optimizer.step)) == (
        nnx.OptArray,
        nnx.OptVariable,
        nnx.OptState,
    )
    assert adam.mu["kernel"].names == "ab"
    assert optimizer.step.value.dtype == jnp.uint32


@pytest.mark.parametrize(
    "tx",
    [
        optax.adam(1e-2),
        optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2),
        optax.chain(optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.adamw)(learning_rate=0.1)),
        optax.masked(optax.adam(0.1), lambda params: jax.tree.map(lambda x: x.ndim > 1, params)),
    ],
    ids=["adam", "MultiSteps", "inject_hyperparams", "masked"],
)
def test_updates_are_those_of_optax_and_jit_compiles_them_once(tx: Any) -> None:
    model, expected, traces = Model(), nnx.to_pure_dict(nnx.state(Model(), nnx.Param)), []
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    kept = model.kernel, optimizer.step

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        traces.append(1)
        return optimizer.update(model, ones_like(model))

    opt_state = tx.init(expected)
    for _ in range(3):
        updates, opt_state = tx.update(jax.tree.map(jnp.ones_like, expected), opt_state, expected)
        expected = optax.apply_updates(expected, updates)
        given = step(model, optimizer)
        assert jax.tree.all(jax.tree.map(jnp.allclose, nnx.to_pure_dict(given), updates))
    assert jax.tree.all(jax.tree.map(jnp.allclose, nnx.to_pure_dict(nnx.state(model, nnx.Param)), expected))
    assert len(traces) == 1
    assert (model.kernel, optimizer.step)[0] is kept[0]
    assert optimizer.step is kept[1]
    assert optimizer.step.value == 3
    assert model.seen.value == 0
    again = nnx.clone(optimizer)
    assert nnx.graphdef(again) == nnx.graphdef(optimizer)
    assert again.tx == tx


def test_wrt_chooses_what_is_optimized() -> None:
    for wrt, changed in [
        (nnx.PathContains("kernel"), {"kernel"}),
        ((nnx.Param, nnx.BatchStat), {"kernel", "layers", "seen"}),
    ]:
        model = Model()
        optimizer = nnx.Optimizer(model, optax.sgd(1.0, momentum=0.9), wrt=wrt)
        optimizer.update(model, ones_like(model, ...))
        before, after = lists(nnx.state(Model())), lists(nnx.state(model))
        assert {name for name in before if before[name] != after[name]} == changed
        assert set(optimizer.opt_state[0].trace) == changed


@pytest.mark.parametrize(
    "masked", [nnx.Param, nnx.BatchStat, nnx.Not(nnx.Param), nnx.All(nnx.Param, nnx.PathContains("kernel"))]
)
@pytest.mark.parametrize("make", [mask, lambda filter: labels({True: filter, False: ...})])
def test_a_mask_by_type_sees_the_variables_also_in_an_update(masked: Any, make: Any) -> None:
    model, seen = Model(), []

    def asked(tree: Any) -> Any:
        seen.append(make(masked)(tree).to_pure_dict())
        return make(masked)(tree)

    tx = optax.chain(optax.add_decayed_weights(0.1, mask=asked), optax.sgd(1.0))
    optimizer = nnx.Optimizer(model, tx, wrt=(nnx.Param, nnx.BatchStat))
    step = nnx.jit(lambda model, optimizer: optimizer.update(model, ones_like(model, (nnx.Param, nnx.BatchStat))))
    step(model, optimizer)
    expected = nnx.state(Model()).map(lambda path, leaf: nnx.filterlib.to_predicate(masked)(path, leaf))
    assert seen
    assert all(one == expected.to_pure_dict() for one in seen)


def test_gradients_may_be_a_state_nested_mappings_or_an_object() -> None:
    given = []
    for grads in (
        ones_like,
        lambda model: nnx.to_pure_dict(ones_like(model)),
        lambda model: jax.tree.map(jnp.ones_like, model),
    ):
        model = Model()
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(model, grads(model))
        given.append(lists(nnx.state(model)))
    assert given[0] == given[1] == given[2]
    model = nnx.state(Model(), nnx.Param)
    nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(model, grads=ones_like(model))
    assert lists(model)["kernel"] == given[0]["kernel"]


def test_other_gradients_are_refused_by_name() -> None:
    model = Model()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with pytest.raises(LiftArgumentError, match="missing: kernel; unexpected: other"):
        optimizer.update(model, {"layers": {0: jnp.ones(2)}, "other": jnp.ones(2)})
    assert optimizer.step.value == 0


@pytest.mark.parametrize("tx", [optax.adam(0.1), optax.sgd(0.1, momentum=0.9)])
def test_an_optimizer_that_was_made_for_another_model_is_refused(tx: Any) -> None:
    narrow, wide, other = (nnx.Linear(3, size, rngs=nnx.Rngs(0)) for size in (1, 4, 4))
    other.more = nnx.Param(jnp.ones(2))
    # The last two would broadcast: one changes the shapes of the state, the other those of the parameters.
    for made_for, used_for in ((other, narrow), (narrow, other), (narrow, wide), (wide, narrow)):
        optimizer = nnx.Optimizer(made_for, tx, wrt=nnx.Param)
        with pytest.raises(LiftArgumentError, match="the optimizer was made for other parameters"):
            optimizer.update(used_for, ones_like(used_for))
        assert optimizer.step.value == 0
    with pytest.raises(LiftArgumentError, match="an update of shape"):  # other gradients, not another optimizer
        nnx.Optimizer(narrow, tx, wrt=nnx.Param).update(narrow, ones_like(wide))


def test_a_line_search_gets_values() -> None:
    model = nnx.Dict(w=nnx.Param(jnp.array([3.0, -2.0])))
    optimizer = nnx.Optimizer(model, optax.lbfgs(), wrt=nnx.Param)
    graphdef, params = nnx.split(model)

    def loss(params: Any) -> Any:
        return (nnx.merge(graphdef, params).w.value ** 2).sum()

    grads = jax.grad(loss)(params)
    optimizer.update(model, grads, grad=grads, value=loss(params), value_fn=loss)
    assert loss(nnx.state(model)) < 13


def test_nothing_is_changed_where_the_transformation_raises_or_the_model_is_from_another_trace() -> None:
    model = Model()
    failing = optax.GradientTransformation(lambda params: jnp.zeros(()), lambda *args: 1 / 0)
    optimizer = nnx.Optimizer(model, failing, wrt=nnx.Param)
    with pytest.raises(ZeroDivisionError):
        optimizer.update(model, ones_like(model))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def captured(optimizer: Any) -> None:
        with pytest.raises(TraceContextError):
            optimizer.update(model, ones_like(model))

    captured(optimizer)
    assert optimizer.step.value == 0
    assert lists(nnx.state(model)) == lists(nnx.state(Model()))


def test_what_an_optimizer_needs_is_asked_for() -> None:
    model = Model()
    for make in (lambda: nnx.Optimizer(model, optax.sgd(0.1)), lambda: nnx.Optimizer(model, optax.sgd(0.1), nnx.Param)):
        with pytest.raises(TypeError, match="`wrt` is required"):
            make()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with pytest.raises(TypeError, match="given only one argument"):
        optimizer.update(ones_like(model))
    with pytest.raises(AttributeError, match="use `ModelAndOptimizer`"):
        _ = optimizer.model
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = optimizer.other


def test_the_older_form_keeps_the_model() -> None:
    class Trainer(nnx.ModelAndOptimizer):
        def __init__(self, model: Any, tx: Any) -> None:
            self.metric = nnx.metrics.Average()
            super().__init__(model, tx)

        def update(self, *, grads: Any, **values: Any) -> None:
            self.metric.update(**values)
            super().update(grads)

    model = Model()
    trainer = Trainer(model, optax.sgd(1.0))
    nnx.jit(lambda trainer: trainer.update(grads=ones_like(trainer.model), values=2.0))(trainer)
    assert trainer.model is model
    assert model.layers[0].value.tolist() == [0.0, 0.0]
    assert (trainer.metric.compute(), trainer.step.value) == (2.0, 1)


def test_hyperparameters_are_assigned_in_place() -> None:
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    optimizer = nnx.Optimizer(model, optax.inject_hyperparams(optax.sgd)(learning_rate=0.1), wrt=nnx.Param)
    optimizer.opt_state.hyperparams["learning_rate"].value = jnp.array(0.5)
    optimizer.update(model, ones_like(model))
    assert model.w.value.tolist() == [0.5, 0.5]


def test_optimizers_are_copied_and_pickled() -> None:
    optimizer = nnx.Optimizer(Model(), optax.scale(-1.0), wrt=nnx.Param)
    assert copy.deepcopy(optimizer).tx == optimizer.tx
    metric = nnx.metrics.Average()
    metric.update(values=3.0)
    assert pickle.loads(pickle.dumps(metric)).compute() == 3.0


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_cross_jit() -> None:
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))

    @nnx.jit
    def step(metrics: Any, logits: Any) -> None:
        metrics.update(logits=logits, labels=jnp.array([0, 0]), loss=logits.sum())

    step(metrics, jnp.eye(2))
    step(metrics, jnp.eye(2))
    assert {name: float(value) for name, value in metrics.compute().items()} == {"accuracy": 0.5, "loss": 2.0}
    graphdef, state = metrics.split()
    assert nnx.merge(graphdef, state).compute() == metrics.compute()
    metrics.reset()
    assert jnp.isnan(metrics.compute()["loss"])


def test_a_mask_counts_each_value_that_it_lets_pass() -> None:
    average = nnx.metrics.Average()
    average.update(values=jnp.arange(6.0).reshape(2, 3), mask=jnp.array([1, 0, 1]))
    assert (average.count.value, average.compute()) == (4, 2.5)


def test_metrics_refuse_what_they_cannot_take() -> None:
    accuracy = nnx.metrics.Accuracy()
    for error, refused in [
        ("`values`, given loss", lambda: nnx.metrics.Average().update(loss=1)),
        (
            "expected an array of values, as there is a `mask`, given 1.0",
            lambda: nnx.metrics.Average().update(values=1.0, mask=jnp.ones(1)),
        ),
        ("expected a float as `threshold`, given 'a'", lambda: nnx.metrics.Accuracy("a")),
        (r"expected `logits` with 3 axes", lambda: accuracy.update(logits=jnp.eye(2), labels=jnp.eye(2))),
        ("given float32", lambda: accuracy.update(logits=jnp.eye(2), labels=jnp.ones(2))),
        ("name of a method", lambda: nnx.MultiMetric(update=accuracy)),
    ]:
        with pytest.raises(LiftArgumentError, match=error):
            refused()


# --- averages and states ----------------------------------------------------------------------------------------------


def test_averages_are_shared_with_the_model_they_are_applied_to() -> None:
    model = Model()
    ema = nnx.EMA(model, decay=0.5, only=nnx.Param)
    averaged = ema.apply_to(model)
    model.kernel.value = model.kernel.value + 2

    @nnx.jit
    def step(ema: Any, model: Any) -> None:
        ema.update(model)

    step(ema, model)
    assert averaged.kernel is ema.params["kernel"]
    assert averaged.kernel.names == "ab"
    assert averaged.seen is model.seen
    assert averaged.kernel.value.tolist() == [[1, 2], [3, 4]]
    assert averaged.layers[0].value.tolist() == [1.0, 1.0]


def test_averages_keep_their_dtypes() -> None:
    model = nnx.List([nnx.Param(jnp.arange(3)), nnx.Param(jnp.ones(2, jnp.bfloat16)), nnx.Param(1.0)])
    ema = nnx.EMA(model, decay=jnp.float32(0.9))
    ema.update(model)
    assert [leaf.value.dtype for _, leaf in ema.params.flat_state()] == [jnp.int32, jnp.bfloat16, jnp.float32]


DTYPES = ["bfloat16", "float16", "float32", "int32"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_averages_of_objects_are_those_of_the_core(dtype: str) -> None:
    def model(n: float) -> Any:
        return nnx.Dict(w=nnx.Param(jnp.full(2, n, dtype), sharding=("x",)), p=nnx.Param({"v": jnp.full(1, n, dtype)}))

    ones = {"params": {"w": jnp.ones(2), "v": jnp.ones(1)}}
    ema, core = nnx.EMA(model(1), 0.999), ExponentialMovingAverage.create(ones, 0.999)
    step, core_step = nnx.jit(lambda ema, model: ema.update(model)), jax.jit(lambda core, new: core.update(new))
    averaged = ema.apply_to(model(0))
    models = {n: model(n) for n in (2, 70)}
    for n in (*[2] * 50, *[70] * 50):
        step(ema, models[n])
        core = core_step(core, {"params": {"w": models[n].w.value, "v": models[n].p.value["v"]}})
    as_integers = jnp.rint if dtype == "int32" else jnp.asarray
    expected = {name: as_integers(average).astype(dtype) for name, average in core.averages["params"].items()}
    assert averaged.w.value.tolist() == expected["w"].tolist()
    assert averaged.p.value["v"].tolist() == expected["v"].tolist()
    assert [leaf.dtype for leaf in jax.tree.leaves(nnx.state(averaged))] == [dtype, dtype]
    kept = [] if dtype == "float32" else [("p",), ("w",)]
    assert [path for path, _ in ema.wide.flat_state()] == kept
    assert all(ema.wide[name].get_metadata() == ema.params[name].get_metadata() for name in ema.wide)
    assert len(nnx.state(ema, nnx.Param).flat_state()) == 2


@pytest.mark.parametrize("dtype", ["bool", "uint8", *DTYPES])
@pytest.mark.parametrize("mask_dtype", [None, "bool", "float16", "int32"])
def test_metrics_are_as_precise_as_float32(dtype: str, mask_dtype: str | None) -> None:
    draws = np.random.default_rng(0).uniform(0, 2 if dtype == "bool" else 200, (3, 1000))
    batches, mask = jnp.asarray(draws.astype(int) if dtype == "bool" else draws).astype(dtype), np.arange(1000) % 3 > 0
    exact = np.asarray(batches).astype(np.float64)
    average, welford = nnx.metrics.Average(), nnx.metrics.Welford()
    for batch in batches:
        average.update(values=batch, mask=None if mask_dtype is None else jnp.asarray(mask, mask_dtype))
        welford.update(values=batch)
    assert float(average.compute()) == pytest.approx((exact if mask_dtype is None else exact[:, mask]).mean(), rel=1e-6)
    assert float(welford.compute().mean) == pytest.approx(exact.mean(), rel=1e-6)
    assert float(welford.compute().standard_deviation) == pytest.approx(exact.std(), rel=1e-6)


def test_what_has_no_average_is_refused() -> None:
    ema = nnx.EMA(Model(), decay=0.5)
    for refused in (
        lambda: nnx.EMA(nnx.Dict(rngs=nnx.Rngs(0)), decay=0.5),
        lambda: nnx.EMA({"b": jnp.ones(2)}, decay=0.5),
        lambda: ema.update(nnx.Dict(kernel=nnx.Param(1.0))),
    ):
        with pytest.raises(LiftArgumentError, match=r"EMA.*(only=nnx.Param|differ in kernel, layers\[0\], seen)"):
            refused()


def test_a_train_state_is_never_changed() -> None:
    class Train(nnx.TrainState):
        rest: Any

    graphdef, params, rest = nnx.split(Model(), nnx.Param, ...)
    train = Train.create(graphdef, params=params, tx=optax.adam(0.1), rest=rest)
    step = jax.jit(lambda train: train.apply_gradients(jax.tree.map(jnp.ones_like, train.params)))
    after = step(step(train))
    assert (int(after.step), int(train.step), train.params is params) == (2, 0, True)
    assert lists(params) == lists(nnx.state(Model(), nnx.Param))
    assert jnp.allclose(after.params["kernel"].value, jnp.arange(4.0).reshape(2, 2) - 0.2)
    (made, (_, state)), x = train.apply("params", "rest").double(jnp.ones((1, 2))), jnp.ones((1, 2))
    assert made.tolist() == (2 * Model()(x)).tolist()
    assert (state["seen"].value, rest["seen"].value) == (1, 0)
    assert train.replace(step=3).step == 3
    with pytest.raises(AttributeError):
        train.step = 3
