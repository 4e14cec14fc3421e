"""Lifts within lifts: keys, variables and captured values follow the nesting, and bodies run once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import UnliftedCollectionError, UnliftedStreamError
from tests.linen.lifted import KEY, LIFTS, OWN, RNGS, Block, X, assert_close, assert_same, element, shapes

SPREADING = {name: LIFTS[name] for name in ("vmap", "scan")}
spreading = pytest.mark.parametrize("spread", SPREADING.values(), ids=SPREADING)
transparent = pytest.mark.parametrize("lift", [nn.remat, nn.jit], ids=["remat", "jit"])


class Noisy(nn.Module):
    """Uses parameters, a state, two streams and captured values."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        RUNS.append(1)
        x = nn.tanh(nn.Dense(3)(x))
        total = self.variable("state", "total", lambda: jnp.zeros(()))
        total.value += x.sum()
        self.sow("intermediates", "drawn", jax.random.normal(self.make_rng("dropout")))
        return nn.Dropout(0.5, deterministic=False)(x) + total.value, x.mean()


RUNS: list[int] = []


def everything(cls: Any, *args: Any) -> Any:
    """What a model makes in `init`, gives in `apply`, and changes there; and the gradients."""
    model = cls()
    made = model.init_with_output(RNGS, *args)
    applied = model.apply(made[1], *args, rngs=RNGS, mutable=["state", "intermediates"])

    def loss(params: Any) -> Any:
        y, _ = model.apply({**made[1], "params": params}, *args, rngs=RNGS, mutable=["state"])
        return y[0].sum()

    return made, applied, jax.grad(loss)(made[1]["params"])


@functools.cache
def expected(name: str) -> Any:
    """What a mapping or a loop of the plain module gives."""
    return everything(SPREADING[name](Noisy), X, None)


@pytest.mark.parametrize("name", SPREADING)
@transparent
def test_remat_and_jit_change_nothing_within_a_mapping_or_a_loop(lift: Any, name: str) -> None:
    made, applied, gradients = everything(SPREADING[name](lift(Noisy)), X, None)
    assert_same(made[1]["params"], expected(name)[0][1]["params"])
    assert_same(applied[1]["intermediates"], expected(name)[1][1]["intermediates"])
    assert_close((made, applied, gradients), expected(name))


@pytest.mark.parametrize("name", SPREADING)
@transparent
def test_remat_and_jit_change_nothing_around_a_mapping_or_a_loop(lift: Any, name: str) -> None:
    for _ in range(2 if lift is nn.jit else 1):  # the second time, what was compiled is found again
        made, applied, gradients = everything(lift(SPREADING[name](Noisy)), X, None)
        assert_same(made[1]["params"], expected(name)[0][1]["params"])
        assert_same(applied[1]["intermediates"], expected(name)[1][1]["intermediates"])
        assert_close((made, applied, gradients), expected(name))


def test_remat_and_jit_change_nothing_within_each_other() -> None:
    plain = everything(Noisy, X)
    for nested in (nn.remat(nn.jit(nn.remat(Noisy))), nn.jit(nn.remat(nn.jit(Noisy)))):
        made, applied, gradients = everything(nested, X)
        assert_same(made[1]["params"], plain[0][1]["params"])
        assert_same(applied[1]["intermediates"], plain[1][1]["intermediates"])
        assert_close((made, applied, gradients), plain)


def test_mapped_loop_equals_nested_plain_loops() -> None:
    model = nn.vmap(nn.scan(Block, length=3, **OWN), **OWN)()
    (y, sums), variables = model.init_with_output(RNGS, X, None)
    assert shapes(variables["params"]["Dense_0"]) == {"bias": (2, 3, 3), "kernel": (2, 3, 3, 3)}
    for row, key in enumerate(jax.random.split(KEY, 2)):
        x = X[row]
        for step, inner in enumerate(jax.random.split(key, 3)):
            own = Block().init(inner, x)
            assert_same(element(element(variables, row), step), own)
            x, total = Block().apply(own, x)
            assert_close(sums[row, step], total)
        assert_close(y[row], x)
    assert_close(model.apply(variables, X, None), (y, sums))


def test_loop_of_mappings_equals_nested_plain_loops() -> None:
    model = nn.scan(nn.vmap(Block, **OWN), length=3, **OWN)()
    (y, sums), variables = model.init_with_output(RNGS, X, None)
    assert shapes(variables["params"]["Dense_0"]) == {"bias": (3, 2, 3), "kernel": (3, 2, 3, 3)}
    x = X
    for step, key in enumerate(jax.random.split(KEY, 3)):
        rows = []
        for row, inner in enumerate(jax.random.split(key, 2)):
            own = Block().init(inner, x[row])
            assert_same(element(element(variables, step), row), own)
            one, total = Block().apply(own, x[row])
            assert_close(sums[step, row], total)
            rows.append(one)
        x = jnp.stack(rows)
    assert_close(y, x)


