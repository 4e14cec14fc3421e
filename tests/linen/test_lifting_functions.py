"""Lifted functions and methods of a module, and modules that reach a lift as fields, arguments or attributes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import (
    AssignSubModuleError,
    InvalidScopeError,
    LiftArgumentError,
    NameInUseError,
    UnboundModuleError,
)
from linen_like.lifecycle.context import context
from tests.linen.lifted import (
    KEY,
    LIFTS,
    RNGS,
    SHARING,
    Block,
    X,
    assert_close,
    assert_same,
    dense_of,
    shapes,
)

lifts = pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
transparent = pytest.mark.parametrize("lift", [nn.remat, nn.jit], ids=["remat", "jit"])
sharing = pytest.mark.parametrize("name", SHARING)
TIMES = {"vmap": 1, "scan": 2, "remat": 1, "jit": 1}


# --- functions --------------------------------------------------------------------------------------------------------


@lifts
def test_function_makes_variables_of_the_module_it_is_given(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def scale(mdl: Any, x: Any, _: Any) -> Any:
                return x * mdl.param("scale", nn.initializers.normal(), ()), None

            return lift(scale)(self, x, None)[0]

    y, variables = Model().init_with_output(RNGS, X)
    stacked = () if lift in (nn.remat, nn.jit) else (2,)
    assert shapes(variables) == {"params": {"scale": stacked}}
    assert_close(Model().apply(variables, X), y)


@transparent
def test_automatic_names_go_on_through_lifted_functions(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layer = lift(lambda mdl, x, _: (nn.Dense(3)(x), None))
            x = nn.Dense(3)(x)
            x = layer(self, x, None)[0]
            x = layer(self, x, None)[0]
            return nn.Dense(3)(x)

    y, variables = Model().init_with_output(RNGS, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1", "Dense_2", "Dense_3"]
    assert_close(functools.reduce(lambda x, name: dense_of(variables, name)(x), variables["params"], X), y)
    for _ in range(2):  # names go on when nothing is traced, too
        assert_same(Model().init(RNGS, X), variables)
        assert_close(Model().apply(variables, X), y)


@lifts
def test_automatic_names_go_on_within_and_between_lifted_functions(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def layers(mdl: Any, x: Any, _: Any) -> Any:
                x = nn.Dense(3)(x)
                return nn.Dense(3)(x), None

            x = lift(layers)(self, x, None)[0]
            return lift(layers)(self, x, None)[0]

    variables = Model().init(RNGS, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1", "Dense_2", "Dense_3"]
    stacked = () if lift in (nn.remat, nn.jit) else (2,)
    assert shapes(variables["params"]["Dense_3"]["kernel"]) == (*stacked, 3, 3)


@transparent
def test_functions_with_equal_closures_and_without_any_give_equal_models(lift: Any) -> None:
    class Model(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            around = lift if self.lifted else lambda fn: fn
            for scale in (1.0, 2.0):

                def layer(mdl: Any, x: Any, scale: float = scale) -> Any:
                    return nn.Dropout(0.5, deterministic=False)(scale * nn.Dense(3)(x))

                x = around(layer)(self, x)
                x = around(lambda mdl, x: scale * nn.Dense(3)(x))(self, x)  # noqa: B023
            return x

    y, variables = Model(False).init_with_output(RNGS, X)
    for _ in range(2):
        lifted, made = Model(True).init_with_output(RNGS, X)
        assert_same(made, variables)
        assert_close(lifted, y)


@transparent
def test_lifted_function_takes_keyword_arguments_and_partials(lift: Any) -> None:
    def layer(features: int, mdl: Any, x: Any, *, shift: Any = 0.0) -> Any:
        return nn.Dense(features)(x) + shift

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(functools.partial(layer, 3))(self, x, shift=2.0)

    y, variables = Model().init_with_output(KEY, X)
    assert_close(y, dense_of(variables, "Dense_0")(X) + 2)


@transparent
def test_function_of_a_submodule_works_on_that(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            y = lift(lambda dense, x: dense(x))(dense, x)
            return lift(nn.Dense.__call__)(dense, y)

    y, variables = Model().init_with_output(KEY, X)
    dense = dense_of(variables, "dense")
    assert list(variables["params"]) == ["dense"]
    assert_close(y, dense(dense(X)))


@sharing
def test_function_uses_submodules_of_a_setup_module(name: str) -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.first, self.second = nn.Dense(3), nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            x = self.second(x)
            x, _ = SHARING[name](lambda mdl, x, _: (mdl.first(mdl.second(x)), None))(self, x, None)
            return self.first(x)

    y, variables = Model().init_with_output(KEY, X)
    first, second = dense_of(variables, "first"), dense_of(variables, "second")
    x = second(X)
    for _ in range(TIMES[name]):
        x = first(second(x))
    assert list(variables["params"]) == ["second", "first"]
    assert_close(y, first(x))


class Scaled(nn.Module):
    """Defines variables in `setup`, and draws there."""

    def setup(self) -> None:
        self.scale = self.param("scale", nn.initializers.normal(), ())
        self.offset = self.variable("state", "offset", lambda: jnp.full((), 2.0))

    def scaled(self, x: Any, _: Any = None) -> Any:
        return self.scale * x + self.offset.value, None


@sharing
@pytest.mark.parametrize("before", [True, False])
def test_function_uses_variables_of_a_setup_module(name: str, before: bool) -> None:
    class Model(Scaled):
        def __call__(self, x: Any) -> Any:
            y = x * self.scale if before else x
            shared = {"variable_axes": {"params": None, "state": None}} if name == "vmap" else {}
            shared = {"variable_broadcast": ["params", "state"]} if name == "scan" else shared
            y, _ = SHARING[name](lambda mdl, y, _: mdl.scaled(y), **shared)(self, y, None)
            return self.scale * y

    y, variables = Model().init_with_output(KEY, X)
    assert shapes(variables) == {"params": {"scale": ()}, "state": {"offset": ()}}
    scale = variables["params"]["scale"]
    x = scale * X if before else X
    for _ in range(TIMES[name]):
        x = scale * x + 2
    assert_close(y, scale * x)
    assert_close(Model().apply(variables, X), y)


@lifts
def test_method_of_a_module_that_defines_variables_in_setup(lift: Any) -> None:
    class Model(Scaled):
        @lift
        def __call__(self, x: Any, _: Any) -> Any:
            return self.scaled(x)

    (y, _), variables = Model().init_with_output(RNGS, X, None)
    stacked = () if lift in (nn.remat, nn.jit) else (2,)
    assert shapes(variables) == {"params": {"scale": stacked}, "state": {"offset": stacked}}
    assert_close(Model().apply(variables, X, None)[0], y)
    if not stacked:
        assert_close(y, variables["params"]["scale"] * X + 2)


@transparent
def test_setup_that_draws_moves_no_draw(lift: Any) -> None:
    class Model(nn.Module):
        lifted: bool

        def setup(self) -> None:
            self.noise = jax.random.normal(self.make_rng("params"))

        def add(self, x: Any) -> Any:
            return x + self.noise

        lifted_add = lift(add)

        def __call__(self, x: Any) -> Any:
            y = self.lifted_add(x) if self.lifted else self.add(x)
            return y, self.noise, jax.random.normal(self.make_rng("params"))

    assert_close(Model(True).apply({}, X, rngs=KEY), Model(False).apply({}, X, rngs=KEY))


def test_function_of_an_unbound_module_or_of_none_is_an_error() -> None:
    lifted = nn.remat(lambda mdl, x: x)
    with pytest.raises(UnboundModuleError, match=r"Block \(unbound\).*Use it within `init` or `apply`"):
        lifted(Block(), X)
    with pytest.raises(LiftArgumentError, match=r"nn.remat: expected a module as the first argument, given a float32"):
        lifted(X)


@lifts
def test_submodules_of_a_function_need_a_compact_method(lift: Any) -> None:
    class Model(nn.Module):
        def __call__(self, x: Any) -> Any:
            return lift(lambda mdl, x, _: (nn.Dense(3)(x), None))(self, x, None)

    with pytest.raises(AssignSubModuleError, match=r"outside `setup` and outside a compact method"):
        Model().init(RNGS, X)


@transparent
def test_module_made_in_a_lift_ends_with_it(lift: Any) -> None:
    kept = []

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def keep(mdl: Any, x: Any) -> Any:
                kept.append(nn.Dense(3))
                return kept[-1](x)

            x = lift(keep)(self, x)
            return kept[-1](x)

    with pytest.raises(InvalidScopeError, match=r"/\w+\(.*keep\)/Dense_0: it was used after the lift"):
        Model().init(KEY, X)


@transparent
def test_names_that_a_lifted_function_took_are_taken(lift: Any) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layer = lift(lambda mdl, x: nn.Dense(3, name="dense")(x))
            return layer(self, layer(self, x))

    for _ in range(2):
        with pytest.raises(NameInUseError, match=r'"dense" at /'):
            Model().init(KEY, X)


@transparent
def test_a_submodule_that_was_made_before_the_lift_is_used_inside_and_not_made_again(lift: Any) -> None:
    class Model(nn.Module):
        again: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, name="dense")
            x = dense(x)
            return lift(lambda mdl, x: (nn.Dense(3, name="dense") if self.again else dense)(x))(self, x)

    assert list(Model(False).init(KEY, X)["params"]) == ["dense"]
    message = "a scope .* has it already, outside the lift. Create it once, before the lift, and use it"
    with pytest.raises(NameInUseError, match=message):
        Model(True).init(KEY, X)


@lifts
def test_function_that_raises_takes_no_names_and_leaves_no_variables(lift: Any) -> None:
    class Model(nn.Module):
        fail: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            def fails(mdl: Any, x: Any, _: Any) -> Any:
                nn.Dense(3)(nn.Dense(3, name="named")(x))
                mdl.sow("state", "kept", x)
                raise RuntimeError("on purpose")

            if self.fail:
                with pytest.raises(RuntimeError, match="on purpose"):
                    lift(fails)(self, x, None)
                assert self.variables == {}
            assert context.modules[-1] is self
            return nn.Dense(3, name="named")(nn.Dense(3)(x))

    assert_same(Model(True).init(RNGS, X), Model(False).init(RNGS, X))
    assert context.modules == [None]


# --- methods ----------------------------------------------------------------------------------------------------------


@lifts
@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
def test_lift_may_stand_above_or_below_compact(lift: Any, above: bool) -> None:
    class Model(nn.Module):
        if above:

            @lift
            @nn.compact
            def __call__(self, x: Any, _: Any) -> Any:
                """Doubles."""
                return self.helper(nn.Dense(3)(x)), None

        else:

            @nn.compact
            @lift
            def __call__(self, x: Any, _: Any) -> Any:
                """Doubles."""
                return self.helper(nn.Dense(3)(x)), None

        def helper(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    (y, _), variables = Model().init_with_output(RNGS, X, None)
    assert Model.__call__.__doc__ == "Doubles."
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1"]
    stacked = () if lift in (nn.remat, nn.jit) else (2,)
    assert shapes(variables["params"]["Dense_1"]["bias"]) == (*stacked, 3)
    assert_close(Model().apply(variables, X, None), (y, None))
    if not stacked:
        assert_close(y, dense_of(variables, "Dense_1")(dense_of(variables, "Dense_0")(X)))


@transparent
def test_lifted_methods_call_each_other_and_go_on_with_names(lift: Any) -> None:
    class Model(nn.Module):
        lifted: bool

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            for _ in range(2):
                x = self.outer(x) if self.lifted else self.plain_outer(x)
            return nn.Dense(3)(x)

        def plain_outer(self, x: Any) -> Any:
            return nn.Dense(3)(self.plain_inner(nn.Dense(3)(x)))

        def plain_inner(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

        @lift
        def outer(self, x: Any) -> Any:
            return nn.Dense(3)(self.inner(nn.Dense(3)(x)))

        @lift
        def inner(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))

    y, variables = Model(False).init_with_output(RNGS, X)
    assert sorted(variables["params"]) == [f"Dense_{index}" for index in range(8)]
    for _ in range(2):
        lifted, made = Model(True).init_with_output(RNGS, X)
        assert_same(made, variables)
        assert_close(lifted, y)
        assert_close(Model(True).apply(variables, X, rngs=RNGS), Model(False).apply(variables, X, rngs=RNGS))


@lifts
def test_lifted_method_is_chosen_by_name_in_init_and_apply(lift: Any) -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        @lift
        def encode(self, x: Any, _: Any) -> Any:
            return self.dense(x), None

    (y, _), variables = Model().init_with_output(RNGS, X, None, method="encode")
    assert list(variables["params"]) == ["dense"]
    assert_close(Model().apply(variables, X, None, method=Model.encode)[0], y)


@transparent
def test_lifted_method_of_a_base_class_is_inherited_and_may_be_overridden(lift: Any) -> None:
    class Base(nn.Module):
        @lift
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.act(nn.Dense(3)(x))

        def act(self, x: Any) -> Any:
            return x

    class Doubled(Base):
        by: float = 2.0

        def act(self, x: Any) -> Any:
            return self.by * x

    class Around(Base):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = super().__call__(x)
            return nn.Dense(3)(x)

    variables = Base().init(KEY, X)
    assert_close(Doubled().apply(variables, X), 2 * Base().apply(variables, X))
    y, variables = Around().init_with_output(KEY, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1"]
    assert_close(y, dense_of(variables, "Dense_1")(dense_of(variables, "Dense_0")(X)))


# --- constructors -----------------------------------------------------------------------------------------------------


@transparent
def test_what_a_constructor_defines_is_defined_again_inside(lift: Any) -> None:
    class Scaled(nn.Module):
        def __post_init__(self) -> None:
            super().__post_init__()
            if self.scope is not None:
                self.__dict__["scale"] = self.scope.param("scale", jax.nn.initializers.normal(), (3,))

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(lambda module, x: x * module.scale)(self, x)

    y, variables = Scaled().init_with_output(KEY, X)
    assert shapes(variables) == {"params": {"scale": (3,)}}
    assert_close(y, X * variables["params"]["scale"])
    assert_close(Scaled().apply(variables, X), y)


@transparent
def test_what_an_init_of_the_class_itself_defines_is_defined_again_inside(lift: Any) -> None:
    class Scaled(nn.Module):
        size: int

        def __init__(self, size: int, parent: Any = None, name: str | None = None) -> None:
            self.size = size
            super().__init__(parent=parent, name=name)
            if self.scope is not None:
                self.__dict__["scale"] = self.scope.param("scale", jax.nn.initializers.normal(), (size,))

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return lift(lambda module, x: x * module.scale)(self, x)

    y, variables = Scaled(3).init_with_output(KEY, X)
    assert shapes(variables) == {"params": {"scale": (3,)}}
    assert_close(y, X * variables["params"]["scale"])
    assert_close(Scaled(3).apply(variables, X), y)


@transparent
def test_what_a_constructor_defines_gives_no_name_free(lift: Any) -> None:
    class Prepared(nn.Module):
        def __post_init__(self) -> None:
            super().__post_init__()
            if self.scope is not None:
                self.__dict__["scale"] = self.prepare()

        @nn.compact
        def prepare(self) -> Any:
            return self.param("scale", jax.nn.initializers.normal(), (3,))

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3, name="dense")(x)
            return lift(lambda module, x: nn.Dense(3, name="dense")(x))(self, x)

    with pytest.raises(NameInUseError, match="dense"):
        Prepared().init(KEY, X)


@pytest.mark.parametrize("again", ["submodule", "list", "parameter"])
@lifts
def test_setup_inside_a_lift_refuses_what_it_refuses_elsewhere(lift: Any, again: str) -> None:
    """The same attribute twice would share one name between two layers."""

    class Model(nn.Module):
        def setup(self) -> None:
            for _ in range(2):
                if again == "parameter":
                    self.a = self.param("a", nn.initializers.ones, ())
                else:
                    self.a = nn.Dense(3) if again == "submodule" else [nn.Dense(3)]

        def __call__(self, x: Any, _: Any) -> Any:
            return x, None

        def run(self, x: Any, _: Any) -> Any:
            return lift(lambda mdl, x, _: (x, None))(self, x, None)

    class Lifted(Model):
        __call__ = lift(lambda self, x, _: (x, None))

    for model, method in ((Model(), "__call__"), (lift(Model)(), "__call__"), (Lifted(), "__call__"), (Model(), "run")):
        with pytest.raises(NameInUseError, match=r'"a(_0)?" at /'):
            model.init(RNGS, X, None, method=method)


@lifts
def test_setup_runs_inside_a_lifted_method_that_reads_no_attribute(lift: Any) -> None:
    def call(self: Any, x: Any, _: Any) -> Any:
        return x, None

    class Model(nn.Module):
        def setup(self) -> None:
            self.scale = self.param("scale", nn.initializers.normal(), (3,))

        __call__ = lift(call)

    class Used(Model):
        __call__ = lift(lambda self, x, _: (x * self.scale, None))

    assert_same(Model().init(RNGS, X, None), Used().init(RNGS, X, None))
