"""`remat` and `jit` of modules change no name, no value and no draw, and `jit` traces equal modules once."""

from __future__ import annotations

import dataclasses
import functools
import gc
import random
import re
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import NotSharedWarning
from linen_like.errors import LiftArgumentError, UnliftedCollectionError, UnliftedStreamError
from tests.linen.lifted import KEY, RNGS, Block, X, assert_close, assert_same, shapes

both = pytest.mark.parametrize("lift", [nn.remat, nn.jit], ids=["remat", "jit"])


class Noisy(nn.Module):
    """A layer that draws from two streams and keeps statistics."""

    features: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False, momentum=0.5)(nn.Dense(self.features)(x))
        noise = jax.random.normal(self.make_rng("noise"), x.shape)
        self.sow("intermediates", "noise", noise)
        return x + nn.Dropout(0.5, deterministic=False)(noise)


def model_of(lift: Any) -> Any:
    """A model that draws before, in and after two lifted layers."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = Noisy()(x)
            x = lift(Noisy)()(x)
            x = lift(Noisy)(name="named")(x) + jax.random.normal(self.make_rng("noise"))
            x = lift(Noisy)()(x)
            return Noisy()(x)

    return Model()


THREE = {**RNGS, "noise": jax.random.key(2)}


@both
@pytest.mark.parametrize("rngs", [KEY, THREE], ids=["one key", "three keys"])
def test_lift_changes_no_name_no_value_and_no_draw(lift: Any, rngs: Any) -> None:
    y, variables = model_of(lambda cls: cls).init_with_output(rngs, X, mutable=True)
    assert list(variables["params"]) == ["Noisy_0", "Noisy_1", "named", "Noisy_2", "Noisy_3"]
    for _ in range(2):  # the second time, what `jit` compiled is found again
        lifted, made = model_of(lift).init_with_output(rngs, X, mutable=True)
        assert list(made["params"]) == list(variables["params"])
        assert_same(made["params"], variables["params"])
        assert_same(made["intermediates"], variables["intermediates"])
        assert_close((lifted, made), (y, variables))
    y, mutated = model_of(lambda cls: cls).apply(variables, X, rngs=rngs, mutable=["batch_stats", "intermediates"])
    for _ in range(2):
        lifted, changed = model_of(lift).apply(variables, X, rngs=rngs, mutable=["batch_stats", "intermediates"])
        assert_same(changed["intermediates"], mutated["intermediates"])
        assert_close((lifted, changed), (y, mutated))


@both
def test_gradients_are_those_of_the_plain_module(lift: Any) -> None:
    x = jax.random.normal(KEY, (8, 3))
    variables = model_of(lambda cls: cls).init(THREE, x)

    def loss(params: Any, x: Any, lift: Any) -> Any:
        y, _ = model_of(lift).apply({**variables, "params": params}, x, rngs=THREE, mutable=["batch_stats"])
        return (y**2).mean()

    expected = jax.grad(loss, (0, 1))(variables["params"], x, lambda cls: cls)
    assert_close(jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(variables["params"], x, lift), expected)


@both
def test_one_module_may_be_used_lifted_and_not(lift: Any) -> None:
    class Model(nn.Module):
        lifted: bool

        def setup(self) -> None:
            self.dense = nn.Dense(3)
            self.drop = nn.Dropout(0.5, deterministic=False)

        def step(self, x: Any) -> Any:
            return self.drop(self.dense(x))

        again = lift(step)

        def __call__(self, x: Any) -> Any:
            again = self.again if self.lifted else self.step
            return self.step(again(self.step(again(x))))

    y, variables = Model(False).init_with_output(RNGS, X)
    for _ in range(2):
        lifted, made = Model(True).init_with_output(RNGS, X)
        assert_same(made, variables)
        assert_close(lifted, y)


# --- arguments --------------------------------------------------------------------------------------------------------


class Modes(nn.Module):
    """Takes arguments that its Python looks at."""

    @nn.compact
    def __call__(self, x: Any, train: bool, *, mode: str = "plain") -> Any:
        y = nn.Dense(3)(x)
        return (2 * y if train else y) + (1 if mode == "shifted" else 0)


@both
@pytest.mark.parametrize("static", [{"static_argnums": 2}, {"static_argnums": (-1,)}, {"static_argnames": "train"}])
def test_static_arguments_count_the_module_and_may_be_given_either_way(lift: Any, static: dict[str, Any]) -> None:
    model = lift(Modes, **static)()
    variables = model.init(KEY, X, True)
    y = Modes().apply(variables, X, False)
    for _ in range(2):
        assert_close(model.apply(variables, X, False), y)
        assert_close(model.apply(variables, X, True), 2 * y)
        assert_close(model.apply(variables, X, train=True), 2 * y)
        assert_close(model.apply(variables, train=False, x=X), y)


@both
def test_static_arguments_may_be_named_and_keyword_only(lift: Any) -> None:
    model = lift(Modes, static_argnames=("train", "mode"))()
    variables = model.init(KEY, X, train=True, mode="shifted")
    y = Modes().apply(variables, X, False)
    assert_close(model.apply(variables, X, False, mode="shifted"), y + 1)
    assert_close(model.apply(variables, X, train=True), 2 * y)


@both
def test_static_arguments_of_lifted_functions_and_methods_count_alike(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def function(mdl: Any, x: Any, double: bool) -> Any:
                return nn.Dense(3)(2 * x if double else x)

            return self.method(lift(function, static_argnums=(2,))(self, x, True), True)

        def method(self, x: Any, double: bool) -> Any:
            return 2 * x if double else x

        method = lift(method, static_argnums=(2,))

    y, variables = Model().init_with_output(KEY, X)
    assert_close(y, 2 * nn.Dense(3).apply({"params": variables["params"]["Dense_0"]}, 2 * X))


@both
def test_flag_that_is_not_declared_static_is_told_how_to(lift: Any) -> None:
    with pytest.raises(Exception, match=r"Attempted boolean conversion") as caught:
        lift(Modes)().init(KEY, X, True)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "static_argn" in told
    assert "train" in told


@both
def test_text_that_is_not_declared_static_is_told_how_to(lift: Any) -> None:
    with pytest.raises(TypeError) as caught:
        lift(Modes, static_argnames="train")().init(KEY, X, True, mode="plain")
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "static_argn" in told
    assert "mode" in told
    assert "Layout(" not in told  # a value of ours


@both
def test_wrong_static_arguments_are_errors(lift: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"number 0 is the scope \(or module\) itself"):
        lift(Modes, static_argnums=(0, 2))().init(KEY, X, True)
    with pytest.raises(
        LiftArgumentError, match=r"\(Modes\) at /: expected a hashable value as the static argument .*, given \["
    ):
        lift(Modes, static_argnums=2)().init(KEY, X, [1])


@both
def test_only_what_is_lifted_may_be_written_and_drawn(lift: Any) -> None:
    class Model(nn.Module):
        options: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(Noisy, **self.options)()(x)

    with pytest.raises(UnliftedCollectionError, match=r'"batch_stats/mean" at /Noisy_0/\w+\(Noisy\)/BatchNorm_0'):
        Model({"variables": "params"}).init(THREE, X)
    with pytest.raises(UnliftedStreamError, match=r'make_rng\("noise"\) at /Noisy_0/\w+\(Noisy\)'):
        Model({"rngs": "params"}).init(THREE, X)


@both
def test_changed_collections_come_out_and_nothing_given_is_changed(lift: Any) -> None:
    class Count(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            calls = self.variable("state", "calls", lambda: jnp.zeros((), jnp.int32))
            calls.value += 1
            return x

    variables = lift(Count)().init(KEY, X)
    for count in (2, 3, 4):
        before = jax.tree.map(np.array, variables)
        _, mutated = lift(Count)().apply(variables, X, mutable=["state"])
        assert_same(jax.tree.map(np.array, variables), before)
        assert_same(mutated["state"]["calls"], jnp.array(count))
        variables = mutated


# --- what JAX sees ----------------------------------------------------------------------------------------------------


def test_remat_computes_again_what_its_policy_does_not_save() -> None:
    class Sines(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return jnp.sin(jnp.sin(nn.Dense(3)(x)))

    variables = Sines().init(KEY, X)

    def products(**options: Any) -> int:
        model = nn.remat(Sines, **options)()
        program = jax.make_jaxpr(jax.grad(lambda variables: model.apply(variables, X).sum()))(variables)
        return len(re.findall(r"= dot_general\[", str(program)))

    assert products(policy=jax.checkpoint_policies.everything_saveable) < products()
    assert products(policy=jax.checkpoint_policies.dots_saveable) < products()
    assert products(policy=jax.checkpoint_policies.nothing_saveable) == products()


def test_options_reach_jax() -> None:
    def program(model: Any) -> str:
        return str(jax.make_jaxpr(lambda variables: model.apply(variables, X))(variables))

    variables = Block().init(KEY, X)
    assert "prevent_cse=False" in program(nn.remat(Block, prevent_cse=False)())
    assert "prevent_cse=True" in program(nn.remat(Block)())
    assert "name=Block" in program(nn.jit(Block)())
    # An older JAX leaves no equation of the call, a newer one an equation that says so.
    inlined = jax.make_jaxpr(lambda variables: nn.jit(Block, inline=True)().apply(variables, X))(variables)
    assert all(eqn.params.get("inline", True) for eqn in inlined.jaxpr.eqns)


def test_jit_donates_arguments() -> None:
    class Add(nn.Module):
        @nn.compact
        def __call__(self, x: Any, y: Any) -> Any:
            return x + y + self.param("shift", nn.initializers.ones, ())

    model = nn.jit(Add, donate_argnums=2)()
    variables = model.init(KEY, X, jnp.copy(X))
    kept, given = jnp.copy(X), jnp.copy(X)
    assert_close(model.apply(variables, kept, given), 2 * X + 1)
    assert given.is_deleted()
    assert not kept.is_deleted()
    given = jnp.copy(X)
    nn.jit(Add, donate_argnames="y")().apply(variables, kept, y=given)
    assert given.is_deleted()


# --- traces -----------------------------------------------------------------------------------------------------------


class Counted(nn.Module):
    """Counts how often its Python runs."""

    scale: Any = 1.0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        RUNS.append(self.path)
        return self.scale * nn.Dense(3)(x) + jax.random.normal(self.make_rng("noise"))


RUNS: list[Any] = []


class Deep(nn.Module):
    scales: tuple[Any, ...]
    lift: Any = nn.jit

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for scale in self.scales:
            x = self.lift(Counted)(scale)(x)
        return x


def runs(fn: Any, *args: Any, **kwargs: Any) -> tuple[int, Any]:
    RUNS.clear()
    result = fn(*args, **kwargs)
    return len(RUNS), result


def test_equal_blocks_are_traced_once_and_draw_different_keys() -> None:
    rngs = {"params": KEY, "noise": jax.random.key(3)}
    scales = (0.25, 0.25, 0.25)
    count, (y, variables) = runs(Deep(scales).init_with_output, rngs, X)
    assert count == 1
    plain, expected = Deep(scales, lambda cls: cls).init_with_output(rngs, X)
    assert_same(variables, expected)
    assert_close(y, plain)
    kernels = [variables["params"][f"Counted_{index}"]["Dense_0"]["kernel"] for index in range(3)]
    assert (kernels[0] != kernels[1]).all()
    assert (kernels[1] != kernels[2]).all()
    count, y = runs(Deep(scales).apply, variables, X, rngs=rngs)
    assert count == 1
    assert_close(y, plain)


def test_second_call_runs_no_python() -> None:
    rngs = {"params": KEY, "noise": jax.random.key(3)}
    model = Deep((0.5,))
    variables = model.init(rngs, X)
    first = model.apply(variables, X, rngs=rngs)
    assert runs(model.init, rngs, X)[0] == 0
    count, second = runs(model.apply, variables, X, rngs=rngs)
    assert count == 0
    assert_same(second, first)
    count, other = runs(Deep((0.5,)).apply, variables, X, rngs={"noise": KEY})  # other keys, another instance
    assert_close(other, Deep((0.5,), lambda cls: cls).apply(variables, X, rngs={"noise": KEY}))


@pytest.mark.parametrize("scales", [(2.0, 2), (1, True), (0.0, -0.0), (np.float32(3), 3.0), ("a", "b")])
def test_other_fields_are_traced_again(scales: tuple[Any, ...]) -> None:
    class Typed(nn.Module):
        value: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            RUNS.append(self.value)
            return nn.Dense(3)(x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for scale in (*scales, *scales):
                x = nn.jit(Typed)(scale)(x)
            return x

    count, _ = runs(Model().init, KEY, X)
    assert count == 2


def test_another_shape_or_mutable_set_is_traced_again_and_remembered() -> None:
    rngs = {"params": KEY, "noise": KEY}
    model = nn.jit(Counted)(7.0)
    variables = model.init(rngs, X)
    assert runs(model.apply, variables, X, rngs=rngs)[0] == 1
    assert runs(model.apply, variables, X[:1], rngs=rngs)[0] == 1
    assert runs(model.apply, variables, X, rngs=rngs, mutable=["state"])[0] == 1
    for shape in (X, X[:1]):
        assert runs(model.apply, variables, shape, rngs=rngs)[0] == 0
    assert runs(model.apply, variables, X, rngs=rngs, mutable=["state"])[0] == 0


def test_fields_that_cannot_be_hashed_still_work() -> None:
    class Weighted(nn.Module):
        weights: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.weights * nn.Dense(3)(x)

    weights: Any = np.array([1.0, 2.0, 3.0], np.float32)
    y, variables = nn.jit(Weighted)(weights).init_with_output(KEY, X)
    assert_close(y, Weighted(weights).apply(variables, X))
    weights = jnp.array([3.0, 2.0, 1.0])
    with pytest.warns(NotSharedWarning, match=r"^Weighted\.weights is a float32\[3\] array, .* Pass it as an argument"):
        y, variables = nn.jit(Weighted)(weights).init_with_output(KEY, X)
    assert_close(y, Weighted(weights).apply(variables, X))


@dataclasses.dataclass(frozen=True)
class Cfg:
    by: Any


class Settings:
    def __init__(self, by: Any) -> None:
        self.by = by


class Scaled(nn.Module):
    cfg: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        RUNS.append(self.cfg)
        return x * getattr(self.cfg, "by", self.cfg)


TOLD_APART = {
    "types in a dataclass": (Cfg(1), Cfg(1.0)),
    "types in a container": ([7], [7.0]),
    "bool and int": ((True,), (1,)),
    "zeros": (0.0, -0.0),
    "zeros of NumPy": (np.float32(0.0), np.float32(-0.0)),
    "arrays of NumPy": (np.arange(3), np.arange(3) + 1),
    "deep in a dataclass": (Cfg({"a": [np.float32(0.0)]}), Cfg({"a": [np.float32(-0.0)]})),
}


@pytest.mark.parametrize("case", TOLD_APART)
def test_jit_shares_nothing_between_fields_that_a_trace_tells_apart(case: str) -> None:
    one, other = TOLD_APART[case]
    RUNS.clear()
    for cfg in (one, other, one, other):
        jax.eval_shape(lambda x, cfg=cfg: nn.jit(Noted)(cfg).apply({}, x), X)
    assert len(RUNS) == 2


class Noted(nn.Module):
    cfg: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        RUNS.append(self.cfg)
        return x


def test_jit_gives_the_dtype_of_each_config() -> None:
    x = jnp.ones(2, int)
    assert [nn.jit(Scaled)(Cfg(by)).apply({}, x).dtype.name for by in (1, 1.0, 1)] == ["int32", "float32", "int32"]


def test_jit_sees_what_was_changed_in_place() -> None:
    table = np.ones(3, np.float32)
    scaled = nn.jit(Scaled)(table)
    assert scaled.apply({}, 2.0).tolist() == [2.0, 2.0, 2.0]
    table[0] = 5.0
    assert scaled.apply({}, 2.0).tolist() == [10.0, 2.0, 2.0]
    options = {"by": 1}
    noted = nn.jit(Noted)(options)
    RUNS.clear()
    noted.apply({}, 2.0)
    options["by"] = 2
    noted.apply({}, 2.0)
    assert len(RUNS) == 2


@pytest.mark.parametrize("hold", [lambda table: table, lambda table: [table], lambda table: Cfg(table)])
def test_numbers_of_an_array_that_changed_in_place_are_those_of_now(hold: Any) -> None:
    class Held(nn.Module):
        held: Any

        def __call__(self, x: Any) -> Any:
            return x * (self.held.by if isinstance(self.held, Cfg) else jax.tree.leaves(self.held)[0])

    table = np.ones(3)
    assert nn.jit(Held)(hold(table)).apply({}, 1.0).tolist() == [1.0, 1.0, 1.0]
    table[:] = 2
    assert nn.jit(Held)(hold(table)).apply({}, 1.0).tolist() == [2.0, 2.0, 2.0]


def test_what_is_kept_is_traced_again_with_what_its_key_says() -> None:
    sizes = [2]

    class Sized(nn.Module):
        cfg: Any

        def __call__(self, x: Any) -> Any:
            return x * self.cfg.by[0]

    scaled = nn.jit(Sized)
    assert scaled(Cfg(sizes)).apply({}, 1.0) == 2.0
    sizes[0] = 3
    assert scaled(Cfg([2])).apply({}, jnp.ones(2)).tolist() == [2.0, 2.0]


def test_an_object_that_changes_is_traced_again() -> None:
    settings, runs = Settings(3.0), []

    class Counted(Scaled):
        def __call__(self, x: Any) -> Any:
            runs.append(x)
            return super().__call__(x)

    scaled = nn.jit(Counted)(settings)
    assert [scaled.apply({}, 2.0) for _ in range(2)] == [6.0, 6.0]
    settings.by = 5.0
    assert scaled.apply({}, 2.0) == 10.0
    assert len(runs) == 2


def test_an_object_without_a_key_is_never_served_a_trace_and_is_named() -> None:
    settings = Settings(3.0)
    settings.rows = random.Random(0)  # type: ignore[attr-defined]
    scaled = nn.jit(Scaled)(settings)
    with liftcore.retraces() as found:
        with pytest.warns(
            NotSharedWarning,
            match=r"^Scaled\.cfg\.rows is .*Random.*, which cannot be compared by .* Make Random a frozen dataclass",
        ):
            assert scaled.apply({}, 2.0) == 6.0
        settings.by = 5.0
        assert scaled.apply({}, 2.0) == 10.0  # and warns no more
    assert "not comparable by its contents: 'Scaled.cfg.rows'" in str(found)


def test_partials_in_fields_are_compared_by_value() -> None:
    class Normed(nn.Module):
        norm: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            RUNS.append(self.path)
            return self.norm()(nn.Dense(3)(x))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(2):
                x = nn.jit(Normed)(functools.partial(nn.LayerNorm, epsilon=1e-3))(x)
            return nn.jit(Normed)(functools.partial(nn.LayerNorm, epsilon=1e-2))(x)

    count, variables = runs(Model().init, KEY, X)
    assert count == 2
    assert runs(Model().apply, variables, X)[0] == 2
    assert runs(Model().apply, variables, X)[0] == 0


def test_trace_is_shared_across_places_and_wrappers_but_not_across_classes() -> None:
    class Other(Counted):
        pass

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.jit(Counted)(0.125, name="first")(x)
            x = Inner(name="inner")(x)
            return nn.jit(Other)(0.125)(x)

    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.jit(Counted)(0.125, name="deep")(x)

    count, variables = runs(Model().init, {"params": KEY, "noise": KEY}, X)
    assert count == 2
    assert shapes(variables["params"]["inner"]["deep"]) == shapes(variables["params"]["first"])


def test_no_array_is_kept_alive() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, captured: Any) -> Any:
            return nn.jit(lambda mdl, x: captured * nn.Dense(3)(x))(self, nn.jit(Block)()(x)[0])

    variables = Model().init(KEY, X, jnp.ones(3))
    captured = jnp.arange(3.0)
    kept = [weakref.ref(captured), weakref.ref(variables["params"]["Block_0"]["Dense_0"]["kernel"])]
    Model().apply(variables, X, captured)
    del captured, variables
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


def test_remat_runs_its_body_once() -> None:
    rngs = {"params": KEY, "noise": KEY}
    model = Deep((0.5,), nn.remat)
    count, variables = runs(model.init, rngs, X)
    assert count == 1
    assert runs(model.apply, variables, X, rngs=rngs)[0] == 1
    assert runs(jax.grad(lambda variables: model.apply(variables, X, rngs=rngs).sum()), variables)[0] == 1


def test_jit_runs_its_body_once_under_grad_and_outer_jit() -> None:
    rngs = {"params": KEY, "noise": KEY}
    model = Deep((0.75, 0.75))
    variables = model.init(rngs, X)
    loss = jax.jit(jax.grad(lambda variables: model.apply(variables, X, rngs=rngs).sum()))
    assert runs(loss, variables)[0] == 1
    assert runs(loss, variables)[0] == 0