def test_shared_and_own_parameters_nest() -> None:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            return nn.tanh(nn.Dense(3)(x)), None

    loops = nn.scan(Inner, variable_broadcast="params", split_rngs={"params": False}, length=3)
    ensemble = nn.vmap(loops, in_axes=None, axis_size=2, variable_axes={"params": 0}, split_rngs={"params": True})()
    (y, _), variables = ensemble.init_with_output(KEY, X, None)
    assert shapes(variables["params"]["Dense_0"]["kernel"]) == (2, 3, 3)
    for index, key in enumerate(jax.random.split(KEY, 2)):
        own = Inner().init(key, X)
        assert_same(element(variables, index), own)
        assert_close(y[index], functools.reduce(lambda x, _: Inner().apply(own, x)[0], range(3), X))


@pytest.mark.parametrize("names", ["vsr", "jsv", "sss", "vjv"])
def test_bodies_run_once_and_captured_values_stack_at_depth_three(names: str) -> None:
    lifts = {"v": "vmap", "s": "scan", "r": "remat", "j": "jit"}
    lifted: Any = Noisy
    for name in reversed(names):
        lifted = LIFTS[lifts[name]](lifted)
    x = X
    for _ in range(names.count("v") - 1):
        x = jnp.stack([x, x])
    RUNS.clear()
    variables = lifted().init(RNGS, x, None)
    assert len(RUNS) == 1
    sizes = tuple(2 for name in names if name in "vs")
    assert shapes(variables["params"]) == {"Dense_0": {"bias": (*sizes, 3), "kernel": (*sizes, 3, 3)}}
    assert shapes(variables["state"]) == {"total": sizes}
    _, changed = lifted().apply(variables, x, None, rngs=RNGS, mutable=["state", "intermediates"])
    assert len(RUNS) == 2
    drawn = changed["intermediates"]["drawn"][0]
    assert drawn.shape == sizes
    assert len(set(drawn.ravel().tolist())) == drawn.size  # every element and iteration draws a key of its own


def test_lifted_functions_nest_in_lifted_classes_and_methods() -> None:
    class Layer(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            return self.outer(x) if self.lifted else self.body(x), None

        def body(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            if self.lifted:
                return nn.jit(lambda mdl, x: nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x)))(self, x)
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

        outer = nn.remat(body)

    for spread in SPREADING.values():
        plain, expected = spread(Layer)(False).init_with_output(RNGS, X, None)
        y, variables = spread(Layer)(True).init_with_output(RNGS, X, None)
        assert_same(variables, expected)
        assert_close(y, plain)


def test_stack_of_blocks_with_everything() -> None:
    """A loop of recomputed blocks with statistics and dropout, in an ensemble: what models are made of."""

    class Residual(nn.Module):
        train: bool

        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            y = nn.BatchNorm(use_running_average=not self.train, momentum=0.5)(nn.Dense(3)(x))
            return x + nn.Dropout(0.5, deterministic=not self.train)(nn.relu(y)), None

    class Net(nn.Module):
        train: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            axes, split = {"params": 0, "batch_stats": 0}, {"params": True, "dropout": True}
            blocks = nn.scan(nn.remat(Residual), variable_axes=axes, split_rngs=split, length=2)
            x, _ = blocks(self.train, name="blocks")(x, None)
            return nn.Dense(2)(x)

    axes, split = {"params": 0, "batch_stats": 0}, {"params": True, "dropout": True}
    ensemble = functools.partial(nn.vmap(Net, in_axes=None, axis_size=2, variable_axes=axes, split_rngs=split))
    variables = ensemble(train=True).init(RNGS, X)
    y, mutated = ensemble(train=True).apply(variables, X, rngs=RNGS, mutable=["batch_stats"])
    assert shapes(mutated["batch_stats"]["blocks"]["BatchNorm_0"]) == {"mean": (2, 2, 3), "var": (2, 2, 3)}
    own = {name: jax.random.split(key, 2)[1] for name, key in RNGS.items()}
    assert_same(element(variables, 1), Net(True).init(own, X))
    one, stats = Net(True).apply(element(variables, 1), X, rngs=own, mutable=["batch_stats"])
    assert_close(y[1], one)
    assert_close(element(mutated, 1), stats)


class Counting(nn.Module):
    """Needs the stream `dropout` and the collection `stats`."""

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        self.variable("stats", "calls", lambda: jnp.zeros(())).value += 1
        return nn.Dropout(0.5, deterministic=False)(x), None


@pytest.mark.parametrize("inner", [nn.remat, nn.jit, nn.checkpoint], ids=["remat", "jit", "checkpoint"])
def test_an_error_names_the_lift_that_lacks_something_and_not_the_one_further_in(inner: Any) -> None:
    def made(collections: Any, sequences: Any) -> Any:
        axes, split = dict.fromkeys(collections, 0), dict.fromkeys(sequences, True)
        return nn.scan(inner(Counting), length=2, variable_axes=axes, split_rngs=split)().init(RNGS, X, None)

    with pytest.raises(UnliftedStreamError, match=r'but scan\(\w+\) at / .*`split_rngs=\{"dropout": True\}`'):
        made(["stats"], ["params"])
    with pytest.raises(
        UnliftedCollectionError, match=r'of scan\(\w+\) at / .*`variable_axes=\{"params": 0, "stats": 0\}`'
    ) as caught:
        made(["params"], ["params", "dropout"])
    assert "mutable=" not in str(caught.value)
    assert shapes(made(["stats"], ["dropout"])) == {"stats": {"calls": (2,)}}
