"""`nn.transformation` and `nn.lift_with`: lifted transformations of a user's own, for modules."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import LiftArgumentError, UnliftedCollectionError
from linen_like.errors import TransformTargetError
from tests.linen.lifted import KEY, LIFTS, RNGS, SHARING, Block, X, assert_close, assert_same, shapes


def without_gradient(body: Any, variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
    return body(jax.lax.stop_gradient(variables), rngs, *args, **kwargs)


def of_columns(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
    return jax.vmap(lambda x: body(variables, rngs, x), 1)(x)


frozen = nn.transformation(without_gradient, [True], [True, nn.Captured()], [True], name="frozen")


def gradient(model: Any, variables: Any, *args: Any) -> Any:
    return jax.grad(lambda variables: jnp.sum(jax.tree.leaves(model.apply(variables, *args))[0]))(variables)["params"]


class Model(nn.Module):
    """A model with a part that is not trained."""

    part: Callable[..., Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1, name="head")(self.part(self, x))


PARTS: dict[str, Callable[..., Any]] = {
    "class": lambda mdl, x: frozen(nn.Dense)(3, name="part")(x),
    "partial of a class": lambda mdl, x: frozen(functools.partial(nn.Dense, 3))(name="part")(x),
    "function that makes the module": frozen(lambda mdl, x: nn.Dense(3, name="part")(x)),
    "function of a module": lambda mdl, x: frozen(lambda dense, x: dense(x))(nn.Dense(3, name="part"), x),
    "method of a module": lambda mdl, x: frozen(nn.Dense.__call__)(nn.Dense(3, name="part"), x),
    "bound method": lambda mdl, x: frozen(nn.Dense(3, name="part").__call__)(mdl, x),
    "closure": lambda mdl, x: (lambda dense: frozen(lambda _: dense(x))(mdl))(nn.Dense(3, name="part")),
}


@pytest.mark.parametrize("part", PARTS)
def test_it_lifts_classes_functions_and_methods_without_changing_names_or_draws(part: str) -> None:
    model, plain = Model(PARTS[part]), Model(lambda mdl, x: nn.Dense(3, name="part")(x))
    variables = model.init(KEY, X)
    assert_same(variables, plain.init(KEY, X))
    assert_same(model.apply(variables, X), plain.apply(variables, X))
    grads = gradient(model, variables, X)
    assert not grads["part"]["kernel"].any()
    assert grads["head"]["kernel"].any()


def test_it_stands_above_methods_and_keeps_automatic_names() -> None:
    class Twice(nn.Module):
        @nn.compact
        @frozen
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(nn.Dense(3)(x))

    class Above(nn.Module):
        @frozen
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(nn.Dense(3)(x))

    for model in (Twice(), Above(), frozen(nn.Sequential)([frozen(nn.Dense)(3), nn.Dense(3)])):
        variables = model.init(KEY, X)
        assert len(variables["params"]) == 2
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradient(model, variables, X)))

    class Several(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return frozen(nn.Dense)(3)(frozen(nn.Dense)(3)(nn.Dense(3)(x)))

    assert sorted(Several().init(KEY, X)["params"]) == ["Dense_0", "Dense_1", "Dense_2"]


def test_methods_choose_what_is_lifted() -> None:
    class Both(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        def encode(self, x: Any) -> Any:
            return self.dense(x)

        def decode(self, x: Any) -> Any:
            return self.dense(x)

        def __call__(self, x: Any) -> Any:
            return self.decode(self.encode(x))

    model = frozen(Both, methods=["encode"])()
    variables = model.init(KEY, X)
    for method, any_gradient in (("encode", False), ("decode", True)):
        apply = functools.partial(model.apply, method=method)
        grads = jax.grad(lambda variables, apply=apply: apply(variables, X).sum())(variables)["params"]
        assert bool(grads["dense"]["kernel"].any()) == any_gradient
    with pytest.raises(LiftArgumentError, match="Both has no method"):
        frozen(Both, methods=["forward"])


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("outside", [True, False])
def test_it_nests_in_and_around_the_others_in_init_and_apply(lift: str, outside: bool) -> None:
    around = LIFTS[lift]
    model = frozen(around(Block))() if outside else around(frozen(Block))()
    plain, xs = around(Block)(), None if lift == "scan" else X
    variables = model.init(RNGS, X, xs)
    assert_same(variables, plain.init(RNGS, X, xs))
    assert_same(model.apply(variables, X, xs, rngs=RNGS), plain.apply(variables, X, xs, rngs=RNGS))
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient(model, variables, X, xs)))


@pytest.mark.parametrize("lift", SHARING)
def test_parameters_shared_by_a_lift_around_are_made_inside(lift: str) -> None:
    around, xs = SHARING[lift], None if lift == "scan" else X
    variables = around(frozen(Block))().init(RNGS, X, xs)
    assert_same(variables, around(Block)().init(RNGS, X, xs))


ROUND: dict[str, Callable[..., Any]] = {
    "cond": lambda fn, mdl, x: nn.cond(True, fn, fn, mdl, x),
    "while_loop": lambda fn, mdl, x: nn.while_loop(lambda mdl, x: x.sum() < 0, fn, mdl, x, split_rngs=False),
    "fori_loop": lambda fn, mdl, x: nn.fori_loop(0, 2, lambda mdl, i, x: fn(mdl, x), mdl, x, split_rngs=False),
    "grad": lambda fn, mdl, x: nn.grad(lambda mdl, x: fn(mdl, x).sum(), mdl, x)[0],
    "vjp": lambda fn, mdl, x: nn.vjp(fn, mdl, x)[0],
    "jvp": lambda fn, mdl, x: nn.jvp(fn, mdl, (x,), (x,), {})[1],
    "map_variables": lambda fn, mdl, x: nn.map_variables(fn, "params", init=True)(mdl, x),
    "checkify": lambda fn, mdl, x: nn.checkify(fn)(mdl, x)[1],
    "itself": lambda fn, mdl, x: frozen(fn)(mdl, x),
}


@pytest.mark.parametrize("name", ROUND)
def test_it_runs_inside_of_what_runs_at_once(name: str) -> None:
    class Around(nn.Module):
        lift: Callable[..., Any]

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return ROUND[name](self.lift(lambda mdl, x: nn.Dense(3)(x)), self, x)

    model, plain = Around(frozen), Around(lambda fn: fn)
    variables = model.init(KEY, X)
    assert_same(variables, plain.init(KEY, X))
    assert_close(model.apply(variables, X), plain.apply(variables, X))


def test_state_and_sown_values_come_out_and_unlifted_ones_are_an_error() -> None:
    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("state", "n", lambda: 0).value += 1
            self.sow("intermediates", "x", x)
            return nn.Dense(3)(x)

    variables = frozen(Counting)().init(KEY, X)
    assert variables["state"] == {"n": 1}
    _, written = frozen(Counting)().apply(variables, X, mutable=["state", "intermediates"])
    assert written["state"] == {"n": 2}
    assert_same(written["intermediates"]["x"], (X,))
    params_only = nn.transformation(without_gradient, ["params"], ["params"], [True], name="params_only")
    with pytest.raises(UnliftedCollectionError) as caught:
        params_only(Counting)().init(KEY, X)
    assert caught.value.where == '"state/n" at /params_only(Counting)'


def rematted(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
    return liftcore.outline(jax.checkpoint, body, variables, rngs, *args)


def test_one_that_makes_one_equation_hoists_in_the_init_of_a_loop() -> None:
    own = nn.transformation(rematted, [True], [True, nn.Captured(all=True)], [True], shown=False)

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> tuple[Any, None]:
            n = self.variable("state", "n", lambda: jnp.zeros(()))
            n.value += 1
            return nn.Dense(3)(x), None

    loop = {"variable_broadcast": "params", "variable_carry": "state", "length": 3, "split_rngs": False}
    for lift in (own, nn.remat):
        model = nn.scan(lift(Step), **loop)()  # type: ignore[arg-type]
        (y, _), variables = model.init_with_output(KEY, X, None)
        assert variables["state"] == {"n": 3}
        (expected, _), plain = nn.scan(Step, **loop)().init_with_output(KEY, X, None)  # type: ignore[arg-type]
        assert_same(variables, plain)
        assert_close(y, expected)
    with pytest.raises(UnliftedCollectionError) as caught:
        nn.transformation(rematted, [True], ["params"], [True], shown=False)(Step)().init(KEY, X, None)
    assert caught.value.where == '"state/n" at /'


def test_it_maps_with_a_prefix_in_automatic_names() -> None:
    columns = nn.transformation(of_columns, [True], [True], [True], name="columns", prefix="Columns")

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return columns(nn.Dense)(2)(x)

    variables = Outer().init(KEY, X)
    assert shapes(variables["params"]) == {"ColumnsDense_0": {"bias": (3, 2), "kernel": (3, 2, 2)}}


class Plain(nn.Module):
    """A module that can be pickled."""

    size: int = 3

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(self.size)(x)


def test_equal_transformations_make_the_same_class_and_modules_are_pickled() -> None:
    again = nn.transformation(without_gradient, (True,), [True, nn.Captured()], [True], name="frozen")
    other = nn.transformation(without_gradient, ["params"], [True, nn.Captured()], [True], name="frozen")
    assert again(Plain) is frozen(Plain) is not other(Plain)
    assert frozen(Plain).__name__ == "FrozenPlain"
    module = frozen(Plain)(4, name="layer")
    found = pickle.loads(pickle.dumps(module))
    assert type(found) is type(module)
    assert found == module
    assert_same(found.init(KEY, X), module.init(KEY, X))


def test_equal_modules_under_jit_share_a_trace() -> None:
    runs = []

    def counted(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        runs.append(None)
        return body(variables, rngs, *args)

    own = nn.transformation(counted, [True], [True], [True])

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = nn.jit(own(nn.Dense))(3)(x)
            return x

    variables = Deep().init(KEY, X)
    assert len(runs) == 1
    assert list(variables["params"]) == ["Dense_0", "Dense_1", "Dense_2"]

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            runs.append(None)
            return nn.Dense(3)(x)

    class Around(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = frozen(nn.jit(Layer))()(x)
            return x

    runs.clear()
    Around().init(KEY, X)
    assert len(runs) == 1


def test_lift_with_takes_any_lift_of_functions_of_scopes() -> None:
    twice = functools.partial(liftcore.vmap, variable_axes={"params": None}, split_rngs=False)

    def rematted(fn: Any, policy: Any = None) -> Any:
        return liftcore.remat(twice(fn), policy=policy)

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.lift_with(rematted, nn.Dense)(3, name="a")(x)
            x = nn.lift_with(functools.partial(rematted, policy=None), nn.Dense, methods="__call__")(3, name="b")(x)
            return nn.lift_with(liftcore.cond, nn.Dense.__call__, nn.Dense.__call__)(nn.Dense(3, name="c"), True, x)

    class Unlifted(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3, name="c")(nn.Dense(3, name="b")(nn.Dense(3, name="a")(x)))

    variables = Outer().init(KEY, X)
    assert_same(variables, Unlifted().init(KEY, X))
    assert_close(Outer().apply(variables, X), Unlifted().apply(variables, X))
    assert nn.lift_with(rematted, nn.Dense).__name__ == "RemattedDense"


def test_wrong_targets_and_transforms_say_what_is_expected() -> None:
    with pytest.raises(TransformTargetError) as caught:
        frozen(nn.Dense(3))
    assert str(caught.value) == (
        "frozen: expected a Module class or a function of a module, given an instance of Dense. "
        "Lift the class: `frozen(Dense, …)(…)`."
    )
    with pytest.raises(LiftArgumentError, match="expected a function, given 3"):
        nn.transformation(3, [True], [True], [True])  # type: ignore[arg-type]
    with pytest.raises(TransformTargetError, match="given None"):
        nn.lift_with(liftcore.remat)
    with pytest.raises(
        LiftArgumentError, match="frozen, methods: it selects methods of a class, but the target is a function"
    ):
        frozen(without_gradient, methods="__call__")
    with pytest.raises(LiftArgumentError, match="is not an option"):
        frozen(nn.Dense, methods={"__call__": {"axis": 1}})
